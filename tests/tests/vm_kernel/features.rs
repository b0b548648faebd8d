//! `smc-agent features` against what is known of each kernel of the matrix.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smc_agent_tests::agent;
use smc_agent_tests::netns;
use smc_agent_tests::objects::Objects;

/// The kernels, in the order of the columns below.
const KERNELS: [&str; 4] = ["5.10", "6.1", "6.12", "7.3"];

/// What each kernel has, from the configuration and the source of each; `y` yes, `n` no. What may be a module (the qdisc) is
/// asked for apart.
const FEATURES: [(&str, &str); 45] = [
    ("smc", "yyyy"),
    ("btf-kernel", "yyyy"),
    ("btf-smc", "nyyy"),
    ("layout-sockets", "yyyy"),
    ("layout-links", "nyyy"),
    ("hs-ctrl", "nnny"),
    ("tcx", "nnyy"),
    ("ring-buffer", "yyyy"),
    ("netns-cookie", "nyyy"),
    ("tracepoint-smc_switch_to_fallback", "nyyy"),
    ("tracepoint-smcr_link_down", "nyyy"),
    ("function-smc_copy_sock_settings_to_clc", "yyyy"),
    ("function-smc_connect_decline_fallback", "yyyy"),
    ("function-smc_listen_out", "yyyy"),
    ("function-smc_create_clcsk", "nnyy"),
    ("function-smc_setsockopt", "yyyy"),
    ("function-smc_conn_free", "yyyy"),
    ("function-smc_release", "yyyy"),
    ("function-smc_connect", "yyyy"),
    ("function-smc_listen", "yyyy"),
    ("update-socket-protocol", "nnyy"),
    ("ipproto-smc", "nnyy"),
    ("tcp2smc", "nnnn"),
    ("smc-diag", "yyyy"),
    ("genl-pnet", "yyyy"),
    ("genl-smc", "nyyy"),
    ("genl-1", "nyyy"),
    ("genl-2", "nyyy"),
    ("genl-3", "nyyy"),
    ("genl-4", "nyyy"),
    ("genl-5", "nyyy"),
    ("genl-6", "nyyy"),
    ("genl-7", "nyyy"),
    ("genl-8", "nyyy"),
    ("genl-9", "nyyy"),
    ("genl-10", "nyyy"),
    ("genl-11", "nyyy"),
    ("genl-12", "nyyy"),
    ("genl-13", "nyyy"),
    ("genl-14", "nyyy"),
    ("genl-15", "nyyy"),
    ("genl-16", "nyyy"),
    ("genl-17", "nyyy"),
    ("genl-18", "nyyy"),
    ("clsact", "****"),
];

/// What this program can do on each; other tests do it.
const ABILITIES: [(&str, &str); 28] = [
    ("enforce-hs-ctrl", "nnny"),
    ("enforce-tc", "yyyy"),
    ("fallback-events", "yyyy"),
    ("rule-names", "yyyy"),
    ("owners", "yyyy"),
    ("owners-unconnected", "nnyy"),
    ("option-roles", "yyyy"),
    ("connection-details", "nyyy"),
    ("client-errors", "yyyy"),
    ("server-errors", "yyyy"),
    ("link-down", "nyyy"),
    ("convert-bpf", "nnyy"),
    ("convert-sysctl", "nnnn"),
    ("convert-preload", "yyyy"),
    ("show-sockets", "yyyy"),
    ("show-pnet", "yyyy"),
    ("show-info", "nyyy"),
    ("show-linkgroups", "nyyy"),
    ("show-links", "nyyy"),
    ("show-devices", "nyyy"),
    ("show-stats", "nyyy"),
    ("show-fallbacks", "nyyy"),
    ("show-ueid", "nyyy"),
    ("set-ueid", "nyyy"),
    ("show-seid", "nyyy"),
    ("set-seid", "nyyy"),
    ("show-hs-limit", "nyyy"),
    ("set-hs-limit", "nyyy"),
];

/// A trial of something that only root can try.
const TRIED: [&str; 13] = [
    "tcx",
    "ring-buffer",
    "enforce-tc",
    "fallback-events",
    "rule-names",
    "owners",
    "owners-unconnected",
    "option-roles",
    "connection-details",
    "client-errors",
    "server-errors",
    "link-down",
    "convert-bpf",
];

/// The answers by name, and the details.
struct Answers {
    states: BTreeMap<String, String>,
    details: BTreeMap<String, String>,
    whole: Value,
}

impl Answers {
    fn parse(text: &str) -> Result<Self> {
        let whole: Value = serde_json::from_str(text).with_context(|| format!("no JSON: {text}"))?;
        let mut answers = Self { states: BTreeMap::new(), details: BTreeMap::new(), whole };
        for list in ["features", "abilities"] {
            for entry in answers.whole[list].as_array().context("no list")? {
                let word = |key: &str| entry[key].as_str().map(str::to_owned);
                let id = word("id").context("no id")?;
                answers.details.extend(word("detail").map(|detail| (id.clone(), detail)));
                ensure!(
                    answers.states.insert(id.clone(), word("state").context("no state")?).is_none(),
                    "{id} is there twice"
                );
            }
        }
        Ok(answers)
    }

    fn of_root() -> Result<Self> {
        let finished = agent::command(&["features", "-o", "json"])?;
        ensure!(finished.code == Some(0), "features: {finished:?}");
        Self::parse(&finished.stdout)
    }

    /// All deviations from the tables, for a kernel.
    fn deviations(
        &self,
        kernel: &str,
        of_others: impl Fn(&str, &'static str) -> &'static str,
    ) -> Result<Vec<String>> {
        let column = KERNELS.iter().position(|name| *name == kernel).context("an unknown kernel")?;
        let mut wrong = Vec::new();
        for (id, columns) in FEATURES.iter().chain(&ABILITIES) {
            let expected = match columns.as_bytes().get(column) {
                Some(b'y') => "yes",
                Some(b'n') => "no",
                _ => continue,
            };
            let expected = of_others(id, expected);
            let found = self.states.get(*id).map_or("missing", String::as_str);
            if found != expected {
                wrong.push(format!("{id}: {found} instead of {expected} ({:?})", self.details.get(*id)));
            }
        }
        Ok(wrong)
    }
}

/// Whether the kernel shows a module as loaded.
fn loaded(module: &str) -> bool {
    fs::exists(format!("/sys/module/{module}")).unwrap_or(false)
}

pub(crate) fn each_line(kernel: &str) -> Result<()> {
    let qdisc_before = loaded("sch_ingress");
    let answers = Answers::of_root()?;
    ensure!(
        answers.whole["version"] == 1 && answers.whole["missing_capabilities"] == Value::Array(Vec::new())
    );
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    ensure!(answers.whole["kernel"] == release.trim(), "{}", answers.whole["kernel"]);
    let wrong = answers.deviations(kernel, |_, expected| expected)?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    let known: usize = answers.states.len();
    ensure!(known == FEATURES.len() + ABILITIES.len(), "{known} lines: {:?}", answers.states.keys());
    let qdisc = answers.states.get("clsact").map(String::as_str);
    // Built into 7.3, a module of the others.
    let there = kernel == "7.3" || qdisc_before;
    ensure!(qdisc == Some(if there { "yes" } else { "loadable" }), "clsact: {qdisc:?}");
    // By which way: the ones that other tests use on this kernel.
    let detail = |id: &str| answers.details.get(id).map(String::as_str).unwrap_or_default();
    let tcx = matches!(kernel, "6.12" | "7.3");
    ensure!(detail("enforce-tc").starts_with(if tcx { "by tcx" } else { "by clsact" }));
    let tracepoint = kernel != "5.10";
    ensure!(detail("fallback-events").starts_with(if tracepoint {
        "by the tracepoint"
    } else {
        "by probes"
    }));
    Ok(())
}

pub(crate) fn unprivileged(kernel: &str) -> Result<()> {
    let output =
        Command::new(agent::binary()?).args(["features", "-o", "json"]).uid(65534).gid(65534).output()?;
    ensure!(output.status.success(), "{output:?}");
    let answers = Answers::parse(&String::from_utf8_lossy(&output.stdout))?;
    ensure!(
        answers.whole["missing_capabilities"] == serde_json::json!(["CAP_NET_ADMIN", "CAP_SYS_ADMIN"]),
        "{}",
        answers.whole["missing_capabilities"]
    );
    let wrong = answers.deviations(kernel, |id, expected| match id {
        // What the kernel lacks is seen without trying.
        "enforce-hs-ctrl" | "convert-bpf" if expected == "no" => "no",
        "enforce-hs-ctrl" => "unknown",
        // Without types of the module there is nothing to look tracepoints up in.
        "tracepoint-smc_switch_to_fallback" | "tracepoint-smcr_link_down" if expected == "no" => "unknown",
        id if TRIED.contains(&id) => "unknown",
        _ => expected,
    })?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    let why = answers.details.get("enforce-tc").map(String::as_str);
    ensure!(why == Some("not known without CAP_NET_ADMIN and CAP_SYS_ADMIN"), "{why:?}");
    Ok(())
}

fn modules() -> Result<Vec<String>> {
    let text = fs::read_to_string("/proc/modules")?;
    let mut names: Vec<_> =
        text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

pub(crate) fn nothing_left(_: &str) -> Result<()> {
    let qdiscs = || netns::command("tc", &["qdisc", "show"]);
    let before = (Objects::now(), modules()?, qdiscs()?);
    Answers::of_root()?;
    let folders =
        ["/sys/fs/bpf/smc-agent", "/run/smc-agent"].map(|folder| fs::exists(folder).unwrap_or(true));
    ensure!(folders == [false; 2], "folders were made");
    ensure!(before.1 == modules()?, "modules: {:?} before, {:?} after", before.1, modules()?);
    ensure!(before.2 == qdiscs()?, "qdiscs: {} before, {} after", before.2, qdiscs()?);
    // The kernel frees maps and programs after a grace period.
    smc_agent_tests::wait::wait_until("no BPF object is left", std::time::Duration::from_mins(1), || {
        Ok(Objects::now().since(&before.0).is_empty().then_some(()))
    })
}

pub(crate) fn without_module(_: &str) -> Result<()> {
    // What stands on module smc goes first. A module that is in use stays, and the test cannot be made.
    for module in ["smc_diag", "smc"] {
        netns::command("rmmod", &[module]).with_context(|| format!("cannot unload {module}"))?;
    }
    let answers = Answers::of_root()?;
    let state = |answers: &Answers, id: &str| answers.states.get(id).cloned().unwrap_or_default();
    let found =
        ["smc", "tracepoint-smc_switch_to_fallback", "genl-7", "smc-diag", "enforce-tc", "convert-preload"]
            .map(|id| state(&answers, id));
    ensure!(found == ["loadable", "unknown", "unknown", "loadable", "yes", "yes"], "{found:?}");
    ensure!(!loaded("smc") && !loaded("smc_diag"), "a module was loaded");
    let finished = agent::command(&["features", "--load-module", "-o", "json"])?;
    ensure!(finished.code == Some(0), "{finished:?}");
    let answers = Answers::parse(&finished.stdout)?;
    ensure!(state(&answers, "smc") == "yes" && loaded("smc"), "{:?}", answers.details.get("smc"));
    // As it was for the tests that follow.
    netns::command("modprobe", &["smc_diag"]).map(drop)
}
