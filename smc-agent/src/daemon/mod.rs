//! The agent as it runs: one loop that owns everything, fed by signals, the ring buffer, the kernel's news about
//! interfaces, and requests on the control socket.

mod client;
mod control;
mod conversion;
mod names;
mod notify;
mod observe;
mod publish;
mod query;
mod reconcile;
mod run;
mod smc_module;
mod status;
mod watch;

pub use client::{Client, ClientError};
pub use observe::{ObserveOptions, Observer};
pub use run::{DaemonError, Notice, RunOptions, run};
pub use status::{
    AgentStatus, Degraded, NamespaceStatus, NotShown, PolicyStatus, Reload, RuleStatus, Status,
};
