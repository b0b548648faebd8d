//! Network namespaces: created under `/run/netns` as `ip netns` does, so that both see each other's, and deleted on drop.

use std::fs::{self, File};
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

/// Where named namespaces lie.
const FOLDER: &str = "/run/netns";

/// The path of a namespace given by name or by path.
pub fn path_of(name: &str) -> PathBuf {
    if name.contains('/') { PathBuf::from(name) } else { Path::new(FOLDER).join(name) }
}

/// Moves the calling thread (no other) into a namespace.
pub fn enter(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("no network namespace {}", path.display()))?;
    setns(file, CloneFlags::CLONE_NEWNET)
        .with_context(|| format!("cannot enter network namespace {} (needs CAP_SYS_ADMIN)", path.display()))
}

/// Runs something in a thread of its own within a namespace; `None` is the caller's.
pub fn run_in<T: Send>(path: Option<&Path>, job: impl FnOnce() -> T + Send) -> Result<T> {
    let inside = || -> Result<T> {
        path.map_or(Ok(()), enter)?;
        Ok(job())
    };
    thread::scope(|scope| scope.spawn(inside).join()).map_err(|_| anyhow!("a thread panicked"))?
}

/// A named network namespace with its loopback interface up; deleted when dropped.
#[derive(Debug)]
pub struct NetNs {
    path: PathBuf,
}

impl NetNs {
    /// Creates a namespace.
    pub fn create(name: &str) -> Result<Self> {
        let path = path_of(name);
        fs::create_dir_all(FOLDER).with_context(|| format!("cannot create {FOLDER}"))?;
        File::create_new(&path)
            .with_context(|| format!("cannot create network namespace {}", path.display()))?;
        let namespace = Self { path };
        run_in(None, || -> Result<()> {
            unshare(CloneFlags::CLONE_NEWNET)
                .context("cannot make a network namespace (needs CAP_SYS_ADMIN)")?;
            mount(
                Some("/proc/thread-self/ns/net"),
                &namespace.path,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )
            .with_context(|| format!("cannot mount {}", namespace.path.display()))?;
            loopback_up()
        })??;
        Ok(namespace)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Runs something inside, in a thread of its own.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<T> {
        run_in(Some(&self.path), job)
    }

    /// Runs a command inside and returns its standard output; a failure is an error with its standard error.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.run(|| command(program, arguments))?
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        // Absent when creation failed half-way; nobody is left to tell about an error anyway.
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
        let _ = fs::remove_file(&self.path);
    }
}

/// Connects two namespaces by a veth pair, each end up with its address (`10.1.0.1/24`).
pub fn veth(left: (&NetNs, &str, &str), right: (&NetNs, &str, &str)) -> Result<()> {
    let peer = right.0.name();
    let add = ["link", "add", left.1, "type", "veth", "peer", "name", right.1, "netns", &peer];
    left.0.command("ip", &add)?;
    for (namespace, interface, address) in [left, right] {
        // Duplicate address detection would keep a fresh IPv6 address unusable for a second.
        let nodad = if address.contains(':') { &["nodad"][..] } else { &[] };
        namespace.command("ip", &[&["address", "add", address, "dev", interface], nodad].concat())?;
        namespace.command("ip", &["link", "set", interface, "up"])?;
    }
    Ok(())
}

/// Runs a command in the calling thread's namespace and returns its standard output.
pub fn command(program: &str, arguments: &[&str]) -> Result<String> {
    let output =
        Command::new(program).args(arguments).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}: {}", arguments.join(" "), output.status, text.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Switches on the loopback interface of the calling thread's namespace.
pub fn loopback_up() -> Result<()> {
    // Any socket of the namespace will do; a UDP socket with port 0 needs no interface.
    let socket = UdpSocket::bind(("0.0.0.0", 0)).context("cannot open a socket")?;
    // SAFETY: `ifreq` is plain data for which zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(*b"lo") {
        *place = libc::c_char::try_from(byte).unwrap_or_default();
    }
    request.ifr_ifru.ifru_flags =
        libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or_default();
    // SAFETY: the descriptor is open, and SIOCSIFFLAGS only reads the `ifreq`, which lives through the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error()).context("cannot switch on interface lo")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use smc_agent::netlink::link::{LinkChange, LinkMonitor};

    use super::*;
    use crate::pair::{Kind, Pair, run};
    use crate::wait::wait_until;

    #[test]
    fn names_and_paths_are_told_apart() {
        assert_eq!(path_of("a"), Path::new("/run/netns/a"));
        assert_eq!(path_of("/proc/1/ns/net"), Path::new("/proc/1/ns/net"));
        assert!(enter(Path::new("/nonexistent/ns")).unwrap_err().to_string().contains("/nonexistent/ns"));
    }

    #[test]
    #[ignore = "needs root"]
    fn a_connection_between_two_namespaces() {
        let (left, right) = (NetNs::create("smctest-l").unwrap(), NetNs::create("smctest-r").unwrap());
        assert!(NetNs::create("smctest-l").is_err());
        veth((&left, "l0", "10.77.0.1/24"), (&right, "r0", "10.77.0.2/24")).unwrap();
        let links = right.run(smc_agent::netlink::link::list).unwrap().unwrap();
        let veth = links.iter().find(|link| link.name == "r0").unwrap();
        assert_eq!(veth.kind.as_deref(), Some("veth"));
        assert!(veth.is_up() && veth.lower_netns.is_some());
        let mut pair = Pair::new(Kind::Tcp, Kind::Tcp, "10.77.0.2:0".parse().unwrap());
        pair.server_netns = Some(right.path().to_owned());
        pair.client_netns = Some(left.path().to_owned());
        let ends = run(&pair).unwrap();
        assert!(ends.intact);
        assert_eq!(ends.client.local.ip(), ends.server.peer.ip());
        let path = left.path().to_owned();
        drop(left);
        assert!(!path.exists());
    }

    #[test]
    #[ignore = "needs root"]
    fn a_monitor_sees_interfaces_come_and_go() {
        let namespace = NetNs::create("smctest-m").unwrap();
        let mut monitor = namespace.run(LinkMonitor::open).unwrap().unwrap();
        namespace.command("ip", &["link", "add", "v0", "type", "veth", "peer", "name", "v1"]).unwrap();
        namespace.command("ip", &["link", "del", "v0"]).unwrap();
        let mut seen = Vec::new();
        wait_until("v0 gone", Duration::from_secs(5), || {
            while let Some((_, changes)) = monitor.changes()? {
                seen.extend(changes);
            }
            let gone = |change: &LinkChange| matches!(change, LinkChange::Gone(link) if link.name == "v0");
            Ok(seen.iter().any(gone).then_some(()))
        })
        .unwrap();
        assert!(seen.iter().any(|change| matches!(change, LinkChange::Present(link) if link.name == "v0")));
    }
}
