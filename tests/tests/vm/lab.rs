//! One test's kernel, policy file and agent: clean before it, clean after it.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use smc_agent_tests::agent::{self, Agent, Finished};
use smc_agent_tests::netns;
use smc_agent_tests::objects::{Objects, pinned};
use smc_agent_tests::pair::{Ends, Kind, Mode, Pair, run};
use smc_agent_tests::setup;
use smc_agent_tests::wait::wait_until;
use tempfile::TempDir;

/// `SMC_CLC_DECL_PEERNOSMC` (`net/smc/smc_clc.h`): what both ends of a refused flow see.
pub(crate) const PEER_NO_SMC: u32 = 0x0301_0000;
/// `SMC_CLC_DECL_NOSMCDEV`
const NO_SMC_DEVICE: u32 = 0x0303_0000;
/// `SMC_CLC_DECL_PEERDECL`
const PEER_DECLINED: u32 = 0x0500_0000;
/// Bounds a hang under emulation; nothing takes nearly as long.
pub(crate) const SOON: Duration = Duration::from_mins(1);

pub(crate) const SYSCTL: &str = "/proc/sys/net/smc/hs_ctrl";
const PINS: &str = "/sys/fs/bpf/smc-agent";
const STATE: &str = "/run/smc-agent";

pub(crate) const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(crate) const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Denies by [`Port::NoClient`] and [`Port::NoServer`] what their names say.
pub(crate) const POLICY: &str = "
version: 1
default: allow
rules:
  - { name: no-client, action: deny, role: client, port: 7000-7999 }
  - { name: no-server, action: deny, role: server, port: 8000-8999 }
";
/// Denies nothing.
pub(crate) const ALLOW_ALL: &str = "{ version: 1, default: allow, rules: [] }";

/// Ports by what [`POLICY`] says of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// Rule `no-client`.
    NoClient = 7000,
    /// Rule `no-server`.
    NoServer = 8000,
    /// No rule.
    Open = 9000,
}

impl Port {
    /// One that no earlier flow had.
    pub(crate) fn fresh(self) -> u16 {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        self as u16 + NEXT.fetch_add(1, Ordering::Relaxed) % 1000
    }
}

/// How policies are enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// `hs-ctrl`
    HsCtrl,
    /// `tc`
    Tc,
}

impl Backend {
    /// As arguments and status have it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::HsCtrl => "hs-ctrl",
            Self::Tc => "tc",
        }
    }

    /// Whether it is what `auto` has to take on this kernel.
    pub(crate) fn is_automatic(self) -> bool {
        (self == Self::HsCtrl) == has_hs_ctrl()
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names of tests are filtered by as Rust names modules.
        formatter.write_str(match self {
            Self::HsCtrl => "hs_ctrl",
            Self::Tc => "tc",
        })
    }
}

/// Whether this kernel asks a `smc_hs_ctrl`.
pub(crate) fn has_hs_ctrl() -> bool {
    Path::new(SYSCTL).exists()
}

/// The ctrl that is selected; empty if none is, or the kernel knows none.
pub(crate) fn selected_ctrl() -> String {
    fs::read_to_string(SYSCTL).unwrap_or_default().trim().to_owned()
}

/// A connection to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) client: Kind,
    pub(crate) server: Kind,
    pub(crate) to: SocketAddr,
    pub(crate) non_blocking: bool,
}

impl Flow {
    /// From and to `AF_SMC` sockets over 127.0.0.1.
    pub(crate) fn smc(port: Port) -> Self {
        Self::to(V4, port)
    }

    /// From and to `AF_SMC` sockets.
    pub(crate) fn to(address: IpAddr, port: Port) -> Self {
        let to = SocketAddr::new(address, port.fresh());
        Self { client: Kind::Smc, server: Kind::Smc, to, non_blocking: false }
    }

    /// The same with other kinds of sockets.
    pub(crate) fn kinds(self, client: Kind, server: Kind) -> Self {
        Self { client, server, ..self }
    }

    pub(crate) fn pair(&self) -> Pair {
        let mut pair = Pair::new(self.server, self.client, self.to);
        pair.connecting.non_blocking = self.non_blocking;
        pair
    }

    /// Makes the connection; its data has to arrive intact.
    pub(crate) fn run(&self) -> Result<Ends> {
        let ends = run(&self.pair()).with_context(|| format!("{self:?}"))?;
        ensure!(ends.intact, "{self:?}: data was damaged: {}", ends.problems.join("; "));
        Ok(ends)
    }

    /// Makes the connection, which has to run over TCP because an end refused SMC.
    pub(crate) fn run_denied(&self) -> Result<Ends> {
        let ends = self.run()?;
        expect_denied(&ends).with_context(|| format!("{self:?}"))?;
        Ok(ends)
    }

    /// Makes the connection, which has to negotiate SMC, and to run over it where this kernel can.
    pub(crate) fn run_allowed(&self) -> Result<Ends> {
        let ends = self.run()?;
        expect_negotiated(&ends, smc_is_possible()).with_context(|| format!("{self:?}"))?;
        Ok(ends)
    }
}

/// Both ends negotiated SMC, and use it where they can; where they cannot, they show that there is no device for it.
pub(crate) fn expect_negotiated(ends: &Ends, possible: bool) -> Result<()> {
    let expected = if possible {
        [(smc_mode(), 0), (smc_mode(), 0)]
    } else {
        [(Mode::FallbackTcp, NO_SMC_DEVICE), (Mode::FallbackTcp, PEER_DECLINED)]
    };
    for ((name, end), (mode, reason)) in
        [("client", &ends.client), ("server", &ends.server)].into_iter().zip(expected)
    {
        ensure!(
            end.mode == mode && end.reason == reason,
            "the {name} has mode {} and reason {:#010x} instead of {mode} and {reason:#010x}",
            end.mode,
            end.reason
        );
    }
    Ok(())
}

/// Both ends show the fallback of a refused flow; plain TCP sockets have none to show.
pub(crate) fn expect_denied(ends: &Ends) -> Result<()> {
    for (name, end) in [("client", &ends.client), ("server", &ends.server)] {
        let as_expected = end.mode == Mode::Tcp || end.mode == Mode::FallbackTcp && end.reason == PEER_NO_SMC;
        ensure!(as_expected, "the {name} has mode {} and reason {:#010x}", end.mode, end.reason);
    }
    Ok(())
}

/// Whether connections within this kernel's one host can use SMC. Where they cannot, one that may negotiate shows at both
/// ends that there is no device: not what one shows that was refused.
pub(crate) fn smc_is_possible() -> bool {
    setup::kernel_release()
        .and_then(|release| setup::version_of(&release))
        .is_ok_and(|version| version >= (6, 12))
}

/// The kinds of SMC sockets that this kernel knows.
pub(crate) fn smc_kinds() -> &'static [Kind] {
    if smc_is_possible() { &[Kind::Smc, Kind::SmcInet] } else { &[Kind::Smc] }
}

/// What SMC is on this kernel's one host.
pub(crate) fn smc_mode() -> Mode {
    if has_hs_ctrl() { Mode::SmcD } else { Mode::SmcR }
}

/// The addresses that can have SMC on this kernel: Soft-RoCE does IPv4 only.
pub(crate) fn smc_addresses() -> &'static [IpAddr] {
    if has_hs_ctrl() { &[V4, V6] } else { &[V4] }
}

/// The environment of one test.
pub(crate) struct Lab {
    /// The backend under test.
    pub(crate) backend: Backend,
    folder: TempDir,
    before: Objects,
    qdiscs: String,
    agent: Option<Agent>,
    events_taken: usize,
    /// Further arguments to run agents with.
    pub(crate) more: Vec<String>,
}

impl Lab {
    /// Makes sure that nothing of an agent is there.
    pub(crate) fn new(backend: Backend) -> Result<Self> {
        detach()?;
        expect_no_places()?;
        Ok(Self {
            backend,
            folder: tempfile::tempdir()?,
            before: Objects::now(),
            qdiscs: qdiscs(),
            agent: None,
            events_taken: 0,
            more: Vec::new(),
        })
    }

    /// The policy file.
    pub(crate) fn policy_file(&self) -> PathBuf {
        self.folder.path().join("policy.yaml")
    }

    /// Writes the policy file.
    pub(crate) fn write_policy(&self, text: &str) -> Result<()> {
        fs::write(self.policy_file(), text).context("cannot write the policy")
    }

    /// The arguments to run an agent with.
    pub(crate) fn run_arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = ["run", "-o", "json", "--policy"].map(Into::into).into();
        arguments.push(self.policy_file().display().to_string());
        if !self.backend.is_automatic() {
            arguments.extend(["--backend", self.backend.word()].map(Into::into));
        }
        arguments.extend(self.more.iter().cloned());
        arguments
    }

    /// Puts a policy into force: by the agent that runs, whose events until now are forgotten, else by a new one.
    pub(crate) fn start(&mut self, policy: &str) -> Result<&mut Agent> {
        if self.agent.is_none() {
            self.write_policy(policy)?;
            return self.start_again();
        }
        self.events()?;
        self.reload(policy)?;
        self.agent()
    }

    /// Starts an agent with the policy file as it is.
    pub(crate) fn start_again(&mut self) -> Result<&mut Agent> {
        self.agent = None;
        self.events_taken = 0;
        Ok(self.agent.insert(Agent::start_enforcing(&self.run_arguments(), SOON)?))
    }

    /// The running agent.
    pub(crate) fn agent(&mut self) -> Result<&mut Agent> {
        self.agent.as_mut().context("no agent was started")
    }

    /// Kills the agent as `kill -9` does.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.agent.take().context("no agent was started")?.kill()
    }

    /// Ends the agent by SIGTERM; it has to exit with 0.
    pub(crate) fn terminate(&mut self) -> Result<()> {
        let status = self.agent.take().context("no agent was started")?.terminate(SOON)?;
        ensure!(status.success(), "the agent ended with {status}");
        Ok(())
    }

    /// Has the running agent read another policy and waits until it is in force.
    pub(crate) fn reload(&mut self, policy: &str) -> Result<()> {
        self.write_policy(policy)?;
        let finished = command(&["reload"])?;
        ensure!(finished.code == Some(0), "reload: {finished:?}");
        Ok(())
    }

    /// The events since the last call, as [`line`] tells them, sorted; complete, because one more flow that is known to
    /// cause an event is made and waited for.
    pub(crate) fn events(&mut self) -> Result<Vec<String>> {
        let marker = Flow::smc(Port::Open).kinds(Kind::Smc, Kind::Tcp).run_denied()?.client.local.to_string();
        let taken = self.events_taken;
        let agent = self.agent()?;
        let is_marker = |event: &Value| event["event"] == "fallback" && event["local"] == marker.as_str();
        let all = wait_until("the event of a flow to a TCP server", SOON, || {
            let all = parse_events(&agent.lines())?;
            Ok(all.iter().any(is_marker).then_some(all))
        })
        .with_context(|| format!("the agent printed:\n{}", agent.lines().join("\n")))?;
        self.events_taken = all.len();
        let of_marker = |event: &Value| event["local"] == marker.as_str() || event["peer"] == marker.as_str();
        // That a policy was reloaded is an event too, and this lab's own doing.
        let of_flows = |event: &Value| event["event"] != "policy" && !of_marker(event);
        let mut lines: Vec<String> =
            all.iter().skip(taken).filter(|event| of_flows(event)).map(line).collect();
        if !smc_is_possible() {
            // What may negotiate finds no device, which is not the policy's doing and not named as such.
            lines.retain(|line| !line.ends_with(" NOSMCDEV"));
        }
        lines.sort();
        Ok(lines)
    }

    /// Compares the events since the last call with what is expected, in any order.
    pub(crate) fn expect_events(&mut self, mut expected: Vec<String>) -> Result<()> {
        expected.sort();
        let events = self.events()?;
        ensure!(
            events == expected,
            "events:\n  {}\nexpected:\n  {}",
            events.join("\n  "),
            expected.join("\n  ")
        );
        Ok(())
    }

    /// Waits until nothing of the agent is left in the kernel and in the file system.
    pub(crate) fn expect_clean(&self) -> Result<()> {
        expect_no_places()?;
        let qdiscs = qdiscs();
        ensure!(qdiscs == self.qdiscs, "qdiscs are left:\n{qdiscs}before:\n{}", self.qdiscs);
        let mut left = Objects::default();
        // The kernel frees maps and programs after a grace period.
        wait_until("no BPF object is left", SOON, || {
            left = Objects::now().since(&self.before);
            Ok(left.is_empty().then_some(()))
        })
        .with_context(|| format!("left: {left:?}"))
    }

    /// Ends the agent, detaches, and checks that nothing is left.
    pub(crate) fn clean(mut self) -> Result<()> {
        self.agent = None;
        detach()?;
        self.expect_clean()
    }
}

/// Runs a command of the agent.
pub(crate) fn command(arguments: &[&str]) -> Result<Finished> {
    agent::command(arguments)
}

/// `smc-agent detach`, which has to succeed.
pub(crate) fn detach() -> Result<Finished> {
    let finished = command(&["detach"])?;
    ensure!(finished.code == Some(0), "detach: {finished:?}");
    Ok(finished)
}

/// `smc-agent status`, which has to find all well.
pub(crate) fn status() -> Result<Value> {
    let finished = command(&["status", "-o", "json"])?;
    ensure!(finished.code == Some(0), "status: {finished:?}");
    serde_json::from_str(&finished.stdout).context("the status is no JSON")
}

/// The generation in force.
pub(crate) fn generation() -> Result<u64> {
    status()?["policy"]["generation"].as_u64().context("no generation in the status")
}

/// How often each rule decided, by name; the default is `(default)`.
pub(crate) fn hits() -> Result<Vec<(String, u64)>> {
    let status = status()?;
    let policy = &status["policy"];
    let number = |value: &Value| value.as_u64().context("no number of hits");
    let mut hits = Vec::new();
    for rule in policy["rules"].as_array().context("no rules in the status")? {
        hits.push((rule["name"].as_str().unwrap_or_default().to_owned(), number(&rule["hits"])?));
    }
    hits.push(("(default)".to_owned(), number(&policy["default_hits"])?));
    Ok(hits)
}

/// Ids of what the agent has pinned.
pub(crate) fn pins() -> Result<std::collections::BTreeMap<String, u32>> {
    pinned(Path::new(PINS))
}

/// What `fallback` events of a refused flow look like as [`line`]s; `by` is ` by RULE` or empty.
pub(crate) fn fallback(role: &str, local: SocketAddr, peer: SocketAddr, by: &str) -> String {
    format!("fallback {role} {local} {peer} 0x03010000 PEERNOSMC{by}")
}

/// Both events of a refused flow between SMC sockets; the role that refused has the rule.
pub(crate) fn refused(ends: &Ends, refuser: &str, name: &str) -> [String; 2] {
    let by = |this: &str| if this == refuser { format!(" by {name}") } else { String::new() };
    [
        fallback("client", ends.client.local, ends.client.peer, &by("client")),
        fallback("server", ends.server.local, ends.server.peer, &by("server")),
    ]
}

/// An event in one line, with all that a test can know beforehand.
fn line(event: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let by = |decider: &Value| match decider {
        Value::Null => String::new(),
        decider => format!(" by {}", decider["rule"].as_str().unwrap_or("(default)")),
    };
    let head = format!(
        "{} {} {} {}",
        text(&event["event"]),
        text(&event["role"]),
        text(&event["local"]),
        text(&event["peer"])
    );
    if event["event"] == "verdict" {
        let shadow = if event["shadow"] == true { " shadow" } else { "" };
        return format!("{head} {}{shadow}{}", text(&event["verdict"]), by(&event["by"]));
    }
    let code = event["code"]["value"].as_u64().unwrap_or_default();
    let peer_code = match &event["peer_code"] {
        Value::Null => String::new(),
        code => format!(" peer {}", text(&code["name"])),
    };
    let denied_by = by(&event["denied_by"]);
    format!("{head} {code:#010x} {}{peer_code}{denied_by}", text(&event["code"]["name"]))
}

pub(crate) fn parse_events(lines: &[String]) -> Result<Vec<Value>> {
    lines
        .iter()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).with_context(|| format!("no JSON: {line}")))
        .collect()
}

fn expect_no_places() -> Result<()> {
    for place in [PINS, STATE] {
        let folder = Path::new(place);
        let inside = || fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
        ensure!(!folder.exists(), "{place} is left, with {:?}", inside().collect::<Vec<_>>());
    }
    let ctrl = selected_ctrl();
    ensure!(ctrl.is_empty(), "net.smc.hs_ctrl is left at {ctrl}");
    Ok(())
}

/// All queueing disciplines, as `tc` lists them; empty where there is no `tc`.
fn qdiscs() -> String {
    netns::command("tc", &["qdisc", "show"]).unwrap_or_default()
}

/// Sends SIGHUP and waits for what comes of it: a generation, or `None` if the policy was refused.
pub(crate) fn hang_up(agent: &Agent) -> Result<Option<u64>> {
    let last = |status: &Value| status["agent"]["last_reload"]["time"].clone();
    let before = last(&status()?);
    agent.signal(Signal::SIGHUP)?;
    let status = wait_until("a reload", SOON, || {
        let status = status()?;
        Ok((last(&status) != before).then_some(status))
    })?;
    Ok(status["agent"]["last_reload"]["generation"].as_u64())
}
