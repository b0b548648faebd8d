//! What the kernel's SMC is, and how it is set up.

use std::fs;

use schemars::JsonSchema;
use serde::Serialize;

use super::error::{Result, ShowError};
use crate::netlink::smc::{Smc, SystemInfo};

/// Where the sysctls lie.
const FOLDER: &str = "/proc/sys/net/smc";
/// Their defaults in Linux 7.3 (`smc_sysctl_net_init`, `net/smc/smc_sysctl.c`).
const DEFAULTS: [(&str, &str); 11] = [
    ("autocorking_size", "65536"),
    ("hs_ctrl", ""),
    ("limit_smc_hs", "0"),
    ("rmem", "65536"),
    ("smcr_buf_type", "0"),
    ("smcr_max_conns_per_lgr", "255"),
    ("smcr_max_links_per_lgr", "2"),
    ("smcr_max_recv_wr", "48"),
    ("smcr_max_send_wr", "16"),
    ("smcr_testlink_time", "30"),
    ("wmem", "65536"),
];

/// A setting under net.smc.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Sysctl {
    /// Its name without `net.smc.`.
    pub name: String,
    /// Its value; `null` if it cannot be read.
    pub value: Option<String>,
    /// Its default in Linux 7.3; `null` for settings that Linux does not have.
    pub default: Option<String>,
}

/// What the kernel's SMC is, and how it is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Info {
    /// The kernel's release.
    pub kernel: String,
    /// What the kernel says of its SMC.
    pub smc: SystemInfo,
    /// The settings of this network namespace, by name; empty before 5.18.
    pub sysctls: Vec<Sysctl>,
}

impl Info {
    /// Reads it.
    pub fn read() -> Result<Self> {
        let release = "/proc/sys/kernel/osrelease";
        let kernel = fs::read_to_string(release).map_err(ShowError::io(format!("read {release}")))?;
        let smc = Smc::open()?.system_info()?;
        let smc = smc.ok_or_else(|| ShowError::Missing("the kernel says nothing of its SMC".to_owned()))?;
        Ok(Self { kernel: kernel.trim_end().to_owned(), smc, sysctls: sysctls() })
    }
}

fn sysctls() -> Vec<Sysctl> {
    let mut sysctls: Vec<_> = fs::read_dir(FOLDER)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let value = fs::read_to_string(entry.path()).ok().map(|text| text.trim_end().to_owned());
            let default =
                DEFAULTS.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
            Sysctl { name, value, default }
        })
        .collect();
    sysctls.sort_by(|one, other| one.name.cmp(&other.name));
    sysctls
}
