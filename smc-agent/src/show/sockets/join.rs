//! What SMC's socket diagnostics leave out, from where it can be had.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::{AddressSource, Endpoint, Protocol, Socket};
use crate::netlink::smc::{Link, RdmaLinkGroup, Smc};
use crate::netlink::tcp::{self, TcpSocket};

/// By which a TCP socket is the one inside an SMC socket: both ports, and whether it listens.
type Key = (u16, u16, bool);

/// Fills in the addresses that the kernel left 0: those of `IPPROTO_SMC` sockets, and whether an `AF_SMC` listener is
/// one of IPv4 or of IPv6.
pub(super) fn addresses(sockets: &mut [Socket]) {
    if sockets.iter().any(lacks_addresses) {
        // Without TCP's diagnostics the addresses stay unknown.
        let tcp = tcp::sockets().unwrap_or_default();
        fill_in(sockets, &tcp);
    }
}

/// Whether the addresses have to be looked up. A socket without a port has none.
fn lacks_addresses(socket: &Socket) -> bool {
    let unspecified = |end: Endpoint| end.address.is_none_or(|address| address.is_unspecified());
    socket.local.port != 0 && unspecified(socket.local) && unspecified(socket.peer)
}

pub(super) fn fill_in(sockets: &mut [Socket], tcp: &[TcpSocket]) {
    let known: std::collections::HashSet<(Option<SocketAddr>, Option<SocketAddr>)> = sockets
        .iter()
        .filter(|socket| !lacks_addresses(socket))
        .map(|socket| (address(socket.local), address(socket.peer)))
        .collect();
    let mut candidates: HashMap<Key, Vec<&TcpSocket>> = HashMap::new();
    for candidate in tcp {
        // The socket inside another SMC socket, whose addresses are known, is no candidate.
        if !known.contains(&(Some(candidate.local), Some(candidate.peer))) {
            let key = (candidate.local.port(), candidate.peer.port(), candidate.listening);
            candidates.entry(key).or_default().push(candidate);
        }
    }
    for socket in sockets.iter_mut().filter(|socket| lacks_addresses(socket)) {
        let key = (socket.local.port, socket.peer.port, socket.is_listening());
        let found = candidates.get(&key).map_or(&[][..], Vec::as_slice);
        match unique(found, socket) {
            Some(tcp) => {
                socket.local.address = Some(tcp.local.ip());
                socket.peer.address = Some(tcp.peer.ip());
                socket.addresses_from = Some(AddressSource::TcpDiag);
            }
            // What the kernel says of AF_SMC sockets is right but for the family.
            None if socket.protocol == Protocol::AfSmc => {}
            None => {
                (socket.local.address, socket.peer.address) = (None, None);
                socket.addresses_from = None;
            }
        }
    }
}

fn address(end: Endpoint) -> Option<SocketAddr> {
    end.address.map(|address| SocketAddr::new(address, end.port))
}

/// The one candidate, or among several with different addresses the one that the kernel made right after the SMC socket.
fn unique<'a>(found: &[&'a TcpSocket], socket: &Socket) -> Option<&'a TcpSocket> {
    let (first, rest) = found.split_first()?;
    if rest.iter().all(|other| (other.local, other.peer) == (first.local, first.peer)) {
        return Some(first);
    }
    found.iter().find(|tcp| socket.inode != 0 && u64::from(tcp.inode) == socket.inode + 1).copied()
}

/// Fills in the numbers of the link groups of SMC-R connections.
pub(super) fn link_groups(sockets: &mut [Socket]) {
    if !sockets.iter().any(|socket| socket.link.is_some()) {
        return;
    }
    // Kernels before 5.11 do not list links; the numbers stay unknown there.
    let links = Smc::open().and_then(|mut smc| smc.links()).unwrap_or_default();
    for info in sockets.iter_mut().filter_map(|socket| socket.link.as_mut()) {
        let same = |(group, link): &&(RdmaLinkGroup, Link)| {
            (link.id, link.port, group.role) == (info.link, info.port, info.role)
                && link.device == info.device
                && link.gid == info.gid
                && link.peer_gid == info.peer_gid
        };
        let mut groups = links.iter().filter(same).map(|(group, _)| group.id);
        info.link_group = groups.next().filter(|_| groups.next().is_none());
    }
}
