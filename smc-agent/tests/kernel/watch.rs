//! `run --watch-policy`, with the real executable in namespaces of its own.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

const AGENT: &str = env!("CARGO_BIN_EXE_smc-agent");

/// An agent that is killed with the test.
struct Agent<'a> {
    child: Child,
    folder: &'a Path,
}

impl Agent<'_> {
    /// `smc-agent status`, or `None` as long as no agent answers.
    fn status(&self) -> Result<Option<Value>> {
        let output = Command::new(AGENT)
            .arg("--state-dir")
            .arg(self.folder.join("state"))
            .args(["status", "-o", "json"])
            .stderr(Stdio::null())
            .output()?;
        Ok(serde_json::from_slice(&output.stdout).ok().filter(|status: &Value| !status["agent"].is_null()))
    }

    /// Waits until the status is as wanted.
    fn wait(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let patience = Instant::now() + Duration::from_secs(20);
        loop {
            let status = self.status()?;
            if let Some(status) = status.as_ref().filter(|status| wanted(status)) {
                return Ok(status.clone());
            }
            if let Some(code) = self.child.try_wait()? {
                bail!("the agent ended with {code}: {}", fs::read_to_string(self.folder.join("log"))?);
            }
            if Instant::now() > patience {
                bail!("{what}: still {status:?}\n{}", fs::read_to_string(self.folder.join("log"))?);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn policy(port: u16) -> String {
    format!(
        "version: 1\ndefault: allow\nsets: {{s: {{file: s.txt}}}}\nrules: [{{name: p{port}, action: deny, port: {port}, peer: '@s'}}]\n"
    )
}

fn generation(status: &Value) -> u64 {
    status["policy"]["generation"].as_u64().unwrap_or(0)
}

pub(crate) fn test() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let (file, set) = (folder.join("policy/p.yaml"), folder.join("policy/s.txt"));
    fs::create_dir(folder.join("policy"))?;
    fs::write(&file, policy(1))?;
    fs::write(&set, "10.0.0.0/8\n")?;
    // The mounts go with the namespaces, which go with the agent.
    let script = "mkdir bpf && mount -t bpf bpf bpf && exec \"$0\" --state-dir state --pin-dir bpf/agent \
                  run --backend tc --policy policy --watch-policy";
    let child = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", script, AGENT])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.join("log"))?)
        .spawn()
        .context("start unshare")?;
    let mut agent = Agent { child, folder };
    let first = agent.wait("started", |status| generation(status) == 1)?;
    ensure!(first["backend"] == "tc", "{first}");

    fs::write(folder.join("policy/.p.yaml.swp"), policy(2))?;
    fs::rename(folder.join("policy/.p.yaml.swp"), &file)?;
    let status = agent.wait("an editor's rename", |status| generation(status) == 2)?;
    ensure!(status["policy"]["rules"][0]["name"] == "p2", "{status}");

    fs::write(&set, "10.0.0.0/8\n192.0.2.0/24\n")?;
    agent.wait("a set file", |status| generation(status) == 3)?;

    fs::write(&file, "version: 1\ndefault: alow\n")?;
    let refused =
        |status: &Value| !status["agent"]["last_reload"]["problems"].as_array().is_none_or(Vec::is_empty);
    let status = agent.wait("an invalid policy", refused)?;
    ensure!(generation(&status) == 3 && status["policy"]["rules"][0]["name"] == "p2", "{status}");
    ensure!(status["agent"]["last_reload"]["problems"][0].to_string().contains("p.yaml:2:10"), "{status}");

    // Back to what is in force: nothing is put into force, and nothing is refused any more.
    fs::write(&file, policy(2))?;
    let status = agent.wait("the former policy", |status| !refused(status))?;
    ensure!(generation(&status) == 3, "{status}");
    fs::write(&file, policy(2))?;
    std::thread::sleep(Duration::from_secs(1));
    let later = agent.wait("the same policy again", |_| true)?;
    ensure!(later["agent"]["last_reload"] == status["agent"]["last_reload"], "{later}");
    Ok(())
}
