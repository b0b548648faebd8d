//! What makes connections fall back, undone when it is dropped.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use smc_agent::netlink::pnet::{PnetDevice, PnetTable};
use smc_agent::netlink::smc::Smc;
use smc_agent_tests::netns;
use smc_agent_tests::pair::{Kind, Mode, Pair, run};
use smc_agent_tests::setup::{RXE_DEVICE, add_soft_roce};
use smc_agent_tests::wait::wait_until;

use crate::scene::{SOON, has_dibs};

/// `SMC_CLC_DECL_*` (`net/smc/smc_clc.h`).
pub(crate) const PEER_NO_SMC: u32 = 0x0301_0000;
pub(crate) const TIMEOUT: u32 = 0x0201_0000;
pub(crate) const IPSEC: u32 = 0x0302_0000;
pub(crate) const NO_DEVICE: u32 = 0x0303_0000;
pub(crate) const NO_RDMA_DEVICE: u32 = 0x0303_0002;
pub(crate) const DIFFERENT_NETWORK: u32 = 0x0307_0000;
pub(crate) const NO_USER_EID: u32 = 0x0303_0008;
pub(crate) const OPTION: u32 = 0x0306_0000;
pub(crate) const PEER_DECLINED: u32 = 0x0500_0000;

/// A sysctl with another value.
pub(crate) struct Sysctl {
    path: PathBuf,
    former: String,
}

impl Sysctl {
    pub(crate) fn set(name: &str, value: &str) -> Result<Self> {
        let path = PathBuf::from("/proc/sys").join(name);
        let former = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        fs::write(&path, value).with_context(|| path.display().to_string())?;
        Ok(Self { path, former })
    }
}

impl Drop for Sysctl {
    fn drop(&mut self) {
        // The next test says what is wrong if it was not set back.
        let _ = fs::write(&self.path, self.former.trim());
    }
}

/// No user EID, until it is dropped.
pub(crate) struct NoUserEid(Vec<String>);

impl NoUserEid {
    pub(crate) fn new() -> Result<Self> {
        let mut smc = Smc::open()?;
        let former = smc.user_eids()?;
        smc.flush_user_eids()?;
        Ok(Self(former))
    }
}

impl Drop for NoUserEid {
    fn drop(&mut self) {
        let restore = || -> Result<()> {
            let mut smc = Smc::open()?;
            for eid in &self.0 {
                smc.add_user_eid(&eid.parse()?)?;
            }
            Ok(())
        };
        // The next test says what is wrong if they were not set back.
        let _ = restore();
    }
}

/// An entry of the PNET table, until it is dropped.
struct Pnet(&'static str);

impl Pnet {
    fn new(id: &'static str, devices: &[PnetDevice]) -> Result<Self> {
        let this = Self(id);
        for device in devices {
            PnetTable::open()?.add(&id.parse()?, device)?;
        }
        Ok(this)
    }
}

impl Drop for Pnet {
    fn drop(&mut self) {
        let remove = || -> Result<()> { Ok(PnetTable::open()?.delete(&self.0.parse()?)?) };
        // The next test says what is wrong if it is still there.
        let _ = remove();
    }
}

/// SMC-R within this host, in place of SMC-D where there is that, until it is dropped.
pub(crate) struct SmcR {
    _without_dibs: Option<Pnet>,
}

impl SmcR {
    /// Without a device for SMC-D: the one that there is belongs to another physical network.
    pub(crate) fn keep_dibs_away() -> Result<Self> {
        let device = PnetDevice::Rdma { name: "lo".to_owned(), port: 1 };
        Ok(Self { _without_dibs: Some(Pnet::new("NODNET", &[device])?) })
    }

    pub(crate) fn new() -> Result<Self> {
        let this = if has_dibs() { Self::keep_dibs_away()? } else { Self { _without_dibs: None } };
        // A new one: the link groups of the former have been through other tests.
        remove_rdma(RXE_DEVICE)?;
        restore_soft_roce()?;
        Ok(this)
    }
}

impl Drop for SmcR {
    fn drop(&mut self) {
        // Where it is all that there is, the next test needs it.
        let _ = if has_dibs() { remove_rdma(RXE_DEVICE) } else { restore_soft_roce() };
    }
}

fn wait_for_smc_r() -> Result<()> {
    wait_until("SMC-R within this host", SOON, || {
        let pair = Pair::new(Kind::Smc, Kind::Smc, ([127, 0, 0, 1], 0).into());
        // A device that is not ready yet may take a handshake with it.
        let ends = run(&Pair { timeout: Duration::from_secs(5), ..pair });
        Ok(ends.is_ok_and(|ends| ends.client.mode == Mode::SmcR).then_some(()))
    })
}

fn restore_soft_roce() -> Result<()> {
    add_soft_roce("lo", RXE_DEVICE)?;
    wait_for_smc_r()
}

/// Waits until SMC has an RDMA device, and its port is active.
pub(crate) fn wait_for_rdma(name: &str) -> Result<()> {
    wait_until("the RDMA device is active", SOON, || {
        let devices = Smc::open()?.rdma_devices()?;
        let mut named = devices.iter().filter(|device| device.name == name);
        Ok(named.any(|device| device.ports.iter().any(|port| port.active)).then_some(()))
    })
}

/// Removes an RDMA device, if it is there.
fn remove_rdma(name: &str) -> Result<()> {
    if Path::new("/sys/class/infiniband").join(name).exists() {
        netns::command("rdma", &["link", "delete", name])?;
    }
    Ok(())
}

/// The only RDMA device is one that drops all packets, until this is dropped.
pub(crate) struct NotConfirmed {
    _without_dibs: Option<SmcR>,
    _network: Pnet,
}

impl NotConfirmed {
    const INTERFACE: &str = "evdummy";
    pub(crate) const DEVICE: &str = "rxedummy";

    pub(crate) fn new() -> Result<Self> {
        let without_dibs = has_dibs().then(SmcR::keep_dibs_away).transpose()?;
        remove_rdma(RXE_DEVICE)?;
        netns::command("ip", &["link", "add", Self::INTERFACE, "type", "dummy"])?;
        netns::command("ip", &["address", "add", "10.97.0.1/24", "dev", Self::INTERFACE])?;
        netns::command("ip", &["link", "set", Self::INTERFACE, "up"])?;
        add_soft_roce(Self::INTERFACE, Self::DEVICE)?;
        // Connections to its own address go through lo.
        let rdma = PnetDevice::Rdma { name: Self::DEVICE.to_owned(), port: 1 };
        let network = Pnet::new("EVENTNET", &[PnetDevice::Ethernet("lo".to_owned()), rdma])?;
        wait_for_rdma(Self::DEVICE)?;
        Ok(Self { _without_dibs: without_dibs, _network: network })
    }

    /// Where connections go over it.
    pub(crate) const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 97, 0, 1));
}

impl Drop for NotConfirmed {
    fn drop(&mut self) {
        let _ = remove_rdma(Self::DEVICE);
        let _ = netns::command("ip", &["link", "delete", Self::INTERFACE]);
        if !has_dibs() {
            // The next test says what is wrong if it is not there.
            let _ = add_soft_roce("lo", RXE_DEVICE);
        }
    }
}
