//! TCP packets byte by byte, with a checksum that is always right.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ETHERNET: usize = 14;
const IPPROTO_TCP: u8 = 6;
/// An authentication header (RFC 4302).
pub(crate) const AH: u8 = 51;
/// SYN among the flags of TCP.
pub(crate) const SYN: u8 = 0x02;
/// ACK.
pub(crate) const ACK: u8 = 0x10;

/// A packet to be built.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) port: u16,
    pub(crate) flags: u8,
    /// TCP options, a multiple of 4 bytes.
    pub(crate) options: Vec<u8>,
    pub(crate) data: Vec<u8>,
    /// IPv4: options, or an authentication header; IPv6: extension headers, the first of kind `next`. The last one names TCP.
    pub(crate) between: Vec<u8>,
    /// What follows the IP header: TCP unless there is something between.
    pub(crate) next: u8,
    /// IPv4: the fragment field.
    pub(crate) fragment: u16,
}

impl Packet {
    /// A SYN from a foreign host to this one.
    pub(crate) fn syn(v6: bool, port: u16, options: &[u8]) -> Self {
        let (from, to): (IpAddr, IpAddr) = if v6 {
            ("2001:db8::1".parse().unwrap_or(Ipv6Addr::UNSPECIFIED).into(), Ipv6Addr::LOCALHOST.into())
        } else {
            (Ipv4Addr::new(192, 0, 2, 1).into(), Ipv4Addr::LOCALHOST.into())
        };
        Self {
            from,
            to,
            port,
            flags: SYN,
            options: options.to_vec(),
            data: Vec::new(),
            between: Vec::new(),
            next: IPPROTO_TCP,
            fragment: 0,
        }
    }

    /// The bytes from the Ethernet header on.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let tcp = self.tcp();
        let length = |bytes: usize| u16::try_from(bytes).unwrap_or_default().to_be_bytes();
        let mut packet = vec![0; ETHERNET - 2];
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                packet.extend([0x08, 0x00]);
                let options = if self.next == IPPROTO_TCP { &self.between[..] } else { &[] };
                let payload = &self.between[options.len()..];
                let header = 20 + options.len();
                let mut ip = vec![0x40 | u8::try_from(header / 4).unwrap_or_default(), 0];
                ip.extend(length(header + payload.len() + tcp.len()));
                ip.extend([0x12, 0x34]);
                ip.extend(self.fragment.to_be_bytes());
                ip.extend([64, self.next, 0, 0]);
                ip.extend(from.octets());
                ip.extend(to.octets());
                ip.extend(options);
                let sum = checksum(&[&ip]);
                ip[10..12].copy_from_slice(&sum);
                packet.extend(ip);
                packet.extend(payload);
            }
            (from, to) => {
                packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                packet.extend(length(self.between.len() + tcp.len()));
                packet.extend([self.next, 64]);
                packet.extend(octets(from));
                packet.extend(octets(to));
                packet.extend(&self.between);
            }
        }
        packet.extend(tcp);
        packet
    }

    /// What stands in the place of a checksum that the hardware is to complete.
    pub(crate) fn pseudo_header_sum(&self) -> [u8; 2] {
        let length = 20 + self.options.len() + self.data.len();
        checksum(&[&self.pseudo_header(length)]).map(|byte| !byte)
    }

    fn pseudo_header(&self, length: usize) -> Vec<u8> {
        let length = u32::try_from(length).unwrap_or_default().to_be_bytes();
        [octets(self.from), octets(self.to), length.to_vec(), vec![0, 0, 0, IPPROTO_TCP]].concat()
    }

    fn tcp(&self) -> Vec<u8> {
        let header = 20 + self.options.len();
        let mut tcp = 40_000_u16.to_be_bytes().to_vec();
        tcp.extend(self.port.to_be_bytes());
        tcp.extend(0x1122_3344_u32.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend([u8::try_from(header / 4).unwrap_or_default() << 4, self.flags, 0xfa, 0xf0, 0, 0, 0, 0]);
        tcp.extend(&self.options);
        tcp.extend(&self.data);
        let sum = checksum(&[&self.pseudo_header(tcp.len()), &tcp]);
        tcp[16..18].copy_from_slice(&sum);
        tcp
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The checksum of the internet (RFC 1071) over parts, all but the last of an even length.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let mut sum = 0_u64;
    for chunk in parts.iter().flat_map(|part| part.chunks(2)) {
        let [high, low] = [chunk.first(), chunk.get(1)].map(|byte| u64::from(byte.copied().unwrap_or(0)));
        sum += high << 8 | low;
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!u16::try_from(sum).unwrap_or_default()).to_be_bytes()
}
