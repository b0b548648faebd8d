//! Traffic control programs follow the interfaces of the host.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smc_agent::netlink::link;
use smc_agent_tests::netns::{self, NetNs};
use smc_agent_tests::pair::run;
use smc_agent_tests::wait::wait_until;

use crate::lab::{
    Flow, Lab, POLICY, Port, SOON, command, detach, expect_denied, has_hs_ctrl, pins, smc_mode,
};

/// The names of this namespace's interfaces.
pub(crate) fn names() -> Result<Vec<String>> {
    let mut names: Vec<_> = link::list()?.into_iter().map(|link| link.name).collect();
    names.sort_unstable();
    Ok(names)
}

fn nothing_is_unenforced(status: &Value) -> bool {
    let degraded = status["degraded"].as_array();
    degraded.is_some_and(|degraded| degraded.iter().all(|degraded| degraded["unenforced"] == false))
}

/// Waits until exactly those interfaces are covered that there are, among them `expected` of its own making. Until then the
/// status may find fault, with exit code 1.
pub(crate) fn wait_covered(expected: &[&str]) -> Result<()> {
    let present = names()?;
    for name in expected {
        ensure!(present.iter().any(|present| present == name), "no interface {name} among {present:?}");
    }
    let mut last = Value::Null;
    wait_until(&format!("covered: {present:?}"), SOON, || {
        last = serde_json::from_str(&command(&["status", "-o", "json"])?.stdout)?;
        let mut covered: Vec<_> =
            last["interfaces"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        covered.sort_unstable();
        Ok((covered == present && nothing_is_unenforced(&last)).then_some(()))
    })
    .with_context(|| format!("{last:#}"))
}

pub(crate) fn come_and_go(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    let before = pins()?;
    wait_covered(&["lo"])?;
    netns::command("ip", &["link", "add", "v0", "type", "veth", "peer", "name", "v1"])?;
    wait_covered(&["v0", "v1"])?;
    netns::command("ip", &["link", "set", "v0", "name", "w0"])?;
    netns::command("ip", &["link", "del", "w0"])?;
    wait_until("the pins of the gone interfaces go", SOON, || Ok((pins()? == before).then_some(())))?;
    wait_covered(&["lo"])?;

    // What appears and goes while no agent runs.
    netns::command("ip", &["link", "add", "v0", "type", "veth", "peer", "name", "v1"])?;
    lab.kill()?;
    netns::command("ip", &["link", "del", "v0"])?;
    netns::command("ip", &["link", "add", "d0", "type", "veth", "peer", "name", "d1"])?;
    let uncovered = command(&["status", "-o", "json"])?;
    ensure!(
        uncovered.code == Some(1) && uncovered.stdout.contains("interface d0 is not covered"),
        "{uncovered:?}"
    );
    lab.start_again()?;
    wait_covered(&["d0", "d1"])?;
    netns::command("ip", &["link", "del", "d0"])?;
    wait_covered(&["lo"])
}

/// Whether the kernel has this module, loaded, built in or to be loaded.
pub(crate) fn kernel_has(module: &str) -> bool {
    Path::new("/sys/module").join(module).exists() || netns::command("modprobe", &["-q", module]).is_ok()
}

/// Whether SMC reaches into another namespace: dibs does, Soft-RoCE does not.
pub(crate) fn smc_over_veth() -> bool {
    has_hs_ctrl()
}

/// A veth pair from `v0` here to `v1` there; goes when dropped.
pub(crate) struct Veth;

impl Drop for Veth {
    fn drop(&mut self) {
        // Absent when it was not made, or has gone by itself.
        let _ = netns::command("ip", &["link", "del", "v0"]);
    }
}

/// Makes a [`Veth`], up and with an address at each end (`10.1.0.1/24`).
pub(crate) fn veth(away: &NetNs, here: &str, there: &str) -> Result<Veth> {
    netns::command(
        "ip",
        &["link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", &away.name()],
    )?;
    let veth = Veth;
    netns::command("ip", &["address", "add", here, "dev", "v0"])?;
    netns::command("ip", &["link", "set", "v0", "up"])?;
    away.command("ip", &["address", "add", there, "dev", "v1"])?;
    away.command("ip", &["link", "set", "v1", "up"])?;
    Ok(veth)
}

pub(crate) fn flow_over_veth(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    let away = NetNs::create("smcvm-away")?;
    let veth = veth(&away, "10.77.0.1/24", "10.77.0.2/24")?;
    wait_covered(&["v0"])?;

    let out = |port: Port| {
        let mut pair = Flow::to("10.77.0.2".parse()?, port).pair();
        pair.server_netns = Some(away.path().to_owned());
        run(&pair)
    };
    let back = |port: Port| {
        let mut pair = Flow::to("10.77.0.1".parse()?, port).pair();
        pair.client_netns = Some(away.path().to_owned());
        run(&pair)
    };
    for ends in [out(Port::NoClient)?, back(Port::NoServer)?] {
        expect_denied(&ends)?;
        ensure!(ends.intact, "{:?}", ends.problems);
    }
    if smc_over_veth() {
        // Policies hold in the agent's namespace only.
        for ends in [out(Port::Open)?, out(Port::NoServer)?, back(Port::Open)?, back(Port::NoClient)?] {
            ensure!(ends.client.mode == smc_mode() && ends.intact, "{ends:?}");
        }
    }
    drop(veth);
    wait_covered(&["lo"])
}

/// Somebody's filter of a clsact qdisc, which is somebody's too, is what it was: while the policy is in force, and after.
pub(crate) fn foreign_filters(lab: &mut Lab) -> Result<()> {
    const DIRECTIONS: [&str; 2] = ["ingress", "egress"];
    let away = NetNs::create("smcvm-foreign")?;
    let veth = veth(&away, "10.77.0.1/24", "10.77.0.2/24")?;
    netns::command("tc", &["qdisc", "add", "dev", "v0", "clsact"])?;
    for direction in DIRECTIONS {
        let filter = ["filter", "add", "dev", "v0", direction, "protocol", "all", "prio", "7"];
        // A classic program that takes every packet, and goes on.
        let program = ["bpf", "bytecode", "1,6 0 0 4294967295", "action", "continue"];
        netns::command("tc", &[&filter[..], &program].concat())?;
    }
    let show = |direction| netns::command("tc", &["filter", "show", "dev", "v0", direction]);
    let before = DIRECTIONS.map(show).into_iter().collect::<Result<Vec<_>>>()?;
    ensure!(before.iter().all(|filters| filters.contains("pref 7 bpf")), "{before:?}");
    let refused = || {
        let mut pair = Flow::to("10.77.0.2".parse()?, Port::NoClient).pair();
        pair.server_netns = Some(away.path().to_owned());
        let ends = run(&pair)?;
        ensure!(ends.intact, "{:?}", ends.problems);
        expect_denied(&ends)
    };
    for _ in 0..2 {
        lab.write_policy(POLICY)?;
        lab.start_again()?;
        wait_covered(&["lo", "v0"])?;
        refused()?;
        for (direction, before) in DIRECTIONS.into_iter().zip(&before) {
            let now = show(direction)?;
            ensure!(now.starts_with(before), "{direction} was\n{before}and is\n{now}");
        }
        lab.kill()?;
    }
    detach()?;
    let after = DIRECTIONS.map(show).into_iter().collect::<Result<Vec<_>>>()?;
    ensure!(after == before, "filters were {before:?} and are {after:?}");
    drop(veth);
    Ok(())
}
