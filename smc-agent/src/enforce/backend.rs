//! The ways to enforce a policy, and the choice among them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A way to enforce a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// The kernel asks before it puts the option into a SYN or SYN-ACK: `struct smc_hs_ctrl`.
    HsCtrl,
    /// Traffic control rewrites SYNs.
    Tc,
    /// Nothing is enforced, only observed.
    Observe,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HsCtrl => "hs-ctrl",
            Self::Tc => "tc",
            Self::Observe => "observe",
        })
    }
}

/// Which backend the user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BackendChoice {
    /// The best one that this kernel really loads: hs-ctrl, else tc.
    Auto,
    /// `struct_ops` `smc_hs_ctrl` (6.19 and later).
    HsCtrl,
    /// Traffic control: rewrites SYNs (6.6 and later).
    Tc,
    /// Enforce nothing, only show fallbacks.
    Observe,
}

impl BackendChoice {
    /// The backends to try, the best first.
    pub fn candidates(self) -> &'static [Backend] {
        match self {
            Self::Auto => &[Backend::HsCtrl, Backend::Tc],
            Self::HsCtrl => &[Backend::HsCtrl],
            Self::Tc => &[Backend::Tc],
            Self::Observe => &[Backend::Observe],
        }
    }
}

/// A backend that was considered, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Candidate {
    /// Which one.
    pub backend: Backend,
    /// Whether it is the one in use.
    pub chosen: bool,
    /// Why, or why not.
    pub reason: String,
}
