//! Readers of events of an agent that enforces by tc: events are made by running its program on packets that a rule with
//! `log: true` decides.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use serde_json::Value;
use smc_agent_tests::agent;
use smc_agent_tests::wait::wait_until;

use crate::packet::Packet;
use crate::sandbox::{SOON, Sandbox};

const PORT: u16 = 7002;
const POLICY: &str = "
version: 1
default: allow
rules:
  - { name: watched, action: deny, role: server, port: 7002, log: true }
";
/// Enough to fill whatever is between the agent and a reader that does not read.
const MANY: u32 = 30_000;

/// Has the agent's program judge a SYN so many times.
fn judge(sandbox: &Sandbox, times: u32) -> Result<()> {
    let objects: Vec<_> = fs::read_dir(sandbox.pins())?.flatten().map(|entry| entry.path()).collect();
    let [object] = &objects[..] else { anyhow::bail!("not one object: {objects:?}") };
    let program = SchedClassifier::from_pin(object.join("programs/smc_ingress"))?;
    let options = [0xfe, 6, 0xe2, 0xd4, 0xc3, 0xd9, 1, 1];
    let packet = Packet::syn(false, PORT, &options).bytes();
    for _ in 0..times {
        // Each run has a packet of its own: one that is run again has lost its option.
        program.test_run(TestRunOptions { data_in: Some(&packet), ..TestRunOptions::new() })?;
    }
    Ok(())
}

fn lines(sandbox: &Sandbox, arguments: &[&str]) -> Result<Vec<Value>> {
    let finished = sandbox.run(arguments)?;
    ensure!(finished.code == Some(0), "{arguments:?}: {finished:?}");
    finished.stdout.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

pub(crate) fn verdicts(sandbox: &Sandbox) -> Result<()> {
    let _listener = TcpListener::bind(("127.0.0.1", PORT))?;
    let _agent = sandbox.start(POLICY)?;
    judge(sandbox, 3)?;
    let shown = |arguments: &[&str]| lines(sandbox, &[&["tail", "-o", "json"], arguments].concat());
    let events = wait_until("three verdicts", SOON, || {
        let events = shown(&["--event", "verdict"])?;
        Ok((events.len() == 3).then_some(events))
    })?;
    for event in &events {
        ensure!(event["verdict"] == "deny" && event["by"]["rule"] == "watched", "{event}");
        ensure!(event["role"] == "server" && event["service_port"] == PORT, "{event}");
    }
    ensure!(shown(&["--last", "2", "--denied"])? == events[1..], "not the last two");
    ensure!(
        shown(&["--not", "--rule", "watched", "--event", "verdict"])?.is_empty(),
        "the rule is not left out"
    );
    ensure!(shown(&["--port", "7000-7001"])?.is_empty(), "of another port");
    let text = sandbox.run(&["tail", "--rule", "watch*"])?;
    ensure!(text.stdout.lines().all(|line| line.ends_with(" deny by rule \"watched\"")), "{text:?}");
    for command in [&["tail"][..], &["top", "--once"]] {
        let refused = sandbox.run_as_nobody(command)?;
        ensure!(refused.code == Some(4) && refused.stderr.contains("not permitted"), "{refused:?}");
    }
    let top = sandbox.run(&["top", "--once", "-o", "json", "--event", "verdict"])?;
    let top: Value = serde_json::from_str(&top.stdout).with_context(|| format!("{top:?}"))?;
    ensure!(top["verdicts"] == 3 && top["denied"] == 3 && top["counted"] == 3, "{top}");
    ensure!(top["sections"][2]["rows"][0]["value"] == PORT.to_string().as_str(), "{top}");
    Ok(())
}

/// The two readers: one never reads, the other has to get all, or be told how many it did not get.
pub(crate) fn stalled(sandbox: &Sandbox) -> Result<()> {
    let _listener = TcpListener::bind(("127.0.0.1", PORT))?;
    let _agent = sandbox.start(POLICY)?;
    let mut stalled = UnixStream::connect(sandbox.path("state/control.sock"))?;
    stalled.set_read_timeout(Some(SOON))?;
    stalled.write_all(b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n")?;
    // It listens: its answer has begun. From here on it does not read.
    stalled.read_exact(&mut [0; 12])?;
    let mut tail = Command::new(agent::binary()?)
        .args(sandbox.arguments(&["tail", "--follow", "-o", "json"]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let out = tail.stdout.take().context("no output")?;
    let reads = Arc::new(AtomicBool::new(false));
    let reading = Arc::clone(&reads);
    let counter = thread::spawn(move || {
        let (mut verdicts, mut missing) = (0, 0);
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
            match event["event"].as_str() {
                Some("verdict") => {
                    reading.store(true, Ordering::Relaxed);
                    verdicts += 1;
                }
                Some("lost" | "missed" | "suppressed") => {
                    missing += event["count"].as_u64().unwrap_or_default();
                }
                // The last one of all.
                Some("policy") => break,
                _ => {}
            }
        }
        (verdicts, missing)
    });
    judge(sandbox, 1)?;
    wait_until("the other reader reads", SOON, || Ok(reads.load(Ordering::Relaxed).then_some(())))?;
    judge(sandbox, MANY - 1)?;
    let stats =
        |text: &str| sandbox.status().map(|status| status["counters"][text].as_u64().unwrap_or_default());
    ensure!(
        stats("events_produced")? + stats("events_lost")? >= u64::from(MANY),
        "the agent does not answer"
    );
    let reload = sandbox.run(&["reload"])?;
    ensure!(reload.code == Some(0), "{reload:?}");
    let ended = wait_until("the other reader has all", SOON, || Ok(counter.is_finished().then_some(())));
    tail.kill()?;
    tail.wait()?;
    ended?;
    let (verdicts, missing) = counter.join().map_err(|_| anyhow::anyhow!("the counter panicked"))?;
    ensure!(verdicts + missing == u64::from(MANY), "{verdicts} shown and {missing} missing, of {MANY}");
    Ok(())
}
