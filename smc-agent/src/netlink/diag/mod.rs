//! Socket diagnostics for SMC (`sock_diag`, family 43; `include/uapi/linux/smc_diag.h`, `net/smc/smc_diag.c`).
//!
//! Addresses are those of the internal TCP socket. The kernel leaves them 0 for `IPPROTO_SMC` sockets (family
//! `AF_INET` or `AF_INET6`), whose ports are right: find those by inode, or take addresses from TCP's diagnostics.

mod extension;

pub use extension::{Connection, Cursor, Dmb, Fallback, LinkGroup, Role};

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::errno::Errno;

use super::error::{Error, Result};
use super::socket::{Protocol, Socket};
use super::wire::{Message, Request, array_at, u32_at, u64_at};

/// `SOCK_DIAG_BY_FAMILY` (`include/uapi/linux/sock_diag.h`).
const BY_FAMILY: u16 = 20;
/// `AF_SMC` (`include/linux/socket.h`).
const AF_SMC: u8 = 43;
/// Length of `struct smc_diag_req`: u8 family, two of padding, u8 extensions, `struct inet_diag_sockid`.
const REQUEST_LEN: usize = 52;
/// Length of `struct smc_diag_msg`.
const MESSAGE_LEN: usize = 64;

// Extensions of `include/uapi/linux/smc_diag.h`; the request's bit of extension N is 1 << (N - 1).
const CONNECTION: u16 = 1;
const LINK_GROUP: u16 = 2;
const SHUTDOWN: u16 = 3;
const DMB: u16 = 4;
const FALLBACK: u16 = 5;

/// How a socket's data travels. The kernel shows listeners and sockets that are not yet connected as [`SmcR`](Self::SmcR).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// RDMA (`SMC_DIAG_MODE_SMCR`, 0).
    SmcR,
    /// Plain TCP (`SMC_DIAG_MODE_FALLBACK_TCP`, 1).
    FallbackTcp,
    /// ISM or dibs (`SMC_DIAG_MODE_SMCD`, 2).
    SmcD,
    /// A number that this version does not know.
    Unknown(u8),
}

impl From<u8> for Mode {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::SmcR,
            1 => Self::FallbackTcp,
            2 => Self::SmcD,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SmcR => formatter.write_str("SMCR"),
            Self::FallbackTcp => formatter.write_str("FALLBACK_TCP"),
            Self::SmcD => formatter.write_str("SMCD"),
            Self::Unknown(number) => write!(formatter, "mode {number}"),
        }
    }
}

/// The state of an SMC socket (`enum smc_state`, `net/smc/smc.h`); a fallback socket stays in the state that it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the kernel's, without SMC_")]
pub enum State {
    Active,
    Init,
    Closed,
    Listen,
    PeerCloseWait1,
    PeerCloseWait2,
    AppCloseWait1,
    AppCloseWait2,
    AppFinCloseWait,
    PeerFinCloseWait,
    PeerAbortWait,
    ProcessAbort,
    Unknown(u8),
}

impl From<u8> for State {
    fn from(number: u8) -> Self {
        match number {
            1 => Self::Active,
            2 => Self::Init,
            7 => Self::Closed,
            10 => Self::Listen,
            20 => Self::PeerCloseWait1,
            21 => Self::PeerCloseWait2,
            22 => Self::AppCloseWait1,
            23 => Self::AppCloseWait2,
            24 => Self::AppFinCloseWait,
            25 => Self::PeerFinCloseWait,
            26 => Self::PeerAbortWait,
            27 => Self::ProcessAbort,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Active => "ACTIVE",
            Self::Init => "INIT",
            Self::Closed => "CLOSED",
            Self::Listen => "LISTEN",
            Self::PeerCloseWait1 => "PEERCLOSEWAIT1",
            Self::PeerCloseWait2 => "PEERCLOSEWAIT2",
            Self::AppCloseWait1 => "APPCLOSEWAIT1",
            Self::AppCloseWait2 => "APPCLOSEWAIT2",
            Self::AppFinCloseWait => "APPFINCLOSEWAIT",
            Self::PeerFinCloseWait => "PEERFINCLOSEWAIT",
            Self::PeerAbortWait => "PEERABORTWAIT",
            Self::ProcessAbort => "PROCESSABORT",
            Self::Unknown(number) => return write!(formatter, "state {number}"),
        })
    }
}

/// One SMC socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmcSocket {
    /// `AF_SMC` (43), or `AF_INET` (2) and `AF_INET6` (10) for `IPPROTO_SMC` sockets.
    pub family: u8,
    /// Its state.
    pub state: State,
    /// How its data travels.
    pub mode: Mode,
    /// Its own end; see the module about unspecified addresses. An `AF_SMC` socket bound to `::` and not connected looks
    /// like one bound to `0.0.0.0`: the kernel does not say which it is.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// The interface to which it is bound; 0 is none.
    pub interface: u32,
    /// The kernel's identification of the socket.
    pub cookie: u64,
    /// The user that owns it.
    pub uid: u32,
    /// Its inode, as in `/proc/PID/fd`; 0 when no process holds it any more.
    pub inode: u64,
    /// `sk_shutdown`: bit 0 receiving, bit 1 sending is shut.
    pub shutdown: Option<u8>,
    /// Why it fell back; kernels since 4.19 always say.
    pub fallback: Option<Fallback>,
    /// The connection within its link group.
    pub connection: Option<Connection>,
    /// The link of an SMC-R connection.
    pub link_group: Option<LinkGroup>,
    /// The memory buffers of an SMC-D connection.
    pub dmb: Option<Dmb>,
}

/// All SMC sockets of the current network namespace, with all extensions.
///
/// ```no_run
/// for socket in smc_agent::netlink::diag::sockets()? {
///     println!("{} {} -> {}", socket.mode, socket.local, socket.peer);
/// }
/// # Ok::<(), smc_agent::netlink::Error>(())
/// ```
pub fn sockets() -> Result<Vec<SmcSocket>> {
    let mut request = [0; REQUEST_LEN];
    request[0] = AF_SMC;
    request[3] =
        [CONNECTION, LINK_GROUP, SHUTDOWN, DMB, FALLBACK].iter().fold(0, |bits, n| bits | 1 << (n - 1));
    let request = Request::new(BY_FAMILY, "list SMC sockets").fixed(&request);
    let listed = Socket::open(Protocol::SocketDiag)?.list(&request, |message| parse(message).map(Some));
    let mut sockets = listed.map_err(|error| match error.errno() {
        Some(Errno::ENOENT) => Error::NoSocketDiag,
        _ => error,
    })?;
    // The kernel goes on by the number of sockets sent: one that is added meanwhile makes it send another again.
    let mut seen = HashSet::with_capacity(sockets.len());
    sockets.retain(|socket| seen.insert(socket.cookie));
    Ok(sockets)
}

fn parse(message: &Message<'_>) -> Result<SmcSocket> {
    let mut socket = parse_fixed(message.payload)
        .ok_or(Error::Malformed { what: "an SMC socket message shorter than its header" })?;
    for attribute in message.attributes(MESSAGE_LEN) {
        let attribute = attribute?;
        match attribute.kind {
            CONNECTION => socket.connection = Connection::parse(attribute.payload),
            LINK_GROUP => socket.link_group = LinkGroup::parse(attribute.payload),
            SHUTDOWN => socket.shutdown = Some(attribute.u8()?),
            DMB => socket.dmb = Dmb::parse(attribute.payload),
            FALLBACK => socket.fallback = Fallback::parse(attribute.payload),
            _ => {}
        }
    }
    Ok(socket)
}

/// Reads `struct smc_diag_msg`: u8 family, state, mode, shutdown; `struct inet_diag_sockid` (ports and addresses in
/// network byte order, u32 interface, two u32 of cookie, the low one first); u32 uid; u64 inode.
fn parse_fixed(bytes: &[u8]) -> Option<SmcSocket> {
    let [family, state, mode, _] = array_at(bytes, 0)?;
    let (source, destination): ([u8; 16], [u8; 16]) = (array_at(bytes, 8)?, array_at(bytes, 24)?);
    let is_v6 = match i32::from(family) {
        libc::AF_INET6 => true,
        libc::AF_INET => false,
        _ => source[4..] != [0; 12] || destination[4..] != [0; 12],
    };
    let address = |bytes: [u8; 16], port: [u8; 2]| {
        let ip = if is_v6 {
            IpAddr::V6(Ipv6Addr::from(bytes))
        } else {
            IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]))
        };
        SocketAddr::new(ip, u16::from_be_bytes(port))
    };
    Some(SmcSocket {
        family,
        state: state.into(),
        mode: mode.into(),
        local: address(source, array_at(bytes, 4)?),
        peer: address(destination, array_at(bytes, 6)?),
        interface: u32_at(bytes, 40)?,
        cookie: u64::from(u32_at(bytes, 48)?) << 32 | u64::from(u32_at(bytes, 44)?),
        uid: u32_at(bytes, 52)?,
        inode: u64_at(bytes, 56)?,
        shutdown: None,
        fallback: None,
        connection: None,
        link_group: None,
        dmb: None,
    })
}

#[cfg(test)]
mod tests;
