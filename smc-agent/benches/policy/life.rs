//! From text to enforcing, and what the agent takes.

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use smc_agent::policy::{Limits, Prefix, compile, load};

use crate::{
    list,
    lookups::{Effort, set_policy},
    probe::{Probe, Sizes},
    report::{Report, median},
};

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The steps from a list as text to a table in force, and what the tools for packet filters take for the same list.
pub(crate) fn text_to_table(report: &mut Report, effort: Effort) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = set_policy(folder.path(), &list::list(effort.prefixes, false))?;
    let mut probe = Probe::load(Sizes { flows: 1, loads: 1, trie: 1 }, false)?;
    let mut maps = probe.maps()?;
    let mut samples: [Vec<f64>; 5] = Default::default();
    for generation in 0..effort.rounds as u64 {
        let start = Instant::now();
        let loaded = load(std::slice::from_ref(&path), &Limits::default())?;
        let parsed = start.elapsed();
        let mut table = compile(&loaded.policy, generation, &Limits::default())?;
        let compiled = start.elapsed();
        let installed = maps.install(&mut table)?;
        let figures =
            [parsed, compiled.saturating_sub(parsed), installed.write, installed.swap, start.elapsed()];
        for (samples, figure) in samples.iter_mut().zip(figures) {
            samples.push(ms(figure));
        }
    }
    probe.run("probe_empty", 1)?;
    let [parse, compiled, write, swap, whole] = samples.map(median);
    let name = |what: &str| format!("{} CIDRs: {what}", effort.prefixes);
    report.figure(&name("parse"), parse, "ms");
    report.at_most(&name("compile"), compiled, "ms", Some(1000.0));
    report.figure(&name("write"), write, "ms");
    report.at_most(&name("swap"), swap, "ms", Some(50.0));
    report.at_most(&name("text to in force"), whole, "ms", Some(1500.0));
    for (tool, arguments, text) in [
        ("ipset", &["restore", "-exist", "-file"][..], ipset_text as fn(&[Prefix]) -> String),
        ("nft", &["-f"], nft_text),
    ] {
        let file = folder.path().join(tool);
        fs::write(&file, text(&list::list(effort.prefixes, false)))?;
        let took = in_own_network(tool, arguments, &file)?;
        report.figure(&name(&format!("{tool}, the same list")), ms(took), "ms");
        report.at_least(&name(&format!("faster than {tool}")), ms(took) / whole, "x", Some(1.0));
    }
    Ok(())
}

fn ipset_text(prefixes: &[Prefix]) -> String {
    let mut text = format!("create list hash:net family inet maxelem {}\n", prefixes.len());
    for prefix in prefixes {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "add list {prefix}");
    }
    text
}

fn nft_text(prefixes: &[Prefix]) -> String {
    let mut text =
        "table inet bench {\n set peers {\n type ipv4_addr\n flags interval\n auto-merge\n elements = {\n"
            .to_owned();
    for prefix in prefixes {
        let _ = writeln!(text, "{prefix},");
    }
    text + "}\n}\n}\n"
}

/// How long a program takes to put a list into a network namespace of its own.
fn in_own_network(program: &str, arguments: &[&str], file: &Path) -> Result<Duration> {
    let mut command = Command::new("unshare");
    command.args(["--net", program]).args(arguments).arg(file);
    let start = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    let took = start.elapsed();
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(took)
}

/// An agent that enforces, and how long that took.
struct Agent {
    child: Child,
    took: Duration,
}

impl Agent {
    /// Starts the agent in a network namespace of its own, with its pins in a file system of its own.
    fn start(folder: &Path, policy: &Path) -> Result<Self> {
        let pins = folder.join("bpf");
        fs::create_dir_all(&pins)?;
        let script = "mount -t bpf bpf \"$1\" && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .args(["--net", "--mount", "sh", "-c", script, "sh"])
            .arg(&pins)
            .arg(env!("CARGO_BIN_EXE_smc-agent"));
        command.arg("--state-dir").arg(folder.join("state")).arg("--pin-dir").arg(pins.join("agent"));
        command.args(["run", "--backend", "tc", "--no-load-module", "--policy"]).arg(policy);
        let start = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let errors = child.stderr.take().context("no standard error")?;
        let mut said = String::new();
        for line in BufReader::new(errors).lines() {
            let line = line?;
            if line.contains("enforcing generation") {
                return Ok(Self { child, took: start.elapsed() });
            }
            said += &line;
            said.push('\n');
        }
        bail!("the agent ended: {said}");
    }

    /// A field of /proc/PID/status, in MB.
    fn memory(&self, field: &str) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kilobytes: f64 = line.context("no such field")?.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kilobytes * 1024.0 / 1e6)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The agent itself.
pub(crate) fn agent(report: &mut Report, effort: Effort) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = set_policy(folder.path(), &list::list(effort.prefixes, false))?;
    let large = Agent::start(folder.path(), &path)?;
    let name = |what: &str| format!("agent, {} prefixes: {what}", effort.prefixes);
    report.figure(&name("start to enforcing"), ms(large.took), "ms");
    report.at_most(&name("peak memory"), large.memory("VmHWM")?, "MB", Some(250.0));
    std::thread::sleep(Duration::from_millis(500));
    report.at_most(&name("memory after"), large.memory("VmRSS")?, "MB", Some(60.0));
    drop(large);

    let mut text = "version: 1\ndefault: allow\nrules:\n".to_owned();
    for number in 0..100 {
        let port = number + 1;
        writeln!(text, "  - {{name: r{number}, action: deny, peer: 10.{number}.0.0/16, port: {port}}}")?;
    }
    fs::write(&path, text)?;
    let mut samples = Vec::new();
    for round in 0..effort.rounds {
        let folder = folder.path().join(round.to_string());
        samples.push(ms(Agent::start(&folder, &path)?.took));
    }
    report.at_most("agent, 100 rules: start to enforcing", median(samples), "ms", Some(300.0));
    Ok(())
}
