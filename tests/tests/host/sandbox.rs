//! A mount and a network namespace of a test's own.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use aya::programs::{SchedClassifier, TcAttachType};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;
use smc_agent_tests::agent::{self, Agent, Finished};
use smc_agent_tests::netns::loopback_up;
use smc_agent_tests::objects::pinned;
use tempfile::TempDir;

/// Bounds a hang.
pub(crate) const SOON: Duration = Duration::from_mins(1);
/// The user and group `nobody`.
const NOBODY: u32 = 65534;

/// The environment of one test; the calling thread and the processes that it starts are in its namespaces.
pub(crate) struct Sandbox {
    folder: TempDir,
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // What is mounted in the folder would keep it from being removed; what is not mounted is no loss.
        for name in ["bpf", "smc-agent"] {
            let _ = umount2(&self.path(name), MntFlags::MNT_DETACH);
        }
    }
}

/// Whether this machine lets one be made; else what is missing.
pub(crate) fn possible() -> Result<(), &'static str> {
    let unshared =
        thread::spawn(|| unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).is_ok()).join();
    if unshared.unwrap_or(false) {
        Ok(())
    } else {
        Err("needs CAP_SYS_ADMIN: no namespaces can be made here")
    }
}

/// Runs a test in a sandbox, and checks that nothing is left in it.
pub(crate) fn run(test: impl FnOnce(&Sandbox) -> Result<()> + Send) -> Result<()> {
    let inside = || -> Result<()> {
        let sandbox = Sandbox::new()?;
        test(&sandbox)?;
        sandbox.run(&["detach"])?;
        sandbox.expect_nothing_enforced().context("after the test")
    };
    thread::scope(|scope| scope.spawn(inside).join()).map_err(|_| anyhow!("the test panicked"))?
}

impl Sandbox {
    fn new() -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).context("cannot make namespaces")?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
            .context("cannot make mounts private")?;
        loopback_up()?;
        let sandbox = Self { folder: tempfile::tempdir()? };
        fs::set_permissions(sandbox.folder.path(), Permissions::from_mode(0o755))?;
        fs::create_dir(sandbox.path("bpf"))?;
        sandbox.mount_bpf()?;
        Ok(sandbox)
    }

    fn mount_bpf(&self) -> Result<()> {
        mount(Some("bpf"), &self.path("bpf"), Some("bpf"), MsFlags::empty(), None::<&str>)
            .context("cannot mount a bpf file system")
    }

    /// A path in the test's own folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where the agent pins.
    pub(crate) fn pins(&self) -> PathBuf {
        self.path("bpf/smc-agent")
    }

    /// Writes a file and gives its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<String> {
        let path = self.path(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path.display().to_string())
    }

    /// The arguments with those that keep the agent within the sandbox.
    pub(crate) fn arguments(&self, arguments: &[&str]) -> Vec<String> {
        let text = |path: PathBuf| path.display().to_string();
        let places = ["--state-dir".into(), text(self.path("state")), "--pin-dir".into(), text(self.pins())];
        arguments.iter().map(|argument| (*argument).to_owned()).chain(places).collect()
    }

    /// Runs a command of the agent.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<Finished> {
        agent::command(&self.arguments(arguments))
    }

    /// Runs a command of the agent as user nobody.
    pub(crate) fn run_as_nobody(&self, arguments: &[&str]) -> Result<Finished> {
        // Where it was built, nobody may have no business. A copy could still be open for writing in a child that another
        // test's thread has just forked, and then it cannot be run.
        let program = self.path("smc-agent");
        if !program.exists() {
            fs::write(&program, "")?;
            mount(Some(&agent::binary()?), &program, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .context("cannot mount the agent's binary")?;
        }
        let output = Command::new(&program)
            .args(self.arguments(arguments))
            .stdin(Stdio::null())
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .context("cannot run the agent as nobody")?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim_end().to_owned();
        Ok(Finished { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) })
    }

    /// Starts an agent with the backend tc and waits until it enforces.
    pub(crate) fn start(&self, policy: &str) -> Result<Agent> {
        let file = self.write("policy.yaml", policy)?;
        let arguments = self.arguments(&["run", "--backend", "tc", "-o", "json", "--policy", &file]);
        Agent::start_enforcing(&arguments, SOON)
    }

    /// `smc-agent status`, whatever it finds.
    pub(crate) fn status(&self) -> Result<Value> {
        let finished = self.run(&["status", "-o", "json"])?;
        serde_json::from_str(&finished.stdout).with_context(|| format!("{finished:?}"))
    }

    /// No pin, no program on the loopback interface, no record of a policy.
    pub(crate) fn expect_nothing_enforced(&self) -> Result<()> {
        let pinned = if self.pins().exists() { pinned(&self.pins())? } else { BTreeMap::new() };
        ensure!(pinned.is_empty(), "pins are left: {pinned:?}");
        for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
            // Kernels without tcx have none there.
            let (_, programs) = SchedClassifier::query_tcx("lo", direction).unwrap_or_default();
            ensure!(programs.is_empty(), "a program is left on lo");
        }
        let state = self.path("state");
        let records = fs::read_dir(&state).into_iter().flatten().flatten().filter(is_record).count();
        ensure!(records == 0, "{records} records are left in {}", state.display());
        Ok(())
    }

    /// The command fails with this code and this first line of its standard error, and changes nothing.
    pub(crate) fn expect_failure(&self, arguments: &[&str], code: i32, message: &str) -> Result<()> {
        let finished = self.run(arguments)?;
        check_failure(&finished, code, message)?;
        self.expect_nothing_enforced()
    }
}

fn is_record(entry: &fs::DirEntry) -> bool {
    Path::new(&entry.file_name()).extension().is_some_and(|extension| extension == "json")
}

/// A command failed with this code and this first line, without a panic.
pub(crate) fn check_failure(finished: &Finished, code: i32, message: &str) -> Result<()> {
    let first = finished.stderr.lines().next().unwrap_or_default();
    ensure!(
        finished.code == Some(code) && first == message && finished.stdout.is_empty(),
        "expected code {code} and\n  {message}\ngot {:?} and\n  {}",
        finished.code,
        finished.stderr
    );
    Ok(())
}
