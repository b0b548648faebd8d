//! Link groups: what connections to one peer share (`net/smc/smc_core.c`).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::netlink::diag::Role;
use crate::netlink::error::Result;
use crate::netlink::wire::Attributes;

/// How many devices of either end a link group has (`enum smc_lgr_type`, `net/smc/smc_core.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Redundancy {
    /// No active link: it will be deleted.
    None,
    /// One on each end.
    Single,
    /// Two on each end.
    Symmetric,
    /// Two here, one at the peer.
    AsymmetricPeer,
    /// One here, two at the peer.
    AsymmetricLocal,
    /// A number that this version does not know.
    Unknown(u8),
}

impl From<u8> for Redundancy {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Single,
            2 => Self::Symmetric,
            3 => Self::AsymmetricPeer,
            4 => Self::AsymmetricLocal,
            other => Self::Unknown(other),
        }
    }
}

/// How SMC-R buffers lie in memory (`enum smcr_buf_type`, `net/smc/smc_core.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BufferType {
    /// Physically contiguous.
    Physical,
    /// Virtually contiguous.
    Virtual,
    /// Physically contiguous where possible.
    Mixed,
    /// A number that this version does not know.
    Unknown(u8),
}

impl From<u8> for BufferType {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::Physical,
            1 => Self::Virtual,
            2 => Self::Mixed,
            other => Self::Unknown(other),
        }
    }
}

/// What the handshake of SMC version 2 agreed on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Negotiated {
    /// The SMC version.
    pub version: u8,
    /// The peer's release of that version.
    pub peer_release: u8,
    /// The peer's operating system: 1 z/OS, 2 Linux, 3 AIX.
    pub peer_os: u8,
    /// The EID.
    pub eid: Option<String>,
    /// The peer's host name.
    pub peer_host: Option<String>,
}

impl Negotiated {
    /// Reads what the enumeration that begins with `SMC_NLA_LGR_V2_VER` names (which is 0).
    fn parse(attributes: Attributes<'_>) -> Result<Self> {
        let mut negotiated = Self::default();
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                0 => negotiated.version = attribute.u8()?,
                1 => negotiated.peer_release = attribute.u8()?,
                2 => negotiated.peer_os = attribute.u8()?,
                3 => negotiated.eid = attribute.label(),
                4 => negotiated.peer_host = attribute.label(),
                _ => {}
            }
        }
        Ok(negotiated)
    }
}

/// An SMC-R link group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RdmaLinkGroup {
    /// Its number.
    pub id: u32,
    /// Which end this host is.
    pub role: Role,
    /// How many devices it has.
    pub redundancy: Redundancy,
    /// Its PNET id.
    pub pnet_id: Option<String>,
    /// The VLAN, of which the kernel sends only the low 8 bits.
    pub vlan: u64,
    /// How many connections it carries.
    pub connections: u32,
    /// The cookie of its network namespace.
    pub netns_cookie: Option<u64>,
    /// How its buffers lie in memory.
    pub buffer_type: Option<BufferType>,
    /// Bytes of send buffers; `null` where the kernel does not say (before 6.12).
    pub send_buffers: Option<u64>,
    /// Bytes of receive buffers (RMBs); `null` where the kernel does not say.
    pub receive_buffers: Option<u64>,
    /// What version 2 agreed on; `null` with version 1.
    pub negotiated: Option<Negotiated>,
    /// Whether the peer is reached without a gateway.
    pub direct: Option<bool>,
    /// How many connections it may carry.
    pub max_connections: Option<u8>,
    /// How many links it may have.
    pub max_links: Option<u8>,
}

impl Default for RdmaLinkGroup {
    fn default() -> Self {
        Self {
            id: 0,
            role: Role::Client,
            redundancy: Redundancy::None,
            pnet_id: None,
            vlan: 0,
            connections: 0,
            netns_cookie: None,
            buffer_type: None,
            send_buffers: None,
            receive_buffers: None,
            negotiated: None,
            direct: None,
            max_connections: None,
            max_links: None,
        }
    }
}

impl RdmaLinkGroup {
    /// Reads what the enumeration that begins with `SMC_NLA_LGR_R_UNSPEC` names.
    pub(super) fn parse(attributes: Attributes<'_>) -> Result<Self> {
        let mut group = Self::default();
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                1 => group.id = attribute.u32()?,
                2 => group.role = attribute.u8()?.into(),
                3 => group.redundancy = attribute.u8()?.into(),
                4 => group.pnet_id = attribute.label(),
                5 => group.vlan = attribute.unsigned()?,
                6 => group.connections = attribute.u32()?,
                7 => group.negotiated = Some(Negotiated::parse(attribute.nested())?),
                8 => group.parse_v2(attribute.nested())?,
                9 => group.netns_cookie = Some(attribute.uint()?),
                11 => group.buffer_type = Some(attribute.u8()?.into()),
                12 => group.send_buffers = Some(attribute.uint()?),
                13 => group.receive_buffers = Some(attribute.uint()?),
                _ => {}
            }
        }
        Ok(group)
    }

    fn parse_v2(&mut self, attributes: Attributes<'_>) -> Result<()> {
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                1 => self.direct = Some(attribute.u8()? != 0),
                2 => self.max_connections = Some(attribute.u8()?),
                3 => self.max_links = Some(attribute.u8()?),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The GID of an ISM or dibs device; as text two hexadecimal numbers, or one where the second is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(into = "String")]
#[schemars(with = "String")]
pub struct IsmGid {
    /// The GID.
    pub gid: u64,
    /// Its extended part: 0 for hardware, and on kernels before 6.7.
    pub extension: u64,
}

impl fmt::Display for IsmGid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.gid)?;
        if self.extension == 0 { Ok(()) } else { write!(formatter, ":{:016x}", self.extension) }
    }
}

impl From<IsmGid> for String {
    fn from(gid: IsmGid) -> Self {
        gid.to_string()
    }
}

/// An SMC-D link group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct IsmLinkGroup {
    /// Its number.
    pub id: u32,
    /// This end's GID.
    pub gid: IsmGid,
    /// The peer's GID.
    pub peer_gid: IsmGid,
    /// The VLAN, of which the kernel sends only the low 8 bits.
    pub vlan: u64,
    /// How many connections it carries.
    pub connections: u32,
    /// Its PNET id.
    pub pnet_id: Option<String>,
    /// The channel path id, or the fabric's.
    pub chid: u64,
    /// Bytes of send buffers; `null` where the kernel does not say (before 6.12).
    pub send_buffers: Option<u64>,
    /// Bytes of receive buffers (DMBs); `null` where the kernel does not say.
    pub receive_buffers: Option<u64>,
    /// What version 2 agreed on; `null` with version 1.
    pub negotiated: Option<Negotiated>,
}

impl IsmLinkGroup {
    /// Reads what the enumeration that begins with `SMC_NLA_LGR_D_UNSPEC` names.
    pub(super) fn parse(attributes: Attributes<'_>) -> Result<Self> {
        let mut group = Self::default();
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                1 => group.id = attribute.u32()?,
                2 => group.gid.gid = attribute.uint()?,
                3 => group.peer_gid.gid = attribute.uint()?,
                4 => group.vlan = attribute.unsigned()?,
                5 => group.connections = attribute.u32()?,
                6 => group.pnet_id = attribute.label(),
                7 => group.chid = attribute.unsigned()?,
                9 => group.negotiated = Some(Negotiated::parse(attribute.nested())?),
                10 => group.gid.extension = attribute.uint()?,
                11 => group.peer_gid.extension = attribute.uint()?,
                12 => group.send_buffers = Some(attribute.uint()?),
                13 => group.receive_buffers = Some(attribute.uint()?),
                _ => {}
            }
        }
        Ok(group)
    }
}
