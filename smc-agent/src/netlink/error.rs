//! What can go wrong between this process and the kernel's netlink, in words that say what to do.

use std::io;
use std::time::Duration;

use nix::errno::Errno;

/// The result of everything in [`netlink`](super).
pub type Result<T> = std::result::Result<T, Error>;

/// Why a netlink request failed. `what` always completes the phrase "cannot …".
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket itself could not be made or prepared.
    #[error("cannot open a netlink socket ({protocol}): {source}")]
    Open {
        /// The netlink protocol asked for.
        protocol: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// Sending the request or receiving the answer failed.
    #[error("cannot {what}: netlink socket: {source}")]
    Io {
        /// What was asked of the kernel.
        what: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// The kernel did not answer in time.
    #[error("cannot {what}: no answer from the kernel within {after:?}")]
    Timeout {
        /// What was asked of the kernel.
        what: &'static str,
        /// How long one answer was waited for.
        after: Duration,
    },
    /// The kernel refused the request.
    #[error("cannot {what}: {reason}")]
    Kernel {
        /// What was asked of the kernel.
        what: &'static str,
        /// The kernel's error number, positive.
        errno: i32,
        /// The meaning of that number for this request, and the kernel's own text if it sent one.
        reason: String,
    },
    /// The caller lacks the capability.
    #[error("cannot {what}: not permitted: needs CAP_NET_ADMIN in the initial user namespace (run as root)")]
    NotPermitted {
        /// What was asked of the kernel.
        what: &'static str,
    },
    /// The generic netlink family does not exist.
    #[error("this kernel has no {described} (needs {since}; is module smc loaded?)")]
    NoFamily {
        /// What the family is for, in words.
        described: &'static str,
        /// The first kernel version with it.
        since: &'static str,
    },
    /// The family exists but does not know the command.
    #[error("cannot {what}: this kernel cannot do that (needs {since})")]
    Unsupported {
        /// What was asked of the kernel.
        what: &'static str,
        /// What it needs: a kernel version, or an architecture.
        since: &'static str,
    },
    /// There is no socket diagnostics for SMC.
    #[error(
        "cannot list SMC sockets: this kernel has no socket diagnostics for SMC (is module smc_diag there? load it with: modprobe smc_diag)"
    )]
    NoSocketDiag,
    /// The list changed while it was read, at every attempt.
    #[error("cannot {what}: the list kept changing while it was read: try again")]
    Interrupted {
        /// What was asked of the kernel.
        what: &'static str,
    },
    /// The kernel's answer (or a request of ours) breaks the format.
    #[error("malformed netlink data: {what}")]
    Malformed {
        /// Which rule of the format is broken.
        what: &'static str,
    },
}

impl Error {
    /// The error for a refusal, from the kernel's error number and its extended ACK text.
    pub(super) fn refused(what: &'static str, errno: i32, text: Option<&str>) -> Self {
        let errno_of_kernel = Errno::from_raw(errno);
        if matches!(errno_of_kernel, Errno::EPERM | Errno::EACCES) {
            return Self::NotPermitted { what };
        }
        let meaning = match errno_of_kernel {
            Errno::UnknownErrno => format!("error {errno}"),
            known => known.desc().to_lowercase(),
        };
        let reason = match text {
            Some(text) => format!("{meaning}: the kernel says: {text}"),
            None => meaning,
        };
        Self::Kernel { what, errno, reason }
    }

    /// The kernel's error number, if it was the kernel that refused.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Kernel { errno, .. } => Some(Errno::from_raw(*errno)),
            Self::NotPermitted { .. } => Some(Errno::EPERM),
            _ => None,
        }
    }

    /// The same error with the meaning that its number has for one kind of request; `None` keeps the general one.
    pub(super) fn meaning(self, of: impl FnOnce(Errno) -> Option<&'static str>) -> Self {
        match self {
            Self::Kernel { what, errno, reason } => match of(Errno::from_raw(errno)) {
                Some(meaning) => Self::Kernel { what, errno, reason: meaning.to_owned() },
                None => Self::Kernel { what, errno, reason },
            },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_capability_is_named() {
        let text = Error::refused("add a user EID", libc::EPERM, None).to_string();
        assert!(text.contains("CAP_NET_ADMIN"), "{text}");
    }

    #[test]
    fn the_kernels_own_text_is_kept() {
        let text = Error::refused("list interfaces", libc::EINVAL, Some("bad mask")).to_string();
        assert_eq!(text, "cannot list interfaces: invalid argument: the kernel says: bad mask");
        let text = Error::refused("list interfaces", 9999, None).to_string();
        assert_eq!(text, "cannot list interfaces: error 9999");
    }

    #[test]
    fn a_missing_family_says_what_to_load() {
        let text = Error::NoFamily { described: "SMC generic netlink", since: "5.11" }.to_string();
        assert_eq!(text, "this kernel has no SMC generic netlink (needs 5.11; is module smc loaded?)");
    }
}
