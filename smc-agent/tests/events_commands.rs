//! `smc-agent tail`, `top` and `code` as users run them, with events on standard input and with an agent that is made up.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Bounds a hang.
const SOON: Duration = Duration::from_mins(1);

fn command(state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_smc-agent"));
    command.arg("--state-dir").arg(state).arg("--pin-dir").arg(state.join("none"));
    command
}

/// Runs a command to its end with this on its standard input, in a pipe.
fn with_input(arguments: &[&str], input: &str) -> Output {
    let state = tempfile::tempdir().unwrap();
    let mut child = command(state.path())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // Whoever has seen enough hangs up.
    let writer = thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a command with input did: exit code, standard output, standard error.
fn did(arguments: &[&str], input: &str) -> String {
    let output = with_input(arguments, input);
    let (code, out, err) = (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr));
    format!("$ {}\nexit {code}\n--- out\n{out}--- err\n{err}", arguments.join(" "))
}

fn event(run: u64, seq: u64, rest: Value) -> String {
    let mut event = json!({
        "version": 1, "time": format!("2026-01-02T03:{:02}:{:02}.5Z", seq / 60, seq % 60), "monotonic": seq, "run": run, "seq": seq
    });
    let Value::Object(rest) = rest else { panic!("{rest}") };
    event.as_object_mut().unwrap().extend(rest);
    event.to_string()
}

fn fallback(run: u64, seq: u64, role: &str, peer: &str, code: u32, denied_by: Option<&str>) -> String {
    event(
        run,
        seq,
        json!({
            "event": "fallback", "netns": 7, "netns_name": null, "role": role, "local": "10.0.0.1:40000", "peer": peer,
            "owner": { "pid": 9, "comm": "redis-cli", "uid": 0, "cgroup": "/user.slice/a", "container": null, "seen": "connect" },
            "code": { "value": code, "name": null }, "peer_code": null,
            "denied_by": denied_by.map(|rule| json!({ "rule": rule, "generation": 1 })),
        }),
    )
}

fn events() -> String {
    let lines = [
        fallback(1, 1, "client", "192.0.2.7:6379", 0x0301_0000, Some("no-redis")),
        fallback(1, 2, "server", "10.9.0.9:51844", 0x0303_0000, None),
        event(1, 3, json!({ "event": "policy", "result": "reloaded", "generation": 2, "problems": [] })),
        fallback(1, 4, "client", "[2001:db8::1]:443", 0x0500_0000, None),
        event(1, 9, json!({ "event": "lost", "count": 4 })),
    ];
    lines.join("\n") + "\n"
}

#[test]
fn events_on_standard_input_are_shown_as_those_of_the_agent() {
    let events = events();
    insta::assert_snapshot!("tail_text", did(&["tail"], &events));
    insta::assert_snapshot!("tail_explained", did(&["tail", "--explain", "--last", "2", "-"], &events));
    insta::assert_snapshot!(
        "tail_json",
        did(&["tail", "-o", "json", "--role", "client", "--not", "--denied"], &events)
    );
    let period = ["tail", "--since", "2026-01-02T03:00:02Z", "--until", "2026-01-02T03:00:04Z"];
    insta::assert_snapshot!("tail_period", did(&period, &events));
    let filters = ["tail", "--code", "3", "--peer=10.0.0.0/8,192.0.2.0/24", "--not", "--port", "6379"];
    insta::assert_snapshot!("tail_filtered", did(&filters, &events));
    // JSON in, JSON out: the same lines.
    assert_eq!(text(&with_input(&["tail", "-o", "json"], &events).stdout), events);
    assert_eq!(text(&with_input(&["tail", "-n", "0"], &events).stdout), "");
}

#[test]
fn what_is_no_event_is_told_and_the_rest_is_shown() {
    let first = events().lines().next().unwrap().to_owned();
    let newer = "{\"version\":1,\"event\":\"novel\",\"text\":\"x\u{202e}\"}";
    insta::assert_snapshot!(
        "tail_broken",
        did(&["tail"], &format!("{first}\n\nnonsense\n{newer}\n{{\"a\":1}}\n"))
    );
    let output = with_input(&["tail", "-o", "json"], "\u{9b}31m\n");
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty() && !text(&output.stderr).contains('\u{9b}'));
}

#[test]
fn wrong_use_is_told() {
    for (arguments, wrong) in [
        (&["tail", "--code", "NOSUCH"][..], "is no code"),
        (&["tail", "--not"], "--not stands in front of the filter"),
        (&["tail", "--since", "yesterday"], "is no moment"),
        (&["tail", "--since", "1m", "--until", "2m"], "is after --until"),
        (&["tail", "file.json"], "invalid value 'file.json'"),
        (&["top", "--by", "colour"], "invalid value 'colour'"),
        (&["code"], "required arguments were not provided"),
        (&["code", "0x03010000", "--list"], "cannot be used with"),
        (&["code", "NOSMC-DEV"], "did you mean NOSMCDEV?"),
    ] {
        let output = with_input(arguments, "");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(text(&output.stderr).contains(wrong), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn counts_of_standard_input_are_shown_once() {
    let events = events();
    insta::assert_snapshot!("top_text", did(&["top"], &events));
    insta::assert_snapshot!(
        "top_by",
        did(&["top", "--once", "--by", "peer,rule", "--role", "client"], &events)
    );
    let output = with_input(&["top", "-o", "json", "-n", "1"], &events);
    let top: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&top["version"], &top["counted"], &top["lost"]), (&json!(1), &json!(3), &json!(4)));
    assert_eq!(
        top["sections"][4],
        json!({ "by": "rule", "others": 0, "rows": [
        { "value": "no-redis", "count": 1, "per_second": 1.0 / 3.0 }
    ] })
    );
}

#[test]
fn codes_are_explained() {
    let output = with_input(&["code", "0x05000000/0x03030001", "50397184", "-o", "json"], "");
    assert_eq!(output.status.code(), Some(0));
    let explained: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(explained["version"], 1);
    assert_eq!(explained["codes"][0]["code"]["name"], "PEERDECL");
    assert_eq!(explained["codes"][0]["peer_code"]["name"], "NOSMCDDEV");
    assert_eq!(explained["codes"][1]["code"]["name"], "PEERNOSMC");
    let unknown = with_input(&["code", "0x1234"], "");
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stdout).starts_with("0x00001234 (4660): unknown\n"), "{}", text(&unknown.stdout));
    assert_eq!(with_input(&["code", "--list"], "").status.code(), Some(0));
}

/// An agent that is made up: it answers requests for events as it is told.
struct FakeAgent {
    listener: UnixListener,
}

impl FakeAgent {
    fn start(state: &Path) -> Self {
        let path = state.join("control.sock");
        let _ = std::fs::remove_file(&path);
        Self { listener: UnixListener::bind(path).unwrap() }
    }

    /// Waits for a request: its address and the way to answer it.
    fn request(&self) -> (String, UnixStream) {
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut first = String::new();
        reader.read_line(&mut first).unwrap();
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 2 {
            line.clear();
        }
        (first.split(' ').nth(1).unwrap().to_owned(), stream)
    }

    /// Answers the next request with these lines, and hands out what goes on.
    fn answer(&self, lines: &[String]) -> (String, UnixStream) {
        let (address, mut stream) = self.request();
        let mut text = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n".to_owned();
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        stream.write_all(text.as_bytes()).unwrap();
        (address, stream)
    }
}

/// A command that runs, with its lines as they come.
struct Running {
    child: Child,
    out: Receiver<String>,
    err: Receiver<String>,
}

impl Running {
    fn start(state: &Path, arguments: &[&str]) -> Self {
        let mut child = command(state)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = lines_of(child.stdout.take().unwrap());
        let err = lines_of(child.stderr.take().unwrap());
        Self { child, out, err }
    }

    fn line(&self) -> String {
        self.out.recv_timeout(SOON).unwrap()
    }

    fn notice(&self) -> String {
        self.err.recv_timeout(SOON).unwrap()
    }

    fn seq(&self) -> Value {
        let line = self.line();
        serde_json::from_str::<Value>(&line).unwrap_or_else(|error| panic!("{line}: {error}"))["seq"].clone()
    }

    fn end(mut self) -> ExitStatus {
        wait(&mut self.child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait(child: &mut Child) -> ExitStatus {
    let end = Instant::now() + SOON;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < end, "it does not end");
        thread::sleep(Duration::from_millis(5));
    }
}

fn lines_of(stream: impl io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn simple(run: u64, seq: u64) -> String {
    fallback(run, seq, "client", "192.0.2.7:6379", 0x0301_0000, None)
}

#[test]
fn the_past_and_what_is_to_come_are_one_stream() {
    let folder = folder();
    let agent = FakeAgent::start(folder.path());
    let tail = Running::start(folder.path(), &["tail", "--follow", "--last", "2", "-o", "json"]);
    let (address, past) = agent.answer(&[simple(1, 1), simple(1, 2), simple(1, 3)]);
    assert_eq!(address, "/v1/events?follow=false&history=4294967295");
    drop(past);
    assert_eq!((tail.seq(), tail.seq()), (json!(2), json!(3)));
    // Those that were seen come again, and are not shown again.
    let (address, mut future) = agent.answer(&[simple(1, 2), simple(1, 3), simple(1, 4)]);
    assert_eq!(address, "/v1/events?follow=true&since=2026-01-02T02:59:58.5Z");
    assert_eq!(tail.seq(), json!(4));
    // What is missing is told.
    writeln!(future, "{}", simple(1, 8)).unwrap();
    let missed: Value = serde_json::from_str(&tail.line()).unwrap();
    assert_eq!((&missed["event"], &missed["count"]), (&json!("missed"), &json!(3)));
    assert_eq!(tail.seq(), json!(8));
}

#[test]
fn an_agent_that_is_started_again_is_found() {
    let folder = folder();
    let agent = FakeAgent::start(folder.path());
    let tail = Running::start(folder.path(), &["tail", "--follow", "-o", "json"]);
    drop(agent.answer(&[simple(1, 1)]));
    let (_, future) = agent.answer(&[simple(1, 2)]);
    assert_eq!((tail.seq(), tail.seq()), (json!(1), json!(2)));
    drop((agent, future));
    assert_eq!(tail.notice(), "smc-agent: the agent has gone (it ended); waiting for it to come back");
    let agent = FakeAgent::start(folder.path());
    let (address, mut future) = agent.answer(&[simple(2, 3)]);
    assert_eq!(address, "/v1/events?follow=true&since=2026-01-02T02:59:57.5Z");
    assert_eq!(tail.notice(), "smc-agent: the agent is there again");
    assert_eq!(
        tail.notice(),
        "smc-agent: the agent was started again: what happened between 2026-01-02T03:00:02.500Z and its start is not known"
    );
    let missed: Value = serde_json::from_str(&tail.line()).unwrap();
    assert_eq!((&missed["event"], &missed["count"]), (&json!("missed"), &json!(2)));
    assert_eq!(tail.seq(), json!(3));
    // A line that is cut is no event, and nothing of it is shown.
    write!(future, "{}", &simple(2, 4)[..40]).unwrap();
    drop(future);
    assert!(tail.notice().contains("has gone"));
    let (_, mut future) = agent.answer(&[simple(2, 4)]);
    assert_eq!(tail.seq(), json!(4));
    writeln!(future, "{}", simple(2, 5)).unwrap();
    assert_eq!(tail.seq(), json!(5));
}

#[test]
fn an_agent_that_goes_before_it_answers_is_waited_for() {
    let folder = folder();
    let agent = FakeAgent::start(folder.path());
    let tail = Running::start(folder.path(), &["tail", "--follow", "-o", "json"]);
    drop(agent.answer(&[simple(1, 1)]));
    assert_eq!(tail.seq(), json!(1));
    // Killed while it is asked; then stopping; then not there at all.
    drop(agent.request());
    let notice = tail.notice();
    assert!(notice.starts_with("smc-agent: the agent has gone (the agent hung up: "), "{notice}");
    let (_, mut stream) = agent.request();
    stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").unwrap();
    drop((stream, agent));
    let agent = FakeAgent::start(folder.path());
    let (_, _future) = agent.answer(&[simple(1, 2)]);
    assert_eq!(tail.notice(), "smc-agent: the agent is there again");
    assert_eq!(tail.seq(), json!(2));
}

#[test]
fn a_reader_that_has_gone_ends_it() {
    let folder = folder();
    let agent = FakeAgent::start(folder.path());
    for command in [&["tail", "--follow"][..], &["top"]] {
        let mut child = self::command(folder.path())
            .args(command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(agent.answer(&[simple(1, 1)]));
        // While nothing happens that it could write: its further requests get no answer.
        let streams = [agent.request()];
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut [0; 10]).unwrap();
        drop(out);
        let mut err = String::new();
        assert_eq!(wait(&mut child).code(), Some(0));
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!(err, "", "{command:?}");
        drop(streams);
    }
}

#[test]
fn it_ends_when_the_time_is_over() {
    let folder = folder();
    let agent = FakeAgent::start(folder.path());
    let until = (jiff::Timestamp::now() + Duration::from_secs(1)).to_string();
    let tail = Running::start(folder.path(), &["tail", "--follow", "--last", "0", "--until", &until]);
    let (address, _future) = agent.answer(&[]);
    assert!(address.starts_with("/v1/events?follow=true&since="), "{address}");
    assert_eq!(tail.end().code(), Some(0));
}

#[test]
fn without_an_agent_there_is_no_past() {
    let folder = folder();
    for arguments in [&["tail"][..], &["top", "--once"]] {
        let output = command(folder.path()).args(arguments).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text(&output.stderr).starts_with("smc-agent: no agent runs, and so there is nothing of the past")
        );
    }
}

#[test]
fn what_the_agent_refuses_is_told() {
    let folder = folder();
    let agent = FakeAgent::start(folder.path());
    let tail = Running::start(folder.path(), &["tail"]);
    let (_, mut stream) = agent.request();
    stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 8\r\n\r\nno \x1b[31m").unwrap();
    assert_eq!(tail.notice(), "smc-agent: the agent answered 400 Bad Request: no \u{fffd}[31m");
    assert_eq!(tail.end().code(), Some(1));
}

#[test]
fn counts_go_on_with_what_comes() {
    let folder = folder();
    let agent = FakeAgent::start(folder.path());
    let top = Running::start(folder.path(), &["top", "-o", "json", "--interval", "0.1", "--by", "code"]);
    drop(agent.answer(&[simple(1, 1), simple(1, 2)]));
    let mut streams = Vec::new();
    let mut counted = Value::Null;
    let end = Instant::now() + SOON;
    // Between its looks it asks for the kernel's own count.
    while counted != json!(5) {
        assert!(Instant::now() < end, "{counted}");
        let (address, mut stream) = agent.request();
        if address.starts_with("/v1/events/stats") {
            stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").unwrap();
            let line: Value = serde_json::from_str(&top.line()).unwrap();
            counted = line["counted"].clone();
            assert!(counted == json!(2) || counted == json!(5), "{line}");
            continue;
        }
        let lines = [simple(1, 2), simple(1, 3), simple(1, 4), simple(1, 5)].join("\n") + "\n";
        let head = "HTTP/1.1 200 OK\r\n\r\n".to_owned();
        stream.write_all((head + &lines).as_bytes()).unwrap();
        streams.push(stream);
    }
}
