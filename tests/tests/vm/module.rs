//! Module smc, which may come after the agent and go before it.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use smc_agent_tests::netns;
use smc_agent_tests::setup;

use crate::lab::{Backend, Flow, Lab, POLICY, Port, SOON, command, has_hs_ctrl, refused, status};

const MODULE: &str = "/sys/module/smc";

/// Removes module smc, and those that use it. Says whether the kernel let it go.
fn remove() -> bool {
    for name in ["smc_diag", "smc"] {
        // Failure is seen below.
        let _ = netns::command("rmmod", &[name]);
    }
    !Path::new(MODULE).exists()
}

fn load() -> Result<()> {
    netns::command("modprobe", &["smc"])?;
    // What was set up for SMC went with it.
    setup::prepare(false).map(drop)
}

/// A refused flow, and the events of it.
fn expect_told(lab: &mut Lab) -> Result<()> {
    lab.events()?;
    let ends = Flow::smc(Port::NoClient).run_denied()?;
    let ends_of_server = Flow::smc(Port::NoServer).run_denied()?;
    let mut expected = refused(&ends, "client", "no-client").to_vec();
    expected.extend(refused(&ends_of_server, "server", "no-server"));
    lab.expect_events(expected)
}

pub(crate) fn comes_later(lab: &mut Lab) -> Result<()> {
    ensure!(remove(), "module smc cannot be removed: {}", users());
    lab.backend = Backend::Tc;
    lab.write_policy(POLICY)?;
    lab.more = vec!["--no-load-module".to_owned()];
    ensure!(!has_hs_ctrl(), "net.smc.hs_ctrl is there without module smc");
    let started = lab.start_again().map(drop);
    let before = started.and_then(|()| {
        let report = status()?;
        ensure!(report["backend"] == "tc", "{report:#}");
        let missing = report["agent"]["tracing_missing"].as_str().unwrap_or_default();
        ensure!(missing.contains("module smc is not loaded"), "{report:#}");
        Ok(())
    });
    load()?;
    before?;
    lab.agent()?.wait_for_line("the news", SOON, |line| line.contains("module smc was loaded"))?;
    if has_hs_ctrl() {
        lab.agent()?
            .wait_for_line("the change", SOON, |line| line.contains("enforcing by hs-ctrl from now on"))?;
        lab.backend = Backend::HsCtrl;
    }
    let report = status()?;
    ensure!(report["backend"] == lab.backend.word(), "{report:#}");
    ensure!(report["degraded"] == serde_json::json!([]), "{report:#}");
    ensure!(report["policy"]["generation"] == 1, "{report:#}");
    expect_told(lab)
}

/// Where the agent traces by a tracepoint of the module, or has a ctrl registered, the kernel keeps the module.
pub(crate) fn loaded_anew(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    expect_told(lab)?;
    if !remove() {
        ensure!(has_tracepoint(), "module smc cannot be removed: {}", users());
        return expect_told(lab);
    }
    lab.agent()?.wait_for_line("the news", SOON, |line| line.contains("module smc was removed"))?;
    let gone = command(&["status"])?;
    ensure!(gone.stdout.contains("module smc is not loaded"), "{gone:?}");
    load()?;
    lab.agent()?.wait_for_line("the news", SOON, |line| line.contains("module smc was loaded"))?;
    expect_told(lab)
}

/// Whether fallbacks are told by a tracepoint of the module (5.16).
fn has_tracepoint() -> bool {
    setup::kernel_release()
        .and_then(|release| setup::version_of(&release))
        .is_ok_and(|version| version >= (5, 16))
}

/// Who uses module smc.
fn users() -> String {
    let modules = fs::read_to_string("/proc/modules").unwrap_or_default();
    modules.lines().filter(|line| line.contains("smc")).collect::<Vec<_>>().join("; ")
}
