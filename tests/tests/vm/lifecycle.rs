//! Agents come and go; what is enforced stays until it is detached.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::Value;
use smc_agent_tests::agent::Agent;

use crate::interfaces;
use crate::lab::{
    Backend, Flow, Lab, POLICY, Port, SOON, command, detach, has_hs_ctrl, pins, selected_ctrl, status,
};

/// How many agents follow each other.
const AGENTS: usize = 5;
/// How many with another object each: the kernel takes long to verify one under emulation.
const UPGRADES: usize = 3;
/// How many flows have to have run by the end of each agent.
const FLOWS_EACH: usize = 3;

fn all_enforced() -> Result<()> {
    Flow::smc(Port::NoClient).run_denied()?;
    Flow::smc(Port::NoServer).run_denied()?;
    Flow::smc(Port::Open).run_allowed().map(drop)
}

fn none_enforced() -> Result<()> {
    for port in [Port::NoClient, Port::NoServer, Port::Open] {
        Flow::smc(port).run_allowed()?;
    }
    Ok(())
}

pub(crate) fn status_explains(lab: &mut Lab) -> Result<()> {
    let backend = lab.backend;
    let pid = lab.start(POLICY)?.id();
    let status = status()?;
    let agent = &status["agent"];
    ensure!(status["backend"] == backend.word(), "{status:#}");
    ensure!(agent["pid"] == pid && agent["adopted"] == false, "{agent:#}");
    ensure!(
        agent["tracing_missing"] == Value::Null && status["degraded"] == serde_json::json!([]),
        "{status:#}"
    );
    let candidates = agent["candidates"].as_array().context("no candidates")?;
    let (chosen, others) = candidates.split_last().context("no candidates")?;
    ensure!(chosen["backend"] == backend.word() && chosen["chosen"] == true, "{agent:#}");
    let reason = |candidate: &Value| candidate["reason"].as_str().unwrap_or_default().to_owned();
    match backend {
        Backend::HsCtrl => {
            ensure!(reason(chosen).contains("struct smc_hs_ctrl") && others.is_empty(), "{agent:#}");
            ensure!(status["hs_ctrl"] == selected_ctrl() && !selected_ctrl().is_empty(), "{status:#}");
        }
        Backend::Tc => {
            ensure!(reason(chosen).contains("tcx"), "{agent:#}");
            let covered = status["interfaces"].as_array().map(Vec::len);
            ensure!(covered == Some(interfaces::names()?.len()), "{status:#}");
            ensure!(selected_ctrl().is_empty(), "net.smc.hs_ctrl is set");
            // Asked for by name where it is not the best: then it is the only candidate.
            let expected = usize::from(backend.is_automatic());
            ensure!(others.len() == expected, "{agent:#}");
            for other in others {
                ensure!(
                    other["chosen"] == false && reason(other).contains("no struct smc_hs_ctrl"),
                    "{agent:#}"
                );
            }
        }
    }
    let text = command(&["status"])?;
    ensure!(text.code == Some(0) && text.stdout.contains(&format!("{} used:", backend.word())), "{text:?}");
    Ok(())
}

/// The policy stays in force without an agent, and the next one goes on with the same objects.
fn outlives(lab: &mut Lab, end: fn(&mut Lab) -> Result<()>) -> Result<()> {
    lab.start(POLICY)?;
    all_enforced()?;
    let (pins_before, ctrl_before) = (pins()?, selected_ctrl());
    end(lab)?;

    all_enforced().context("without an agent")?;
    let alone = status()?;
    ensure!(alone["agent"] == Value::Null && alone["backend"] == lab.backend.word(), "{alone:#}");
    ensure!(alone["policy"]["rules"][0]["name"] == "no-client", "{alone:#}");
    ensure!(alone["policy"]["generation"] == 1, "{alone:#}");

    lab.start_again()?;
    let adopted = status()?;
    ensure!(adopted["agent"]["adopted"] == true, "{adopted:#}");
    ensure!(adopted["policy"]["generation"] == 2, "{adopted:#}");
    let (pins, ctrl) = (pins()?, selected_ctrl());
    ensure!(pins == pins_before, "pins were {pins_before:?} and are {pins:?}");
    ensure!(ctrl == ctrl_before, "net.smc.hs_ctrl was {ctrl_before} and is {ctrl}");
    all_enforced().context("with the next agent")?;
    let events = lab.events()?;
    ensure!(events.iter().any(|event| event.ends_with(" by no-client")), "events: {events:#?}");
    Ok(())
}

pub(crate) fn killed(lab: &mut Lab) -> Result<()> {
    outlives(lab, Lab::kill)
}

pub(crate) fn terminated(lab: &mut Lab) -> Result<()> {
    outlives(lab, Lab::terminate)
}

pub(crate) fn detach_running(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    all_enforced()?;
    let report = detach()?;
    ensure!(report.stdout.contains("removed pins in"), "{report:?}");
    let ended = lab.agent()?.wait(SOON)?;
    ensure!(ended.success(), "the agent ended with {ended}");
    none_enforced()?;
    lab.expect_clean()?;
    let nothing = command(&["status"])?;
    ensure!(nothing.code == Some(1) && nothing.stdout.contains("not running"), "{nothing:?}");
    Ok(())
}

pub(crate) fn detach_alone(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    lab.kill()?;
    all_enforced()?;
    let report = detach()?;
    ensure!(report.stdout.contains("removed pins in"), "{report:?}");
    none_enforced()?;
    lab.expect_clean()?;
    let again = detach()?;
    ensure!(again.stdout == "nothing was there", "{again:?}");
    Ok(())
}

pub(crate) fn second_agent(lab: &mut Lab) -> Result<()> {
    let pid = lab.start(POLICY)?.id();
    let before = pins()?;
    let arguments = lab.run_arguments();
    let second = command(&arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
    ensure!(second.code == Some(1), "{second:?}");
    ensure!(second.stderr.contains(&format!("(pid {pid})")), "{second:?}");
    ensure!(pins()? == before, "the second agent changed the pins");
    all_enforced()
}

/// Each agent goes on with the programs of the one before.
pub(crate) fn restart_loop(lab: &mut Lab) -> Result<()> {
    loop_of_agents(lab, AGENTS, |_| Vec::new())
}

/// Each agent has another object than the one before, as after an upgrade.
pub(crate) fn upgrade_loop(lab: &mut Lab) -> Result<()> {
    loop_of_agents(lab, UPGRADES, |number| {
        if number % 2 == 0 { vec!["--bpf-log=error".to_owned()] } else { Vec::new() }
    })
}

/// While agents follow each other, no flow that the policy denies may negotiate SMC.
fn loop_of_agents(lab: &mut Lab, agents: usize, arguments: fn(usize) -> Vec<String>) -> Result<()> {
    lab.start(POLICY)?;
    let over = AtomicBool::new(false);
    let (sender, done) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let flows = scope.spawn(|| -> Result<()> {
            while !over.load(Ordering::Relaxed) {
                Flow::smc(Port::NoClient).run_denied()?;
                Flow::smc(Port::NoServer).run_denied()?;
                // The receiver goes when an agent has failed.
                let _ = sender.send(());
            }
            Ok(())
        });
        let mut lives = || -> Result<()> {
            for number in 1..=agents {
                for _ in 0..FLOWS_EACH {
                    done.recv_timeout(SOON).with_context(|| format!("no flows beside agent {number}"))?;
                }
                lab.kill()?;
                if number < agents {
                    lab.more = arguments(number + 1);
                    lab.start_again().with_context(|| format!("agent {}", number + 1))?;
                }
            }
            Ok(())
        };
        let lives = lives();
        over.store(true, Ordering::Relaxed);
        flows.join().map_err(|_| anyhow!("the flows panicked"))?.context("while agents were restarted")?;
        lives
    })
}

pub(crate) fn change_of_backend(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    lab.kill()?;
    for backend in [Backend::Tc, Backend::HsCtrl] {
        lab.backend = backend;
        lab.start_again()?;
        let report = status()?;
        ensure!(
            report["backend"] == backend.word() && report["degraded"] == serde_json::json!([]),
            "{report:#}"
        );
        ensure!(selected_ctrl().is_empty() == (backend == Backend::Tc), "{report:#}");
        all_enforced().with_context(|| format!("by {backend}"))?;
        lab.kill()?;
    }
    Ok(())
}

pub(crate) fn hs_ctrl_is_refused(lab: &mut Lab) -> Result<()> {
    ensure!(!has_hs_ctrl(), "this kernel has it");
    lab.write_policy(POLICY)?;
    let mut arguments = lab.run_arguments();
    arguments.extend(["--backend", "hs-ctrl"].map(Into::into));
    let mut agent = Agent::start(&arguments)?;
    let ended = agent.wait(SOON)?;
    let lines = agent.lines().join("\n");
    ensure!(ended.code() == Some(3) && lines.contains("no struct smc_hs_ctrl"), "{ended}: {lines}");
    none_enforced()
}
