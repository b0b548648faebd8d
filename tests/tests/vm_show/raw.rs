//! Netlink read anew, with nothing of the agent's: what its output is compared with.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// Attributes by type; of several of one type the last.
pub(crate) type Attributes = BTreeMap<u16, Vec<u8>>;

/// The number in a payload of up to eight bytes (guests are little endian).
pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The number at an offset.
pub(crate) fn at(bytes: &[u8], offset: usize, width: usize) -> u64 {
    number(&bytes[offset..offset + width])
}

/// The text up to its NUL, without the spaces at its end.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim_end().to_owned()
}

pub(crate) fn attributes(mut bytes: &[u8]) -> Attributes {
    let mut found = Attributes::new();
    while bytes.len() >= 4 {
        let length = usize::from(bytes[0]) | usize::from(bytes[1]) << 8;
        let kind = (u16::from(bytes[2]) | u16::from(bytes[3]) << 8) & 0x3fff;
        found.insert(kind, bytes[4..length].to_vec());
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// The payloads of the answers to a dump.
fn dump(protocol: SockProtocol, kind: u16, flags: u16, body: &[u8]) -> Result<Vec<Vec<u8>>> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    let mut request = Vec::new();
    request.extend(u32::try_from(16 + body.len())?.to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend((flags | 1).to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut messages = Vec::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let mut rest = &buffer[..length];
        while rest.len() >= 16 {
            let length = usize::try_from(at(rest, 0, 4))?;
            let (kind, payload) = (at(rest, 4, 2), &rest[16..length]);
            match kind {
                3 => return Ok(messages),
                2 => {
                    ensure!(at(payload, 0, 4) == 0, "netlink error {}", at(payload, 0, 4));
                    return Ok(messages);
                }
                _ => messages.push(payload.to_vec()),
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        if flags & 0x300 == 0 {
            return Ok(messages);
        }
    }
}

/// The messages of socket diagnostics for SMC, with all extensions: `struct smc_diag_msg` and the attributes.
pub(crate) fn smc_sockets() -> Result<Vec<(Vec<u8>, Attributes)>> {
    let mut body = vec![43, 0, 0, 0b1_1111];
    body.extend([0; 48]);
    let messages = dump(SockProtocol::NetlinkSockDiag, 20, 0x300, &body)?;
    Ok(messages.into_iter().map(|message| (message[..64].to_vec(), attributes(&message[64..]))).collect())
}

/// The attributes of the answers to a dump command of a generic netlink family.
pub(crate) fn generic(family: &str, command: u8) -> Result<Vec<Attributes>> {
    let mut body = vec![3, 2, 0, 0];
    body.extend(u16::try_from(4 + family.len() + 1)?.to_ne_bytes());
    body.extend(2_u16.to_ne_bytes());
    body.extend(family.as_bytes());
    body.resize((body.len() + 1).next_multiple_of(4), 0);
    let answer = dump(SockProtocol::NetlinkGeneric, 0x10, 0, &body)?;
    let answer = answer.first().context("no answer of the controller")?;
    let id = attributes(&answer[4..]).get(&1).map(|id| number(id)).context("no family")?;
    let messages = dump(SockProtocol::NetlinkGeneric, u16::try_from(id)?, 0x300, &[command, 1, 0, 0])?;
    Ok(messages.iter().map(|message| attributes(&message[4..])).collect())
}

/// The nests of type `nest` in the answers of `SMC_GEN_NETLINK`.
pub(crate) fn smc(command: u8, nest: u16) -> Result<Vec<Attributes>> {
    let answers = generic("SMC_GEN_NETLINK", command)?;
    Ok(answers.iter().filter_map(|answer| answer.get(&nest)).map(|nest| attributes(nest)).collect())
}
