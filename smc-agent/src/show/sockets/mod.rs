//! SMC sockets, with what other sources know of them: TCP's diagnostics, the links, and the processes that hold them.

mod filter;
mod join;
#[cfg(test)]
mod tests;

pub use filter::{Selection, SocketFilter};

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Serialize;

use super::error::Result;
use super::groups::Interfaces;
use super::owners::{Owner, Owners};
use crate::netlink::diag::{self, Connection, Role, SmcSocket, State};
use crate::netlink::smc::IsmGid;
use crate::trace::codes;

/// A fallback code, with its name where Linux has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Code {
    /// The number.
    pub value: u32,
    /// The name without `SMC_CLC_DECL_`.
    pub name: Option<String>,
}

impl From<u32> for Code {
    fn from(value: u32) -> Self {
        Self { value, name: codes::name(value).map(str::to_owned) }
    }
}

/// How a socket came to be one of SMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// `socket(AF_SMC, …)`.
    AfSmc,
    /// `socket(AF_INET or AF_INET6, SOCK_STREAM, IPPROTO_SMC)`.
    IpprotoSmc,
}

/// How a socket's data travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// SMC over RDMA.
    Smcr,
    /// SMC over ISM or dibs.
    Smcd,
    /// It fell back to TCP.
    Tcp,
    /// A number that this version does not know.
    Unknown(u8),
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Endpoint {
    /// The address; `null` where nothing told it.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

/// Where the addresses come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AddressSource {
    /// The socket diagnostics of SMC.
    SmcDiag,
    /// Those of TCP: SMC's leave out the addresses of `IPPROTO_SMC` sockets.
    TcpDiag,
}

/// Why a socket fell back to TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FallbackCodes {
    /// This end's reason.
    pub reason: Code,
    /// The peer's, from its DECLINE message; `null` if it sent none.
    pub peer: Option<Code>,
}

/// The link that an SMC-R connection uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LinkInfo {
    /// The number of the link group; `null` where several groups have a link like this.
    pub link_group: Option<u32>,
    /// The link's number in it.
    pub link: u8,
    /// Which end of the link group this host is.
    pub role: Role,
    /// The RDMA device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// This end's GID.
    pub gid: String,
    /// The peer's GID.
    pub peer_gid: String,
}

/// The memory of an SMC-D connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DmbInfo {
    /// The number of the link group.
    pub link_group: u32,
    /// This end's GID.
    pub gid: IsmGid,
    /// The peer's GID.
    pub peer_gid: IsmGid,
    /// The token of this end's buffer.
    pub token: u64,
    /// The token of the peer's buffer.
    pub peer_token: u64,
}

/// One SMC socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Socket {
    /// Its state, by the kernel's name without `SMC_`.
    pub state: String,
    /// How its data travels; `null` while that is not decided (listening, or not yet connected).
    pub mode: Option<Mode>,
    /// How it came to be.
    pub protocol: Protocol,
    /// Its own end.
    pub local: Endpoint,
    /// The other end.
    pub peer: Endpoint,
    /// Where the addresses come from; `null` where some are not known.
    pub addresses_from: Option<AddressSource>,
    /// The index of the interface to which it is bound; 0 is none.
    pub interface_index: u32,
    /// The name of that interface.
    pub interface: Option<String>,
    /// The user that owns it.
    pub uid: u32,
    /// Its inode; 0 when no process holds it any more.
    pub inode: u64,
    /// The kernel's identification of it.
    pub cookie: u64,
    /// What is shut: bit 0 receiving, bit 1 sending.
    pub shutdown: Option<u8>,
    /// Why it fell back; `null` if it did not.
    pub fallback: Option<FallbackCodes>,
    /// The connection within its link group: buffers and cursors.
    pub connection: Option<Connection>,
    /// The link of an SMC-R connection.
    pub link: Option<LinkInfo>,
    /// The memory of an SMC-D connection.
    pub dmb: Option<DmbInfo>,
    /// The processes that hold it; `null` if they were not looked for.
    pub owners: Option<Vec<Owner>>,
}

/// The SMC sockets of a network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Sockets {
    /// Those that passed the filter.
    pub sockets: Vec<Socket>,
    /// How many there are of all kinds, before the filter.
    pub total: usize,
    /// How many processes could not be looked into for owners, for want of `CAP_SYS_PTRACE`.
    pub hidden_processes: usize,
}

impl Sockets {
    /// Reads them; `owners` looks for the processes that hold those that pass the filter.
    pub fn read(filter: &SocketFilter, owners: bool) -> Result<Self> {
        let found = diag::sockets()?;
        let total = found.len();
        let mut sockets: Vec<Socket> = found.into_iter().map(Socket::from).collect();
        join::addresses(&mut sockets);
        join::link_groups(&mut sockets);
        let interfaces = Interfaces::read();
        for socket in &mut sockets {
            socket.interface = interfaces.name(socket.interface_index);
        }
        sockets.retain(|socket| filter.passes(socket));
        let mut hidden_processes = 0;
        if owners {
            let inodes = sockets.iter().map(|socket| socket.inode).filter(|inode| *inode != 0).collect();
            let found = Owners::find(&inodes);
            hidden_processes = found.hidden;
            for socket in &mut sockets {
                socket.owners = Some(found.of(socket.inode).to_vec());
            }
        }
        Ok(Self { sockets, total, hidden_processes })
    }
}

impl Socket {
    /// Whether it listens.
    pub fn is_listening(&self) -> bool {
        self.state == State::Listen.to_string()
    }
}

impl From<SmcSocket> for Socket {
    fn from(socket: SmcSocket) -> Self {
        let protocol = match i32::from(socket.family) {
            libc::AF_INET | libc::AF_INET6 => Protocol::IpprotoSmc,
            _ => Protocol::AfSmc,
        };
        let mode = match socket.mode {
            diag::Mode::FallbackTcp => Some(Mode::Tcp),
            diag::Mode::SmcD => Some(Mode::Smcd),
            // The kernel says SMC-R of all that is not yet anything.
            diag::Mode::SmcR if matches!(socket.state, State::Listen | State::Init) => None,
            diag::Mode::SmcR => Some(Mode::Smcr),
            diag::Mode::Unknown(number) => Some(Mode::Unknown(number)),
        };
        let codes = socket.fallback.filter(|_| mode == Some(Mode::Tcp));
        let fallback = codes.map(|codes| FallbackCodes {
            reason: codes.reason.into(),
            peer: Some(codes.peer_diagnosis).filter(|code| *code != 0).map(Code::from),
        });
        let endpoint =
            |address: std::net::SocketAddr| Endpoint { address: Some(address.ip()), port: address.port() };
        Self {
            state: socket.state.to_string(),
            mode,
            protocol,
            local: endpoint(socket.local),
            peer: endpoint(socket.peer),
            addresses_from: Some(AddressSource::SmcDiag),
            interface_index: socket.interface,
            interface: None,
            uid: socket.uid,
            inode: socket.inode,
            cookie: socket.cookie,
            shutdown: socket.shutdown,
            fallback,
            connection: socket.connection,
            link: socket.link_group.map(|link| LinkInfo {
                link_group: None,
                link: link.link_id,
                role: link.role,
                device: link.device,
                port: link.port,
                gid: link.gid,
                peer_gid: link.peer_gid,
            }),
            dmb: socket.dmb.map(|dmb| DmbInfo {
                link_group: dmb.link_id,
                gid: IsmGid { gid: dmb.gid.0, extension: dmb.gid.1 },
                peer_gid: IsmGid { gid: dmb.peer_gid.0, extension: dmb.peer_gid.1 },
                token: dmb.token,
                peer_token: dmb.peer_token,
            }),
            owners: None,
        }
    }
}
