//! SMC's generic netlink family `SMC_GEN_NETLINK` (`include/uapi/linux/smc.h`; `net/smc/smc_netlink.c`): system information,
//! devices, link groups, links, statistics, EIDs, the handshake limitation and the kernel's own fallback statistics.

mod device;
mod eid;
mod fallback;
mod info;
mod link;
mod link_group;
mod stats;
#[cfg(test)]
mod tests;

pub use device::{IsmDevice, Pci, RdmaDevice, RdmaPort};
pub use eid::{Eid, InvalidEid, MAX_USER_EIDS, Seid};
pub use fallback::{FallbackCount, FallbackStats, Side};
pub use info::SystemInfo;
pub use link::{Link, LinkState};
pub use link_group::{BufferType, IsmGid, IsmLinkGroup, Negotiated, RdmaLinkGroup, Redundancy};
pub use stats::{Direction, Histogram, Statistics, Technology};

use nix::errno::Errno;

use super::error::{Error, Result};
use super::genl::{Command, Family, FamilySocket};
use super::wire::Attributes;

/// The family (`SMC_GENL_FAMILY_NAME`, `SMC_GENL_FAMILY_VERSION`).
const FAMILY: Family =
    Family { name: "SMC_GEN_NETLINK", version: 1, described: "SMC generic netlink", since: "5.11" };

// The commands of the enumeration that begins with SMC_NETLINK_GET_SYS_INFO.
const GET_SYSTEM_INFO: Command =
    Command { number: 1, what: "read the SMC system information", since: "5.11" };
const GET_RDMA_LINK_GROUPS: Command =
    Command { number: 2, what: "list the SMC-R link groups", since: "5.11" };
const GET_LINKS: Command = Command { number: 3, what: "list the SMC-R links", since: "5.11" };
const GET_ISM_LINK_GROUPS: Command = Command { number: 4, what: "list the SMC-D link groups", since: "5.11" };
const GET_ISM_DEVICES: Command = Command { number: 5, what: "list the SMC-D devices", since: "5.11" };
const GET_RDMA_DEVICES: Command = Command { number: 6, what: "list the SMC-R devices", since: "5.11" };
const GET_STATISTICS: Command = Command { number: 7, what: "read the SMC statistics", since: "5.14" };
const GET_FALLBACK_STATS: Command =
    Command { number: 8, what: "read the fallback statistics", since: "5.14" };
const DUMP_USER_EIDS: Command = Command { number: 9, what: "list the user EIDs", since: "5.15" };
const ADD_USER_EID: Command = Command { number: 10, what: "add the user EID", since: "5.15" };
const REMOVE_USER_EID: Command = Command { number: 11, what: "remove the user EID", since: "5.15" };
const FLUSH_USER_EIDS: Command = Command { number: 12, what: "remove all user EIDs", since: "5.15" };
const DUMP_SEID: Command = Command { number: 13, what: "read the system EID", since: "5.15" };
const ENABLE_SEID: Command = Command { number: 14, what: "enable the system EID", since: "5.15 on s390x" };
const DISABLE_SEID: Command = Command { number: 15, what: "disable the system EID", since: "5.15 on s390x" };
const DUMP_HS_LIMITATION: Command =
    Command { number: 16, what: "read the handshake limitation", since: "5.18" };
const ENABLE_HS_LIMITATION: Command =
    Command { number: 17, what: "enable the handshake limitation", since: "5.18" };
const DISABLE_HS_LIMITATION: Command =
    Command { number: 18, what: "disable the handshake limitation", since: "5.18" };

/// All commands that this program uses.
const COMMANDS: [Command; 18] = [
    GET_SYSTEM_INFO,
    GET_RDMA_LINK_GROUPS,
    GET_LINKS,
    GET_ISM_LINK_GROUPS,
    GET_ISM_DEVICES,
    GET_RDMA_DEVICES,
    GET_STATISTICS,
    GET_FALLBACK_STATS,
    DUMP_USER_EIDS,
    ADD_USER_EID,
    REMOVE_USER_EID,
    FLUSH_USER_EIDS,
    DUMP_SEID,
    ENABLE_SEID,
    DISABLE_SEID,
    DUMP_HS_LIMITATION,
    ENABLE_HS_LIMITATION,
    DISABLE_HS_LIMITATION,
];

/// The commands that this program uses, and whether the running kernel knows each.
pub fn commands() -> Result<Vec<(Command, bool)>> {
    let known = FamilySocket::commands(&FAMILY)?;
    Ok(COMMANDS.map(|command| (command, known.contains(&u32::from(command.number)))).into())
}

/// The commands that this program uses, on whichever kernel.
pub fn wanted_commands() -> &'static [Command] {
    &COMMANDS
}

/// `SMC_GEN_SYS_INFO`: the nest around an entry of [`GET_SYSTEM_INFO`].
const NEST_SYSTEM_INFO: u16 = 1;
/// `SMC_GEN_LGR_SMCR`.
const NEST_RDMA_LINK_GROUP: u16 = 2;
/// `SMC_GEN_LINK_SMCR`.
const NEST_LINK: u16 = 3;
/// `SMC_GEN_LGR_SMCD`.
const NEST_ISM_LINK_GROUP: u16 = 4;
/// `SMC_GEN_DEV_SMCD`.
const NEST_ISM_DEVICE: u16 = 5;
/// `SMC_GEN_DEV_SMCR`.
const NEST_RDMA_DEVICE: u16 = 6;
/// `SMC_GEN_STATS`.
const NEST_STATISTICS: u16 = 7;
/// `SMC_GEN_FBACK_STATS`: the nest around an entry of [`GET_FALLBACK_STATS`].
const NEST_FALLBACK_STATS: u16 = 8;
/// `SMC_NLA_EID_TABLE_ENTRY`, text.
const EID_ENTRY: u16 = 1;
/// `SMC_NLA_HS_LIMITATION_ENABLED`, u8.
const HS_LIMITATION_ENABLED: u16 = 1;

/// A connection to the family. Statistics and the handshake limitation are those of the network namespace in which it
/// was opened; EIDs are the whole kernel's.
#[derive(Debug)]
pub struct Smc {
    socket: FamilySocket,
}

impl Smc {
    /// Finds the family and opens a socket.
    pub fn open() -> Result<Self> {
        FamilySocket::open(&FAMILY).map(|socket| Self { socket })
    }

    /// What the kernel says of itself; `None` if it sent nothing.
    pub fn system_info(&mut self) -> Result<Option<SystemInfo>> {
        let infos = self.nested(GET_SYSTEM_INFO, NEST_SYSTEM_INFO, SystemInfo::parse)?;
        Ok(infos.into_iter().next())
    }

    /// The kernel's own count of fallbacks in this network namespace.
    pub fn fallback_stats(&mut self) -> Result<FallbackStats> {
        let entries = self.nested(GET_FALLBACK_STATS, NEST_FALLBACK_STATS, fallback::Entry::parse)?;
        Ok(entries.into_iter().collect())
    }

    /// The statistics of this network namespace; `None` if the kernel sent nothing.
    pub fn statistics(&mut self) -> Result<Option<Statistics>> {
        Ok(self.nested(GET_STATISTICS, NEST_STATISTICS, Statistics::parse)?.into_iter().next())
    }

    /// The RDMA devices that SMC-R may use, those of all network namespaces.
    pub fn rdma_devices(&mut self) -> Result<Vec<RdmaDevice>> {
        self.nested(GET_RDMA_DEVICES, NEST_RDMA_DEVICE, RdmaDevice::parse)
    }

    /// The ISM devices that SMC-D may use; the kernel does not list the dibs loopback device.
    pub fn ism_devices(&mut self) -> Result<Vec<IsmDevice>> {
        self.nested(GET_ISM_DEVICES, NEST_ISM_DEVICE, IsmDevice::parse)
    }

    /// The SMC-R link groups, those of all network namespaces.
    pub fn rdma_link_groups(&mut self) -> Result<Vec<RdmaLinkGroup>> {
        self.nested(GET_RDMA_LINK_GROUPS, NEST_RDMA_LINK_GROUP, RdmaLinkGroup::parse)
    }

    /// The SMC-D link groups, those of all network namespaces.
    pub fn ism_link_groups(&mut self) -> Result<Vec<IsmLinkGroup>> {
        self.nested(GET_ISM_LINK_GROUPS, NEST_ISM_LINK_GROUP, IsmLinkGroup::parse)
    }

    /// The links of the SMC-R link groups, each with its group.
    pub fn links(&mut self) -> Result<Vec<(RdmaLinkGroup, Link)>> {
        // The kernel sends a group, then its links.
        let mut group = None;
        let links = self.socket.list(GET_LINKS, |attributes| {
            if let Some(nest) = attributes.clone().find(NEST_RDMA_LINK_GROUP)? {
                group = Some(RdmaLinkGroup::parse(nest.nested())?);
            }
            let link = attributes.find(NEST_LINK)?.map(|nest| Link::parse(nest.nested())).transpose()?;
            Ok(link.zip(group.clone()).map(|(link, group)| (group, link)))
        })?;
        Ok(links)
    }

    /// The user EIDs, in the order in which they are offered.
    pub fn user_eids(&mut self) -> Result<Vec<String>> {
        self.socket.list(DUMP_USER_EIDS, |attributes| {
            let entry = attributes.find(EID_ENTRY)?;
            Ok(entry.map(|entry| entry.text().trim_end().to_owned()))
        })
    }

    /// Adds a user EID.
    pub fn add_user_eid(&mut self, eid: &Eid) -> Result<()> {
        self.change_eid(ADD_USER_EID, eid)
    }

    /// Removes a user EID.
    pub fn remove_user_eid(&mut self, eid: &Eid) -> Result<()> {
        match self.change_eid(REMOVE_USER_EID, eid) {
            // s390x: "removed, and since it was the last one the system EID is enabled".
            Err(error) if error.errno() == Some(Errno::EAGAIN) => Ok(()),
            other => other,
        }
    }

    /// Removes all user EIDs.
    pub fn flush_user_eids(&mut self) -> Result<()> {
        self.switch(FLUSH_USER_EIDS)
    }

    /// The system EID; `None` where there is no ISM device of version 2.
    pub fn seid(&mut self) -> Result<Option<Seid>> {
        let seids = self.socket.list(DUMP_SEID, Seid::parse)?;
        Ok(seids.into_iter().next())
    }

    /// Lets SMC-D offer the system EID (s390x).
    pub fn enable_seid(&mut self) -> Result<()> {
        self.switch(ENABLE_SEID)
    }

    /// Keeps SMC-D from offering the system EID (s390x); refused while there is no user EID.
    pub fn disable_seid(&mut self) -> Result<()> {
        self.switch(DISABLE_SEID).map_err(|error| {
            error.meaning(|errno| {
                (errno == Errno::ENOENT).then_some("it is the only EID that is left: add a user EID first")
            })
        })
    }

    /// Whether listeners refuse SMC while handshakes queue up; `None` if the kernel sent nothing.
    pub fn handshake_limitation(&mut self) -> Result<Option<bool>> {
        let states = self.socket.list(DUMP_HS_LIMITATION, handshake_limitation)?;
        Ok(states.into_iter().next())
    }

    /// Turns the handshake limitation of this network namespace on or off.
    pub fn set_handshake_limitation(&mut self, on: bool) -> Result<()> {
        self.switch(if on { ENABLE_HS_LIMITATION } else { DISABLE_HS_LIMITATION })
    }

    fn nested<T>(
        &mut self,
        command: Command,
        nest: u16,
        parse: impl Fn(Attributes<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.socket
            .list(command, |attributes| attributes.find(nest)?.map(|nest| parse(nest.nested())).transpose())
    }

    fn switch(&mut self, command: Command) -> Result<()> {
        let request = self.socket.prepare(command);
        self.socket.run(command, &request)
    }

    fn change_eid(&mut self, command: Command, eid: &Eid) -> Result<()> {
        let request = self.socket.prepare(command).text(EID_ENTRY, &eid.padded());
        self.socket.run(command, &request).map_err(meaning_of_eid_error)
    }
}

/// The error numbers of `net/smc/smc_clc.c`: `smc_clc_ueid_add` and `smc_clc_ueid_remove`.
fn meaning_of_eid_error(error: Error) -> Error {
    error.meaning(|errno| match errno {
        Errno::ERANGE => Some("the kernel's table is full (4 user EIDs): remove one first"),
        Errno::EEXIST => Some("the kernel has it already"),
        Errno::ENOENT => Some("the kernel does not have it"),
        Errno::EINVAL => Some("the kernel does not accept it as a user EID"),
        _ => None,
    })
}

fn handshake_limitation(attributes: Attributes<'_>) -> Result<Option<bool>> {
    let enabled = attributes.find(HS_LIMITATION_ENABLED)?;
    enabled.map(|enabled| enabled.u8().map(|value| value != 0)).transpose()
}
