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

pub(crate) fn namespaces(_lab: &Lab) -> Result<()> {
    run("insmod", &[MODULE])?;
    let result = with_module();
    detach()?;
    run("rmmod", &["tcp2smc"])?;
    result
}

fn with_module() -> Result<()> {
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
    // By switches: the kernel that the module is for does not take the agent's tables.
    well(&["convert", "on", "--netns", "blue"])?;
    well(&["convert", "off", "--netns", "red"])?;
    expect("by switches", ("0", "1", "0"))?;
    ensure!(status()?["mechanism"] == "sysctl", "{:#}", status()?);
    let finer = command(&["convert", "on", "--cgroup", "/x"])?;
    ensure!(finer.code == Some(1) && finer.stderr.contains("whole namespaces"), "{finer:?}");
    expect("after a switch that is refused", ("0", "1", "0"))?;
    well(&["convert", "off", "--netns", "blue"])?;
    expect("turned round", ("0", "0", "0"))?;
    well(&["convert", "reset", "--netns", "blue"])?;
    expect("one taken away", ("0", "0", "0"))?;
    well(&["convert", "on", "--netns", "blue"])?;
    // There is no systemd here that could undo it.
    let timed = command(&["convert", "on", "--netns", "red", "--for", "10m"])?;
    ensure!(timed.code == Some(3) && timed.stderr.contains("systemd-run"), "{timed:?}");
    expect("after a time that cannot be had", ("0", "1", "0"))?;
    detach()?;
    expect("after detach", ("0", "0", "1"))
}
