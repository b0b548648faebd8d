//! The devices that SMC may use.

use std::fs;

use schemars::JsonSchema;
use serde::Serialize;

use super::error::Result;
use super::groups::Interfaces;
use crate::netlink::smc::{IsmDevice, RdmaDevice, Smc};

/// A device of the dibs class. SMC's own list leaves out the loopback device, over which SMC-D runs on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DibsDevice {
    /// Its name.
    pub name: String,
    /// Its GID.
    pub gid: Option<String>,
    /// Its fabric.
    pub fabric_id: Option<String>,
}

/// The devices of all network namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Devices {
    /// Those for SMC-R.
    pub smcr: Vec<RdmaDevice>,
    /// Those for SMC-D that SMC lists.
    pub smcd: Vec<IsmDevice>,
    /// All dibs devices, of which the loopback device is not among `smcd`; empty before 6.18.
    pub dibs: Vec<DibsDevice>,
    /// The names of the interfaces that the ports of `smcr` are on, by index, in this network namespace.
    pub interfaces: Vec<NamedInterface>,
}

/// An interface of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NamedInterface {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
}

impl Devices {
    /// Reads them.
    pub fn read() -> Result<Self> {
        let mut smc = Smc::open()?;
        let smcr = smc.rdma_devices()?;
        let names = Interfaces::read();
        let mut indexes: Vec<_> =
            smcr.iter().flat_map(|device| &device.ports).map(|port| port.interface_index).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let interfaces = indexes
            .into_iter()
            .filter_map(|index| names.name(index).map(|name| NamedInterface { index, name }))
            .collect();
        Ok(Self { smcd: smc.ism_devices()?, dibs: dibs(), interfaces, smcr })
    }

    /// The name of the interface with this index.
    pub fn interface(&self, index: u32) -> Option<&str> {
        self.interfaces
            .iter()
            .find(|interface| interface.index == index)
            .map(|interface| interface.name.as_str())
    }
}

fn dibs() -> Vec<DibsDevice> {
    let mut devices: Vec<_> = fs::read_dir("/sys/class/dibs")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| {
            let read = |name: &str| {
                let text = fs::read_to_string(entry.path().join(name)).ok()?;
                Some(text.trim_end().to_owned())
            };
            DibsDevice {
                name: entry.file_name().to_string_lossy().into_owned(),
                gid: read("gid"),
                fabric_id: read("fabric_id"),
            }
        })
        .collect();
    devices.sort_by(|one, other| one.name.cmp(&other.name));
    devices
}
