//! Two hosts that a veth pair joins, each a network namespace, and what enforces on the first.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sched::{CloneFlags, setns, unshare};

/// The second host's own address; it answers for all others, too.
pub(crate) const SERVER: &str = "192.168.250.2";

/// Mounts made here are nobody else's.
pub(crate) fn private_mounts() -> Result<()> {
    use nix::mount::{MsFlags, mount};
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    Ok(())
}

/// Runs a program, which has to succeed.
fn tool(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("start {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(output.status.success(), "{program} {}: {said}", arguments.join(" "));
    Ok(())
}

/// A network namespace, for as long as this lives.
#[derive(Debug)]
struct Host {
    namespace: File,
}

impl Host {
    fn new() -> Result<Self> {
        let made = std::thread::spawn(|| -> Result<File> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            tool("ip", &["link", "set", "lo", "up"])?;
            Ok(File::open("/proc/thread-self/ns/net")?)
        });
        let namespace = made.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        Ok(Self { namespace })
    }

    fn path(&self) -> String {
        use std::os::fd::AsRawFd as _;
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_raw_fd())
    }

    fn enter(&self) -> Result<()> {
        Ok(setns(&self.namespace, CloneFlags::CLONE_NEWNET)?)
    }
}

/// Both hosts and the pair between them.
#[derive(Debug)]
pub(crate) struct Hosts {
    client: Host,
    server: Host,
    agent: Option<Agent>,
}

impl Hosts {
    /// Two hosts; nothing is enforced.
    pub(crate) fn new() -> Result<Self> {
        let (client, server) = (Host::new()?, Host::new()?);
        let hosts = Self { client, server, agent: None };
        hosts.at_client(|| {
            let peer = hosts.server.path();
            tool(
                "ip",
                &["link", "add", "name", "left", "type", "veth", "peer", "name", "right", "netns", &peer],
            )?;
            tool("ip", &["address", "add", "192.168.250.1/24", "dev", "left"])?;
            tool("ip", &["link", "set", "left", "up"])?;
            Ok(())
        })?;
        hosts.at_server(|| {
            tool("ip", &["address", "add", &format!("{SERVER}/24"), "dev", "right"])?;
            tool("ip", &["link", "set", "right", "up"])?;
            // It takes what is sent to any address.
            tool("ip", &["route", "add", "local", "0.0.0.0/1", "dev", "lo"])?;
            tool("ip", &["route", "add", "local", "128.0.0.0/2", "dev", "lo"])
        })?;
        hosts.at_client(|| tool("ip", &["route", "add", "default", "via", SERVER]))?;
        Ok(hosts)
    }

    /// Runs something within the first host.
    pub(crate) fn at_client<T: Send>(&self, job: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        inside(&self.client, job)
    }

    /// Runs something within the second host.
    pub(crate) fn at_server<T: Send>(&self, job: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        inside(&self.server, job)
    }

    /// Puts a policy into force on the first host, by an agent that goes with this; its state and pins are in `folder`.
    pub(crate) fn enforce(&mut self, folder: &Path, policy: &Path) -> Result<()> {
        self.agent = Some(self.at_client(|| Agent::start(folder, policy))?);
        Ok(())
    }

    /// Has iptables take the SMC option out of SYNs to the addresses of a list on the first host.
    pub(crate) fn strip_by_iptables(&self, folder: &Path, set: &str) -> Result<()> {
        let file = folder.join("ipset");
        fs::write(&file, set)?;
        self.at_client(|| {
            tool("ipset", &["restore", "-file", &file.display().to_string()])?;
            // 254: the kind of the option.
            let rule = "-t mangle -A OUTPUT -p tcp --syn -m set --match-set list dst -j TCPOPTSTRIP --strip-options 254";
            tool("iptables", &rule.split(' ').collect::<Vec<_>>())
        })
    }
}

/// Runs something in a thread of its own within a namespace.
fn inside<T: Send>(host: &Host, job: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let work = || {
        host.enter()?;
        job()
    };
    std::thread::scope(|scope| scope.spawn(work).join()).map_err(|_| anyhow::anyhow!("a thread panicked"))?
}

/// An agent that enforces by traffic control.
#[derive(Debug)]
struct Agent {
    child: Child,
    pins: PathBuf,
}

impl Agent {
    fn start(folder: &Path, policy: &Path) -> Result<Self> {
        let bpf = folder.join("bpf");
        fs::create_dir_all(&bpf)?;
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("bpf"), &bpf, Some("bpf"), flags, None::<&str>)?;
        let pins = bpf.join("agent");
        let mut command = Command::new(env!("CARGO_BIN_EXE_smc-agent"));
        command.arg("--state-dir").arg(folder.join("state")).arg("--pin-dir").arg(&pins);
        command.args(["run", "--backend", "tc", "--no-load-module", "--policy"]).arg(policy);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let errors = child.stderr.take().context("no standard error")?;
        let mut said = String::new();
        for line in BufReader::new(errors).lines() {
            let line = line?;
            if line.contains("enforcing generation") {
                return Ok(Self { child, pins });
            }
            said += &line;
            said.push('\n');
        }
        bail!("the agent ended: {said}");
    }
}

impl Hosts {
    /// Where the agent pinned its programs.
    pub(crate) fn programs(&self) -> Result<PathBuf> {
        let agent = self.agent.as_ref().context("no agent")?;
        let objects: Vec<_> = fs::read_dir(&agent.pins)?.flatten().map(|entry| entry.path()).collect();
        let with_programs = objects.iter().map(|object| object.join("programs")).find(|path| path.is_dir());
        with_programs.context("no programs are pinned")
    }

    /// A counter of the agent, from its status.
    pub(crate) fn counter(&self, folder: &Path, name: &str) -> Result<u64> {
        let agent = self.agent.as_ref().context("no agent")?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_smc-agent"));
        command.arg("--state-dir").arg(folder.join("state")).arg("--pin-dir").arg(&agent.pins);
        let output = command.args(["status", "-o", "json"]).output()?;
        let status: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        status["counters"][name].as_u64().with_context(|| format!("no counter {name}"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(bpf) = self.pins.parent() {
            let _ = nix::mount::umount(bpf);
        }
    }
}
