//! The agent killed before each of its calls that change something, by what it does: what decides afterwards is the old policy or
//! the new one, and the next agent repairs the rest.

use std::borrow::Cow;
use std::net::TcpListener;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, anyhow, ensure};
use aya::programs::{SchedClassifier, TcAttachType};
use smc_agent_tests::agent::{self, Finished};
use smc_agent_tests::killed::{End, before_step};

use crate::packet::Packet;
use crate::rewriting::{self, NOP, SMC};
use crate::sandbox::Sandbox;

/// Denied by both policies, by the old one, by the new one.
const BOTH: u16 = 7000;
const OLD: u16 = 7001;
const NEW: u16 = 7002;
const OLD_POLICY: &str =
    "{ version: 1, default: allow, rules: [{ name: old, action: deny, role: server, port: [7000, 7001] }] }";
const NEW_POLICY: &str =
    "{ version: 1, default: allow, rules: [{ name: new, action: deny, role: server, port: [7000, 7002] }] }";
/// No life of an agent has nearly as many steps: bounds a test that never ends.
const MOST: usize = 500;
/// And each has more: bounds a test that kills nothing.
const LEAST: usize = 4;

/// Which policy decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InForce {
    Neither,
    Old,
    New,
}

/// Listeners for the ports in question: a server's policy is asked only where there is one.
struct Ports {
    _listeners: Vec<TcpListener>,
}

impl Ports {
    fn open() -> Result<Self> {
        let listen = |port| TcpListener::bind(("127.0.0.1", port));
        Ok(Self { _listeners: [BOTH, OLD, NEW].into_iter().map(listen).collect::<Result<_, _>>()? })
    }
}

/// Finds out by packets which policy decides: by the programs that are attached.
fn in_force() -> Result<InForce> {
    let (_, attached) = SchedClassifier::query_tcx("lo", TcAttachType::Ingress)?;
    let mut programs = Vec::new();
    for info in attached {
        programs.push(SchedClassifier::from_program_info(info, Cow::Borrowed("smc_ingress"))?);
    }
    let options = [&SMC[..], &[NOP, NOP]].concat();
    let is_denied = |port| -> Result<bool> {
        let mut packet = Packet::syn(false, port, &options).bytes();
        let untouched = packet.clone();
        for program in &programs {
            packet = rewriting::run(program, &packet)?;
        }
        Ok(packet != untouched)
    };
    Ok(match (is_denied(BOTH)?, is_denied(OLD)?, is_denied(NEW)?) {
        (false, false, false) => InForce::Neither,
        (true, true, false) => InForce::Old,
        (true, false, true) => InForce::New,
        other => return Err(anyhow!("neither policy: denied of both, the old and the new: {other:?}")),
    })
}

/// Calls `run` with the first step, the second, … until it says that there are no more.
fn at_each_step(mut run: impl FnMut(usize) -> Result<End>) -> Result<()> {
    for step in 1..MOST {
        if run(step).with_context(|| format!("killed before step {step}"))? == End::Finished {
            ensure!(step > LEAST, "there were only {step} steps");
            return Ok(());
        }
    }
    Err(anyhow!("it has more than {MOST} steps"))
}

fn enforcing(said: &str) -> bool {
    said.contains("enforcing generation")
}

/// The arguments of an agent with the old policy or the new one.
fn arguments(sandbox: &Sandbox, policy: &str, more: &[&str]) -> Result<Vec<String>> {
    let name = if policy == OLD_POLICY { "old.yaml" } else { "new.yaml" };
    let file = sandbox.write(name, policy)?;
    let run = ["run", "--backend", "tc", "--policy", &file];
    Ok(sandbox.arguments(&[&run[..], more].concat()))
}

fn start(sandbox: &Sandbox, policy: &str) -> Result<()> {
    agent::Agent::start_enforcing(&arguments(sandbox, policy, &[])?, crate::sandbox::SOON)?.kill()
}

fn detach(sandbox: &Sandbox) -> Result<()> {
    let detached = sandbox.run(&["detach"])?;
    ensure!(detached.code == Some(0), "{detached:?}");
    sandbox.expect_nothing_enforced()
}

/// A start where nothing is yet.
pub(crate) fn first_start(sandbox: &Sandbox) -> Result<()> {
    let _ports = Ports::open()?;
    let program = agent::binary()?;
    let new = arguments(sandbox, NEW_POLICY, &[])?;
    at_each_step(|step| {
        let end = before_step(&program, &new, step, |_| true, enforcing)?;
        let found = in_force()?;
        ensure!(matches!(found, InForce::Neither | InForce::New), "in force: {found:?}");
        ensure!(end == End::Killed || found == InForce::New, "it says that it enforces, and does not");
        detach(sandbox)?;
        Ok(end)
    })
}

/// Starts in the place of one another, each with the other policy, and the new one with `more` arguments.
fn succession(sandbox: &Sandbox, more: &[&str]) -> Result<()> {
    let _ports = Ports::open()?;
    let program = agent::binary()?;
    let old = arguments(sandbox, OLD_POLICY, &[])?;
    let new = arguments(sandbox, NEW_POLICY, more)?;
    start(sandbox, OLD_POLICY)?;
    let mut before = InForce::Old;
    at_each_step(|step| {
        let (next, arguments) =
            if before == InForce::Old { (InForce::New, &new) } else { (InForce::Old, &old) };
        let end = before_step(&program, arguments, step, |_| true, enforcing)?;
        let found = in_force()?;
        ensure!(
            found == before || found == next,
            "in force: {found:?}, after {before:?} and before {next:?}"
        );
        ensure!(end == End::Killed || found == next, "it says that it enforces, and does not");
        before = found;
        Ok(end)
    })?;
    start(sandbox, OLD_POLICY)?;
    ensure!(in_force()? == InForce::Old, "the last agent does not enforce");
    let status = sandbox.run(&["status"])?;
    ensure!(status.code == Some(0), "{status:?}");
    Ok(())
}

/// Agents with the same programs.
pub(crate) fn next_start(sandbox: &Sandbox) -> Result<()> {
    succession(sandbox, &[])
}

/// Agents with other programs than the one before, as after an upgrade.
pub(crate) fn upgrade(sandbox: &Sandbox) -> Result<()> {
    succession(sandbox, &["--bpf-log=error"])
}

/// A reload, from when the agent is told to.
pub(crate) fn reload(sandbox: &Sandbox) -> Result<()> {
    let _ports = Ports::open()?;
    let program = agent::binary()?;
    let tell = sandbox.arguments(&["reload"]);
    at_each_step(|step| {
        // Written anew, after the last time.
        let old = arguments(sandbox, OLD_POLICY, &[])?;
        let mut told: Option<JoinHandle<Result<Finished>>> = None;
        let counting = |said: &str| {
            if enforcing(said) && told.is_none() {
                let tell = tell.clone();
                // The same file, with another policy.
                let written = sandbox.write("old.yaml", NEW_POLICY).is_ok();
                told = written.then(|| thread::spawn(move || agent::command(&tell)));
            }
            told.is_some()
        };
        let end = before_step(&program, &old, step, counting, |said| said.contains("policy read anew"))?;
        let told = told.context("it was not told to reload")?;
        // The agent may have been killed before it answered.
        told.join().map_err(|_| anyhow!("reload panicked"))??;
        let found = in_force()?;
        ensure!(matches!(found, InForce::Old | InForce::New), "in force: {found:?}");
        ensure!(end == End::Killed || found == InForce::New, "it says that it enforces, and does not");
        Ok(end)
    })
}

/// A detach without an agent.
pub(crate) fn detaching(sandbox: &Sandbox) -> Result<()> {
    let _ports = Ports::open()?;
    let program = agent::binary()?;
    let arguments = sandbox.arguments(&["detach"]);
    at_each_step(|step| {
        start(sandbox, OLD_POLICY)?;
        let end = before_step(&program, &arguments, step, |_| true, |_| false)?;
        let found = in_force()?;
        ensure!(matches!(found, InForce::Old | InForce::Neither), "in force: {found:?}");
        if end == End::Killed {
            detach(sandbox)?;
        }
        sandbox.expect_nothing_enforced()?;
        Ok(end)
    })
}
