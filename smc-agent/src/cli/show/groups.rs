//! Text of `show linkgroups` and `show links`.

use std::fmt::Write as _;

use clap::Args;

use super::table::Table;
use super::{escape, human_bytes};
use crate::netlink::diag::Role;
use crate::netlink::smc::{LinkState, Negotiated, Redundancy};
use crate::show::{LinkGroups, Links};

#[derive(Debug, Args)]
pub(super) struct GroupArguments {
    /// Show versions, EIDs, peers and buffer memory too
    #[arg(short, long)]
    details: bool,
}

pub(super) fn text(groups: &LinkGroups, arguments: &GroupArguments, raw: bool) -> String {
    let mut text = String::new();
    if !groups.smcr.is_empty() {
        let mut table = Table::new(&["LG-ID", "LG-Role", "LG-Type", ">VLAN", ">#Conns", "PNET-ID"]);
        for group in &groups.smcr {
            let id = format!("{:08x}", group.id);
            let pnet = group.pnet_id.as_deref().map_or_else(String::new, escape);
            let (role, redundancy) = (role(group.role), redundancy(group.redundancy));
            table.row(vec![
                id,
                role,
                redundancy,
                group.vlan.to_string(),
                group.connections.to_string(),
                pnet,
            ]);
            if arguments.details {
                version(&mut table, group.negotiated.as_ref());
                memory(&mut table, group.send_buffers, ("RMB", group.receive_buffers), raw);
                if let Some(direct) = group.direct {
                    let most =
                        |value: Option<u8>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
                    let (connections, links) = (most(group.max_connections), most(group.max_links));
                    let direct = if direct { "Yes" } else { "No" };
                    table.note(format!("Direct {direct}  Max-Conns {connections}  Max-Links {links}"));
                }
            }
        }
        let _ = write!(text, "SMC-R\n{table}");
    }
    if !groups.smcd.is_empty() {
        let mut table = Table::new(&["LG-ID", ">VLAN", ">#Conns", "PNET-ID"]);
        for group in &groups.smcd {
            let pnet = group.pnet_id.as_deref().map_or_else(String::new, escape);
            let id = format!("{:08x}", group.id);
            table.row(vec![id, group.vlan.to_string(), group.connections.to_string(), pnet]);
            if arguments.details {
                table
                    .note(format!("GID {}  Peer-GID {}  CHID {:04x}", group.gid, group.peer_gid, group.chid));
                version(&mut table, group.negotiated.as_ref());
                memory(&mut table, group.send_buffers, ("DMB", group.receive_buffers), raw);
            }
        }
        let _ = write!(text, "SMC-D\n{table}");
    }
    if text.is_empty() { "no link groups\n".to_owned() } else { text }
}

fn version(table: &mut Table, negotiated: Option<&Negotiated>) {
    let Some(negotiated) = negotiated else {
        table.note("Version 1");
        return;
    };
    let system = match negotiated.peer_os {
        1 => "z/OS".to_owned(),
        2 => "LINUX".to_owned(),
        3 => "AIX".to_owned(),
        other => other.to_string(),
    };
    let shown = |value: &Option<String>| value.as_deref().map_or_else(|| "-".to_owned(), escape);
    let (host, eid) = (shown(&negotiated.peer_host), shown(&negotiated.eid));
    let (version, release) = (negotiated.version, negotiated.peer_release);
    table.note(format!(
        "Version {version}  Peer-Rel {release}  Peer-Host {host}  Peer-OS {system}  EID {eid}"
    ));
}

fn memory(table: &mut Table, send: Option<u64>, receive: (&str, Option<u64>), raw: bool) {
    let shown = |value: Option<u64>| match value {
        None => "not told by this kernel (needs 6.12)".to_owned(),
        Some(bytes) if raw => format!("{bytes} B"),
        Some(bytes) => human_bytes(bytes),
    };
    table.note(format!("Sndbuf {}  {} {}", shown(send), receive.0, shown(receive.1)));
}

pub(super) fn links(links: &Links, _raw: bool) -> String {
    if links.links.is_empty() {
        return "no links\n".to_owned();
    }
    let names = [
        "LG-ID",
        "LG-Role",
        ">Linkid",
        "Net-Dev",
        "IB-Dev",
        ">IB-P",
        "Link-State",
        ">#Conns",
        "Link-UID",
        "Peer-UID",
        "GID",
        "Peer-GID",
    ];
    let mut table = Table::new(&names);
    for listed in &links.links {
        let link = &listed.link;
        let interface =
            listed.interface.as_deref().map_or_else(|| format!("if{}", link.interface_index), escape);
        table.row(vec![
            format!("{:08x}", listed.link_group),
            role(listed.role),
            format!("{:02x}", link.id),
            interface,
            escape(&link.device),
            link.port.to_string(),
            state(link.state),
            link.connections.to_string(),
            format!("{:08x}", link.uid),
            format!("{:08x}", link.peer_uid),
            escape(&link.gid),
            escape(&link.peer_gid),
        ]);
    }
    table.to_string()
}

pub(super) fn role(role: Role) -> String {
    match role {
        Role::Client => "CLNT".to_owned(),
        Role::Server => "SERV".to_owned(),
        Role::Unknown(number) => number.to_string(),
    }
}

fn redundancy(redundancy: Redundancy) -> String {
    match redundancy {
        Redundancy::None => "NONE".to_owned(),
        Redundancy::Single => "SINGLE".to_owned(),
        Redundancy::Symmetric => "SYM".to_owned(),
        Redundancy::AsymmetricPeer => "ASYM-PEER".to_owned(),
        Redundancy::AsymmetricLocal => "ASYM-LOCAL".to_owned(),
        Redundancy::Unknown(number) => number.to_string(),
    }
}

fn state(state: LinkState) -> String {
    match state {
        LinkState::Unused => "UNUSED".to_owned(),
        LinkState::Inactive => "INACTIVE".to_owned(),
        LinkState::Activating => "ACTIVATING".to_owned(),
        LinkState::Active => "ACTIVE".to_owned(),
        LinkState::Unknown(number) => number.to_string(),
    }
}
