use super::*;
use crate::netlink::diag::Fallback;
use crate::netlink::tcp::TcpSocket;

fn socket(family: u8, state: State, local: &str, peer: &str) -> SmcSocket {
    SmcSocket {
        family,
        state,
        mode: diag::Mode::SmcR,
        local: local.parse().unwrap(),
        peer: peer.parse().unwrap(),
        interface: 0,
        cookie: 1,
        uid: 0,
        inode: 100,
        shutdown: Some(0),
        fallback: Some(Fallback::default()),
        connection: None,
        link_group: None,
        dmb: None,
    }
}

fn tcp(listening: bool, local: &str, peer: &str, inode: u32) -> TcpSocket {
    TcpSocket { listening, local: local.parse().unwrap(), peer: peer.parse().unwrap(), inode }
}

fn filled(family: u8, state: State, ports: (&str, &str), candidates: &[TcpSocket]) -> Socket {
    let mut sockets = [Socket::from(socket(family, state, ports.0, ports.1))];
    join::fill_in(&mut sockets, candidates);
    let [socket] = sockets;
    socket
}

#[test]
fn addresses_come_from_the_tcp_socket_with_the_same_ports() {
    let other = tcp(false, "127.0.0.1:80", "127.0.0.1:4000", 7);
    let own = tcp(false, "[::1]:4000", "[::1]:80", 9);
    let found = filled(10, State::Active, ("[::]:4000", "[::]:80"), &[other, own]);
    assert_eq!(found.local.address, Some("::1".parse().unwrap()));
    assert_eq!(found.addresses_from, Some(AddressSource::TcpDiag));
    assert_eq!(found.protocol, Protocol::IpprotoSmc);
}

#[test]
fn what_cannot_be_told_apart_is_not_guessed() {
    let one = tcp(false, "10.0.0.1:4000", "10.0.0.2:80", 7);
    let two = tcp(false, "10.0.0.9:4000", "10.0.0.2:80", 8);
    let found = filled(2, State::Active, ("0.0.0.0:4000", "0.0.0.0:80"), &[one, two]);
    assert_eq!((found.local.address, found.addresses_from), (None, None));
    let next = TcpSocket { inode: 101, ..two };
    let found = filled(2, State::Active, ("0.0.0.0:4000", "0.0.0.0:80"), &[one, next]);
    assert_eq!(found.local.address, Some("10.0.0.9".parse().unwrap()));
}

#[test]
fn an_af_smc_listener_of_ipv6_is_recognised() {
    let listener = tcp(true, "[::]:80", "[::]:0", 7);
    let found = filled(43, State::Listen, ("0.0.0.0:80", "0.0.0.0:0"), &[listener]);
    assert_eq!((found.local.address, found.mode), (Some("::".parse().unwrap()), None));
    let found = filled(43, State::Listen, ("0.0.0.0:80", "0.0.0.0:0"), &[]);
    assert_eq!(found.addresses_from, Some(AddressSource::SmcDiag));
}

#[test]
fn filters_combine() {
    let mut shown = socket(43, State::Active, "[::ffff:10.0.0.1]:4000", "[::ffff:10.0.0.2]:80");
    shown.mode = diag::Mode::FallbackTcp;
    shown.fallback = Some(Fallback { reason: 0x0500_0000, peer_diagnosis: 0x0303_0000 });
    let shown = Socket::from(shown);
    let codes = shown.fallback.clone().unwrap();
    assert_eq!(codes.reason.name.as_deref(), Some("PEERDECL"));
    assert_eq!(codes.peer.unwrap().name.as_deref(), Some("NOSMCDEV"));
    let base = SocketFilter::default();
    assert!(base.passes(&shown));
    assert!(!SocketFilter { selection: Selection::Listening, ..base.clone() }.passes(&shown));
    assert!(SocketFilter { modes: vec![Mode::Smcr, Mode::Tcp], ..base.clone() }.passes(&shown));
    assert!(SocketFilter { addresses: vec!["10.0.0.0/31".parse().unwrap()], ..base.clone() }.passes(&shown));
    assert!(!SocketFilter { addresses: vec!["10.1.0.0/16".parse().unwrap()], ..base.clone() }.passes(&shown));
    assert!(
        SocketFilter { ports: vec![80], states: vec!["ACTIVE".to_owned()], ..base.clone() }.passes(&shown)
    );
    assert!(!SocketFilter { devices: vec!["rxe0".to_owned()], ..base }.passes(&shown));
}
