//! Everything this project says over netlink: SMC's generic netlink, its PNET table, its socket diagnostics and TCP's,
//! and the list of network interfaces.
//!
//! - [`wire`]: the bytes: requests are built and answers taken apart there, without a socket;
//! - [`socket`]: one request and its answers, with a deadline;
//! - [`genl`]: generic netlink, whose families are found by name;
//! - [`smc`], [`pnet`], [`diag`], [`tcp`], [`link`], [`nsid`], [`qdisc`]: one subject each, with typed results;
//! - [`module`]: the kernel's word on modules that come and go.
//!
//! A socket belongs to the network namespace of the thread that opens it, for good: to look into another namespace,
//! enter it, open, and keep the socket. All parsers are total: whatever the kernel (or a fuzzer) sends, they return a
//! value or [`Error::Malformed`]. Attributes that they do not know are skipped, since later kernels add some.

pub mod diag;
mod error;
pub mod genl;
pub mod link;
pub mod module;
pub mod nsid;
pub mod pnet;
pub mod qdisc;
pub mod smc;
pub mod socket;
pub mod tcp;
pub mod wire;

pub use error::{Error, Result};
pub use socket::{DumpEnd, Protocol, Socket};
pub use wire::{Attribute, Attributes, Message, Request};
