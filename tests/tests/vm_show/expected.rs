//! The JSON that the agent has to print, made from what [`raw`](super::raw) read.

use anyhow::Result;
use serde_json::{Value, json};

use super::raw::{self, Attributes, at, attributes, number, text};

fn get(attributes: &Attributes, kind: u16) -> u64 {
    attributes.get(&kind).map_or(0, |bytes| number(bytes))
}

/// A number, or null where the kernel did not send it.
fn sent(attributes: &Attributes, kind: u16) -> Value {
    attributes.get(&kind).map_or(Value::Null, |bytes| json!(number(bytes)))
}

fn flag(attributes: &Attributes, kind: u16) -> Value {
    json!(get(attributes, kind) != 0)
}

/// A text, or null where it is empty or not there.
fn label(attributes: &Attributes, kind: u16) -> Value {
    attributes
        .get(&kind)
        .map(|bytes| text(bytes))
        .filter(|text| !text.is_empty())
        .map_or(Value::Null, Value::from)
}

fn nest(attributes_of: &Attributes, kind: u16) -> Attributes {
    attributes_of.get(&kind).map(|bytes| attributes(bytes)).unwrap_or_default()
}

fn code(value: u64) -> Value {
    // The codes that these tests provoke, by net/smc/smc_clc.h.
    let name = match value {
        0x0301_0000 => "PEERNOSMC",
        0x0303_0000 => "NOSMCDEV",
        0x0303_0002 => "NOSMCRDEV",
        0x0303_0008 => "NOUEID",
        0x0306_0000 => "OPTUNSUPP",
        0x0201_0000 => "TIMEOUT_CL",
        0x0500_0000 => "PEERDECL",
        _ => return json!({ "value": value, "name": null }),
    };
    json!({ "value": value, "name": name })
}

/// The name of an enumeration's value.
fn word(attributes: &Attributes, kind: u16, names: &[&str]) -> Value {
    let number = usize::try_from(get(attributes, kind)).ok();
    json!(number.and_then(|number| names.get(number)))
}

fn role(number: u64) -> &'static str {
    if number == 0 { "client" } else { "server" }
}

/// What stands in `struct smc_diag_msg` and its attributes; addresses, owners and joined fields are compared apart.
pub(crate) fn socket(message: &[u8], extensions: &Attributes) -> Value {
    let state = match message[1] {
        1 => "ACTIVE",
        2 => "INIT",
        7 => "CLOSED",
        10 => "LISTEN",
        20 => "PEERCLOSEWAIT1",
        21 => "PEERCLOSEWAIT2",
        22 => "APPCLOSEWAIT1",
        23 => "APPCLOSEWAIT2",
        24 => "APPFINCLOSEWAIT",
        25 => "PEERFINCLOSEWAIT",
        26 => "PEERABORTWAIT",
        27 => "PROCESSABORT",
        _ => "?",
    };
    let mode = match (message[2], state) {
        (1, _) => json!("tcp"),
        (2, _) => json!("smcd"),
        (_, "LISTEN" | "INIT") => Value::Null,
        _ => json!("smcr"),
    };
    let port = |offset: usize| u64::from(message[offset]) << 8 | u64::from(message[offset + 1]);
    let fallback = extensions.get(&5).filter(|_| message[2] == 1).map(|bytes| {
        let peer = at(bytes, 4, 4);
        json!({ "reason": code(at(bytes, 0, 4)), "peer": if peer == 0 { Value::Null } else { code(peer) } })
    });
    json!({
        "state": state,
        "mode": mode,
        "protocol": if message[0] == 43 { "af_smc" } else { "ipproto_smc" },
        "local_port": port(4),
        "peer_port": port(6),
        "interface_index": at(message, 40, 4),
        "uid": at(message, 52, 4),
        "inode": at(message, 56, 8),
        "cookie": at(message, 44, 8),
        "shutdown": sent(extensions, 3),
        "fallback": fallback,
        "connection": extensions.get(&1).map(|bytes| connection(bytes)),
        "link": extensions.get(&2).map(|bytes| json!({
            "link": bytes[0],
            "device": text(&bytes[1..65]),
            "port": bytes[65],
            "gid": text(&bytes[66..106]),
            "peer_gid": text(&bytes[106..146]),
            "role": role(bytes[146].into()),
        })),
        "dmb": extensions.get(&4).map(|bytes| json!({
            "link_group": at(bytes, 0, 4),
            "peer_gid": gid(at(bytes, 8, 8), at(bytes, 40, 8)),
            "gid": gid(at(bytes, 16, 8), at(bytes, 48, 8)),
            "token": at(bytes, 24, 8),
            "peer_token": at(bytes, 32, 8),
        })),
    })
}

fn connection(bytes: &[u8]) -> Value {
    let cursor =
        |offset: usize| json!({ "wrap": at(bytes, offset + 2, 2), "count": at(bytes, offset + 4, 4) });
    json!({
        "token": at(bytes, 0, 4),
        "send_buffer": at(bytes, 4, 4),
        "receive_buffer": at(bytes, 8, 4),
        "peer_receive_buffer": at(bytes, 12, 4),
        "received_producer": cursor(16),
        "received_consumer": cursor(24),
        "sent_producer": cursor(32),
        "sent_consumer": cursor(40),
        "flags": &bytes[48..52],
        "prepared": cursor(52),
        "sent": cursor(60),
        "confirmed": cursor(68),
    })
}

fn gid(gid: u64, extension: u64) -> String {
    if extension == 0 { format!("{gid:016x}") } else { format!("{gid:016x}:{extension:016x}") }
}

pub(crate) fn statistics() -> Result<Value> {
    let all = raw::smc(7, 7)?.remove(0);
    Ok(json!({
        "smcd": technology(&nest(&all, 1)),
        "smcr": technology(&nest(&all, 2)),
        "client_handshake_errors": get(&all, 3),
        "server_handshake_errors": get(&all, 4),
    }))
}

fn technology(all: &Attributes) -> Value {
    let sizes = |kind| {
        let classes = nest(all, kind);
        let names = ["8k", "16k", "32k", "64k", "128k", "256k", "512k", "1024k", "larger"];
        (1..)
            .zip(names)
            .map(|(kind, name)| (name.to_owned(), json!(get(&classes, kind))))
            .collect::<serde_json::Map<_, _>>()
    };
    let direction = |bytes, requests, usage, buffers, request_sizes, events| {
        let events = nest(all, events);
        json!({
            "bytes": get(all, bytes),
            "requests": get(all, requests),
            "buffer_usage": sent(all, usage),
            "buffers": sizes(buffers),
            "request_sizes": sizes(request_sizes),
            "peer_buffer_small": get(&events, 1),
            "buffer_small": get(&events, 2),
            "peer_buffer_full": get(&events, 3),
            "buffer_full": get(&events, 4),
            "buffers_reused": get(&events, 5),
            "buffers_allocated": get(&events, 6),
            "buffers_downgraded": get(&events, 7),
        })
    };
    json!({
        "rx": direction(16, 18, 20, 2, 4, 6),
        "tx": direction(17, 19, 21, 1, 3, 5),
        "client_v1": get(all, 7),
        "client_v2": get(all, 8),
        "server_v1": get(all, 9),
        "server_v2": get(all, 10),
        "sendpage": get(all, 11),
        "splice": get(all, 12),
        "cork": get(all, 13),
        "nodelay": get(all, 14),
        "urgent": get(all, 15),
    })
}

/// The totals of servers and of clients.
pub(crate) type Totals = (u64, u64);
/// Whether of servers, the code, and how often.
pub(crate) type Reason = (bool, u64, u64);

/// The kernel's count of fallbacks.
pub(crate) fn fallbacks() -> Result<(Totals, Vec<Reason>)> {
    let entries = raw::smc(8, 8)?;
    let total = |kind| entries.iter().map(|entry| get(entry, kind)).max().unwrap_or(0);
    let reasons = entries.iter().map(|entry| (get(entry, 1) != 0, get(entry, 4), get(entry, 5))).collect();
    Ok(((total(2), total(3)), reasons))
}

fn negotiated(group: &Attributes, kind: u16) -> Value {
    group.get(&kind).map_or(Value::Null, |bytes| {
        let v2 = attributes(bytes);
        json!({
            "version": get(&v2, 0),
            "peer_release": get(&v2, 1),
            "peer_os": get(&v2, 2),
            "eid": label(&v2, 3),
            "peer_host": label(&v2, 4),
        })
    })
}

pub(crate) fn rdma_link_groups() -> Result<Vec<Value>> {
    let groups = raw::smc(2, 2)?;
    Ok(groups.iter().map(|group| {
        let v2 = nest(group, 8);
        json!({
            "id": get(group, 1),
            "role": role(get(group, 2)),
            "redundancy": word(group, 3, &["none", "single", "symmetric", "asymmetric_peer", "asymmetric_local"]),
            "pnet_id": label(group, 4),
            "vlan": get(group, 5),
            "connections": get(group, 6),
            "netns_cookie": sent(group, 9),
            "buffer_type": word(group, 11, &["physical", "virtual", "mixed"]),
            "send_buffers": sent(group, 12),
            "receive_buffers": sent(group, 13),
            "negotiated": negotiated(group, 7),
            "direct": flag(&v2, 1),
            "max_connections": sent(&v2, 2),
            "max_links": sent(&v2, 3),
        })
    }).collect())
}

pub(crate) fn ism_link_groups() -> Result<Vec<Value>> {
    let groups = raw::smc(4, 4)?;
    Ok(groups
        .iter()
        .map(|group| {
            json!({
                "id": get(group, 1),
                "gid": gid(get(group, 2), get(group, 10)),
                "peer_gid": gid(get(group, 3), get(group, 11)),
                "vlan": get(group, 4),
                "connections": get(group, 5),
                "pnet_id": label(group, 6),
                "chid": get(group, 7),
                "send_buffers": sent(group, 12),
                "receive_buffers": sent(group, 13),
                "negotiated": negotiated(group, 9),
            })
        })
        .collect())
}

/// The links, without what is joined to them.
pub(crate) fn links() -> Result<Vec<Value>> {
    let links = raw::smc(3, 3)?;
    Ok(links
        .iter()
        .map(|link| {
            let state = word(link, 10, &["unused", "inactive", "activating", "active"]);
            json!({
                "id": get(link, 1),
                "device": label(link, 2),
                "port": get(link, 3),
                "gid": label(link, 4),
                "peer_gid": label(link, 5),
                "connections": get(link, 6),
                "interface_index": get(link, 7),
                "uid": get(link, 8),
                "peer_uid": get(link, 9),
                "state": state,
            })
        })
        .collect())
}

pub(crate) fn rdma_devices() -> Result<Vec<Value>> {
    let devices = raw::smc(6, 6)?;
    Ok(devices
        .iter()
        .map(|device| {
            let ports = [(1, 8), (2, 9)].into_iter().filter(|(_, kind)| device.contains_key(kind)).map(
                |(number, kind)| {
                    let port = nest(device, kind);
                    json!({
                        "number": number,
                        "pnet_id": label(&port, 2),
                        "pnet_by_user": flag(&port, 1),
                        "interface_index": get(&port, 3),
                        "active": flag(&port, 4),
                        "links": get(&port, 6),
                    })
                },
            );
            json!({
                "name": label(device, 10),
                "critical": flag(device, 2),
                "pci": device.get(&3).map(|_| json!({
                    "fid": get(device, 3),
                    "chid": get(device, 4),
                    "vendor": get(device, 5),
                    "device": get(device, 6),
                    "id": device.get(&7).map(|bytes| text(bytes)),
                })),
                "ports": ports.collect::<Vec<_>>(),
            })
        })
        .collect())
}

pub(crate) fn system_info() -> Result<Value> {
    let info = raw::smc(1, 1)?.remove(0);
    Ok(json!({
        "version": sent(&info, 1),
        "release": sent(&info, 2),
        "ism_v2": flag(&info, 3),
        "smcr_v2": flag(&info, 6),
        "local_host": label(&info, 4),
        "seid": label(&info, 5),
    }))
}
