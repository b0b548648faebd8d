//! What `smc-agent set` changes: EIDs, PNET ids and the handshake limitation.

use schemars::JsonSchema;
use serde::Serialize;

use super::error::{Result, ShowError};
use crate::netlink::pnet::{PnetDevice, PnetTable};
use crate::netlink::smc::{MAX_USER_EIDS, Seid, Smc};

/// The user EIDs, which are the whole kernel's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct UserEids {
    /// In the order in which they are offered.
    pub user_eids: Vec<String>,
    /// How many there can be.
    pub maximum: usize,
}

impl UserEids {
    /// Reads them.
    pub fn read() -> Result<Self> {
        Ok(Self { user_eids: Smc::open()?.user_eids()?, maximum: MAX_USER_EIDS })
    }
}

/// The system EID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SystemEid {
    /// `null` where there is no ISM device of version 2 (it is s390x's).
    pub seid: Option<Seid>,
}

impl SystemEid {
    /// Reads it.
    pub fn read() -> Result<Self> {
        Ok(Self { seid: Smc::open()?.seid()? })
    }
}

/// Whether listeners refuse SMC while handshakes queue up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct HandshakeLimit {
    /// True when they do.
    pub enabled: bool,
}

impl HandshakeLimit {
    /// Reads it.
    pub fn read() -> Result<Self> {
        let enabled = Smc::open()?.handshake_limitation()?;
        let enabled = enabled.ok_or_else(|| ShowError::Missing("the kernel did not say it".to_owned()))?;
        Ok(Self { enabled })
    }
}

/// A line of the PNET table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PnetRow {
    /// The PNET id.
    pub pnet_id: String,
    /// The network interface that has it.
    pub interface: Option<String>,
    /// The RDMA or ISM device that has it.
    pub device: Option<String>,
    /// The device's port.
    pub port: Option<u8>,
}

/// The PNET table. The kernel shows RDMA devices only in the initial network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PnetRows {
    /// Its lines.
    pub entries: Vec<PnetRow>,
}

impl PnetRows {
    /// Reads it.
    pub fn read() -> Result<Self> {
        let entries = PnetTable::open()?.entries()?.into_iter().map(|entry| {
            let (interface, device, port) = match entry.device {
                Some(PnetDevice::Ethernet(name)) => (Some(name), None, None),
                Some(PnetDevice::Rdma { name, port }) => (None, Some(name), Some(port)),
                None => (None, None, None),
            };
            PnetRow { pnet_id: entry.id, interface, device, port }
        });
        Ok(Self { entries: entries.collect() })
    }
}
