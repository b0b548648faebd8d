use proptest::prelude::*;

use super::*;

#[test]
fn the_handshake_limitation_is_one_byte() {
    if cfg!(target_endian = "little") {
        let parse = |bytes| handshake_limitation(Attributes::new(bytes));
        assert_eq!(parse(&[5, 0, 1, 0, 1, 0, 0, 0]).unwrap(), Some(true));
        assert_eq!(parse(&[5, 0, 9, 0, 7, 0, 0, 0, 5, 0, 1, 0, 0, 0, 0, 0]).unwrap(), Some(false));
        assert_eq!(parse(&[]).unwrap(), None);
        assert!(parse(&[6, 0, 1, 0, 1, 0, 0, 0]).is_err());
        assert!(parse(&[5, 0, 1]).is_err());
    }
}

#[test]
fn errors_of_the_eid_table_say_what_to_do() {
    let refused = |errno| meaning_of_eid_error(Error::refused("add the user EID", errno, None)).to_string();
    assert_eq!(
        refused(libc::ERANGE),
        "cannot add the user EID: the kernel's table is full (4 user EIDs): remove one first"
    );
    assert_eq!(refused(libc::ENOMEM), "cannot add the user EID: out of memory");
}

/// A message as a later kernel might send it: each known attribute in this order, unknown ones between.
fn message(attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut request = crate::netlink::wire::Request::new(0, "test");
    for (kind, payload) in attributes {
        request = request.attribute(*kind, payload).attribute(200, &[1, 2, 3]);
    }
    request.encode(0, 0).unwrap().split_off(16)
}

#[test]
fn statistics_are_read_into_their_places() {
    let number = |value: u64| value.to_ne_bytes();
    let sizes: Vec<(u16, [u8; 8])> = (1..=9).map(|kind| (kind, number(u64::from(kind) * 10))).collect();
    let sizes: Vec<(u16, &[u8])> = sizes.iter().map(|(kind, value)| (*kind, &value[..])).collect();
    let (small, ten) = (5_u32.to_ne_bytes(), number(10));
    let technology = message(&[
        (1, &message(&sizes)),
        (5, &message(&[(4, &number(77))])),
        (7, &ten),
        (10, &number(3)),
        (16, &number(u64::MAX)),
        (19, &ten),
        (20, &small),
        (21, &number(1 << 33)),
    ]);
    let all = message(&[(2, &technology), (3, &ten)]);
    let mut statistics = Statistics::parse(Attributes::new(&all)).unwrap();
    assert_eq!(statistics.smcr.tx.buffers.classes(), [10, 20, 30, 40, 50, 60, 70, 80, 90]);
    assert_eq!((statistics.smcr.tx.buffer_full, statistics.smcr.connections()), (77, 13));
    assert_eq!((statistics.smcr.rx.bytes, statistics.smcr.tx.requests), (u64::MAX, 10));
    assert_eq!(statistics.smcr.rx.buffer_usage, Some(5));
    assert_eq!(statistics.smcr.tx.buffer_usage, Some(1 << 33));
    assert_eq!((statistics.client_handshake_errors, statistics.smcd), (10, Technology::default()));
    // 9 of each technology, 27 of each of its directions, 2 of all: every counter once.
    assert_eq!(statistics.counters_mut().count(), 2 + 2 * (9 + 2 * 27));
}

#[test]
fn devices_and_link_groups_are_read() {
    let port = message(&[
        (1, &[1]),
        (2, b"NET1            \0"),
        (3, &7_u32.to_ne_bytes()),
        (4, &[1]),
        (6, &2_u32.to_ne_bytes()),
    ]);
    let bytes = message(&[(2, &[1]), (10, b"rxe0\0"), (8, &port)]);
    let device = RdmaDevice::parse(Attributes::new(&bytes)).unwrap();
    assert_eq!((device.name.as_str(), device.critical, device.pci.is_none()), ("rxe0", true, true));
    let expected = RdmaPort {
        number: 1,
        pnet_id: Some("NET1".to_owned()),
        pnet_by_user: true,
        interface_index: 7,
        active: true,
        links: 2,
    };
    assert_eq!(device.ports, [expected]);
    let chid = 0xffff_u32.to_ne_bytes();
    let v2 = message(&[(0, &[2]), (3, b"EID             \0"), (4, b"host\0")]);
    let bytes = message(&[(1, &0x300_u32.to_ne_bytes()), (7, &chid), (9, &v2), (12, &[0, 0, 1, 0])]);
    let group = IsmLinkGroup::parse(Attributes::new(&bytes)).unwrap();
    assert_eq!((group.id, group.chid), (0x300, 0xffff));
    assert_eq!(group.send_buffers, Some(u64::from(u32::from_ne_bytes([0, 0, 1, 0]))));
    assert_eq!(group.negotiated.unwrap().eid.as_deref(), Some("EID"));
    // Every truncation is an error or lacks what was cut.
    for length in 0..bytes.len() {
        let _ = IsmLinkGroup::parse(Attributes::new(&bytes[..length]));
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let attributes = || Attributes::new(&bytes);
        let _ = (Statistics::parse(attributes()), RdmaDevice::parse(attributes()), IsmDevice::parse(attributes()));
        let _ = (RdmaLinkGroup::parse(attributes()), IsmLinkGroup::parse(attributes()), Link::parse(attributes()));
        let _ = (SystemInfo::parse(attributes()), fallback::Entry::parse(attributes()));
    }

    #[test]
    fn well_formed_attributes_of_any_kind_and_width_make_no_parser_panic(
        attributes in proptest::collection::vec((0_u16..16, proptest::collection::vec(any::<u8>(), 0..12)), 0..12)
    ) {
        let list: Vec<(u16, &[u8])> = attributes.iter().map(|(kind, bytes)| (*kind, &bytes[..])).collect();
        let bytes = message(&[(1, &message(&list)), (2, &message(&list)), (8, &message(&list))]);
        let attributes = || Attributes::new(&bytes);
        let _ = (Statistics::parse(attributes()), RdmaDevice::parse(attributes()), IsmDevice::parse(attributes()));
        let _ = (RdmaLinkGroup::parse(attributes()), IsmLinkGroup::parse(attributes()), Link::parse(attributes()));
    }
}
