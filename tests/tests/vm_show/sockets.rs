//! `show sockets`.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use smc_agent_tests::pair::{Kind, Stream};

use super::scene::Scene;
use super::{expected, found, raw, run, same};

/// The fields that stand in the kernel's message itself.
fn told(mut socket: Value) -> Result<Value> {
    let fields = socket.as_object_mut().context("a socket is no object")?;
    for joined in ["interface", "addresses_from", "owners"] {
        fields.remove(joined);
    }
    for end in ["local", "peer"] {
        let port = fields.remove(end).map(|end| end["port"].clone());
        fields.insert(format!("{end}_port"), port.unwrap_or_default());
    }
    if let Some(link) = fields.get_mut("link").and_then(Value::as_object_mut) {
        link.remove("link_group");
    }
    Ok(socket)
}

pub(crate) fn all_kinds(scene: &Scene) -> Result<()> {
    scene.settle()?;
    let found = found(&["show", "sockets", "--all"])?;
    let kernel: BTreeMap<u64, Value> = raw::smc_sockets()?
        .iter()
        .map(|(message, extensions)| expected::socket(message, extensions))
        .map(|socket| (socket["cookie"].as_u64().unwrap_or(0), socket))
        .collect();
    let list = found["sockets"].as_array().context("no list")?;
    ensure!(
        list.len() == kernel.len() && found["total"] == kernel.len(),
        "{} of {}",
        list.len(),
        kernel.len()
    );
    for socket in list {
        let socket = told(socket.clone())?;
        let cookie = socket["cookie"].as_u64().context("no cookie")?;
        same("socket", &socket, kernel.get(&cookie).context("the kernel has no such socket")?)?;
    }
    // The scene has what it is meant to have.
    let count = |field: &str, value: &str| list.iter().filter(|socket| socket[field] == value).count();
    ensure!(count("mode", "smcd") + count("mode", "smcr") >= 4, "{list:#?}");
    ensure!(count("mode", "tcp") >= 2 && count("state", "LISTEN") >= 4, "{list:#?}");
    let closing = scene.closing.inode()?;
    let closing = list.iter().find(|socket| socket["inode"] == closing).context("no closing socket")?;
    ensure!(closing["state"].as_str().is_some_and(|state| state.contains("CLOSEWAIT")), "{closing}");
    let shown: Vec<_> = list.iter().map(|socket| format!("{} {}", socket["state"], socket["mode"])).collect();
    eprintln!("sockets: {}", shown.join(", "));
    Ok(())
}

pub(crate) fn joined(scene: &Scene) -> Result<()> {
    let found = found(&["show", "sockets", "--all", "--details"])?;
    let list = found["sockets"].as_array().context("no list")?;
    let by_inode = |inode: u64| list.iter().find(|socket| socket["inode"] == inode);
    let command = fs::read_to_string("/proc/self/comm")?.trim_end().to_owned();
    let cgroup = fs::read_to_string("/proc/self/cgroup")?;
    let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::"));
    let owner = json!([{ "pid": std::process::id(), "command": command, "cgroup": cgroup }]);
    let check = |stream: &Stream| -> Result<()> {
        if stream.kind() == Kind::Tcp {
            return Ok(());
        }
        let socket = by_inode(stream.inode()?).context("a socket is missing")?;
        for (end, address) in [("local", stream.local()?), ("peer", stream.peer()?)] {
            same(end, &socket[end], &endpoint(address))?;
        }
        let source = if stream.kind() == Kind::SmcInet { "tcp_diag" } else { "smc_diag" };
        ensure!(socket["addresses_from"] == source, "{socket}");
        same("owners", &socket["owners"], &owner)?;
        if socket["mode"] == "smcr" {
            ensure!(socket["link"]["link_group"].is_u64(), "no link group: {socket}");
        }
        Ok(())
    };
    for (one, other) in &scene.pairs {
        check(one)?;
        check(other)?;
    }
    for listener in &scene.listeners {
        let address = listener.local()?;
        let expected = endpoint(address);
        let listed = list.iter().any(|socket| socket["state"] == "LISTEN" && socket["local"] == expected);
        ensure!(listed, "no listener at {address}: {list:#?}");
    }
    // The link groups of the sockets are those that the kernel lists, and their numbers of connections agree: but for the
    // end that was closed while its peer is open, which the kernel counts and no longer lists.
    let agree = |group: &Value, inside: usize| {
        let connections = group["connections"].as_u64().and_then(|number| usize::try_from(number).ok());
        connections.is_some_and(|connections| connections == inside || connections == inside + 1)
    };
    for group in expected::rdma_link_groups()? {
        let inside = list.iter().filter(|socket| socket["link"]["link_group"] == group["id"]).count();
        ensure!(agree(&group, inside), "{inside} sockets, {group}");
    }
    for group in expected::ism_link_groups()? {
        let inside = list.iter().filter(|socket| socket["dmb"]["link_group"] == group["id"]).count();
        ensure!(agree(&group, inside), "{inside} sockets, {group}");
    }
    Ok(())
}

fn endpoint(address: SocketAddr) -> Value {
    json!({ "address": address.ip().to_string(), "port": address.port() })
}

pub(crate) fn filtered(scene: &Scene) -> Result<()> {
    let number = |arguments: &[&str]| -> Result<usize> {
        let found = found(&[&["show", "sockets"], arguments].concat())?;
        Ok(found["sockets"].as_array().map_or(0, Vec::len))
    };
    let all = number(&["--all"])?;
    let (listening, rest) = (number(&["--listening"])?, number(&[])?);
    ensure!(listening == scene.listeners.len() && all == listening + rest, "{all} {listening} {rest}");
    let (stream, _) = &scene.pairs[0];
    let port = stream.local()?.port().to_string();
    ensure!(number(&["--port", &port])? == 2, "by port");
    ensure!(number(&["--all", "--address", "127.0.0.2"])? == 1, "by address");
    ensure!(number(&["--all", "--address", "::1/128"])? >= 3, "by IPv6 address");
    ensure!(number(&["--state", "listen"])? == listening, "by state");
    let fallbacks = raw::smc_sockets()?.iter().filter(|(message, _)| message[2] == 1).count();
    ensure!(number(&["--fallback"])? == fallbacks, "fallbacks");
    let text = run(&["show", "sockets", "--all", "--details"], 0)?;
    for expected in
        ["State", "Local Address", "Intf", "TCP 0x03010000 PEERNOSMC", "[::1]:", "process ", "LG-ID "]
    {
        ensure!(text.contains(expected), "no {expected:?} in\n{text}");
    }
    run(&["show", "sockets", "--state", "nonsense"], 2)?;
    run(&["show", "sockets", "--address", "1.2.3"], 2)?;
    Ok(())
}
