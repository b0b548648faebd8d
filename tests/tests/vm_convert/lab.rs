//! A kernel that is clean before and after each test, policies, and programs whose sockets are looked at.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use smc_agent::netlink::diag::{self, Mode};
use smc_agent::netlink::tcp;
use smc_agent_tests::agent::{self, Agent, Finished};
use smc_agent_tests::objects::Objects;
use smc_agent_tests::wait::wait_until;
use tempfile::TempDir;

/// Bounds a hang under emulation; nothing takes nearly as long.
pub(crate) const SOON: Duration = Duration::from_mins(2);
pub(crate) const PINS: &str = "/sys/fs/bpf/smc-agent";
const STATE: &str = "/run/smc-agent";
/// Where the distribution's programs are.
pub(crate) const PROGRAMS: &str = "/opt/programs";
pub(crate) const GROUPS: &str = "/sys/fs/cgroup";

/// Whether this kernel makes SMC sockets by `IPPROTO_SMC`.
pub(crate) fn has_smc_protocol() -> bool {
    // SAFETY: plain numbers; a descriptor that comes back is closed at once.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 256);
        socket >= 0 && libc::close(socket) == 0
    }
}

/// What SMC is on this kernel's one host.
pub(crate) fn smc_mode() -> Mode {
    if Path::new("/proc/sys/net/smc/hs_ctrl").exists() { Mode::SmcD } else { Mode::SmcR }
}

/// The environment of one test.
pub(crate) struct Lab {
    folder: TempDir,
    before: Objects,
    agent: RefCell<Option<Agent>>,
}

impl Lab {
    pub(crate) fn new() -> Result<Self> {
        detach()?;
        Ok(Self { folder: tempfile::tempdir()?, before: Objects::now(), agent: RefCell::default() })
    }

    /// A file of this test.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A copy of busybox under this name: an ordinary static program.
    pub(crate) fn static_program(&self, name: &str) -> Result<PathBuf> {
        let path = self.file(name);
        fs::copy("/bin/busybox", &path)?;
        Ok(path)
    }

    /// Puts a policy into force: everything may use SMC, and `convert` says whose sockets do.
    pub(crate) fn convert(&self, rules: &str) -> Result<()> {
        self.policy(&format!("version: 1\ndefault: allow\nconvert:\n{rules}\n"))
    }

    /// Puts a policy into force, by the agent that runs or a new one.
    pub(crate) fn policy(&self, text: &str) -> Result<()> {
        let file = self.file("policy.yaml");
        fs::write(&file, text)?;
        if self.agent.borrow().is_some() {
            let finished = command(&["reload"])?;
            ensure!(finished.code == Some(0), "reload: {finished:?}");
            return Ok(());
        }
        self.start()
    }

    /// Starts an agent with the policy file as it is. By tc on every kernel: it is there soonest.
    pub(crate) fn start(&self) -> Result<()> {
        let file = self.file("policy.yaml").display().to_string();
        let agent = Agent::start_enforcing(&["run", "--backend", "tc", "--policy", &file], SOON)?;
        *self.agent.borrow_mut() = Some(agent);
        Ok(())
    }

    /// Waits for something that the agent prints.
    pub(crate) fn wait_for(&self, what: &str) -> Result<String> {
        let mut agent = self.agent.borrow_mut();
        agent.as_mut().context("no agent runs")?.wait_for_line(what, SOON, |line| line.contains(what))
    }

    /// Kills the agent as `kill -9` does.
    pub(crate) fn kill(&self) -> Result<()> {
        self.agent.borrow_mut().take().context("no agent runs")?.kill()
    }

    /// Ends the agent, detaches, and checks that nothing is left.
    pub(crate) fn clean(self) -> Result<()> {
        self.agent.borrow_mut().take();
        detach()?;
        for place in [PINS, STATE] {
            ensure!(!Path::new(place).exists(), "{place} is left");
        }
        let mut left = Objects::default();
        wait_until("no BPF object is left", SOON, || {
            left = Objects::now().since(&self.before);
            Ok(left.is_empty().then_some(()))
        })
        .with_context(|| format!("left: {left:?}"))
    }
}

pub(crate) fn command(arguments: &[&str]) -> Result<Finished> {
    agent::command(arguments)
}

/// Runs a command of the agent that has to succeed.
pub(crate) fn well(arguments: &[&str]) -> Result<String> {
    let finished = command(arguments)?;
    ensure!(finished.code == Some(0), "{arguments:?}: {finished:?}");
    Ok(finished.stdout)
}

pub(crate) fn detach() -> Result<()> {
    well(&["detach"]).map(drop)
}

/// `smc-agent convert status`.
pub(crate) fn status() -> Result<Value> {
    let finished = command(&["convert", "status", "-o", "json"])?;
    ensure!(matches!(finished.code, Some(0 | 1)), "{finished:?}");
    serde_json::from_str(&finished.stdout).context("the status is no JSON")
}

/// How many sockets a rule decided.
pub(crate) fn sockets_of(rule: &str) -> Result<u64> {
    let status = status()?;
    let rules = status["rules"].as_array().context("no rules")?;
    let found = rules.iter().find(|found| found["name"] == rule).with_context(|| format!("{status:#}"))?;
    found["sockets"].as_u64().context("no figure")
}

/// A program of the distribution.
pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(Path::new(PROGRAMS).join("usr").join(name));
    let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
    let path: Vec<_> = libraries.iter().map(|folder| format!("{PROGRAMS}/{folder}")).collect();
    command.env("LD_LIBRARY_PATH", path.join(":")).env("PYTHONHOME", format!("{PROGRAMS}/usr"));
    command
}

/// A running program, killed when dropped.
pub(crate) struct Running {
    child: Child,
    name: String,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let name = format!("{command:?}");
        // A group of its own: what it has started ends with it.
        command.process_group(0);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Ok(Self { child: child.with_context(|| format!("cannot start {name}"))?, name })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end; fails if that is not well.
    pub(crate) fn finish(mut self) -> Result<String> {
        let status = wait_until("the end of a program", SOON, || Ok(self.child.try_wait()?))
            .with_context(|| self.name.clone())?;
        let mut text = String::new();
        if let Some(stream) = &mut self.child.stdout {
            stream.read_to_string(&mut text)?;
        }
        let mut errors = String::new();
        if let Some(stream) = &mut self.child.stderr {
            stream.read_to_string(&mut errors)?;
        }
        ensure!(status.success(), "{}: {status}: {text}{errors}", self.name);
        Ok(text)
    }

    /// Waits until something listens on a port.
    pub(crate) fn listens(&mut self, port: u16) -> Result<()> {
        wait_until("a listener", SOON, || {
            if let Some(status) = self.child.try_wait()? {
                let mut text = String::new();
                if let Some(stream) = &mut self.child.stderr {
                    stream.read_to_string(&mut text)?;
                }
                bail!("{} ended with {status}: {text}", self.name);
            }
            let sockets = tcp::sockets()?;
            Ok(sockets.iter().any(|socket| socket.listening && socket.local.port() == port).then_some(()))
        })
        .with_context(|| self.name.clone())
    }

    fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Whether one of its sockets is an SMC one.
    pub(crate) fn has_smc_socket(&self) -> Result<bool> {
        let inodes: BTreeSet<u64> = diag::sockets()?.iter().map(|socket| socket.inode).collect();
        for entry in fs::read_dir(format!("/proc/{}/fd", self.id()))? {
            let Ok(target) = fs::read_link(entry?.path()) else { continue };
            let inode = target
                .to_str()
                .and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            if inode.is_some_and(|inode: u64| inodes.contains(&inode)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        if let Ok(id) = i32::try_from(self.child.id()) {
            let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

/// A static program that listens on a port.
pub(crate) fn listener(program: &Path, port: u16) -> Command {
    let mut command = Command::new(program);
    command.args(["nc", "-l", "-p", &port.to_string()]);
    command
}

/// Starts a listener and tells whether its socket was converted.
pub(crate) fn is_converted(command: &mut Command, port: u16) -> Result<bool> {
    let mut running = Running::start(command)?;
    running.listens(port)?;
    running.has_smc_socket()
}

/// How the connections to a port travelled while a client ran. Where SMC sockets are among them nothing is said of plain
/// ones: each SMC socket has a TCP socket inside, which cannot always be told from them.
pub(crate) fn watch(port: u16, client: &mut Command) -> Result<BTreeSet<String>> {
    let mut client = Running::start(client)?;
    let mut modes = BTreeSet::new();
    while client.is_running()? {
        modes.extend(modes_of(port)?);
        std::thread::sleep(Duration::from_millis(2));
    }
    client.finish()?;
    if modes.len() > 1 {
        modes.remove("TCP");
    }
    Ok(modes)
}

/// How the connections to a port travel at present; `TCP` for those of plain sockets.
fn modes_of(port: u16) -> Result<BTreeSet<String>> {
    let mut modes = BTreeSet::new();
    let smc = diag::sockets()?;
    for socket in &smc {
        let concerns = socket.local.port() == port || socket.peer.port() == port;
        if concerns && (socket.state == diag::State::Active || socket.mode == Mode::FallbackTcp) {
            let decided =
                socket.link_group.is_some() || socket.dmb.is_some() || socket.mode == Mode::FallbackTcp;
            let connected = socket.peer.port() != 0;
            match socket.fallback {
                Some(fallback) if connected && socket.mode == Mode::FallbackTcp => {
                    modes.insert(format!("{} {:#010x}", socket.mode, fallback.reason));
                }
                _ if decided && connected => drop(modes.insert(socket.mode.to_string())),
                _ => {}
            }
        }
    }
    let inside: BTreeSet<(u16, u16)> =
        smc.iter().map(|socket| (socket.local.port(), socket.peer.port())).collect();
    for socket in tcp::sockets()? {
        let ports = (socket.local.port(), socket.peer.port());
        if !socket.listening
            && socket.inode != 0
            && (ports.0 == port || ports.1 == port)
            && !inside.contains(&ports)
        {
            modes.insert("TCP".to_owned());
        }
    }
    Ok(modes)
}

/// A set of one.
pub(crate) fn only(mode: &str) -> BTreeSet<String> {
    BTreeSet::from([mode.to_string()])
}

/// The protocol of a new stream socket of IPv4 that was asked for with `protocol`.
pub(crate) fn protocol_of_socket(protocol: i32) -> Result<i32> {
    // SAFETY: plain numbers; a descriptor that comes back is owned by nobody else.
    let socket = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, protocol);
        ensure!(socket >= 0, "protocol {protocol}: {}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(socket)
    };
    let (mut found, mut length) = (0_i32, 4);
    // SAFETY: the kernel writes at most `length` bytes to `found`, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PROTOCOL,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    ensure!(result == 0, "SO_PROTOCOL: {}", std::io::Error::last_os_error());
    Ok(found)
}
