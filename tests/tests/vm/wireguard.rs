//! Configuration of a `WireGuard` interface, by the kernel's own netlink family (`include/uapi/linux/wireguard.h`).

use std::net::Ipv4Addr;

use anyhow::Result;
use smc_agent::netlink::genl::{Command, Family, FamilySocket};

/// A pair of keys.
pub(crate) struct Keys {
    private: [u8; 32],
    public: [u8; 32],
}

pub(crate) const FIRST: Keys = Keys {
    private: [0x11; 32],
    public: [
        0x7b, 0x4e, 0x90, 0x9b, 0xbe, 0x7f, 0xfe, 0x44, 0xc4, 0x65, 0xa2, 0x20, 0x03, 0x7d, 0x60, 0x8e, 0xe3,
        0x58, 0x97, 0xd3, 0x1e, 0xf9, 0x72, 0xf0, 0x7f, 0x74, 0x89, 0x2c, 0xb0, 0xf7, 0x3f, 0x13,
    ],
};
pub(crate) const SECOND: Keys = Keys {
    private: [0x22; 32],
    public: [
        0x0f, 0xaa, 0x68, 0x4e, 0xd2, 0x88, 0x67, 0xb9, 0x7f, 0x4a, 0x6a, 0x2d, 0xee, 0x5d, 0xf8, 0xce, 0x97,
        0x4e, 0x76, 0xb7, 0x01, 0x8e, 0x3f, 0x22, 0xa1, 0xc4, 0xcf, 0x26, 0x78, 0x57, 0x0f, 0x20,
    ],
};

const FAMILY: Family = Family { name: "wireguard", version: 1, described: "WireGuard", since: "5.6" };
/// `WG_CMD_SET_DEVICE`
const SET_DEVICE: Command = Command { number: 1, what: "configure a WireGuard interface", since: "5.6" };
/// `WGDEVICE_A_*`
const INTERFACE: u16 = 2;
const PRIVATE_KEY: u16 = 3;
const LISTEN_PORT: u16 = 6;
const PEERS: u16 = 8;
/// `WGPEER_A_*`
const PUBLIC_KEY: u16 = 1;
const ENDPOINT: u16 = 4;
const ALLOWED: u16 = 9;
/// `WGALLOWEDIP_A_*`
const ALLOWED_FAMILY: u16 = 1;
const ALLOWED_ADDRESS: u16 = 2;
const ALLOWED_LENGTH: u16 = 3;
/// `NLA_F_NESTED` (`include/uapi/linux/netlink.h`)
const NESTED: u16 = 1 << 15;

const PORT: u16 = 51820;

/// Gives an interface of the calling thread's namespace its key and one peer, to which everything goes.
pub(crate) fn configure(interface: &str, own: &Keys, peer: &Keys, at: Ipv4Addr) -> Result<()> {
    let mut socket = FamilySocket::open(&FAMILY)?;
    let family = |number: libc::c_int| u16::try_from(number).map(u16::to_ne_bytes);
    let mut endpoint = [0; 16];
    endpoint[..2].copy_from_slice(&family(libc::AF_INET)?);
    endpoint[2..4].copy_from_slice(&PORT.to_be_bytes());
    endpoint[4..8].copy_from_slice(&at.octets());
    let everything = |number, address: &[u8]| -> Result<Vec<u8>> {
        let fields = [
            attribute(ALLOWED_FAMILY, &family(number)?),
            attribute(ALLOWED_ADDRESS, address),
            attribute(ALLOWED_LENGTH, &[0]),
        ];
        Ok(attribute(NESTED, &fields.concat()))
    };
    let allowed = [everything(libc::AF_INET, &[0; 4])?, everything(libc::AF_INET6, &[0; 16])?].concat();
    let fields = [
        attribute(PUBLIC_KEY, &peer.public),
        attribute(ENDPOINT, &endpoint),
        attribute(ALLOWED | NESTED, &allowed),
    ];
    let request = socket
        .prepare(SET_DEVICE)
        .text(INTERFACE, interface)
        .attribute(PRIVATE_KEY, &own.private)
        .attribute(LISTEN_PORT, &PORT.to_ne_bytes())
        .attribute(PEERS | NESTED, &attribute(NESTED, &fields.concat()));
    Ok(socket.run(SET_DEVICE, &request)?)
}

/// An attribute with its header, filled up to a multiple of 4 bytes.
fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len() + 4).unwrap_or_default();
    let mut bytes = [&length.to_ne_bytes(), &kind.to_ne_bytes(), payload].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
