//! Types and the decision algorithm that the kernel side and the user side of smc-agent share.
//!
//! Everything here compiles for the BPF target as well: no allocation, no recursion, no panic, every loop bounded
//! by a constant, and every index masked at the access, so that the verifier of a 5.10 kernel sees its bound.
#![no_std]
#![expect(
    clippy::inline_always,
    reason = "a BPF program has no calls to spare, and the verifier loses bounds across them"
)]

pub mod convert;
pub mod decide;
pub mod event;
pub mod flow;
pub mod table;

pub use decide::{Classified, Decision, TableReader, Verdict, classify, decide, first_match, next_shadow};
pub use event::{
    Counter, DEVICE_NAME, EVENT_DENIED, EVENT_SHADOW, EVENT_VERDICT_DENY, Event, EventKind, Owner, OwnerSeen,
    Rate, RateKey, Refusal, RefusalKey, SCOPE_ALL,
};
pub use flow::{Address, Family, Flow, Role};
pub use table::{Fixed, Line, MAX_RULES, RULE_DEFAULT};
