//! The PNET table (generic netlink family `SMC_PNETID`; `include/uapi/linux/smc.h`, `net/smc/smc_pnet.c`): which devices are
//! connected to the same physical network.

use std::fmt;
use std::str::FromStr;

use nix::errno::Errno;

use super::error::{Error, Result};
use super::genl::{Command, Family, FamilySocket};
use super::wire::Attributes;

/// The family (`SMCR_GENL_FAMILY_NAME`, `SMCR_GENL_FAMILY_VERSION`).
const FAMILY: Family = Family { name: "SMC_PNETID", version: 1, described: "SMC PNET table", since: "4.11" };

// The commands of the enumeration that begins with SMC_PNETID_GET.
const GET: Command = Command { number: 1, what: "list the PNET table", since: "4.11" };
const ADD: Command = Command { number: 2, what: "add the PNET entry", since: "4.11" };
const DELETE: Command = Command { number: 3, what: "delete the PNET id", since: "4.11" };
const FLUSH: Command = Command { number: 4, what: "empty the PNET table", since: "4.11" };

// The attributes of the enumeration that begins with SMC_PNETID_UNSPEC.
const NAME: u16 = 1;
const ETHERNET_NAME: u16 = 2;
const RDMA_NAME: u16 = 3;
const RDMA_PORT: u16 = 4;

/// `SMC_MAX_PNETID_LEN` (`include/net/smc.h`).
const MAX_LENGTH: usize = 16;
/// What the kernel puts in place of the name that an entry does not have (`smc_pnet_set_nla`).
const NO_NAME: &str = "n/a";

/// A PNET id that the kernel will accept: 1 to 16 letters and digits. The kernel keeps it in upper case, and so does this.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PnetId(String);

/// Why a text is no PNET id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no PNET id: use 1 to 16 of A-Z and 0-9")]
pub struct InvalidPnetId(String);

impl FromStr for PnetId {
    type Err = InvalidPnetId;

    /// The rules are those of `smc_pnetid_valid` (`net/smc/smc_pnet.c`).
    fn from_str(text: &str) -> std::result::Result<Self, InvalidPnetId> {
        let trimmed = text.trim_ascii();
        let valid = (1..=MAX_LENGTH).contains(&trimmed.len())
            && trimmed.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if valid { Ok(Self(trimmed.to_ascii_uppercase())) } else { Err(InvalidPnetId(text.to_owned())) }
    }
}

impl PnetId {
    /// The id in upper case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PnetId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What a PNET id is given to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PnetDevice {
    /// A network interface.
    Ethernet(String),
    /// A port of an RDMA device, or an SMC-D device (whose port is 1). Only in the initial network namespace.
    Rdma {
        /// The device's name.
        name: String,
        /// The port, 1 or 2.
        port: u8,
    },
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PnetEntry {
    /// The PNET id, as the kernel has it.
    pub id: String,
    /// The device; `None` if the kernel named none.
    pub device: Option<PnetDevice>,
}

/// A connection to the table of the network namespace in which it was opened.
#[derive(Debug)]
pub struct PnetTable {
    socket: FamilySocket,
}

impl PnetTable {
    /// Finds the family and opens a socket.
    pub fn open() -> Result<Self> {
        FamilySocket::open(&FAMILY).map(|socket| Self { socket })
    }

    /// The lines of the table. The kernel shows RDMA devices only in the initial network namespace.
    pub fn entries(&mut self) -> Result<Vec<PnetEntry>> {
        self.socket.list(GET, parse)
    }

    /// Gives a PNET id to a device.
    pub fn add(&mut self, id: &PnetId, device: &PnetDevice) -> Result<()> {
        let request = self.socket.prepare(ADD).text(NAME, id.as_str());
        let request = match device {
            PnetDevice::Ethernet(name) => request.text(ETHERNET_NAME, name),
            PnetDevice::Rdma { name, port } => request.text(RDMA_NAME, name).attribute(RDMA_PORT, &[*port]),
        };
        self.socket.run(ADD, &request).map_err(meaning)
    }

    /// Removes all entries of a PNET id.
    pub fn delete(&mut self, id: &PnetId) -> Result<()> {
        let request = self.socket.prepare(DELETE).text(NAME, id.as_str());
        self.socket.run(DELETE, &request).map_err(meaning)
    }

    /// Removes all entries.
    pub fn flush(&mut self) -> Result<()> {
        let request = self.socket.prepare(FLUSH);
        self.socket.run(FLUSH, &request).map_err(meaning)
    }
}

/// The error numbers of `net/smc/smc_pnet.c`.
fn meaning(error: Error) -> Error {
    error.meaning(|errno| match errno {
        Errno::EEXIST => Some(
            "the device has a PNET id already, or (an RDMA device) this is not the initial network namespace",
        ),
        Errno::ENOENT => Some("no such PNET id"),
        Errno::EINVAL => Some("the kernel does not accept this id, device name or port (1 or 2)"),
        _ => None,
    })
}

fn parse(attributes: Attributes<'_>) -> Result<Option<PnetEntry>> {
    let (mut id, mut ethernet, mut rdma, mut port) = (None, None, None, 0);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            NAME => id = Some(attribute.text()),
            ETHERNET_NAME => ethernet = Some(attribute.text()),
            RDMA_NAME => rdma = Some(attribute.text()),
            RDMA_PORT => port = attribute.u8()?,
            _ => {}
        }
    }
    let named = |name: Option<String>| name.filter(|name| name != NO_NAME);
    let ethernet = named(ethernet).map(PnetDevice::Ethernet);
    let device = ethernet.or_else(|| named(rdma).map(|name| PnetDevice::Rdma { name, port }));
    Ok(id.map(|id| PnetEntry { id, device }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::wire::Request;

    #[test]
    fn ids_follow_the_kernels_rules() {
        assert_eq!(" net1 ".parse::<PnetId>().unwrap().as_str(), "NET1");
        assert!("A123456789012345".parse::<PnetId>().is_ok());
        for wrong in ["", " ", "A1234567890123456", "A B", "A-B", "Ä", "A\0"] {
            assert_eq!(wrong.parse::<PnetId>(), Err(InvalidPnetId(wrong.to_owned())));
        }
    }

    fn entry(ethernet: &str, rdma: &str, port: u8) -> Vec<u8> {
        let request = Request::new(0, "test").text(NAME, "NET1").text(ETHERNET_NAME, ethernet);
        let request = request.text(RDMA_NAME, rdma).attribute(RDMA_PORT, &[port]).attribute(9, &[1]);
        request.encode(0, 0).unwrap().split_off(16)
    }

    #[test]
    fn entries_are_of_either_kind() {
        let device = |bytes: &[u8]| parse(Attributes::new(bytes)).unwrap().unwrap().device;
        assert_eq!(device(&entry("eth0", NO_NAME, 0xff)), Some(PnetDevice::Ethernet("eth0".to_owned())));
        let rdma = PnetDevice::Rdma { name: "rxe0".to_owned(), port: 1 };
        assert_eq!(device(&entry(NO_NAME, "rxe0", 1)), Some(rdma));
        assert_eq!(device(&entry(NO_NAME, NO_NAME, 1)), None);
    }

    #[test]
    fn truncated_entries_are_malformed_or_lack_what_was_cut() {
        let bytes = entry("eth0", NO_NAME, 0xff);
        for length in 0..bytes.len() {
            if let Ok(Some(entry)) = parse(Attributes::new(&bytes[..length])) {
                assert_eq!(entry.id, "NET1");
            }
        }
    }
}
