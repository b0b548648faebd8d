//! The life of an agent with the backend tc, on a kernel that need not have SMC.

use anyhow::{Result, ensure};
use aya::programs::links::PinnedLink;
use aya::programs::{SchedClassifier, TcAttachType};
use nix::mount::umount;
use nix::unistd::gettid;
use smc_agent_tests::agent::{self, Agent};
use smc_agent_tests::netns::{self, NetNs};
use smc_agent_tests::objects::pinned;
use smc_agent_tests::pair::{Kind, Mode, Pair, run};
use smc_agent_tests::wait::wait_until;

use crate::sandbox::{SOON, Sandbox};

const POLICY: &str = "{ version: 1, default: deny, rules: [{ name: web, action: allow, port: 80 }] }";

pub(crate) fn mounts_bpf(sandbox: &Sandbox) -> Result<()> {
    umount(&sandbox.path("bpf"))?;
    let agent = sandbox.start(POLICY)?;
    ensure!(!pinned(&sandbox.pins())?.is_empty(), "nothing is pinned");
    agent.kill()?;
    sandbox.run(&["detach"])?;
    ensure!(!sandbox.pins().exists(), "the folder of the pins is left");
    Ok(())
}

pub(crate) fn killed_adopted_detached(sandbox: &Sandbox) -> Result<()> {
    let first = sandbox.start(POLICY)?;
    let status = sandbox.status()?;
    ensure!(status["backend"] == "tc" && status["agent"]["pid"] == first.id(), "{status:#}");
    ensure!(status["agent"]["adopted"] == false, "{status:#}");
    ensure!(status["interfaces"] == serde_json::json!(["lo"]), "{status:#}");
    let pins = pinned(&sandbox.pins())?;
    first.kill()?;
    let alone = sandbox.status()?;
    ensure!(alone["agent"].is_null() && alone["policy"]["rules"][0]["name"] == "web", "{alone:#}");
    ensure!(alone["policy"]["default"] == "deny" && alone["backend"] == "tc", "{alone:#}");

    let mut second = sandbox.start(POLICY)?;
    let status = sandbox.status()?;
    ensure!(status["agent"]["adopted"] == true && status["policy"]["generation"] == 2, "{status:#}");
    ensure!(pinned(&sandbox.pins())? == pins, "other objects than before");
    let detached = sandbox.run(&["detach"])?;
    ensure!(detached.code == Some(0) && detached.stdout.starts_with("removed pins in"), "{detached:?}");
    ensure!(second.wait(SOON)?.success(), "{:?}", second.lines());
    sandbox.expect_nothing_enforced()
}

/// The kernel ends a link that lost its last pin some time later; whoever else holds it shows that nothing waits for that.
pub(crate) fn detach_is_immediate(sandbox: &Sandbox) -> Result<()> {
    sandbox.start(POLICY)?.kill()?;
    let mut held = Vec::new();
    for path in pinned(&sandbox.pins())?.into_keys().filter(|path| path.contains("/links/")) {
        held.push(PinnedLink::from_pin(sandbox.pins().join(path))?);
    }
    ensure!(held.len() == 2, "{} links", held.len());
    let detached = sandbox.run(&["detach"])?;
    ensure!(detached.code == Some(0), "{detached:?}");
    sandbox.expect_nothing_enforced()?;
    drop(held);
    Ok(())
}

pub(crate) fn socket_is_for_root(sandbox: &Sandbox) -> Result<()> {
    let _agent = sandbox.start(POLICY)?;
    for arguments in [&["status"][..], &["reload"]] {
        let finished = sandbox.run_as_nobody(arguments)?;
        ensure!(finished.code == Some(4) && finished.stderr.contains("not permitted"), "{finished:?}");
    }
    Ok(())
}

pub(crate) fn plain_tcp(sandbox: &Sandbox) -> Result<()> {
    let _agent = sandbox.start(POLICY)?;
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let ends = run(&Pair::new(Kind::Tcp, Kind::Tcp, address.parse()?))?;
        ensure!(ends.intact && ends.client.mode == Mode::Tcp, "{ends:?}");
    }
    let counters = sandbox.status()?["counters"].clone();
    ensure!(counters["client_judged"] == 0 && counters["server_judged"] == 0, "{counters:#}");
    Ok(())
}

/// Ids of the programs on an interface of the calling thread's namespace, in their order: on the way in and on the way out.
fn programs(interface: &str) -> Result<[Vec<u32>; 2]> {
    let ids = |direction| -> Result<Vec<u32>> {
        let (_, programs) = SchedClassifier::query_tcx(interface, direction)?;
        Ok(programs.iter().map(aya::programs::ProgramInfo::id).collect())
    };
    Ok([ids(TcAttachType::Ingress)?, ids(TcAttachType::Egress)?])
}

/// Waits until an interface has as many programs each way.
fn wait_programs(interface: &str, count: usize) -> Result<[Vec<u32>; 2]> {
    wait_until(&format!("{count} programs each way on {interface}"), SOON, || {
        // It may be on its way from one namespace to another.
        Ok(programs(interface).ok().filter(|found| found.iter().all(|ids| ids.len() == count)))
    })
}

pub(crate) fn moved(sandbox: &Sandbox) -> Result<()> {
    let away = NetNs::create(&format!("smchost-{}", std::process::id()))?;
    let _agent = sandbox.start(POLICY)?;
    let ours = programs("lo")?;
    netns::command("ip", &["link", "add", "v0", "type", "veth", "peer", "name", "v1"])?;
    ensure!(wait_programs("v0", 1)? == ours && wait_programs("v1", 1)? == ours, "other programs than on lo");
    let wait_links = |count| {
        wait_until(&format!("{count} pins of links"), SOON, || {
            let links = pinned(&sandbox.pins())?.into_keys().filter(|path| path.contains("/links/")).count();
            Ok((links == count).then_some(()))
        })
    };
    wait_links(6)?;

    netns::command("ip", &["link", "set", "v0", "name", "renamed"])?;
    ensure!(programs("renamed")? == ours, "a new name takes the programs off");
    // In another namespace the policy does not hold: the programs go along, and the agent takes them off.
    netns::command("ip", &["link", "set", "renamed", "netns", &away.name()])?;
    away.run(|| wait_programs("renamed", 0))??;
    wait_links(4)?;

    let here = gettid().to_string();
    away.command("ip", &["link", "set", "renamed", "netns", &here])?;
    ensure!(wait_programs("renamed", 1)? == ours, "other programs than before");
    wait_links(6)?;
    netns::command("ip", &["link", "del", "renamed"])?;
    wait_links(2)
}

/// The programs of another set of places are to this one what anybody's are.
pub(crate) fn foreign_programs(sandbox: &Sandbox) -> Result<()> {
    let foreign = |name: &str| -> Result<[String; 4]> {
        let place = |kind: &str| sandbox.path(&format!("{kind}-{name}")).display().to_string();
        let pins = sandbox.path("bpf").join(name).display().to_string();
        Ok(["--state-dir".to_owned(), place("state"), "--pin-dir".to_owned(), pins])
    };
    let (first, last) = (foreign("first")?, foreign("last")?);
    let file = sandbox.write("foreign.yaml", POLICY)?;
    let start = |places: &[String]| -> Result<()> {
        let run = ["run", "--backend", "tc", "--policy", &file].map(str::to_owned);
        Agent::start_enforcing(&[&run, places].concat(), SOON)?.kill()
    };
    let detach = |places: &[String]| -> Result<()> {
        let detached = agent::command(&[&["detach".to_owned()], places].concat())?;
        ensure!(detached.code == Some(0), "{detached:?}");
        Ok(())
    };
    start(&first)?;
    let alone = programs("lo")?;
    sandbox.start(POLICY)?.kill()?;
    start(&last)?;
    let all = programs("lo")?;
    for (ids, first) in all.iter().zip(&alone) {
        ensure!(ids.len() == 3 && ids.starts_with(first), "the first was not left in its place: {all:?}");
    }
    // Adopted, each in its place.
    sandbox.start(POLICY)?.kill()?;
    ensure!(programs("lo")? == all, "the order changed from {all:?}");
    sandbox.run(&["detach"])?;
    for (now, before) in programs("lo")?.iter().zip(&all) {
        ensure!(now[..] == [before[0], before[2]], "foreign programs were {before:?} and are {now:?}");
    }
    detach(&last)?;
    ensure!(programs("lo")? == alone, "the first is not as it was");
    detach(&first)
}
