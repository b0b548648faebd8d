//! Statistics, fallbacks, link groups, devices, information, marks, rates and namespaces.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use smc_agent_tests::agent;
use smc_agent_tests::netns::NetNs;
use smc_agent_tests::pair::{Kind, Listener};

use super::scene::{Scene, connected, exchange};
use super::{expected, found, json as report, run, same, same_lists};

pub(crate) fn statistics(scene: &Scene) -> Result<()> {
    scene.settle()?;
    let stats = found(&["show", "stats"])?;
    same("statistics", &stats["statistics"], &expected::statistics()?)?;
    let technologies = [&stats["statistics"]["smcr"], &stats["statistics"]["smcd"]];
    let moved = technologies.iter().filter_map(|technology| technology["tx"]["bytes"].as_u64()).sum::<u64>();
    ensure!(moved >= 200_000, "hardly any traffic: {moved}");
    let fallbacks = found(&["show", "fallbacks"])?;
    let ((server, client), reasons) = expected::fallbacks()?;
    same("totals", &stats["fallbacks"], &json!({ "server": server, "client": client }))?;
    ensure!(fallbacks["server_total"] == server && fallbacks["client_total"] == client, "{fallbacks}");
    let list = fallbacks["reasons"].as_array().context("no list")?;
    let told: BTreeSet<_> = list
        .iter()
        .map(|reason| {
            let number = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
            (reason["side"] == "server", number(&reason["code"]["value"]), number(&reason["count"]))
        })
        .collect();
    ensure!(told == reasons.iter().copied().collect(), "{fallbacks}");
    let sides: BTreeSet<_> = told.iter().map(|(server, _, _)| *server).collect();
    ensure!(sides.len() == 2 && list.iter().all(|reason| reason["code"]["name"].is_string()), "{fallbacks}");
    let text = run(&["show", "stats", "--raw"], 0)?;
    ensure!(text.contains("SMC-R Connections Summary") && text.contains("Handshake errors"), "{text}");
    ensure!(run(&["show", "fallbacks"], 0)?.contains("0x03010000  PEERNOSMC"), "text of fallbacks");
    Ok(())
}

pub(crate) fn link_groups(scene: &Scene) -> Result<()> {
    scene.settle()?;
    let groups = found(&["show", "linkgroups"])?;
    let (rdma, ism) = (expected::rdma_link_groups()?, expected::ism_link_groups()?);
    ensure!(!(rdma.is_empty() && ism.is_empty()), "no link groups");
    eprintln!("link groups: {} of SMC-R, {} of SMC-D", rdma.len(), ism.len());
    same_lists("smcr", &groups["smcr"], &rdma)?;
    same_lists("smcd", &groups["smcd"], &ism)?;
    let mut links = found(&["show", "links"])?;
    for link in links["links"].as_array_mut().context("no list")? {
        let fields = link.as_object_mut().context("no object")?;
        let group = fields.remove("link_group").unwrap_or_default();
        let group = rdma.iter().find(|known| known["id"] == group).context("a link of no link group")?;
        ensure!(fields.remove("role").as_ref() == Some(&group["role"]), "role of {fields:?}");
        ensure!(fields.remove("interface") == Some(json!("lo")), "interface of {fields:?}");
    }
    same_lists("links", &links["links"], &expected::links()?)?;
    let text = run(&["show", "linkgroups", "--details"], 0)?;
    ensure!(text.contains("LG-ID") && text.contains("#Conns") && text.contains("Peer-OS LINUX"), "{text}");
    Ok(())
}

pub(crate) fn devices(_: &Scene) -> Result<()> {
    let devices = found(&["show", "devices"])?;
    let kernel = expected::rdma_devices()?;
    same_lists("smcr", &devices["smcr"], &kernel)?;
    // sysfs has the same devices in the same state.
    for device in &kernel {
        let name = device["name"].as_str().context("no name")?;
        let state = fs::read_to_string(format!("/sys/class/infiniband/{name}/ports/1/state"))?;
        ensure!(device["ports"][0]["active"] == state.contains("ACTIVE"), "{name}: {state}");
        let links = Command::new("rdma").arg("link").output()?;
        let links = String::from_utf8_lossy(&links.stdout).into_owned();
        let line = links.lines().find(|line| line.contains(&format!("{name}/1 "))).context(links.clone())?;
        ensure!(device["ports"][0]["active"] == line.contains("state ACTIVE"), "{line}");
    }
    let dibs = fs::read_dir("/sys/class/dibs").into_iter().flatten().count();
    ensure!(devices["dibs"].as_array().is_some_and(|list| list.len() == dibs), "{devices}");
    let info = found(&["show", "info"])?;
    same("smc", &info["smc"], &expected::system_info()?)?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    ensure!(info["kernel"] == release.trim_end(), "{info}");
    let sysctls = info["sysctls"].as_array().context("no list")?;
    ensure!(sysctls.len() == fs::read_dir("/proc/sys/net/smc")?.count(), "{info}");
    for sysctl in sysctls {
        let name = sysctl["name"].as_str().context("no name")?;
        let value = fs::read_to_string(format!("/proc/sys/net/smc/{name}"))?;
        ensure!(sysctl["value"] == value.trim_end(), "{sysctl}");
        // Nobody has set anything in this guest.
        ensure!(sysctl["default"] == sysctl["value"], "{sysctl}");
    }
    Ok(())
}

pub(crate) fn mark(scene: &Scene) -> Result<()> {
    let folder = std::env::temp_dir().join("vm-show-state");
    fs::create_dir_all(&folder)?;
    let agent = |arguments: &[&str]| -> Result<std::process::Output> {
        let mut command = Command::new(agent::binary()?);
        Ok(command
            .args(["show", "stats", "-o", "json"])
            .args(arguments)
            .env("XDG_STATE_HOME", &folder)
            .output()?)
    };
    scene.settle()?;
    ensure!(agent(&["--since-mark"])?.status.code() == Some(1), "a mark that nobody set");
    let before = expected::statistics()?;
    ensure!(agent(&["--mark"])?.status.success(), "--mark failed");
    exchange(&scene.pairs[0].0, &scene.pairs[0].1, 50_000)?;
    scene.settle()?;
    let output = agent(&["--since-mark"])?;
    let since: Value = serde_json::from_slice(&output.stdout)?;
    let since = &since["namespaces"][0];
    ensure!(since["since"].is_string() && since["reset"] == false, "{since}");
    // The kernel's own counters go on.
    let after = expected::statistics()?;
    let sum = |value: &Value| {
        ["smcr", "smcd"].iter().filter_map(|mode| value[mode]["tx"]["bytes"].as_u64()).sum::<u64>()
    };
    let (counted, total) = (sum(&since["statistics"]), sum(&after) - sum(&before));
    ensure!(counted == total && counted == 50_000, "{counted} since the mark, {total} in the kernel");
    Ok(())
}

pub(crate) fn monitor(scene: &Scene) -> Result<()> {
    let (from, to) = &scene.pairs[0];
    let arguments = ["monitor", "all", "--interval", "2", "--count", "2", "-o", "json"];
    let before = expected::statistics()?;
    let (finished, moved) = std::thread::scope(|scope| -> Result<_> {
        let agent = scope.spawn(|| agent::command(&arguments));
        let mut moved = 0_u64;
        while !agent.is_finished() {
            exchange(from, to, 50_000)?;
            moved += 50_000;
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Ok((agent.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??, moved))
    })?;
    ensure!(finished.code == Some(0), "{finished:?}");
    let lines: Vec<Value> = finished.stdout.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(lines.len() == 2, "{finished:?}");
    let mode = if expected::ism_link_groups()?.is_empty() { "smcr" } else { "smcd" };
    let mut seen = 0.0;
    for line in &lines {
        let sample = &line["namespaces"][0];
        let rate = sample[mode]["rates"]["tx_bytes"].as_f64().context("no rate")?;
        let seconds = sample["seconds"].as_f64().context("no interval")?;
        ensure!(seconds > 1.9 && rate > 0.0 && sample["reset"] == false, "{sample}");
        seen += rate * seconds;
        let kernel = super::raw::smc_sockets()?;
        let fallbacks = kernel.iter().filter(|(message, _)| message[2] == 1).count();
        ensure!(sample["connections"]["fallback"] == fallbacks, "{sample}");
        let usage = &expected::statistics()?[mode]["rx"]["buffer_usage"];
        ensure!(sample[mode]["rx_buffers"] == *usage, "{usage} {sample}");
    }
    let total = expected::statistics()?[mode]["tx"]["bytes"].as_u64().unwrap_or(0)
        - before[mode]["tx"]["bytes"].as_u64().unwrap_or(0);
    ensure!(total == moved, "{total} instead of {moved}");
    // The agent sees only what moves between its first and its last look.
    let share = seen / f64::from(u32::try_from(moved)?);
    ensure!(share > 0.3 && share <= 1.001, "{share}");
    let csv = run(&["monitor", "connections", "--count", "1", "-o", "csv"], 0)?;
    ensure!(
        csv.starts_with("time,mode,connections,new_per_second,reset\n") && csv.lines().count() == 4,
        "{csv}"
    );
    let text = run(&["monitor", "speed", "--count", "2", "--interval", "0.2"], 0)?;
    ensure!(text.matches("Rx Rate").count() == 1, "{text}");
    Ok(())
}

pub(crate) fn namespaces(_: &Scene) -> Result<()> {
    let namespace = NetNs::create("vm-show")?;
    let listener = namespace.run(|| Listener::bind(Kind::Smc, "127.0.0.1:0".parse()?, 4))??;
    let all = report(&["show", "netns"])?;
    let list = all["namespaces"].as_array().context("no list")?;
    let named = list.iter().find(|found| found["netns"]["name"] == "vm-show").context("not found")?;
    ensure!(named["listening"] == 1 && named["sockets"] == 1, "{named}");
    let own =
        list.iter().find(|found| found["netns"]["pid"].is_u64()).context("the first namespace is missing")?;
    let kernel = super::raw::smc_sockets()?;
    ensure!(own["sockets"] == kernel.len(), "{own}");
    let fallbacks = kernel.iter().filter(|(message, _)| message[2] == 1).count();
    ensure!(own["fallback"] == fallbacks, "{own}");
    let inside = found(&["show", "sockets", "--all", "--netns", "vm-show"])?;
    ensure!(inside["sockets"][0]["local"]["port"] == listener.local()?.port(), "{inside}");
    let pair = namespace.run(|| connected(Kind::Smc, Kind::Tcp, [127, 0, 0, 1].into()))??;
    let fallbacks = found(&["show", "fallbacks", "--netns", "vm-show"])?;
    ensure!(fallbacks["server_total"] == 1 && fallbacks["client_total"] == 0, "{fallbacks}");
    drop(pair);
    run(&["show", "info", "--netns", "no-such"], 1)?;
    Ok(())
}
