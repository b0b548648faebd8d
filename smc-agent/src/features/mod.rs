//! What the running kernel has, and what this program can do with it: each statement is the outcome of looking or trying, none
//! is derived from the kernel's version. Nothing is changed: what is tried goes again at once, and no module is loaded unless
//! that is asked for.

mod abilities;
mod facts;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    kernel::{btf::BtfError, features::Features, trial},
    privileges::{Capabilities, Capability},
};

/// Version of the form.
const VERSION: u32 = 1;
/// What trying takes.
const NEEDED: [Capability; 2] = [Capability::NetAdmin, Capability::SysAdmin];

/// Whether something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// It is in a module that is there but not loaded.
    Loadable,
    /// It could not be found out; the detail says why.
    Unknown,
}

/// A part of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Feature {
    /// Its name for programs.
    pub id: String,
    /// What it is.
    pub what: String,
    /// The first version of Linux that has it; `null` for what is not in Linux itself.
    pub since: Option<String>,
    /// Whether this kernel has it.
    pub state: State,
    /// Which form it has, or why it is missing or not known.
    pub detail: Option<String>,
}

/// Something that this program does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Ability {
    /// Its name for programs.
    pub id: String,
    /// What it is.
    pub what: String,
    /// Whether it works on this kernel.
    pub state: State,
    /// By which way it works, or why it does not.
    pub detail: Option<String>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Report {
    /// Version of this form.
    pub version: u32,
    /// `uname -r`.
    pub kernel: String,
    /// Capabilities that were missing, so that some is not known.
    pub missing_capabilities: Vec<String>,
    /// What the kernel has.
    pub features: Vec<Feature>,
    /// What this program can do.
    pub abilities: Vec<Ability>,
}

/// What the statements are made from.
struct Seen {
    features: Result<Features, BtfError>,
    /// `uname -r`.
    release: String,
    /// Whether SMC is there to be asked.
    smc: trial::ModuleState,
    /// What was tried; else why not.
    trial: Result<trial::Trial, String>,
}

impl Seen {
    /// Why what is in SMC cannot be told, if SMC is not there to be asked.
    fn without_smc(&self) -> Option<(State, String)> {
        match self.smc {
            trial::ModuleState::Loaded | trial::ModuleState::BuiltIn => None,
            trial::ModuleState::Loadable => Some((State::Unknown, NOT_LOADED.to_owned())),
            trial::ModuleState::Absent => Some((State::No, "this kernel has no SMC".to_owned())),
        }
    }

    fn trial(&self) -> Result<&trial::Trial, String> {
        self.trial.as_ref().map_err(Clone::clone)
    }
}

const NOT_LOADED: &str = "not known before module smc is loaded (--load-module does it)";

impl Report {
    /// Looks at the running kernel. With `load_module` SMC's module is loaded before.
    pub fn read(load_module: bool) -> Self {
        let missing = Capabilities::effective().missing(&NEEDED);
        let features = Features::of_running_kernel(load_module);
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let release = release.trim().to_owned();
        let trial = match &features {
            _ if !missing.is_empty() => Err(format!("not known without {}", missing.join(" and "))),
            Ok(features) => Ok(trial::try_all(features)),
            Err(error) => Err(error.to_string()),
        };
        let smc = facts::smc(features.as_ref().ok(), &release);
        let seen = Seen { features, release, smc, trial };
        let features = facts::facts(&seen);
        let abilities = abilities::abilities(&seen, &features);
        Self {
            version: VERSION,
            kernel: seen.release,
            missing_capabilities: missing.iter().map(ToString::to_string).collect(),
            features,
            abilities,
        }
    }
}
