//! Links: the queue pairs of an SMC-R link group (`net/smc/smc_core.c`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::netlink::error::Result;
use crate::netlink::wire::Attributes;

/// What a link is doing (`enum smc_link_state`, `net/smc/smc_core.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// Nothing.
    #[default]
    Unused,
    /// It carries nothing.
    Inactive,
    /// It is being set up.
    Activating,
    /// It carries data.
    Active,
    /// A number that this version does not know.
    Unknown(u32),
}

impl From<u32> for LinkState {
    fn from(number: u32) -> Self {
        match number {
            0 => Self::Unused,
            1 => Self::Inactive,
            2 => Self::Activating,
            3 => Self::Active,
            other => Self::Unknown(other),
        }
    }
}

/// One link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Link {
    /// Its number in the link group.
    pub id: u8,
    /// The RDMA device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// This end's GID.
    pub gid: String,
    /// The peer's GID.
    pub peer_gid: String,
    /// How many connections use it.
    pub connections: u32,
    /// The index of the network interface, in its namespace.
    pub interface_index: u32,
    /// This end's identification of the link.
    pub uid: u32,
    /// The peer's identification of the link.
    pub peer_uid: u32,
    /// What it is doing.
    pub state: LinkState,
}

impl Link {
    /// Reads what the enumeration that begins with `SMC_NLA_LINK_UNSPEC` names.
    pub(super) fn parse(attributes: Attributes<'_>) -> Result<Self> {
        let mut link = Self::default();
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                1 => link.id = attribute.u8()?,
                2 => link.device = attribute.text(),
                3 => link.port = attribute.u8()?,
                4 => link.gid = attribute.text(),
                5 => link.peer_gid = attribute.text(),
                6 => link.connections = attribute.u32()?,
                7 => link.interface_index = attribute.u32()?,
                8 => link.uid = attribute.u32()?,
                9 => link.peer_uid = attribute.u32()?,
                10 => link.state = attribute.u32()?.into(),
                _ => {}
            }
        }
        Ok(link)
    }
}
