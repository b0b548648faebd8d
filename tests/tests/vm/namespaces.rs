//! In which network namespaces a policy holds.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command};

use anyhow::{Context as _, Result, ensure};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;
use smc_agent::kernel::features::Features;
use smc_agent::kernel::hs_ctrl::{Prepared, Registered};
use smc_agent::kernel::loader::Loader;
use smc_agent::kernel::object;
use smc_agent_tests::netns::{self, NetNs, loopback_up, run_in};
use smc_agent_tests::pair::run;
use smc_agent_tests::wait::wait_until;

use crate::lab::{
    Backend, Flow, Lab, PEER_NO_SMC, POLICY, Port, SOON, SYSCTL, command, parse_events, selected_ctrl,
};

/// A process in a network namespace that has no name.
struct Nameless {
    process: Child,
}

impl Nameless {
    fn create() -> Result<Self> {
        let mut sleep = Command::new("sleep");
        sleep.arg("1000");
        // SAFETY: only system calls are made between fork and exec.
        unsafe { sleep.pre_exec(|| Ok(unshare(CloneFlags::CLONE_NEWNET)?)) };
        let nameless = Self { process: sleep.spawn().context("cannot run sleep")? };
        run_in(Some(&nameless.path()), loopback_up)??;
        Ok(nameless)
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.process.id()).into()
    }
}

impl Drop for Nameless {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn inode(path: &std::path::Path) -> Result<u64> {
    Ok(fs::metadata(path).with_context(|| path.display().to_string())?.ino())
}

/// Whether a flow within a network namespace was refused at both ends. Those of others than the first may have no device for SMC
/// where nothing was refused.
fn is_denied(path: &std::path::Path, port: Port) -> Result<bool> {
    let mut pair = Flow::smc(port).pair();
    pair.server_netns = Some(path.to_owned());
    pair.client_netns = Some(path.to_owned());
    let ends = run(&pair)?;
    ensure!(ends.intact, "data was damaged: {}", ends.problems.join("; "));
    let of = |reason| reason == PEER_NO_SMC;
    ensure!(of(ends.client.reason) == of(ends.server.reason), "{ends:?}");
    Ok(of(ends.client.reason))
}

fn expect(path: &std::path::Path, enforced: bool) -> Result<()> {
    for (port, denied) in [(Port::NoClient, enforced), (Port::NoServer, enforced), (Port::Open, false)] {
        ensure!(is_denied(path, port)? == denied, "{}: port {port:?}: denied {}", path.display(), !denied);
    }
    Ok(())
}

const HERE: &str = "/proc/self/ns/net";

/// The status, whatever it finds.
fn status() -> Result<Value> {
    Ok(serde_json::from_str(&command(&["status", "-o", "json"])?.stdout)?)
}

/// What the status says of a network namespace.
fn of_namespace(status: &Value, inode: u64) -> Option<&Value> {
    status["namespaces"].as_array()?.iter().find(|namespace| namespace["inode"] == inode)
}

/// Waits until the policy is in force in a network namespace; gives what the status says of it.
fn wait_enforced(path: &std::path::Path, interfaces: &[&str]) -> Result<Value> {
    let inode = inode(path)?;
    let mut last = Value::Null;
    wait_until(&format!("{} is covered", path.display()), SOON, || {
        last = status()?;
        let found = of_namespace(&last, inode).filter(|found| found["enforced"] == true);
        let has = |found: &&Value, name: &str| {
            found["interfaces"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
        };
        let found = found.filter(|found| interfaces.iter().all(|name| has(found, name)));
        Ok(found.cloned())
    })
    .with_context(|| format!("{last:#}"))
}

pub(crate) fn all(lab: &mut Lab) -> Result<()> {
    let (blue, nameless) = (NetNs::create("smcvm-blue")?, Nameless::create()?);
    lab.more = ["--scope", "all"].map(Into::into).into();
    lab.start(POLICY)?;
    let report = status()?;
    ensure!(report["agent"]["scope"] == "all" && report["degraded"] == serde_json::json!([]), "{report:#}");
    for path in [blue.path(), &nameless.path(), HERE.as_ref()] {
        let found = of_namespace(&report, inode(path)?).context("it is not in the status")?;
        ensure!(found["enforced"] == true, "{found:#}");
        expect(path, true)?;
    }
    let named = of_namespace(&report, inode(blue.path())?).map(|found| found["name"].clone());
    ensure!(named == Some(Value::from("smcvm-blue")), "{report:#}");

    // Those that come later.
    let green = NetNs::create("smcvm-green")?;
    if lab.backend == Backend::HsCtrl {
        expect(green.path(), true).context("it inherits the policy")?;
    }
    wait_enforced(green.path(), &[])?;
    expect(green.path(), true)?;
    let later = Nameless::create()?;
    wait_enforced(&later.path(), &[])?;
    expect(&later.path(), true)?;
    // Their interfaces, too.
    if lab.backend == Backend::Tc {
        green.command("ip", &["link", "add", "g0", "type", "veth", "peer", "name", "g1"])?;
        wait_enforced(green.path(), &["lo", "g0", "g1"])?;
    }

    // Nothing keeps one alive that nobody uses: its interface goes with it.
    let process = later.process.id().to_string();
    netns::command("ip", &["link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", &process])?;
    if lab.backend == Backend::Tc {
        wait_enforced(&later.path(), &["v1"])?;
    }
    let gone = [inode(green.path())?, inode(&later.path())?];
    drop((green, later));
    let present = || Ok::<_, anyhow::Error>(netns::command("ip", &["link"])?.contains("v0"));
    wait_until("the interface of a namespace that ended goes", SOON, || Ok((!present()?).then_some(())))?;
    wait_until("they are forgotten", SOON, || {
        let report = status()?;
        Ok(gone.iter().all(|inode| of_namespace(&report, *inode).is_none()).then_some(()))
    })?;
    let pinned = crate::lab::pins()?;
    ensure!(!pinned.keys().any(|pin| pin.contains(&gone[0].to_string())), "pins are left: {pinned:?}");

    // A fallback tells where it was, and which rule it was.
    let mut pair = Flow::smc(Port::NoClient).pair();
    pair.server_netns = Some(blue.path().to_owned());
    pair.client_netns = Some(blue.path().to_owned());
    let local = run(&pair)?.client.local.to_string();
    let agent = lab.agent()?;
    wait_until("the event of a refused client in a namespace", SOON, || {
        let events = parse_events(&agent.lines())?;
        Ok(events
            .into_iter()
            .find(|event| event["event"] == "fallback" && event["local"] == local.as_str())
            .filter(|event| event["netns_name"] == "smcvm-blue" && event["denied_by"]["rule"] == "no-client")
            .map(drop))
    })?;

    // Without an agent, and with the next.
    lab.kill()?;
    expect(blue.path(), true).context("without an agent")?;
    let alone = status()?;
    ensure!(
        of_namespace(&alone, inode(blue.path())?).is_some_and(|found| found["enforced"] == true),
        "{alone:#}"
    );
    lab.start_again()?;
    ensure!(status()?["agent"]["adopted"] == true, "other objects");
    expect(blue.path(), true).context("with the next agent")?;

    crate::lab::detach()?;
    lab.agent()?.wait(SOON)?;
    for path in [blue.path(), &nameless.path(), HERE.as_ref()] {
        expect(path, false).context("after detach")?;
    }
    Ok(())
}

pub(crate) fn named(lab: &mut Lab) -> Result<()> {
    let (blue, other) = (NetNs::create("smcvm-blue")?, NetNs::create("smcvm-other")?);
    lab.more = ["--scope", "smcvm-blue,smcvm-late"].map(Into::into).into();
    lab.start(POLICY)?;
    expect(blue.path(), true)?;
    expect(other.path(), false)?;
    expect(HERE.as_ref(), false)?;
    let report = command(&["status", "-o", "json"])?;
    ensure!(report.code == Some(0), "what is not there lacks nothing: {report:?}");
    let report: Value = serde_json::from_str(&report.stdout)?;
    let missing = "there is no network namespace smcvm-late";
    ensure!(
        report["degraded"] == serde_json::json!([{ "what": missing, "unenforced": false }]),
        "{report:#}"
    );

    let late = NetNs::create("smcvm-late")?;
    wait_enforced(late.path(), &[])?;
    expect(late.path(), true)?;
    // Another with the same name, as when a container starts again.
    drop(blue);
    let blue = NetNs::create("smcvm-blue")?;
    wait_enforced(blue.path(), &[])?;
    expect(blue.path(), true)?;
    expect(other.path(), false)?;
    expect(HERE.as_ref(), false)
}

pub(crate) fn shrinks(lab: &mut Lab) -> Result<()> {
    let (blue, other) = (NetNs::create("smcvm-blue")?, NetNs::create("smcvm-other")?);
    let scopes: [(&str, bool, bool, bool); 4] = [
        ("all", true, true, true),
        ("smcvm-blue,host", true, false, true),
        ("smcvm-blue", true, false, false),
        ("host", false, false, true),
    ];
    lab.write_policy(POLICY)?;
    for (scope, in_blue, in_other, here) in scopes {
        lab.more = ["--scope", scope].map(Into::into).into();
        lab.start_again().context(scope)?;
        for (path, enforced) in [(blue.path(), in_blue), (other.path(), in_other), (HERE.as_ref(), here)] {
            expect(path, enforced).with_context(|| format!("--scope {scope}"))?;
        }
        lab.kill()?;
    }
    let new = NetNs::create("smcvm-new")?;
    expect(new.path(), false).context("what is enforced in one is not inherited")
}

pub(crate) fn held(lab: &mut Lab) -> Result<()> {
    // Only told, at first.
    lab.start(POLICY)?;
    let ours = selected_ctrl();
    fs::write(SYSCTL, "\n")?;
    let report = command(&["status"])?;
    ensure!(
        report.code == Some(1)
            && report.stdout.contains("net.smc.hs_ctrl was cleared: the policy is not asked"),
        "{report:?}"
    );
    expect(HERE.as_ref(), false)?;
    lab.agent()?.wait_for_line("the warning", SOON, |line| line.contains("net.smc.hs_ctrl was cleared"))?;
    ensure!(selected_ctrl().is_empty(), "it was put back");
    lab.kill()?;

    lab.more = vec!["--hold".to_owned()];
    lab.start_again()?;
    expect(HERE.as_ref(), true)?;
    fs::write(SYSCTL, "\n")?;
    wait_until("the selection is put back", SOON, || Ok((selected_ctrl() == ours).then_some(())))?;
    expect(HERE.as_ref(), true)
}

/// Registers a ctrl that is not the agent's.
fn foreign() -> Result<Registered> {
    let features = Features::of_running_kernel(true)?;
    let ebpf = object::load(&object::Options {
        maps: None,
        offsets: &features.offsets(),
        enforcing: false,
        log_level: 0,
        event_rate: 0,
        fallback_tracepoint: features.fallback_tracepoint,
    })?;
    let loader = Loader::new(object::BYTES, &ebpf)?;
    let btf = features.smc_btf.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut prepared = Prepared::new(&loader, btf, features.smc_btf_object()?, false)?;
    Ok(prepared.register_as(&loader, "others_ctrl", "others")?)
}

pub(crate) fn taken_over(lab: &mut Lab) -> Result<()> {
    let blue = NetNs::create("smcvm-blue")?;
    let others = foreign()?;
    let select = || fs::write(SYSCTL, others.name());
    let in_blue = || fs::read_to_string(SYSCTL).map(|name| name.trim().to_owned());
    let result = (|| {
        // Where it is the only one, the other backend enforces beside it.
        select()?;
        lab.start(POLICY)?;
        let report = status()?;
        ensure!(report["backend"] == "tc" && selected_ctrl() == "others", "{report:#}");
        let reason = report["agent"]["candidates"][0]["reason"].as_str().unwrap_or_default().to_owned();
        ensure!(reason.contains("\"others\"") && reason.contains("--take-over"), "{report:#}");
        expect(HERE.as_ref(), true)?;
        lab.kill()?;

        lab.more = vec!["--take-over".to_owned()];
        lab.start_again()?;
        ensure!(
            status()?["backend"] == "hs-ctrl" && selected_ctrl().starts_with("smcagent_"),
            "not taken over"
        );
        expect(HERE.as_ref(), true)?;
        lab.kill()?;

        // In one of several it is left alone, and told.
        blue.run(select)??;
        lab.more = ["--scope", "all"].map(Into::into).into();
        lab.start_again()?;
        let report = command(&["status"])?;
        let told =
            "net.smc.hs_ctrl of network namespace smcvm-blue was set to others: the policy is not asked";
        ensure!(report.code == Some(1) && report.stdout.contains(told), "{report:?}");
        ensure!(blue.run(in_blue)?? == "others", "it was displaced");
        expect(HERE.as_ref(), true)?;
        expect(blue.path(), false)?;
        lab.kill()?;
        lab.more.push("--take-over".to_owned());
        lab.start_again()?;
        expect(blue.path(), true)
    })();
    // Whatever came of it: it has to be selected nowhere to go.
    for namespace in [None, Some(blue.path())] {
        run_in(namespace, || {
            if in_blue().is_ok_and(|name| name == "others") {
                fs::write(SYSCTL, "\n")?;
            }
            Ok::<_, std::io::Error>(())
        })??;
    }
    others.unregister()?;
    result
}
