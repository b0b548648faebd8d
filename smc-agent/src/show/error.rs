//! Why something cannot be shown.

use std::io;

use crate::netlink;

/// The result of everything in [`show`](super).
pub type Result<T> = std::result::Result<T, ShowError>;

/// Why something cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum ShowError {
    /// The kernel did not say it.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// There is no such network namespace.
    #[error("no network namespace {0:?}: `ip netns list` shows those that have a name")]
    NoNamespace(String),
    /// It takes a capability that the caller does not have.
    #[error("cannot {what}: needs {capability} (run as root)")]
    NotPermitted {
        /// What was to be done, to complete "cannot …".
        what: String,
        /// The capability.
        capability: &'static str,
    },
    /// A file or a system call failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was to be done, to complete "cannot …".
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// This kernel does not have it.
    #[error("{0}")]
    Missing(String),
    /// There is no mark to count from.
    #[error("{0}: set one with `smc-agent show stats --mark`")]
    NoMark(String),
}

impl ShowError {
    /// Makes an error of a failed file or system call.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
