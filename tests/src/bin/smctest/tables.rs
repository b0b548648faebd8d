//! The commands that show and change what the kernel's SMC knows.

use std::os::fd::{AsFd as _, AsRawFd as _};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use smc_agent::netlink::diag::{self, SmcSocket};
use smc_agent::netlink::pnet::{PnetDevice, PnetTable};
use smc_agent::netlink::smc::{FallbackStats, Side, Smc};

use crate::arguments::Usage;

pub(crate) fn sockets(as_json: bool) -> Result<()> {
    for socket in diag::sockets()? {
        println!("{}", if as_json { socket_json(&socket).to_string() } else { socket_text(&socket) });
    }
    Ok(())
}

fn socket_text(socket: &SmcSocket) -> String {
    let fallback = socket.fallback.unwrap_or_default();
    let own = format!(
        "{} {} {} -> {} family={} inode={} uid={} cookie={:#x} reason={:#010x} peer_diagnosis={:#010x}",
        socket.state,
        socket.mode,
        socket.local,
        socket.peer,
        socket.family,
        socket.inode,
        socket.uid,
        socket.cookie,
        fallback.reason,
        fallback.peer_diagnosis
    );
    let link = socket.link_group.as_ref().map(|link| {
        format!(" {:?} {}/{} gid={} peer_gid={}", link.role, link.device, link.port, link.gid, link.peer_gid)
    });
    let dmb = socket.dmb.map(|dmb| {
        format!(" dmb link={:#x} token={:#x} peer_token={:#x}", dmb.link_id, dmb.token, dmb.peer_token)
    });
    let connection = socket
        .connection
        .map(|connection| format!(" sndbuf={} rmb={}", connection.send_buffer, connection.receive_buffer));
    [Some(own), link, dmb, connection].into_iter().flatten().collect()
}

fn socket_json(socket: &SmcSocket) -> Value {
    let fallback = socket.fallback.unwrap_or_default();
    let link = socket.link_group.as_ref().map(|link| {
        json!({"link": link.link_id, "role": format!("{:?}", link.role), "device": link.device, "port": link.port,
            "gid": link.gid, "peer_gid": link.peer_gid})
    });
    let dmb = socket.dmb.map(|dmb| {
        json!({"link": dmb.link_id, "gid": [dmb.gid.0, dmb.gid.1], "peer_gid": [dmb.peer_gid.0, dmb.peer_gid.1],
            "token": dmb.token, "peer_token": dmb.peer_token})
    });
    let connection = socket.connection.map(|connection| {
        json!({"token": connection.token, "send_buffer": connection.send_buffer,
            "receive_buffer": connection.receive_buffer, "peer_receive_buffer": connection.peer_receive_buffer})
    });
    json!({
        "state": socket.state.to_string(), "mode": socket.mode.to_string(), "family": socket.family,
        "local": socket.local.to_string(), "peer": socket.peer.to_string(), "inode": socket.inode,
        "uid": socket.uid, "cookie": socket.cookie, "reason": fallback.reason,
        "peer_diagnosis": fallback.peer_diagnosis, "link_group": link, "dmb": dmb, "connection": connection,
    })
}

pub(crate) fn fallbacks(as_json: bool) -> Result<()> {
    let FallbackStats { server_total, client_total, reasons } = Smc::open()?.fallback_stats()?;
    let side = |side| match side {
        Side::Server => "server",
        Side::Client => "client",
    };
    if as_json {
        let reasons: Vec<_> = reasons
            .iter()
            .map(|reason| json!({"side": side(reason.side), "code": reason.code, "count": reason.count}))
            .collect();
        println!("{}", json!({"server": server_total, "client": client_total, "reasons": reasons}));
    } else {
        println!("server: {server_total} fallbacks\nclient: {client_total} fallbacks");
        for reason in reasons {
            println!("{}: {:#010x} {}", side(reason.side), reason.code, reason.count);
        }
    }
    Ok(())
}

pub(crate) fn info(as_json: bool) -> Result<()> {
    let mut smc = Smc::open()?;
    let info = smc.system_info()?.unwrap_or_default();
    let (eids, seid, limitation) = (smc.user_eids()?, smc.seid()?, smc.handshake_limitation()?);
    if as_json {
        let seid = seid.map(|seid| json!({"eid": seid.eid, "enabled": seid.enabled}));
        let object = json!({
            "version": info.version, "release": info.release, "ism_v2": info.ism_v2, "smcr_v2": info.smcr_v2,
            "local_host": info.local_host, "user_eids": eids, "seid": seid, "handshake_limitation": limitation,
        });
        println!("{object}");
    } else {
        println!("{info:?}\nuser EIDs: {eids:?}\nsystem EID: {seid:?}\nhandshake limitation: {limitation:?}");
    }
    Ok(())
}

pub(crate) fn user_eids(words: &[&str]) -> Result<()> {
    match words {
        ["list"] => Smc::open()?.user_eids()?.iter().for_each(|eid| println!("{eid}")),
        ["add", eid] => {
            let eid = eid.parse()?;
            Smc::open()?.add_user_eid(&eid)?;
        }
        ["del", eid] => {
            let eid = eid.parse()?;
            Smc::open()?.remove_user_eid(&eid)?;
        }
        ["flush"] => Smc::open()?.flush_user_eids()?,
        _ => return Err(Usage("ueid: list, add EID, del EID or flush".to_owned()).into()),
    }
    Ok(())
}

pub(crate) fn pnet(words: &[&str]) -> Result<()> {
    let rdma = |name: &str, port| PnetDevice::Rdma { name: name.to_owned(), port };
    match words {
        ["list"] => {
            for entry in PnetTable::open()?.entries()? {
                let device = match entry.device {
                    Some(PnetDevice::Ethernet(name)) => format!("eth {name}"),
                    Some(PnetDevice::Rdma { name, port }) => format!("ib {name} {port}"),
                    None => "(no device)".to_owned(),
                };
                println!("{} {device}", entry.id);
            }
        }
        ["add", id, "eth", interface] => {
            PnetTable::open()?.add(&id.parse()?, &PnetDevice::Ethernet((*interface).to_owned()))?;
        }
        ["add", id, "ib", device] => PnetTable::open()?.add(&id.parse()?, &rdma(device, 1))?,
        ["add", id, "ib", device, port] => {
            PnetTable::open()?.add(&id.parse()?, &rdma(device, port.parse()?))?;
        }
        ["del", id] => PnetTable::open()?.delete(&id.parse()?)?,
        ["flush"] => PnetTable::open()?.flush()?,
        _ => {
            let usage = "pnet: list, add ID eth INTERFACE, add ID ib DEVICE [PORT], del ID or flush";
            return Err(Usage(usage.to_owned()).into());
        }
    }
    Ok(())
}

/// What programs of the agent took, by the kernel's own statistics.
pub(crate) fn programs(json: bool) -> Result<()> {
    for program in aya::programs::loaded_programs() {
        let program = program?;
        let name = program.name_as_str().unwrap_or_default().to_owned();
        if !name.starts_with("smc_") && !name.starts_with("hs_") {
            continue;
        }
        let fd = program.fd()?;
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd()))?;
        let number = |key: &str| -> Result<u64> {
            let line = info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            Ok(line.with_context(|| format!("no {key}"))?.trim().parse()?)
        };
        let (runs, time) = (number("run_cnt")?, number("run_time_ns")?);
        if json {
            println!("{}", json!({ "name": name, "runs": runs, "nanoseconds": time }));
        } else {
            println!("{name}: {runs} runs, {time} ns");
        }
    }
    Ok(())
}
