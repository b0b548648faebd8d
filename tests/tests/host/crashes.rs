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
const MOST: usize = 2000;

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

/// Kills what `run` runs before its first, second, … step; after each, one of `allowed` has to be in force, and `repair` to
/// succeed, which also prepares for the next.
fn at_each_step(
    allowed: &[InForce],
    mut run: impl FnMut(usize) -> Result<End>,
    mut repair: impl FnMut() -> Result<()>,
) -> Result<()> {
    let _ports = Ports::open()?;
    for step in 1..MOST {
        let end = run(step).with_context(|| format!("step {step}"))?;
        let found = in_force().with_context(|| format!("killed before step {step}"))?;
        ensure!(allowed.contains(&found), "killed before step {step}: in force: {found:?}");
        repair().with_context(|| format!("after step {step}"))?;
        if end == End::Finished {
            ensure!(step > 5, "there were only {step} steps");
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
    let program = agent::binary()?;
    let new = arguments(sandbox, NEW_POLICY, &[])?;
    at_each_step(
        &[InForce::Neither, InForce::New],
        |step| before_step(&program, &new, step, |_| true, enforcing),
        || {
            start(sandbox, NEW_POLICY)?;
            ensure!(in_force()? == InForce::New, "the next agent does not enforce");
            detach(sandbox)
        },
    )
}

/// A start in the place of an agent with the same programs, or with others as after an upgrade.
fn succession(sandbox: &Sandbox, more: &[&str]) -> Result<()> {
    let program = agent::binary()?;
    let new = arguments(sandbox, NEW_POLICY, more)?;
    start(sandbox, OLD_POLICY)?;
    at_each_step(
        &[InForce::Old, InForce::New],
        |step| before_step(&program, &new, step, |_| true, enforcing),
        || {
            start(sandbox, OLD_POLICY)?;
            ensure!(in_force()? == InForce::Old, "the next agent does not enforce");
            let status = sandbox.run(&["status"])?;
            ensure!(status.code == Some(0), "{status:?}");
            Ok(())
        },
    )
}

pub(crate) fn next_start(sandbox: &Sandbox) -> Result<()> {
    succession(sandbox, &[])
}

pub(crate) fn upgrade(sandbox: &Sandbox) -> Result<()> {
    succession(sandbox, &["--bpf-log=error"])
}

/// A reload, from when the agent is told to.
pub(crate) fn reload(sandbox: &Sandbox) -> Result<()> {
    let program = agent::binary()?;
    let old = arguments(sandbox, OLD_POLICY, &[])?;
    let tell = sandbox.arguments(&["reload"]);
    start(sandbox, OLD_POLICY)?;
    at_each_step(
        &[InForce::Old, InForce::New],
        |step| {
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
            let end = before_step(&program, &old, step, counting, |said| said.contains("policy read anew"));
            if let Some(told) = told {
                // Its agent may have been killed before it answered.
                told.join().map_err(|_| anyhow!("reload panicked"))??;
            }
            end
        },
        || start(sandbox, OLD_POLICY),
    )
}

/// A detach without an agent.
pub(crate) fn detaching(sandbox: &Sandbox) -> Result<()> {
    let program = agent::binary()?;
    let arguments = sandbox.arguments(&["detach"]);
    start(sandbox, OLD_POLICY)?;
    at_each_step(
        &[InForce::Old, InForce::Neither],
        |step| before_step(&program, &arguments, step, |_| true, |_| false),
        || {
            detach(sandbox)?;
            start(sandbox, OLD_POLICY)
        },
    )
}
