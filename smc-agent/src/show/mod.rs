//! What there is of SMC on this host, read from the kernel and joined: what `smc-agent show` prints.
//!
//! One module for each subject, with a type that is its JSON form, and a function that fills it in for the network
//! namespace of the calling thread. [`netns`] brings a thread into others.

mod devices;
mod error;
mod fallbacks;
mod groups;
mod info;
pub mod mark;
mod monitor;
pub mod netns;
mod owners;
pub mod schema;
mod settings;
mod sockets;
mod stats;
mod summary;

pub use devices::{Devices, DibsDevice};
pub use error::{Result, ShowError};
pub use fallbacks::{FallbackReason, Fallbacks};
pub use groups::{LinkGroups, Links, ListedLink};
pub use info::{Info, Sysctl};
pub use monitor::{Connections, Meter, Rates, Sample, Traffic, growth};
pub use netns::{Namespace, Scope};
pub use owners::{Owner, Owners};
pub use settings::{HandshakeLimit, PnetRow, PnetRows, SystemEid, UserEids};
pub use sockets::{
    AddressSource, Code, DmbInfo, Endpoint, FallbackCodes, LinkInfo, Mode, Protocol, Selection, Socket,
    SocketFilter, Sockets,
};
pub use stats::{FallbackTotals, Stats};
pub use summary::SocketCounts;

use schemars::JsonSchema;
use serde::Serialize;

/// Version of the JSON forms of this module.
pub const VERSION: u32 = 1;

/// A subject in each of the network namespaces that were looked into.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Report<T> {
    /// Version of this form.
    pub version: u32,
    /// What was found, by network namespace.
    pub namespaces: Vec<InNamespace<T>>,
}

/// A subject in one network namespace.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct InNamespace<T> {
    /// Which network namespace.
    pub netns: Namespace,
    /// What was found there.
    #[serde(flatten)]
    pub found: T,
}

/// Runs `collect` in each network namespace of `scope`.
pub fn collect<T: Send>(scope: &Scope, collect: impl Fn() -> Result<T> + Sync) -> Result<Report<T>> {
    let found = netns::visit(scope, collect)?;
    let namespaces = found.into_iter().map(|(netns, found)| InNamespace { netns, found }).collect();
    Ok(Report { version: VERSION, namespaces })
}
