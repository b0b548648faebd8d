//! The agent as it runs: one loop that owns everything, fed by signals, the ring buffer, the kernel's news about
//! interfaces, and requests on the control socket.

mod client;
mod control;
mod conversion;
mod names;
mod run;
mod status;
mod watch;

pub use client::{Client, ClientError};
pub use run::{DaemonError, Notice, RunOptions, run};
pub use status::{AgentStatus, Degraded, PolicyStatus, Reload, RuleStatus, Status};
