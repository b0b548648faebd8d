//! What went wrong, with the exit code that says of which kind it is.

use std::{fmt, io};

use crate::{
    convert::ConvertError,
    daemon::{ClientError, DaemonError},
    enforce::{EnforceError, LockError},
    kernel::{convert::ConvertBpfError, object},
    policy::LoadError,
};

const NOT_SO: u8 = 1;
pub(super) const USAGE: u8 = 2;
const UNSUPPORTED: u8 = 3;
const UNPRIVILEGED: u8 = 4;

/// A message for the user and an exit code.
#[derive(Debug)]
pub(super) struct Failure {
    code: u8,
    message: String,
    broken_pipe: bool,
}

impl Failure {
    pub(super) fn not_so(message: impl Into<String>) -> Self {
        Self::new(NOT_SO, message)
    }

    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    pub(super) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(UNSUPPORTED, message)
    }

    pub(super) fn unprivileged(message: impl Into<String>) -> Self {
        Self::new(UNPRIVILEGED, message)
    }

    fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), broken_pipe: false }
    }

    pub(super) fn code(&self) -> u8 {
        self.code
    }

    pub(super) fn is_broken_pipe(&self) -> bool {
        self.broken_pipe
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let code = if error.kind() == io::ErrorKind::PermissionDenied { UNPRIVILEGED } else { NOT_SO };
        Self { code, message: error.to_string(), broken_pipe: error.kind() == io::ErrorKind::BrokenPipe }
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        match &error {
            LoadError::Unreadable { .. } => Self::usage(error.to_string()),
            LoadError::Invalid(_) => Self::not_so(error.to_string()),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match &error {
            ClientError::NotPermitted { .. } => Self::unprivileged(error.to_string()),
            _ => Self::not_so(error.to_string()),
        }
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Held { .. } | LockError::PinsHeld { .. } => Self::not_so(error.to_string()),
            LockError::Io(error) => error.into(),
        }
    }
}

impl From<ConvertError> for Failure {
    fn from(error: ConvertError) -> Self {
        match error {
            ConvertError::Io(error) => error.into(),
            ConvertError::NoMechanism(_)
            | ConvertError::NoGroups(_)
            | ConvertError::Btf(_)
            | ConvertError::Bpf(ConvertBpfError::NoFunction | ConvertBpfError::Program(_)) => {
                Self::unsupported(error.to_string())
            }
            ConvertError::Bpf(_) | ConvertError::Maps(_) | ConvertError::Sysctl(_) => {
                Self::not_so(error.to_string())
            }
        }
    }
}

/// Whether the kernel refused something for want of privileges.
fn is_denied(error: &(dyn std::error::Error + 'static)) -> bool {
    let denied = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES));
    error.downcast_ref::<io::Error>().is_some_and(denied) || error.source().is_some_and(is_denied)
}

impl From<DaemonError> for Failure {
    fn from(error: DaemonError) -> Self {
        match error {
            DaemonError::Policy(error) => error.into(),
            DaemonError::Lock(error) => error.into(),
            DaemonError::Io(error) | DaemonError::Enforce(EnforceError::Io(error)) => error.into(),
            DaemonError::Convert(error) => error.into(),
            DaemonError::Btf(_)
            | DaemonError::NoSmc
            | DaemonError::NothingToObserve
            | DaemonError::NoFallbacks(_)
            | DaemonError::Enforce(EnforceError::NoBackend(_)) => Self::unsupported(error.to_string()),
            DaemonError::Enforce(EnforceError::Object(ref cause)) if is_denied(cause) => {
                // What else it takes was asked for before.
                let why = if object::memory_is_limited() {
                    "; CAP_SYS_RESOURCE missing, or `ulimit -l unlimited` before: before 5.11 the kernel counts maps \
                     as locked memory"
                } else {
                    ""
                };
                Self::unprivileged(format!("{error}{why}"))
            }
            DaemonError::Enforce(_)
            | DaemonError::Netlink(_)
            | DaemonError::Watch(_)
            | DaemonError::Source(_) => Self::not_so(error.to_string()),
        }
    }
}
