//! The kernel's word on modules that are loaded and removed (`lib/kobject_uevent.c`).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::MsgFlags;

use super::error::{Error, Result};
use super::socket::{Protocol, Socket};

/// The group of what the kernel itself says; others are of udev.
const GROUP_KERNEL: u32 = 1;

/// What happened to a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleChange {
    /// It was loaded. Before 5.12 this is said while it still begins.
    Loaded,
    /// It was removed.
    Removed,
    /// It was removed and loaded again, or the kernel dropped messages and that may have been.
    Reloaded,
}

/// Follows one module. The descriptor becomes readable when something happened to anything in the system.
#[derive(Debug)]
pub struct ModuleMonitor {
    socket: Socket,
    path: String,
}

impl ModuleMonitor {
    /// Subscribes. Look at the module afterwards, not before: then no change is missed.
    pub fn open(module: &str) -> Result<Self> {
        let socket = Socket::open_for_groups(Protocol::Uevent, GROUP_KERNEL)?;
        Ok(Self { socket, path: format!("/module/{module}") })
    }

    /// Reads what has been said until now: what happened to the module, all in all, or `None` if nothing did.
    pub fn changes(&mut self) -> Result<Option<ModuleChange>> {
        let mut last = None;
        loop {
            match self.socket.receive("watch modules", MsgFlags::MSG_DONTWAIT) {
                Ok(length) => last = after(last, parse(self.socket.received(length), &self.path)),
                Err(Error::Io { what, source }) => match source.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EAGAIN) => return Ok(last),
                    Some(Errno::ENOBUFS) => last = Some(ModuleChange::Reloaded),
                    _ => return Err(Error::Io { what, source }),
                },
                Err(error) => return Err(error),
            }
        }
    }
}

/// Two changes as one.
fn after(first: Option<ModuleChange>, then: Option<ModuleChange>) -> Option<ModuleChange> {
    match (first, then) {
        (Some(ModuleChange::Removed | ModuleChange::Reloaded), Some(ModuleChange::Loaded)) => {
            Some(ModuleChange::Reloaded)
        }
        (first, then) => then.or(first),
    }
}

/// A message begins with `ACTION@PATH` and a NUL byte.
fn parse(message: &[u8], path: &str) -> Option<ModuleChange> {
    let first = message.split(|byte| *byte == 0).next()?;
    let (action, of) = std::str::from_utf8(first).ok()?.split_once('@')?;
    match action {
        "add" if of == path => Some(ModuleChange::Loaded),
        "remove" if of == path => Some(ModuleChange::Removed),
        _ => None,
    }
}

impl AsFd for ModuleMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for ModuleMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_one_module_are_told_from_others() {
        let parse = |text: &str| parse(text.as_bytes(), "/module/smc");
        assert_eq!(parse("add@/module/smc\0ACTION=add\0DEVPATH=/module/smc\0"), Some(ModuleChange::Loaded));
        assert_eq!(parse("remove@/module/smc\0"), Some(ModuleChange::Removed));
        assert_eq!(parse("add@/module/smc_diag\0"), None);
        assert_eq!(parse("add@/module/smc/holders\0"), None);
        assert_eq!(parse("libudev\0add@/module/smc"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn changes_add_up() {
        use ModuleChange::{Loaded, Reloaded, Removed};
        let all = |changes: &[ModuleChange]| {
            changes.iter().fold(None, |before, change| after(after(before, None), Some(*change)))
        };
        assert_eq!(all(&[]), None);
        assert_eq!(all(&[Loaded]), Some(Loaded));
        assert_eq!(all(&[Loaded, Removed]), Some(Removed));
        assert_eq!(all(&[Removed, Loaded]), Some(Reloaded));
        assert_eq!(all(&[Reloaded, Removed, Loaded]), Some(Reloaded));
    }

    #[test]
    fn nothing_happens_to_a_module_that_does_not_exist() {
        let mut monitor = ModuleMonitor::open("no_such_module").unwrap();
        assert_eq!(monitor.changes().unwrap(), None);
    }
}
