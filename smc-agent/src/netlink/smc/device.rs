//! The devices that SMC may use (`net/smc/smc_ib.c`, `net/smc/smc_ism.c`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::netlink::error::Result;
use crate::netlink::wire::{Attribute, Attributes};

// The attributes of the enumeration that begins with SMC_NLA_DEV_UNSPEC.
const USE_COUNT: u16 = 1;
const IS_CRITICAL: u16 = 2;
const PCI_FID: u16 = 3;
const PCI_CHID: u16 = 4;
const PCI_VENDOR: u16 = 5;
const PCI_DEVICE: u16 = 6;
const PCI_ID: u16 = 7;
const PORT: u16 = 8;
const PORT2: u16 = 9;
const RDMA_NAME: u16 = 10;

// The attributes of the enumeration that begins with SMC_NLA_DEV_PORT_UNSPEC.
const PNET_BY_USER: u16 = 1;
const PNET_ID: u16 = 2;
const INTERFACE: u16 = 3;
const STATE: u16 = 4;
const LINKS: u16 = 6;

/// Where a device sits on the PCI bus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pci {
    /// The function id (s390x).
    pub fid: u32,
    /// The channel path id (s390x).
    pub chid: u64,
    /// The vendor's number.
    pub vendor: u16,
    /// The device's number: what smc-tools call the type.
    pub device: u16,
    /// The address, as `0000:00:05.0`.
    pub id: String,
}

impl Pci {
    /// Takes an attribute that belongs here; false if it does not.
    fn take(&mut self, attribute: &Attribute<'_>) -> Result<bool> {
        match attribute.kind {
            PCI_FID => self.fid = attribute.u32()?,
            PCI_CHID => self.chid = attribute.unsigned()?,
            PCI_VENDOR => self.vendor = attribute.u16()?,
            PCI_DEVICE => self.device = attribute.u16()?,
            PCI_ID => self.id = attribute.text(),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A port of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RdmaPort {
    /// Its number, 1 or 2.
    pub number: u8,
    /// Its PNET id.
    pub pnet_id: Option<String>,
    /// Whether the PNET id was set by a user.
    pub pnet_by_user: bool,
    /// The index of the network interface; 0 is none. An index says nothing outside the interface's namespace.
    pub interface_index: u32,
    /// Whether it is active.
    pub active: bool,
    /// How many links use it.
    pub links: u32,
}

impl RdmaPort {
    fn parse(number: u8, attributes: Attributes<'_>) -> Result<Self> {
        let mut port = Self { number, ..Self::default() };
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                PNET_BY_USER => port.pnet_by_user = attribute.u8()? != 0,
                PNET_ID => port.pnet_id = attribute.label(),
                INTERFACE => port.interface_index = attribute.u32()?,
                STATE => port.active = attribute.u8()? != 0,
                LINKS => port.links = attribute.u32()?,
                _ => {}
            }
        }
        Ok(port)
    }
}

/// A device for SMC-R.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RdmaDevice {
    /// Its name.
    pub name: String,
    /// Whether a link group has no other device to turn to.
    pub critical: bool,
    /// Its place on the PCI bus; `null` for devices without (Soft-RoCE).
    pub pci: Option<Pci>,
    /// Its ports.
    pub ports: Vec<RdmaPort>,
}

impl RdmaDevice {
    pub(super) fn parse(attributes: Attributes<'_>) -> Result<Self> {
        let mut device = Self::default();
        let mut pci = Pci::default();
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                RDMA_NAME => device.name = attribute.text(),
                IS_CRITICAL => device.critical = attribute.u8()? != 0,
                PORT => device.ports.push(RdmaPort::parse(1, attribute.nested())?),
                PORT2 => device.ports.push(RdmaPort::parse(2, attribute.nested())?),
                _ => {
                    if pci.take(&attribute)? {
                        device.pci = Some(pci.clone());
                    }
                }
            }
        }
        Ok(device)
    }
}

/// A device for SMC-D.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IsmDevice {
    /// Its place on the PCI bus.
    pub pci: Pci,
    /// Whether it is in use.
    pub critical: bool,
    /// How many link groups use it.
    pub link_groups: u32,
    /// Its PNET id.
    pub pnet_id: Option<String>,
    /// Whether the PNET id was set by a user.
    pub pnet_by_user: bool,
}

impl IsmDevice {
    pub(super) fn parse(attributes: Attributes<'_>) -> Result<Self> {
        let mut device = Self::default();
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                USE_COUNT => device.link_groups = attribute.u32()?,
                IS_CRITICAL => device.critical = attribute.u8()? != 0,
                PORT => {
                    let port = RdmaPort::parse(1, attribute.nested())?;
                    (device.pnet_id, device.pnet_by_user) = (port.pnet_id, port.pnet_by_user);
                }
                _ => drop(device.pci.take(&attribute)?),
            }
        }
        Ok(device)
    }
}
