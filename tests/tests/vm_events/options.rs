//! Fallbacks by what applications, or the host, ask of TCP; and peers without SMC.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use smc_agent_tests::pair::{FastOpen, Kind};

use crate::provoke::{self, IPSEC, OPTION, PEER_NO_SMC};
use crate::scene::{
    Expected, Scene, V4, V6, can_use_smc, connect, expect_owner, forms, fresh, has_dibs, run_intact,
};

pub(crate) fn plain_peers(scene: &mut Scene) -> Result<()> {
    // On kernels that can use SMC the address matters for it; a refusal looks the same with each.
    for address in [V4, V6] {
        for (kind, non_blocking) in forms()? {
            let to_tcp = connect(kind, Kind::Tcp, address, non_blocking)?;
            scene.expect_client(&to_tcp, &Expected::code(PEER_NO_SMC))?;
            let from_tcp = connect(Kind::Tcp, kind, address, non_blocking)?;
            scene.expect_server(&from_tcp, &Expected::code(PEER_NO_SMC))?;
        }
    }
    Ok(())
}

pub(crate) fn syncookies(scene: &mut Scene) -> Result<()> {
    let _always = provoke::Sysctl::set("net/ipv4/tcp_syncookies", "2")?;
    for (kind, non_blocking) in forms()? {
        let ends = connect(kind, kind, V4, non_blocking)?;
        scene.expect_client(&ends, &Expected::code(PEER_NO_SMC))?;
        scene.expect_server(&ends, &Expected::code(PEER_NO_SMC))?;
    }
    Ok(())
}

/// The only fallback from `before` on of a socket that had no connection yet.
fn unconnected(scene: &Scene, before: usize) -> Result<Value> {
    let is_it = |event: &&Value| event["code"]["value"] == OPTION;
    scene.wait_for("a fallback without a connection", |events| {
        events.iter().filter(|event| event["event"] == "fallback").skip(before).any(|event| is_it(&event))
    })?;
    let events = scene.fallbacks()?;
    let mut found = events[before..].iter().filter(is_it);
    let event = found.next().context("it was there")?.clone();
    ensure!(found.next().is_none(), "two fallbacks by one option");
    ensure!(event["code"]["name"] == "OPTUNSUPP" && event["peer_code"] == Value::Null, "{event:#}");
    Ok(event)
}

/// By an option and by a message, before there is a connection.
pub(crate) fn fast_open(scene: &mut Scene) -> Result<()> {
    for (kind, non_blocking) in forms()? {
        for how in [FastOpen::Option, FastOpen::Message] {
            let by_message = how == FastOpen::Message;
            let before = scene.fallbacks()?.len();
            let mut pair = fresh(kind, kind, V4);
            pair.connecting.fast_open = Some(how);
            pair.connecting.non_blocking = non_blocking;
            let ends = run_intact(&pair)?;
            scene.expect_server(&ends, &Expected::code(PEER_NO_SMC))?;
            ensure!(ends.client.reason == OPTION, "{ends:?}");
            let event = unconnected(scene, before)?;
            ensure!(event["role"] == "client", "{event:#}");
            if knows_at_once()? {
                let nowhere = json!("0.0.0.0:0");
                ensure!(event["local"] == nowhere && event["peer"] == nowhere, "{event:#}");
            }
            // A kernel that is asked only at the end of a socket tells who set an option, not who sent a message.
            let seen = if by_message && !knows_at_once()? { None } else { Some("fastopen") };
            expect_seen(&event, by_message, seen)?;
        }
    }
    Ok(())
}

/// Whether this kernel tells of a fallback when it happens: it has the tracepoint.
fn knows_at_once() -> Result<bool> {
    Ok(crate::scene::kernel()? >= (5, 16))
}

fn expect_seen(event: &Value, by_message: bool, seen: Option<&str>) -> Result<()> {
    let Some(seen) = seen else {
        ensure!(event["owner"] == Value::Null, "{event:#}");
        return Ok(());
    };
    // IPPROTO_SMC sockets have an owner from when they are made.
    let may_be = if by_message { [seen, "socket"] } else { [seen, seen] };
    ensure!(may_be.iter().any(|word| event["owner"]["seen"] == *word), "{event:#}");
    expect_owner(event)
}

/// `TCP_FASTOPEN` makes a listening socket one of plain TCP, before it listens.
pub(crate) fn fast_open_of_a_listener(scene: &mut Scene) -> Result<()> {
    for (kind, non_blocking) in forms()? {
        let before = scene.fallbacks()?.len();
        let mut pair = fresh(kind, kind, V4);
        pair.listening.fast_open = true;
        pair.connecting.non_blocking = non_blocking;
        let ends = run_intact(&pair)?;
        scene.expect_client(&ends, &Expected::code(PEER_NO_SMC))?;
        let event = unconnected(scene, before)?;
        ensure!(event["role"] == "server" && event["local"] == pair.address.to_string(), "{event:#}");
        ensure!(event["peer"] == "0.0.0.0:0", "{event:#}");
        ensure!(event["service_port"] == pair.address.port(), "{event:#}");
        expect_seen(&event, false, Some("fastopen"))?;
    }
    Ok(())
}

/// A policy of the socket is enough: nothing has to be encrypted.
pub(crate) fn ipsec(scene: &mut Scene) -> Result<()> {
    let addresses = if has_dibs() { &[V4, V6][..] } else { &[V4] };
    for address in addresses.iter().copied() {
        for (kind, non_blocking) in forms()? {
            let mut pair = fresh(kind, kind, address);
            pair.connecting.ipsec = true;
            pair.connecting.non_blocking = non_blocking;
            let ends = run_intact(&pair)?;
            scene.expect_client(&ends, &Expected::code(IPSEC))?;
            scene.expect_server(&ends, &Expected::declined(IPSEC))?;

            // Of a client without a device the server gets no proposal to decline.
            if can_use_smc()? {
                let mut pair = fresh(kind, kind, address);
                pair.listening.ipsec = true;
                pair.connecting.non_blocking = non_blocking;
                let ends = run_intact(&pair)?;
                scene.expect_server(&ends, &Expected::code(IPSEC))?;
                scene.expect_client(&ends, &Expected::declined(IPSEC))?;
            }
        }
    }
    Ok(())
}
