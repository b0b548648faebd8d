use proptest::prelude::*;

use super::*;

fn fixed(family: u8, source: &[u8], destination: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; MESSAGE_LEN];
    bytes[0..4].copy_from_slice(&[family, 1, 2, 0]);
    bytes[4..8].copy_from_slice(&[0x1f, 0x90, 0x00, 0x50]);
    bytes[8..8 + source.len()].copy_from_slice(source);
    bytes[24..24 + destination.len()].copy_from_slice(destination);
    bytes[44..48].copy_from_slice(&0x1111_2222_u32.to_ne_bytes());
    bytes[48..52].copy_from_slice(&0x3333_4444_u32.to_ne_bytes());
    bytes[52..56].copy_from_slice(&1000_u32.to_ne_bytes());
    bytes[56..64].copy_from_slice(&0x1_0000_0007_u64.to_ne_bytes());
    bytes
}

fn read(request: &Request) -> Result<SmcSocket> {
    let bytes = request.encode(0, 0).unwrap();
    parse(&Message { kind: BY_FAMILY, flags: 0, sequence: 0, payload: &bytes[16..] })
}

#[test]
fn the_fixed_part_is_read() {
    let message = fixed(AF_SMC, &[127, 0, 0, 1], &[127, 0, 0, 2]);
    let socket = read(&Request::new(BY_FAMILY, "test").fixed(&message)).unwrap();
    assert_eq!(socket.local, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(socket.peer, "127.0.0.2:80".parse().unwrap());
    assert_eq!((socket.mode, socket.state), (Mode::SmcD, State::Active));
    assert_eq!((socket.cookie, socket.uid, socket.inode), (0x3333_4444_1111_2222, 1000, 0x1_0000_0007));
    assert_eq!((socket.fallback, socket.connection), (None, None));
}

#[test]
fn the_family_of_the_addresses_is_found() {
    let mut loopback = [0; 16];
    loopback[15] = 1;
    let local = |family: u8, source: &[u8], destination: &[u8]| {
        let message = fixed(family, source, destination);
        read(&Request::new(BY_FAMILY, "test").fixed(&message)).unwrap().local.ip().to_string()
    };
    assert_eq!(local(AF_SMC, &loopback, &loopback), "::1");
    assert_eq!(local(AF_SMC, &[], &loopback), "::");
    assert_eq!(local(AF_SMC, &[], &[]), "0.0.0.0");
    assert_eq!(local(2, &[], &[]), "0.0.0.0");
    assert_eq!(local(10, &[], &[]), "::");
}

#[test]
fn extensions_are_read_and_unknown_ones_skipped() {
    let mut link = vec![0; 147];
    link[0] = 3;
    link[1..5].copy_from_slice(b"rxe0");
    link[65] = 1;
    link[66..70].copy_from_slice(b"fe80");
    link[106..109].copy_from_slice(b"abc");
    link[146] = 1;
    let mut dmb = 5_u32.to_ne_bytes().to_vec();
    dmb.extend([0; 4]);
    for number in 1..=6_u64 {
        dmb.extend(number.to_ne_bytes());
    }
    let connection: Vec<u8> = (0..76).collect();
    let reason = [0x0301_0000_u32.to_ne_bytes(), 0x0303_0008_u32.to_ne_bytes()].concat();
    let socket = read(
        &Request::new(BY_FAMILY, "test")
            .fixed(&fixed(AF_SMC, &[], &[]))
            .attribute(SHUTDOWN, &[3])
            .attribute(77, &[1; 9])
            .attribute(FALLBACK, &reason)
            .attribute(CONNECTION, &connection)
            .attribute(LINK_GROUP, &link)
            .attribute(DMB, &dmb),
    )
    .unwrap();
    assert_eq!(socket.shutdown, Some(3));
    assert_eq!(socket.fallback, Some(Fallback { reason: 0x0301_0000, peer_diagnosis: 0x0303_0008 }));
    let group = socket.link_group.unwrap();
    assert_eq!((group.link_id, group.device.as_str(), group.port), (3, "rxe0", 1));
    assert_eq!((group.gid.as_str(), group.peer_gid.as_str(), group.role), ("fe80", "abc", Role::Server));
    let expected = Dmb { link_id: 5, peer_gid: (1, 5), gid: (2, 6), token: 3, peer_token: 4 };
    assert_eq!(socket.dmb, Some(expected));
    let connection = socket.connection.unwrap();
    assert_eq!(connection.token, u32::from_ne_bytes([0, 1, 2, 3]));
    assert_eq!(connection.sent_consumer.wrap, u16::from_ne_bytes([42, 43]));
    assert_eq!(connection.flags, [48, 49, 50, 51]);
    assert_eq!(connection.confirmed.count, u32::from_ne_bytes([72, 73, 74, 75]));
}

#[test]
fn extensions_of_older_kernels_are_shorter() {
    let dmb = [0; 40];
    assert_eq!(Dmb::parse(&dmb).unwrap().gid, (0, 0));
    assert_eq!(Dmb::parse(&dmb[..39]), None);
    assert_eq!(Fallback::parse(&[0; 7]), None);
    assert_eq!(LinkGroup::parse(&[0; 146]), None);
    assert_eq!(Connection::parse(&[0; 75]), None);
}

#[test]
fn unknown_numbers_are_kept() {
    assert_eq!(Mode::from(9).to_string(), "mode 9");
    assert_eq!(State::from(99).to_string(), "state 99");
    assert_eq!(Mode::from(1).to_string(), "FALLBACK_TCP");
    assert_eq!(State::from(24).to_string(), "APPFINCLOSEWAIT");
}

#[test]
fn a_short_message_is_malformed() {
    let message = fixed(AF_SMC, &[], &[]);
    for length in 0..MESSAGE_LEN {
        assert!(parse_fixed(&message[..length]).is_none(), "{length}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse(&Message { kind: BY_FAMILY, flags: 0, sequence: 0, payload: &bytes });
    }
}
