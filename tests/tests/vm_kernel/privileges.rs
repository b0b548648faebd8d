//! The capabilities that docs/operations.md states are enough for a whole life of the agent, and each of them is needed.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smc_agent_tests::agent::{self, Agent};
use smc_agent_tests::netns::NetNs;
use smc_agent_tests::pair::{Kind, Pair, run};
use smc_agent_tests::wait::wait_until;

/// Bounds a hang.
const SOON: Duration = Duration::from_mins(2);

/// A capability (uapi/linux/capability.h).
type Capability = (u8, &'static str);

const DAC_READ_SEARCH: Capability = (2, "CAP_DAC_READ_SEARCH");
const NET_BROADCAST: Capability = (11, "CAP_NET_BROADCAST");
const NET_ADMIN: Capability = (12, "CAP_NET_ADMIN");
const SYS_PTRACE: Capability = (19, "CAP_SYS_PTRACE");
const SYS_ADMIN: Capability = (21, "CAP_SYS_ADMIN");
const SYS_RESOURCE: Capability = (24, "CAP_SYS_RESOURCE");
const PERFMON: Capability = (38, "CAP_PERFMON");
const BPF: Capability = (39, "CAP_BPF");
/// What the agent keeps where it is given.
const KEPT: [Capability; 7] =
    [DAC_READ_SEARCH, NET_BROADCAST, NET_ADMIN, SYS_PTRACE, SYS_ADMIN, PERFMON, BPF];

/// A policy that denies a port, and another.
const POLICIES: [&str; 2] = [
    "{ version: 1, default: allow, rules: [{ name: no-7100, action: deny, port: 7100 }] }",
    "{ version: 1, default: allow, rules: [{ name: no-7200, action: deny, port: 7200 }] }",
];

fn numbers(capabilities: &[Capability]) -> Vec<u8> {
    capabilities.iter().map(|(number, _)| *number).collect()
}

/// The backends that a kernel has, each with the capabilities that `run` needs for it.
fn needed(kernel: &str) -> Vec<(&'static str, Vec<Capability>)> {
    let mut tc = vec![NET_ADMIN, BPF, PERFMON];
    if kernel == "5.10" {
        // Maps count as locked memory there.
        tc.push(SYS_RESOURCE);
    }
    let mut all = vec![("tc", tc.clone()), ("observe", tc)];
    if kernel == "7.3" {
        all.push(("hs-ctrl", vec![NET_ADMIN, SYS_ADMIN]));
    }
    all
}

/// Whether probes take `CAP_SYS_ADMIN` on this kernel.
fn probes_need_more() -> Result<bool> {
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")?;
    Ok(level.trim().parse::<i32>()? > 2)
}

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Result<Self> {
        Ok(Self { folder: tempfile::tempdir()? })
    }

    fn file(&self) -> String {
        self.folder.path().join("policy.yaml").display().to_string()
    }

    fn write(&self, policy: &str) -> Result<()> {
        fs::write(self.file(), policy).context("cannot write the policy")
    }
}

/// Makes a connection between SMC sockets to a port, whose both ends show at the end that it was refused.
fn refused(port: u16) -> Result<()> {
    let ends = run(&Pair::new(Kind::Smc, Kind::Smc, ([127, 0, 0, 1], port).into()))?;
    ensure!(ends.intact, "data was damaged: {}", ends.problems.join("; "));
    let reasons = [ends.client.reason, ends.server.reason];
    ensure!(reasons == [0x0301_0000; 2], "port {port}: {reasons:x?}");
    Ok(())
}

/// Waits for the event of a connection to a port that a rule refused.
fn event(agent: &mut Agent, port: u16, rule: Option<&str>) -> Result<()> {
    let of_port = format!(":{port}");
    agent.wait_for_line("the event of a refused connection", SOON, |line| {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        event["event"] == "fallback"
            && event["peer"].as_str().is_some_and(|peer| peer.ends_with(&of_port))
            && event["denied_by"]["rule"].as_str() == rule
    })?;
    Ok(())
}

/// The capabilities of a process in one of its sets.
fn capabilities_of(process: u32, set: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(set)).context("no such line")?;
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).context("no number")
}

/// Every thread of the agent has nothing but what is among [`KEPT`].
fn keeps_only(agent: &Agent, given: &[Capability]) -> Result<()> {
    let expected =
        given.iter().filter(|one| KEPT.contains(one)).fold(0, |bits, (number, _)| bits | 1_u64 << number);
    for thread in fs::read_dir(format!("/proc/{}/task", agent.id()))? {
        let thread: u32 = thread?.file_name().to_string_lossy().parse()?;
        for set in ["CapPrm", "CapEff"] {
            let found = capabilities_of(thread, set)?;
            ensure!(found == expected, "thread {thread} has {set} {found:x} instead of {expected:x}");
        }
    }
    let bounding = capabilities_of(agent.id(), "CapBnd")?;
    ensure!(bounding & !mask(&KEPT) == 0 || given.len() < 20, "the bounding set is {bounding:x}");
    Ok(())
}

fn mask(capabilities: &[Capability]) -> u64 {
    capabilities.iter().fold(0, |bits, (number, _)| bits | 1 << number)
}

/// The agent's whole life: it starts, enforces, shows an event, reads a policy anew, and goes. Where probes need more than it
/// has, it says what it does not show; fallbacks are shown all the same where there is a tracepoint.
fn life(backend: &str, given: &[Capability]) -> Result<()> {
    let place = Place::new()?;
    place.write(POLICIES[0])?;
    let file = place.file();
    let arguments = ["run", "-o", "json", "--backend", backend, "--policy", &file];
    let mut agent = Agent::start_limited(&arguments, &numbers(given), &[])?;
    agent.wait_for_line("the agent is ready", SOON, |line| {
        line.contains("enforcing generation") || line.contains("nothing is enforced")
    })?;
    keeps_only(&agent, given)?;
    let without_probes = probes_need_more()? && !given.contains(&SYS_ADMIN);
    let has_events = !without_probes || fs::exists("/sys/kernel/btf/smc")?;
    if backend == "observe" {
        // A fallback that nobody's rule made: the server speaks TCP only.
        run(&Pair::new(Kind::Tcp, Kind::Smc, ([127, 0, 0, 1], 7300).into()))?;
        if has_events {
            event(&mut agent, 7300, None)?;
        }
    } else {
        refused(7100)?;
        if has_events {
            event(&mut agent, 7100, Some("no-7100"))?;
        }
    }
    let command = |words: &[&str]| -> Result<()> {
        let finished = agent::command_limited(words, &numbers(given))?;
        ensure!(finished.code == Some(0), "{words:?}: {finished:?}");
        Ok(())
    };
    place.write(POLICIES[1])?;
    command(&["reload"])?;
    if backend != "observe" {
        command(&["status"])?;
        refused(7200)?;
        if has_events {
            event(&mut agent, 7200, Some("no-7200"))?;
        }
    }
    let lines = agent.lines();
    let (refused_probes, others): (Vec<&String>, Vec<&String>) = lines
        .iter()
        .filter(|line| line.contains("ermi") || line.contains("not privileged"))
        .partition(|line| line.contains("not shown: ") && line.contains("`perf_event_open` failed"));
    ensure!(others.is_empty() && refused_probes.is_empty() != without_probes, "{lines:?}");
    // The agent that runs does it; whoever asks needs more only to do it alone.
    let finished = agent::command(&["detach"])?;
    let can_look = given.contains(&SYS_ADMIN) || !fs::exists("/proc/sys/net/smc/hs_ctrl")?;
    if can_look {
        ensure!(finished.code == Some(0), "detach: {finished:?}");
    } else {
        // It cannot look for what others may have registered, and says so.
        ensure!(
            finished.code == Some(1)
                && finished.stderr.contains("registered smc_hs_ctrl: list the kernel's maps"),
            "detach: {finished:?}"
        );
    }
    let status = agent.wait(SOON)?;
    ensure!(status.success(), "the agent ended with {status}");
    wait_until("its folders have gone", SOON, || {
        Ok((!fs::exists("/run/smc-agent")? && fs::exists("/sys/fs/bpf/smc-agent").is_ok_and(|there| !there))
            .then_some(()))
    })
}

pub(crate) fn enough(kernel: &str) -> Result<()> {
    let mut sets = needed(kernel);
    if probes_need_more()? {
        // With this one nothing is missing any more.
        let memory = if kernel == "5.10" { vec![SYS_RESOURCE] } else { Vec::new() };
        sets.push(("tc", [&[NET_ADMIN, SYS_ADMIN][..], &memory].concat()));
    }
    for (backend, given) in sets {
        life(backend, &given).with_context(|| format!("backend {backend} with {given:?}"))?;
    }
    Ok(())
}

pub(crate) fn rest_is_dropped(_: &str) -> Result<()> {
    // All there are.
    let all: Vec<Capability> = (0..64).map(|number| (number, "")).collect();
    let given: Vec<Capability> =
        all.into_iter().map(|one| KEPT.into_iter().find(|kept| kept.0 == one.0).unwrap_or(one)).collect();
    life("tc", &given)
}

pub(crate) fn each_is_needed(kernel: &str) -> Result<()> {
    let place = Place::new()?;
    place.write(POLICIES[0])?;
    let file = place.file();
    for (backend, given) in needed(kernel) {
        for lacking in &given {
            let left: Vec<_> = given.iter().filter(|one| *one != lacking).copied().collect();
            let arguments = ["run", "--backend", backend, "--policy", &file];
            let finished = agent::command_limited(&arguments, &numbers(&left))?;
            ensure!(
                finished.code == Some(4) && finished.stderr.contains(lacking.1),
                "{backend} without {}: {finished:?}",
                lacking.1
            );
            let others: Vec<_> = given.iter().filter(|one| *one != lacking).map(|(_, name)| *name).collect();
            let named = others.iter().find(|name| finished.stderr.contains(&format!("{name} missing")));
            ensure!(named.is_none(), "{backend} without {}: {}", lacking.1, finished.stderr);
        }
    }
    ensure!(!fs::exists("/run/smc-agent")?, "a start in vain leaves its folder");
    Ok(())
}

pub(crate) fn other_commands(kernel: &str) -> Result<()> {
    let memory = if kernel == "5.10" { vec![SYS_RESOURCE] } else { Vec::new() };
    // Where no agent runs they look themselves. 1: nothing is enforced, or converted.
    let both = [NET_ADMIN, SYS_ADMIN];
    for (words, code) in [(&["status"][..], 1), (&["detach"], 0), (&["convert", "status"], 1)] {
        let finished = agent::command_limited(words, &numbers(&both))?;
        ensure!(finished.code == Some(code), "{words:?}: {finished:?}");
        for lacking in both {
            let left: Vec<_> = both.iter().filter(|one| **one != lacking).copied().collect();
            let finished = agent::command_limited(words, &numbers(&left))?;
            ensure!(
                finished.code == Some(4) && finished.stderr.contains(&format!("{} missing", lacking.1)),
                "{words:?} without {}: {finished:?}",
                lacking.1
            );
        }
    }
    if matches!(kernel, "6.12" | "7.3") {
        // Conversion by bpf is put into force and taken away again. (To look at a namespace that only processes have would
        // take CAP_SYS_PTRACE.)
        let netns = NetNs::create("converted")?;
        let path = netns.path().display().to_string();
        for words in [&["convert", "on", "--netns", &path, "--yes"][..], &["convert", "status"], &["detach"]]
        {
            let finished = agent::command_limited(words, &numbers(&both))?;
            ensure!(finished.code == Some(0), "{words:?}: {finished:?}");
        }
    }
    // Seeing events beside no agent.
    let needed: &[_] = if probes_need_more()? { &[SYS_ADMIN] } else { &[BPF, PERFMON] };
    let given = [needed, &memory].concat();
    let mut tail = Agent::start_limited(&["tail", "--follow", "-o", "json"], &numbers(&given), &[])?;
    tail.wait_for_line("tail sees events", SOON, |line| line.contains("no agent runs"))?;
    run(&Pair::new(Kind::Tcp, Kind::Smc, ([127, 0, 0, 1], 7400).into()))?;
    event(&mut tail, 7400, None)?;
    tail.kill()?;
    for lacking in &given {
        let left: Vec<_> = given.iter().filter(|one| *one != lacking).copied().collect();
        let finished = agent::command_limited(&["tail", "--follow"], &numbers(&left))?;
        ensure!(
            finished.code == Some(4) && finished.stderr.contains(lacking.1),
            "tail without {}: {finished:?}",
            lacking.1
        );
    }
    Ok(())
}
