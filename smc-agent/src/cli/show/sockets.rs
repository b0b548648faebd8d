//! `show sockets`.

use std::fmt::Write as _;

use clap::Args;
use ipnet::IpNet;

use super::super::Failure;
use super::groups::role;
use super::table::Table;
use super::{Page, escape, human_bytes};
use crate::show::{Code, DmbInfo, Endpoint, LinkInfo, Mode, Selection, Socket, SocketFilter, Sockets};

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub(super) struct SocketArguments {
    /// Also those that listen
    #[arg(short, long, conflicts_with = "listening")]
    all: bool,
    /// Only those that listen
    #[arg(short, long)]
    listening: bool,
    /// Only those of SMC-R, with their links
    #[arg(short = 'R', long)]
    smcr: bool,
    /// Only those of SMC-D, with their memory
    #[arg(short = 'D', long)]
    smcd: bool,
    /// Only those that fell back to TCP
    #[arg(short, long)]
    fallback: bool,
    /// Everything: link group, link, GIDs, memory, buffers, and the processes that hold them
    #[arg(short, long)]
    details: bool,
    /// The processes that hold them, and their control groups
    #[arg(short, long)]
    processes: bool,
    /// Only with this address, or one in this network, at either end
    #[arg(long, value_name = "ADDRESS[/LENGTH]", value_parser = parse_network, value_delimiter = ',')]
    address: Vec<IpNet>,
    /// Only with this port at either end
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    port: Vec<u16>,
    /// Only in this state
    #[arg(long, value_name = "STATE", value_parser = parse_state, value_delimiter = ',')]
    state: Vec<String>,
    /// Only over this RDMA device, or bound to this interface
    #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
    device: Vec<String>,
}

/// The names by which states can be asked for.
const STATES: [&str; 12] = [
    "ACTIVE",
    "INIT",
    "CLOSED",
    "LISTEN",
    "PEERCLOSEWAIT1",
    "PEERCLOSEWAIT2",
    "APPCLOSEWAIT1",
    "APPCLOSEWAIT2",
    "APPFINCLOSEWAIT",
    "PEERFINCLOSEWAIT",
    "PEERABORTWAIT",
    "PROCESSABORT",
];

fn parse_state(text: &str) -> Result<String, String> {
    let upper = text.to_ascii_uppercase();
    if STATES.contains(&upper.as_str()) { Ok(upper) } else { Err(format!("one of {}", STATES.join(", "))) }
}

fn parse_network(text: &str) -> Result<IpNet, String> {
    let network = text.parse::<IpNet>().or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from));
    network.map_err(|_| "give an address or a network, as 192.0.2.0/24 or 2001:db8::1".to_owned())
}

pub(super) fn show(page: &Page, arguments: &SocketArguments) -> Result<(), Failure> {
    let filter = filter(arguments);
    let owners = arguments.details || arguments.processes;
    page.show(|| Sockets::read(&filter, owners), |sockets, raw| text(sockets, arguments, raw))
}

fn filter(arguments: &SocketArguments) -> SocketFilter {
    let selection = match (arguments.all, arguments.listening) {
        (_, true) => Selection::Listening,
        (true, _) => Selection::All,
        _ => Selection::NotListening,
    };
    let wanted_modes =
        [(arguments.smcr, Mode::Smcr), (arguments.smcd, Mode::Smcd), (arguments.fallback, Mode::Tcp)];
    SocketFilter {
        selection,
        modes: wanted_modes.into_iter().filter(|(wanted, _)| *wanted).map(|(_, mode)| mode).collect(),
        addresses: arguments.address.clone(),
        ports: arguments.port.clone(),
        states: arguments.state.clone(),
        devices: arguments.device.clone(),
    }
}

fn text(sockets: &Sockets, arguments: &SocketArguments, raw: bool) -> String {
    let mut names = vec!["State", "UID", "Inode", "Local Address", "Peer Address", "Intf", "Mode"];
    let (rdma, ism) = (arguments.smcr && !arguments.details, arguments.smcd && !arguments.details);
    if rdma {
        names.extend(["Role", "IB-device", "Port", "Linkid", "GID", "Peer-GID"]);
    }
    if ism {
        names.extend(["GID", "Token", "Peer-GID", "Peer-Token", "Linkid"]);
    }
    let mut table = Table::new(&names);
    for socket in &sockets.sockets {
        let mut row = basics(socket);
        if rdma {
            row.extend(socket.link.as_ref().map_or_else(|| vec![String::new(); 6], link_cells));
        }
        if ism {
            row.extend(socket.dmb.as_ref().map_or_else(|| vec![String::new(); 5], dmb_cells));
        }
        table.row(row);
        if arguments.details {
            details(&mut table, socket, raw);
        }
        for owner in socket.owners.iter().flatten() {
            let cgroup =
                owner.cgroup.as_deref().map_or_else(String::new, |path| format!("  cgroup {}", escape(path)));
            table.note(format!("process {} (pid {}){cgroup}", escape(&owner.command), owner.pid));
        }
    }
    let mut text = table.to_string();
    if sockets.hidden_processes > 0 {
        let _ = writeln!(
            text,
            "the sockets of {} processes could not be looked at: needs CAP_SYS_PTRACE (run as root)",
            sockets.hidden_processes
        );
    }
    text
}

fn basics(socket: &Socket) -> Vec<String> {
    let peer = if socket.peer.port == 0 { String::new() } else { endpoint(socket.peer) };
    vec![
        escape(&socket.state),
        format!("{:05}", socket.uid),
        format!("{:07}", socket.inode),
        endpoint(socket.local),
        peer,
        format!("{:04x}", socket.interface_index),
        mode(socket),
    ]
}

/// IPv4 within IPv6 as IPv4; an address that nobody told as `?`.
fn endpoint(end: Endpoint) -> String {
    match end.address.map(|address| address.to_canonical()) {
        Some(address) => std::net::SocketAddr::new(address, end.port).to_string(),
        None => format!("?:{}", end.port),
    }
}

fn mode(socket: &Socket) -> String {
    let code = |code: &Code| match &code.name {
        Some(name) => format!("0x{:08x} {name}", code.value),
        None => format!("0x{:08x}", code.value),
    };
    match socket.mode {
        None => String::new(),
        Some(Mode::Smcr) => "SMCR".to_owned(),
        Some(Mode::Smcd) => "SMCD".to_owned(),
        Some(Mode::Unknown(number)) => format!("mode {number}"),
        Some(Mode::Tcp) => match &socket.fallback {
            None => "TCP".to_owned(),
            Some(codes) => match &codes.peer {
                None => format!("TCP {}", code(&codes.reason)),
                Some(peer) => format!("TCP {} / {}", code(&codes.reason), code(peer)),
            },
        },
    }
}

fn link_cells(link: &LinkInfo) -> Vec<String> {
    vec![
        role(link.role),
        escape(&link.device),
        format!("{:02x}", link.port),
        format!("{:02x}", link.link),
        escape(&link.gid),
        escape(&link.peer_gid),
    ]
}

fn dmb_cells(dmb: &DmbInfo) -> Vec<String> {
    vec![
        dmb.gid.to_string(),
        format!("{:016x}", dmb.token),
        dmb.peer_gid.to_string(),
        format!("{:016x}", dmb.peer_token),
        format!("{:08x}", dmb.link_group),
    ]
}

fn details(table: &mut Table, socket: &Socket, raw: bool) {
    if let Some(link) = &socket.link {
        let group = link.link_group.map_or_else(|| "?".to_owned(), |id| format!("{id:08x}"));
        let [role, device, port, id, gid, peer_gid] =
            <[String; 6]>::try_from(link_cells(link)).unwrap_or_default();
        table.note(format!("LG-ID {group}  Linkid {id}  Role {role}  IB-device {device}  Port {port}"));
        table.note(format!("GID {gid}  Peer-GID {peer_gid}"));
    }
    if let Some(dmb) = &socket.dmb {
        let [gid, token, peer_gid, peer_token, group] =
            <[String; 5]>::try_from(dmb_cells(dmb)).unwrap_or_default();
        table.note(format!("LG-ID {group}  GID {gid}  Token {token}"));
        table.note(format!("Peer-GID {peer_gid}  Peer-Token {peer_token}"));
    }
    if let Some(connection) = &socket.connection {
        let size = |bytes: u32| if raw { bytes.to_string() } else { human_bytes(bytes.into()) };
        table.note(format!(
            "Token {:08x}  Sndbuf {}  Rcvbuf {}  Peerbuf {}",
            connection.token,
            size(connection.send_buffer),
            size(connection.receive_buffer),
            size(connection.peer_receive_buffer)
        ));
    }
    if let Some(shutdown) = socket.shutdown.filter(|bits| *bits != 0) {
        let closed = if shutdown & 1 == 0 { "<-" } else { "R-" };
        table.note(format!("Shutd {closed}{}", if shutdown & 2 == 0 { ">" } else { "W" }));
    }
    if let Some(interface) = &socket.interface {
        table.note(format!("bound to {}", escape(interface)));
    }
}
