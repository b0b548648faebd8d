//! `tail` and `top` in a guest with real SMC: what they show of connections that are made here, field by field, with an
//! agent and without one. Run it with `cargo xtask test --vm-only`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::{Arguments, Trial};
use serde_json::{Value, json};
use smc_agent_tests::agent::{self, Agent, Finished};
use smc_agent_tests::pair::{Ends, Kind, Pair, run};
use smc_agent_tests::wait::wait_until;
use tempfile::TempDir;

/// Bounds a hang under emulation.
const SOON: Duration = Duration::from_mins(1);
const POLICY: &str = "
version: 1
default: allow
rules:
  - { name: no-client, action: deny, role: client, port: 7000-7999 }
  - { name: seen, action: allow, port: 9500-9999, log: true }
";

fn main() -> ExitCode {
    let in_guest = std::env::var_os("SMC_AGENT_VM").is_some();
    let trial = |name: &str, test: fn() -> Result<()>| {
        let run = move || {
            let result = test();
            // The next one begins without an agent, whatever became of this.
            let cleaned = command(&["detach"]).map(drop);
            result.and(cleaned).map_err(|error| format!("{error:#}").into())
        };
        Trial::test(format!("tail::{name}"), run).with_ignored_flag(!in_guest)
    };
    let tests = vec![
        trial("events_of_the_agent_are_shown_and_filtered", of_the_agent),
        trial("without_an_agent_it_sees_events_itself", alone),
        trial("a_restart_of_the_agent_is_survived", restart),
        trial("a_reader_that_does_not_read_stalls_nobody", stalled_reader),
    ];
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, tests).exit_code()
}

fn command(arguments: &[&str]) -> Result<Finished> {
    agent::command(arguments)
}

/// What a command prints, which has to succeed, as values of JSON, a line each.
fn lines(arguments: &[&str]) -> Result<Vec<Value>> {
    let finished = command(&[arguments, &["-o", "json"]].concat())?;
    ensure!(finished.code == Some(0), "{arguments:?}: {finished:?}");
    finished.stdout.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// Starts an agent with [`POLICY`].
fn start(folder: &TempDir) -> Result<Agent> {
    let file = folder.path().join("policy.yaml");
    fs::write(&file, POLICY)?;
    let policy = file.display().to_string();
    Agent::start_enforcing(&["run", "-o", "json", "--policy", &policy], SOON)
}

/// Makes a connection over 127.0.0.1 to a port from `first` on that no earlier one had.
fn connect(client: Kind, server: Kind, first: u16) -> Result<Ends> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let port = first + NEXT.fetch_add(1, Ordering::Relaxed);
    let ends = run(&Pair::new(server, client, SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)))?;
    ensure!(ends.intact, "data was damaged: {:?}", ends.problems);
    Ok(ends)
}

/// `smc-agent tail --follow`, with its lines as they come.
struct Follower {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Follower {
    fn start(arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(agent::binary()?)
            .args(["tail", "--follow", "-o", "json"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let streams: [Option<Box<dyn std::io::Read + Send>>; 2] = [
            child.stdout.take().map(|stream| Box::new(stream) as _),
            child.stderr.take().map(|stream| Box::new(stream) as _),
        ];
        for stream in streams.into_iter().flatten() {
            let lines = Arc::clone(&lines);
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                }
            });
        }
        Ok(Self { child, lines })
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a line, also among those that came before.
    fn wait_for(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        wait_until(what, SOON, || Ok(self.lines().into_iter().find(|line| wanted(line))))
            .with_context(|| format!("it printed:\n{}", self.lines().join("\n")))
    }

    /// Waits for the event of the end with this local address.
    fn event_at(&self, local: SocketAddr) -> Result<Value> {
        let text = format!("\"local\":\"{local}\"");
        let line = self.wait_for(&format!("an event at {local}"), |line| line.contains(&text))?;
        serde_json::from_str(&line).context(line)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The events since the agent's start that a marker's came after.
fn wait_for_event(local: SocketAddr) -> Result<()> {
    let text = local.to_string();
    wait_until("the event of the last connection", SOON, || {
        let events = lines(&["tail", "--last", "1000"])?;
        Ok(events.iter().any(|event| event["local"] == text.as_str()).then_some(()))
    })
}

fn of_the_agent() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let _agent = start(&folder)?;
    let denied = connect(Kind::Smc, Kind::Smc, 7000)?;
    let seen = connect(Kind::Smc, Kind::Smc, 9500)?;
    let plain = connect(Kind::Smc, Kind::Tcp, 9000)?;
    wait_for_event(plain.client.local)?;

    let locals = |arguments: &[&str]| -> Result<Vec<String>> {
        let events = lines(&[&["tail", "--last", "1000"], arguments].concat())?;
        let mut locals: Vec<_> = events
            .iter()
            .filter(|event| !event["local"].is_null())
            .map(|event| {
                format!(
                    "{} {}",
                    event["event"].as_str().unwrap_or("?"),
                    event["local"].as_str().unwrap_or("?")
                )
            })
            .collect();
        locals.sort();
        Ok(locals)
    };
    let at = |kind: &str, ends: &[SocketAddr]| {
        let mut list: Vec<_> = ends.iter().map(|end| format!("{kind} {end}")).collect();
        list.sort();
        list
    };
    let expect = |arguments: &[&str], expected: Vec<String>| -> Result<()> {
        let found = locals(arguments)?;
        ensure!(found == expected, "{arguments:?}: {found:?} instead of {expected:?}");
        Ok(())
    };
    let fallbacks = [denied.client.local, denied.server.local, plain.client.local];
    expect(&["--event", "fallback"], at("fallback", &fallbacks))?;
    expect(&["--denied"], at("fallback", &fallbacks[..1]))?;
    expect(&["--rule", "no-*"], at("fallback", &fallbacks[..1]))?;
    expect(&["--event", "fallback", "--role", "server"], at("fallback", &[denied.server.local]))?;
    expect(&["--code", "PEERNOSMC", "--not", "--denied"], at("fallback", &fallbacks[1..]))?;
    expect(&["--code", "0x0303/"], Vec::new())?;
    let port = plain.client.peer.port().to_string();
    expect(&["--port", &port], at("fallback", &[plain.client.local]))?;
    expect(&["--port", "7000-7999", "--role", "client"], at("fallback", &[denied.client.local]))?;
    expect(&["--peer", "10.0.0.0/8"], Vec::new())?;
    expect(&["--event", "verdict"], at("verdict", &[seen.client.local, seen.server.local]))?;
    expect(&["--since", "1h", "--until", "30m"], Vec::new())?;

    // The text names what happened, and `--explain` the rule.
    let finished = command(&["tail", "--denied", "--explain"])?;
    ensure!(finished.stdout.contains("denied by rule \"no-client\""), "{finished:?}");
    ensure!(finished.stdout.contains("smc-agent policy explain --running --flow"), "{finished:?}");

    let top = command(&["top", "--once", "-o", "json"])?;
    let top: Value = serde_json::from_str(&top.stdout).with_context(|| format!("{top:?}"))?;
    let row = |section: usize| top["sections"][section]["rows"].clone();
    ensure!(top["fallbacks"] == 3 && top["denied"] == 1 && top["lost"] == 0, "{top}");
    ensure!(row(0)[0]["value"] == "0x03010000" && row(0)[0]["count"] == 3, "{top}");
    ensure!(
        row(1)[0] == json!({ "value": "127.0.0.1", "count": 3, "per_second": row(1)[0]["per_second"] }),
        "{top}"
    );
    ensure!(row(4)[0]["value"] == "no-client" && row(4)[0]["count"] == 1, "{top}");
    ensure!(top["kernel"]["since_start"] == 3 && top["kernel"]["not_shown"] == 0, "{top}");

    // What comes after it is started, with whose it is.
    let tail = Follower::start(&["--last", "0", "--event", "fallback"])?;
    let late = connect_until_followed(&tail)?;
    ensure!(late["code"]["value"] == 0x0301_0000 && late["denied_by"].is_null(), "{late}");
    ensure!(late["owner"]["pid"] == std::process::id(), "{late}");
    Ok(())
}

/// Makes connections until one is shown: the first ones may be made before it reads.
fn connect_until_followed(tail: &Follower) -> Result<Value> {
    let mut locals = Vec::new();
    wait_until("an event of a connection", SOON, || {
        locals.push(connect(Kind::Smc, Kind::Tcp, 9000)?.client.local.to_string());
        let events = tail.lines();
        let event = events.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut event = event
            .filter(|event| event["local"].as_str().is_some_and(|at| locals.iter().any(|local| local == at)));
        Ok(event.next())
    })
    .with_context(|| format!("it printed:\n{}", tail.lines().join("\n")))
}

fn alone() -> Result<()> {
    let none = command(&["tail"])?;
    ensure!(none.code == Some(1) && none.stderr.contains("no agent runs"), "{none:?}");
    let tail = Follower::start(&[])?;
    tail.wait_for("the notice", |line| line.contains("no agent runs: seeing what happens from now on"))?;
    let ends = connect(Kind::Smc, Kind::Tcp, 7000)?;
    let event = tail.event_at(ends.client.local)?;
    ensure!(event["event"] == "fallback" && event["role"] == "client", "{event}");
    ensure!(event["code"] == json!({ "value": 0x0301_0000, "name": "PEERNOSMC" }), "{event}");
    ensure!(event["peer"] == ends.client.peer.to_string().as_str(), "{event}");
    ensure!(event["denied_by"].is_null() && event["owner"]["pid"] == std::process::id(), "{event}");
    let server = connect(Kind::Tcp, Kind::Smc, 7000)?;
    let event = tail.event_at(server.server.local)?;
    ensure!(event["role"] == "server" && event["service_port"] == server.server.local.port(), "{event}");
    // No policy, no pin and no file is touched.
    for place in ["/run/smc-agent", "/sys/fs/bpf/smc-agent"] {
        ensure!(!std::path::Path::new(place).exists(), "{place} is there");
    }
    Ok(())
}

fn restart() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let first = start(&folder)?;
    let tail = Follower::start(&["--event", "fallback"])?;
    connect_until_followed(&tail)?;
    first.kill()?;
    tail.wait_for("that the agent has gone", |line| line.contains("the agent has gone"))?;
    // While none runs nothing is seen.
    connect(Kind::Smc, Kind::Tcp, 9000)?;
    let _second = start(&folder)?;
    tail.wait_for("that it is there again", |line| line.contains("the agent is there again"))?;
    let ends = connect(Kind::Smc, Kind::Tcp, 9000)?;
    tail.event_at(ends.client.local)?;
    tail.wait_for("what was missed", |line| line.contains("the agent was started again"))?;
    Ok(())
}

fn stalled_reader() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let _agent = start(&folder)?;
    let mut stalled = UnixStream::connect("/run/smc-agent/control.sock")?;
    stalled.write_all(b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n")?;
    stalled.set_read_timeout(Some(SOON))?;
    // It listens: its answer has begun. From here on it does not read.
    stalled.read_exact(&mut [0; 12])?;
    let tail = Follower::start(&["--last", "0", "--event", "fallback"])?;
    connect_until_followed(&tail)?;
    for _ in 0..20 {
        let ends = connect(Kind::Smc, Kind::Tcp, 9000)?;
        tail.event_at(ends.client.local)?;
    }
    let status = command(&["status"])?;
    ensure!(status.code == Some(0), "{status:?}");
    let missed = tail.lines().into_iter().find(|line| line.contains("\"missed\""));
    ensure!(missed.is_none(), "the other reader missed some: {missed:?}");
    Ok(())
}
