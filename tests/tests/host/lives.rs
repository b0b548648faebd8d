//! The life of an agent with the backend tc, on a kernel that need not have SMC.

use anyhow::{Result, ensure};
use aya::programs::links::PinnedLink;
use nix::mount::umount;
use smc_agent_tests::objects::pinned;
use smc_agent_tests::pair::{Kind, Mode, Pair, run};

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
