//! What makes connections fall back, undone when it is dropped.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use smc_agent::netlink::smc::Smc;

/// `SMC_CLC_DECL_*` (`net/smc/smc_clc.h`).
pub(crate) const PEER_NO_SMC: u32 = 0x0301_0000;
pub(crate) const NO_DEVICE: u32 = 0x0303_0000;
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
