//! How often an agent wakes up to which nothing happens.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::{
    mount::{MsFlags, mount, umount},
    sched::{CloneFlags, unshare},
};

/// An agent with places of its own; killed when dropped.
struct Agent {
    child: Child,
    folder: tempfile::TempDir,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = umount(self.folder.path());
    }
}

impl Agent {
    /// Starts one that enforces in a network namespace of its own, in which nothing happens.
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        mount(Some("bpf"), folder.path(), Some("bpf"), MsFlags::empty(), None::<&str>)
            .context("mount a bpf file system")?;
        let state = tempfile::tempdir()?;
        let policy = state.path().join("policy.yaml");
        fs::write(&policy, "{ version: 1, default: allow, rules: [] }")?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_smc-agent"));
        command.arg("run").arg("--policy").arg(&policy).args(["--backend", "tc", "--watch-policy"]);
        command.arg("--state-dir").arg(state.path().join("state"));
        command.arg("--pin-dir").arg(folder.path().join("smc-agent"));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let alone = || Ok(unshare(CloneFlags::CLONE_NEWNET)?);
        // SAFETY: one system call, which needs no lock of another thread.
        let child = unsafe { command.pre_exec(alone) }.spawn().context("run smc-agent")?;
        let mut agent = Self { child, folder };
        let output = agent.child.stderr.take().context("no standard error")?;
        let mut lines = BufReader::new(output).lines();
        let enforces = lines.find_map(|line| line.ok().filter(|line| line.contains("enforcing")));
        enforces.context("the agent did not start")?;
        // Its files are read by now, and watched by their open descriptors; what it says further is of no interest.
        thread::spawn(move || {
            lines.for_each(drop);
            drop(state);
        });
        Ok(agent)
    }

    /// How often any of its threads has stopped running until now: it does so once each time that it was woken.
    fn switches(&self) -> Result<u64> {
        let mut sum = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let status = fs::read_to_string(thread?.path().join("status"))?;
            for line in status.lines().filter(|line| line.contains("ctxt_switches:")) {
                let (_, count) = line.split_once(':').context("no count of switches")?;
                sum += count.trim().parse::<u64>()?;
            }
        }
        Ok(sum)
    }
}

/// How often all threads of an agent together wake up in a second, in so long a time.
pub(crate) fn wake_ups(time: Duration) -> Result<f64> {
    let agent = Agent::start()?;
    // What belongs to the start is over.
    thread::sleep(Duration::from_secs(1));
    let before = agent.switches()?;
    thread::sleep(time);
    Ok((agent.switches()? - before) as f64 / time.as_secs_f64())
}
