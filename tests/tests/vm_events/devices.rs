//! Fallbacks for want of a device, an identifier or a link.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use serde_json::Value;
use smc_agent::netlink::smc::Smc;
use smc_agent_tests::netns::{self, NetNs};
use smc_agent_tests::pair::{Connecting, Kind, Listener, Stream, look_at};
use smc_agent_tests::setup::{RXE_DEVICE, add_soft_roce};
use smc_agent_tests::wait::Limit;

use crate::provoke::{
    NO_DEVICE, NO_RDMA_DEVICE, NO_USER_EID, NoUserEid, NotConfirmed, PEER_NO_SMC, SmcR, TIMEOUT,
    wait_for_rdma,
};
use crate::scene::{
    Expected, Place, SOON, Scene, V4, V6, can_use_smc, connect, expect_owner, forms, fresh, fresh_port,
    has_dibs, run_intact,
};

/// Neither end has a device that the client could propose.
pub(crate) fn none(scene: &mut Scene) -> Result<()> {
    // Soft-RoCE over version 2 does no IPv6; SMC-D does, unless it is kept out of the way.
    let _without_dibs = has_dibs().then(SmcR::keep_dibs_away).transpose()?;
    let address = if can_use_smc()? && !has_dibs() { V6 } else { V4 };
    for (kind, non_blocking) in forms()? {
        let ends = connect(kind, kind, address, non_blocking)?;
        scene.expect_client(&ends, &Expected::code(NO_DEVICE))?;
        scene.expect_server(&ends, &Expected::declined(NO_DEVICE))?;
        if has_dibs() {
            let ends = connect(kind, kind, V6, non_blocking)?;
            scene.expect_client(&ends, &Expected::code(NO_DEVICE))?;
            scene.expect_server(&ends, &Expected::declined(NO_DEVICE))?;
        }
    }
    Ok(())
}

pub(crate) fn no_user_eid(scene: &mut Scene) -> Result<()> {
    if has_dibs() {
        // With one, SMC-D does IPv6 too: nothing falls back, and there is no event.
        let before = scene.fallbacks()?.len();
        let ends = connect(Kind::Smc, Kind::Smc, V6, false)?;
        ensure!(ends.client.mode.is_smc() && ends.server.mode.is_smc(), "{ends:?}");
        let marker = connect(Kind::Smc, Kind::Tcp, V4, false)?;
        scene.expect_client(&marker, &Expected::code(PEER_NO_SMC))?;
        ensure!(scene.fallbacks()?.len() == before + 1, "an event without a fallback");
    }
    let _none = NoUserEid::new()?;
    let addresses = if has_dibs() { &[V4, V6][..] } else { &[V4] };
    for address in addresses.iter().copied() {
        for (kind, non_blocking) in forms()? {
            let ends = connect(kind, kind, address, non_blocking)?;
            if has_dibs() {
                // SMC-D has a device, and no EID that both ends have.
                scene.expect_server(&ends, &Expected::code(NO_USER_EID))?;
                scene.expect_client(&ends, &Expected::declined(NO_USER_EID))?;
            } else {
                scene.expect_client(&ends, &Expected::code(NO_DEVICE))?;
                scene.expect_server(&ends, &Expected::declined(NO_DEVICE))?;
            }
        }
    }
    Ok(())
}

/// The client's interface has an RDMA device, the server's has none.
pub(crate) fn server_without_rdma(scene: &mut Scene) -> Result<()> {
    const DEVICE: &str = "rxeaway";
    let _without_dibs = has_dibs().then(SmcR::keep_dibs_away).transpose()?;
    let away = NetNs::create("smcvm-away")?;
    let name = away.name();
    netns::command("ip", &["link", "add", "ev0", "type", "veth", "peer", "name", "ev1", "netns", &name])?;
    netns::command("ip", &["address", "add", "10.98.0.1/24", "dev", "ev0"])?;
    netns::command("ip", &["link", "set", "ev0", "up"])?;
    away.command("ip", &["address", "add", "10.98.0.2/24", "dev", "ev1"])?;
    away.command("ip", &["link", "set", "ev1", "up"])?;
    add_soft_roce("ev0", DEVICE)?;
    wait_for_rdma(DEVICE)?;
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(away.path())?);
    for (kind, non_blocking) in forms()? {
        let mut pair = fresh(kind, kind, [10, 98, 0, 2].into());
        pair.server_netns = Some(away.path().to_owned());
        pair.connecting.non_blocking = non_blocking;
        let ends = run_intact(&pair)?;
        scene.expect_client(&ends, &Expected::declined(NO_RDMA_DEVICE))?;
        let event = scene.event_of("server", ends.server.local)?;
        ensure!(event["code"]["value"] == NO_RDMA_DEVICE && event["peer_code"] == Value::Null, "{event:#}");
        ensure!(event["netns"] == inode && event["netns_name"] == name, "{event:#}");
        ensure!(event["peer"] == ends.server.peer.to_string(), "{event:#}");
        ensure!(event["device"] == Value::Null && event["smc_version"] == Value::Null, "{event:#}");
        expect_owner(&event)?;
    }
    netns::command("rdma", &["link", "delete", DEVICE])?;
    netns::command("ip", &["link", "delete", "ev0"])?;
    Ok(())
}

/// The RDMA device of a connection is removed.
pub(crate) fn link_down(scene: &mut Scene) -> Result<()> {
    let _smc_r = SmcR::new()?;
    let (client, server) = open(Kind::Smc, false, V4)?;
    // Both ends of the link are here: a link group for each.
    let links = Smc::open()?.links()?;
    ensure!(links.len() == 2, "{links:#?}");
    // Others went down when the device was made anew for this test.
    let of_link = |events: &[Value], group: u32| -> Vec<Value> {
        let id = format!("{group:08x}");
        let is_it = |event: &&Value| event["event"] == "link_down" && event["link_group"] == id;
        events.iter().filter(is_it).cloned().collect()
    };
    let events = std::thread::scope(|scope| -> Result<_> {
        // The kernel lets go of a device only once no connection is left on it.
        let removed = scope.spawn(|| netns::command("rdma", &["link", "delete", RXE_DEVICE]));
        let events = scene.wait_for("two links went down", |events| {
            links.iter().all(|(group, _)| !of_link(events, group.id).is_empty())
        });
        drop((client, server));
        removed.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        events
    })?;
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata("/proc/self/ns/net")?);
    for (group, link) in &links {
        let found = of_link(&events, group.id);
        let [event] = &found[..] else { anyhow::bail!("{found:#?}") };
        ensure!(event["device"] == RXE_DEVICE && event["port"] == 1, "{event:#}");
        ensure!(event["smc_version"] == 2 && event["link"] == link.id, "{event:#}");
        ensure!(event["netns"] == inode && event["netns_name"] == Value::Null, "{event:#}");
        ensure!(event["local_gid"] == "127.0.0.1" && event["peer_gid"] == "127.0.0.1", "{event:#}");
        ensure!(event["connections"] == 1, "{event:#}");
    }
    Ok(())
}

/// A connection whose ends send nothing.
fn open(kind: Kind, non_blocking: bool, address: IpAddr) -> Result<(Stream, Stream)> {
    let limit = Limit::new(SOON);
    let listener = Listener::bind(kind, (address, fresh_port()).into(), 1)?;
    let address = listener.local()?;
    let how = Connecting { non_blocking, ..Connecting::default() };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Stream::connect(kind, address, &how, &limit));
        let server = listener.accept(&limit)?;
        let client = client.join().map_err(|_| anyhow::anyhow!("the client panicked"))??.0;
        Ok((client, server))
    })
}

/// Link groups are made, and nothing gets through the device.
pub(crate) fn not_confirmed(scene: &mut Scene) -> Result<()> {
    let _nothing_passes = NotConfirmed::new()?;
    for (kind, non_blocking) in forms()? {
        // No data is sent: when both ends give up at once, the kernel takes each one's DECLINE for the other's data.
        let (client, server) = open(kind, non_blocking, NotConfirmed::ADDRESS)?;
        let mut timed_out = 0;
        for (role, stream) in [("client", &client), ("server", &server)] {
            let place = Place { role, local: stream.local()?, peer: stream.peer()? };
            let (_, fallback) = look_at(stream)?;
            // Who gives up first makes the other end decline.
            let by_itself = fallback.reason == TIMEOUT;
            timed_out += u32::from(by_itself);
            let code = if by_itself { Expected::code(TIMEOUT) } else { Expected::declined(TIMEOUT) };
            ensure!(fallback.reason == code.code, "{role}: {fallback:?}");
            ensure!(fallback.peer_diagnosis == code.peer_code.unwrap_or(0), "{role}: {fallback:?}");
            let expected = Expected { device: Some(NotConfirmed::DEVICE), smc_version: Some(2), ..code };
            expect_owner(&scene.expect_fallback(place, &expected)?)?;
        }
        ensure!(timed_out > 0, "no end gave up by itself");
    }
    Ok(())
}
