//! Socket diagnostics for TCP (`include/uapi/linux/inet_diag.h`): the addresses that SMC's diagnostics leave out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::error::{Error, Result};
use super::socket::{Protocol, Socket};
use super::wire::{Message, Request, array_at, u32_at};

/// `SOCK_DIAG_BY_FAMILY` (`include/uapi/linux/sock_diag.h`).
const BY_FAMILY: u16 = 20;
/// Length of `struct inet_diag_req_v2`: u8 family, protocol, extensions, padding, u32 states, 48 of socket id.
const REQUEST_LEN: usize = 56;
/// All states but `TCP_TIME_WAIT` (6) and `TCP_NEW_SYN_RECV` (12), behind which there is no socket of anybody.
const STATES: u32 = 0xffff & !(1 << 6 | 1 << 12);
/// `TCP_LISTEN`.
const LISTEN: u8 = 10;

/// A TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// Whether it listens.
    pub listening: bool,
    /// Its own end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// The inode of its socket.
    pub inode: u32,
}

/// The TCP sockets of the current network namespace, those inside SMC sockets among them.
pub fn sockets() -> Result<Vec<TcpSocket>> {
    let mut socket = Socket::open(Protocol::SocketDiag)?;
    let mut sockets = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut header = [0; REQUEST_LEN];
        header[0] = u8::try_from(family).unwrap_or_default();
        header[1] = u8::try_from(libc::IPPROTO_TCP).unwrap_or_default();
        header[4..8].copy_from_slice(&STATES.to_ne_bytes());
        let request = Request::new(BY_FAMILY, "list TCP sockets").fixed(&header);
        // A list that keeps changing is still good for looking things up in.
        socket.dump(&request, |message| {
            sockets.push(parse(message)?);
            Ok(())
        })?;
    }
    Ok(sockets)
}

/// Reads `struct inet_diag_msg`: u8 family, state, timer, retransmits; `struct inet_diag_sockid`; u32 expires, receive
/// queue, send queue, uid, inode.
fn parse(message: &Message<'_>) -> Result<TcpSocket> {
    parse_fixed(message.payload)
        .ok_or(Error::Malformed { what: "a TCP socket message shorter than its header" })
}

fn parse_fixed(bytes: &[u8]) -> Option<TcpSocket> {
    let [family, state] = array_at(bytes, 0)?;
    let address = |at: usize, port: usize| {
        let bytes16: [u8; 16] = array_at(bytes, at)?;
        let ip = if i32::from(family) == libc::AF_INET6 {
            IpAddr::V6(Ipv6Addr::from(bytes16))
        } else {
            IpAddr::V4(Ipv4Addr::new(bytes16[0], bytes16[1], bytes16[2], bytes16[3]))
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes(array_at(bytes, port)?)))
    };
    Some(TcpSocket {
        listening: state == LISTEN,
        local: address(8, 4)?,
        peer: address(24, 6)?,
        inode: u32_at(bytes, 68)?,
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_listener_of_this_process_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let found = sockets().unwrap().into_iter().find(|socket| socket.local == address).unwrap();
        assert!(found.listening);
        assert_eq!(found.peer, "0.0.0.0:0".parse().unwrap());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            assert_eq!(parse_fixed(&bytes).is_some(), bytes.len() >= 72);
        }
    }
}
