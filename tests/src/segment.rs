//! A TCP segment taken apart, with its checksum looked at by the definition.

/// What the checksum of a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// As RFC 9293 has it.
    Right,
    /// That of the pseudo header alone: whoever puts the segment on a wire is to complete it.
    Partial,
    /// Neither.
    Wrong,
}

/// A TCP segment behind an IPv4 header, or behind an IPv6 header without extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The TCP header without its options.
    pub header: [u8; HEADER],
    /// The options.
    pub options: Vec<u8>,
    /// What the checksum is.
    pub sum: Sum,
}

/// Length of a TCP header without options.
const HEADER: usize = 20;
const IPPROTO_TCP: u8 = 6;

impl Segment {
    /// Takes apart a packet that begins with its IP header; `None` if it is not such a segment, or not whole.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let (addresses, tcp) = match packet.first()? >> 4 {
            4 if *packet.get(9)? == IPPROTO_TCP => {
                let begin = usize::from(packet[0] & 0x0f) * 4;
                let end = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
                (packet.get(12..20)?, packet.get(begin..end)?)
            }
            6 if *packet.get(6)? == IPPROTO_TCP => {
                let length = usize::from(u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?]));
                (packet.get(8..40)?, packet.get(40..40 + length)?)
            }
            _ => return None,
        };
        let header: [u8; HEADER] = tcp.get(..HEADER)?.try_into().ok()?;
        let options = tcp.get(HEADER..usize::from(header[12] >> 4) * 4)?.to_vec();
        let length = u32::try_from(tcp.len()).ok()?;
        let pseudo = [addresses, &length.to_be_bytes(), &[0, 0, 0, IPPROTO_TCP]].concat();
        // Over all with its checksum, the sum is what has no bit that is not set.
        let sum = if add(&[&pseudo, tcp]) == u16::MAX {
            Sum::Right
        } else if add(&[&pseudo]) == u16::from_be_bytes([header[16], header[17]]) {
            Sum::Partial
        } else {
            Sum::Wrong
        };
        Some(Self { header, options, sum })
    }

    /// Whether it is a SYN (and no answer to one) to this port.
    pub fn is_syn_to(&self, port: u16) -> bool {
        self.header[2..4] == port.to_be_bytes() && self.header[13] & 0x17 == 0x02
    }
}

/// The sum in one's complement (RFC 1071) of parts of even lengths but the last.
fn add(parts: &[&[u8]]) -> u16 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u64::from);
    let mut sum: u64 = parts.iter().flat_map(|part| part.chunks(2)).map(word).sum();
    while sum > u64::from(u16::MAX) {
        sum = (sum & u64::from(u16::MAX)) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From 127.0.0.1 to itself, port 8080, with an MSS, without a checksum.
    fn packet() -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 44, 0, 0, 0x40, 0, 64, 6, 0x3c, 0xca, 127, 0, 0, 1, 127, 0, 0, 1];
        packet.extend([
            0x9c, 0x40, 0x1f, 0x90, 0, 0, 0, 1, 0, 0, 0, 0, 0x60, 2, 0xff, 0xd7, 0, 0, 0, 0, 2, 4, 0xff, 0xd7,
        ]);
        packet
    }

    #[test]
    fn right_partial_and_wrong_checksums_are_told_apart() {
        // The pseudo header alone: 7f00 + 0001 + 7f00 + 0001 + 0006 + 0018 = fe20.
        let total = add(&[&packet()[12..], &[0, 0, 0, 24, 0, 6]]);
        for (sum, expected) in [(!total, Sum::Right), (0xfe20, Sum::Partial), (!total ^ 1, Sum::Wrong)] {
            let mut packet = packet();
            packet[36..38].copy_from_slice(&sum.to_be_bytes());
            let segment = Segment::parse(&packet).unwrap();
            assert_eq!(segment.sum, expected);
            assert_eq!(segment.options, [2, 4, 0xff, 0xd7]);
            assert!(segment.is_syn_to(8080) && !segment.is_syn_to(40000));
        }
    }

    #[test]
    fn what_is_not_whole_is_none() {
        let whole = packet();
        assert!((0..whole.len()).all(|end| Segment::parse(&whole[..end]).is_none()));
        let mut udp = whole;
        udp[9] = 17;
        assert!(Segment::parse(&udp).is_none());
    }
}
