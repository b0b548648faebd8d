use proptest::prelude::*;

use super::*;

/// `type`, `flags`, payload as a message.
fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    Request::new(kind, "test").fixed(payload).encode(flags, 7).unwrap()
}

#[test]
fn a_request_reads_back_as_it_was_built() {
    let request = Request::new(20, "test").fixed(&[1, 2, 3]).attribute(3, &[9; 5]).text(4, "lo");
    let bytes = request.encode(0x301, 42).unwrap();
    let messages: Vec<_> = Messages::new(&bytes).collect::<Result<_>>().unwrap();
    let [message] = messages[..] else { panic!("{messages:?}") };
    assert_eq!((message.kind, message.flags, message.sequence), (20, 0x301, 42));
    let attributes: Vec<_> = message.attributes(3).collect::<Result<_>>().unwrap();
    assert_eq!(attributes[0], Attribute { kind: 3, payload: &[9; 5] });
    assert_eq!(attributes[1], Attribute { kind: 4, payload: b"lo\0" });
    assert_eq!(attributes[1].text(), "lo");
}

#[test]
fn an_attribute_that_is_too_long_is_an_error() {
    let request = Request::new(20, "test").attribute(1, &vec![0; 65_532]);
    assert!(matches!(request.encode(0, 0), Err(Error::Malformed { .. })));
}

#[test]
fn two_messages_in_one_datagram() {
    let mut bytes = message(20, 2, &[1]);
    bytes.extend(message(3, 2, &[]));
    let kinds: Vec<_> = Messages::new(&bytes).map(|message| message.unwrap().kind).collect();
    assert_eq!(kinds, [20, 3]);
}

#[test]
fn every_truncation_is_reported_once() {
    let mut bytes = message(20, 2, &[1, 2, 3, 4]);
    bytes.extend(message(21, 2, &[5, 6, 7, 8]));
    for length in 1..bytes.len() {
        let whole = usize::from(length >= 20);
        let results: Vec<_> = Messages::new(&bytes[..length]).collect();
        let expected = whole + usize::from(length != 20);
        assert_eq!(results.len(), expected, "{length}");
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), whole, "{length}");
    }
}

#[test]
fn a_length_below_the_header_is_malformed() {
    let mut bytes = message(20, 2, &[]);
    bytes[0..4].copy_from_slice(&8_u32.to_ne_bytes());
    assert!(Messages::new(&bytes).all(|result| result.is_err()));
    let results: Vec<_> = Attributes::new(&[3, 0, 1, 0]).collect();
    assert_eq!(results.len(), 1);
    assert!(results[0].is_err());
}

#[test]
fn numbers_have_their_width() {
    let four = Attribute { kind: 1, payload: &5_u32.to_ne_bytes() };
    let eight = Attribute { kind: 1, payload: &6_u64.to_ne_bytes() };
    let three = Attribute { kind: 1, payload: &[1, 2, 3] };
    assert_eq!((four.uint().unwrap(), eight.uint().unwrap()), (5, 6));
    assert_eq!(four.u32().unwrap(), 5);
    assert!(four.u8().is_err() && eight.u32().is_err() && three.uint().is_err() && three.u16().is_err());
}

#[test]
fn nested_flag_bits_are_not_part_of_the_type() {
    let attribute = Attributes::new(&[4, 0, 0x02, 0x80]).next().unwrap().unwrap();
    assert_eq!(attribute.kind, if cfg!(target_endian = "little") { 2 } else { 0x280 });
}

fn error_payload(errno: i32, echoed: &[u8], text: &[u8]) -> Vec<u8> {
    let mut payload = (-errno).to_ne_bytes().to_vec();
    payload.extend(message(16, 5, echoed));
    payload.extend_from_slice(text);
    payload
}

#[test]
fn the_extended_ack_is_found_behind_the_echoed_request() {
    let text = [10, 0, 1, 0, b'n', b'o', b' ', b'i', b'f', 0, 0, 0];
    for (flags, echoed) in [(FLAG_ACK_TLVS, &[1_u8, 2, 3, 4, 5][..]), (FLAG_ACK_TLVS | FLAG_CAPPED, &[])] {
        let payload = error_payload(22, echoed, &text);
        let message = Message { kind: 2, flags, sequence: 0, payload: &payload };
        let expected = Verdict { errno: 22, text: Some("no if".to_owned()) };
        if cfg!(target_endian = "little") {
            assert_eq!(Verdict::of_error(&message).unwrap(), expected);
        }
    }
}

#[test]
fn an_end_of_dump_may_be_empty_or_carry_an_error() {
    let done = |payload: &[u8]| Verdict::of_done(&Message { kind: 3, flags: 0, sequence: 0, payload });
    assert_eq!(done(&[]).errno, 0);
    assert_eq!(done(&(-5_i32).to_ne_bytes()).errno, 5);
    assert_eq!(done(&i32::MIN.to_ne_bytes()).errno, i32::MAX);
    let empty = Message { kind: 2, flags: 0, sequence: 0, payload: &[1, 2] };
    assert!(Verdict::of_error(&empty).is_err());
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), flags: u16, skip in 0_usize..300) {
        for message in Messages::new(&bytes).flatten() {
            let _ = message.attributes(skip).count();
            let _ = Verdict::of_error(&message);
        }
        let message = Message { kind: 0, flags, sequence: 0, payload: &bytes };
        let _ = Verdict::of_error(&message);
        let _ = Verdict::of_done(&message);
        for attribute in message.attributes(skip).flatten() {
            let _ = (attribute.uint(), attribute.text(), attribute.nested().count());
        }
    }
}
