//! The mechanism of kernels with `net.smc.tcp2smc`, by a module of our own that provides such a sysctl.

use std::fs;

use anyhow::{Result, ensure};
use smc_agent_tests::netns::{NetNs, command as run};

use crate::lab::{Lab, command, detach, status, well};

const SYSCTL: &str = "/proc/sys/net/smc/tcp2smc";
const MODULE: &str = "/root/tcp2smc.ko";

fn value() -> Result<String> {
    Ok(fs::read_to_string(SYSCTL)?.trim().to_owned())
}

pub(crate) fn namespaces(lab: &Lab) -> Result<()> {
    run("insmod", &[MODULE])?;
    let result = with_module(lab);
    lab.kill_if_running()?;
    detach()?;
    run("rmmod", &["tcp2smc"])?;
    result
}

fn with_module(lab: &Lab) -> Result<()> {
    let (blue, red) = (NetNs::create("blue")?, NetNs::create("red")?);
    red.run(|| fs::write(SYSCTL, "1"))??;
    let values =
        || -> Result<(String, String, String)> { Ok((value()?, blue.run(value)??, red.run(value)??)) };
    let expect = |what: &str, expected: (&str, &str, &str)| -> Result<()> {
        let (own, blue, red) = values()?;
        ensure!(
            (own.as_str(), blue.as_str(), red.as_str()) == expected,
            "{what}: own {own}, blue {blue}, red {red}"
        );
        Ok(())
    };
    let rules = "  rules: [{name: blue, action: on, netns: blue}, {name: red, action: off, netns: red}]";
    lab.convert(rules)?;
    expect("by rules", ("0", "1", "0"))?;
    ensure!(status()?["mechanism"] == "sysctl", "{:#}", status()?);

    // Finer rules change nothing.
    let policy = lab.file("policy.yaml");
    let good = fs::read_to_string(&policy)?;
    for (finer, why) in [
        ("{name: finer, action: on, netns: blue, uid: 33}", "whole namespaces"),
        ("{name: everything, action: on}", "sshd"),
    ] {
        fs::write(&policy, format!("version: 1\ndefault: allow\nconvert: {{rules: [{finer}]}}\n"))?;
        let refused = command(&["reload"])?;
        ensure!(refused.code == Some(1) && refused.stderr.contains(why), "{refused:?}");
        expect("after a rule that is refused", ("0", "1", "0"))?;
    }
    fs::write(&policy, good)?;

    lab.kill()?;
    expect("without an agent", ("0", "1", "0"))?;
    well(&["convert", "off", "--netns", "blue"])?;
    expect("with a switch", ("0", "0", "0"))?;
    well(&["convert", "reset", "--all"])?;
    expect("after the switch", ("0", "1", "0"))?;
    // There is no systemd here that could undo it.
    let timed = command(&["convert", "on", "--netns", "red", "--for", "10m"])?;
    ensure!(timed.code == Some(3) && timed.stderr.contains("systemd-run"), "{timed:?}");
    expect("after a time that cannot be had", ("0", "1", "0"))?;
    detach()?;
    expect("after detach", ("0", "0", "1"))
}
