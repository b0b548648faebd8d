//! Tells the service manager how the agent is: `sd_notify(3)`, a datagram to the socket that `NOTIFY_SOCKET` names. Without the
//! variable nobody is told.

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

use tracing::warn;

use crate::kernel::maps::monotonic_now;

/// The service manager, if there is one that wants to be told.
#[derive(Debug)]
pub(super) struct ServiceManager {
    address: Option<SocketAddr>,
}

impl ServiceManager {
    /// The one that the environment names.
    pub(super) fn of_environment() -> Self {
        let name = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let address = name.and_then(|name| match address(&name) {
            Ok(address) => Some(address),
            Err(error) => {
                warn!("the service manager is not told: NOTIFY_SOCKET {}: {error}", name.display());
                None
            }
        });
        Self { address }
    }

    /// The policy is in force; `status` says it in words.
    pub(super) fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// The policy is read anew: `READY=1` ends it.
    pub(super) fn reloading(&self) {
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_now() / 1000));
    }

    /// The agent ends.
    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, state: &str) {
        let Some(address) = &self.address else { return };
        let send = || UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), address);
        if let Err(error) = send() {
            warn!("the service manager is not told: {error}");
        }
    }
}

/// `@` stands for the byte 0 of a name that is not in the file system.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a path nor an abstract name")),
    }
}

/// A variable ends with its line.
fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn the_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("smc-agent-test-{}", std::process::id());
        for (socket, address) in [
            (UnixDatagram::bind(&path).unwrap(), address(path.as_os_str()).unwrap()),
            (
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
                address(OsStr::new(&format!("@{name}"))).unwrap(),
            ),
        ] {
            let manager = ServiceManager { address: Some(address) };
            manager.ready("generation 4\nREADY=0");
            assert_eq!(told(&socket), "READY=1\nSTATUS=generation 4; READY=0");
            manager.reloading();
            let text = told(&socket);
            let time = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap().parse::<u64>();
            assert!(time.unwrap() > 0);
            manager.stopping();
            assert_eq!(told(&socket), "STOPPING=1");
        }
        assert!(address(OsStr::new("relative")).is_err());
    }

    #[test]
    fn a_manager_that_is_not_there_disturbs_nobody() {
        ServiceManager { address: Some(address(OsStr::new("/nowhere/notify")).unwrap()) }.stopping();
        ServiceManager { address: None }.ready("x");
    }
}
