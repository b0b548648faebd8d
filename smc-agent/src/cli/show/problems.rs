//! What goes wrong while looking, with its exit code.

use std::io;

use super::super::Failure;
use crate::netlink;
use crate::show::ShowError;

impl From<netlink::Error> for Failure {
    fn from(error: netlink::Error) -> Self {
        use netlink::Error;
        match &error {
            Error::NotPermitted { .. } => Self::unprivileged(error.to_string()),
            Error::NoFamily { .. } | Error::Unsupported { .. } | Error::NoSocketDiag => {
                Self::unsupported(error.to_string())
            }
            Error::Open { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Self::unprivileged(error.to_string())
            }
            _ => Self::not_so(error.to_string()),
        }
    }
}

impl From<ShowError> for Failure {
    fn from(error: ShowError) -> Self {
        match error {
            ShowError::Netlink(error) => error.into(),
            ShowError::NotPermitted { .. } => Self::unprivileged(error.to_string()),
            ShowError::Missing(_) => Self::unsupported(error.to_string()),
            ShowError::Io { ref source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Self::unprivileged(error.to_string())
            }
            ShowError::NoNamespace(_) | ShowError::Io { .. } | ShowError::NoMark(_) => {
                Self::not_so(error.to_string())
            }
        }
    }
}
