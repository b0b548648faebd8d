//! What is converted, in words: kept beside the pins, so that names, switches and former sysctl values are known without a
//! running agent and after a restart.

use std::{fs, io, path::PathBuf};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::table::Entry;
use crate::{
    enforce::{Places, at},
    files,
    kernel::maps::monotonic_now,
    policy::{Convert, Selectors},
};

const VERSION: u32 = 1;

/// A way to convert sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mechanism {
    /// A program at `update_socket_protocol()` chooses `IPPROTO_SMC`.
    Bpf,
    /// `net.smc.tcp2smc` of whole network namespaces.
    Sysctl,
}

impl std::fmt::Display for Mechanism {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bpf => "bpf",
            Self::Sysctl => "sysctl",
        })
    }
}

/// Whether sockets are converted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// They become SMC ones.
    On,
    /// They stay TCP.
    #[default]
    Off,
}

impl From<bool> for Switch {
    fn from(on: bool) -> Self {
        if on { Self::On } else { Self::Off }
    }
}

impl std::fmt::Display for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// A rule of the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConvertRuleRecord {
    /// Its name.
    pub name: String,
    /// What it does.
    pub action: Switch,
    /// Whose sockets it is about.
    pub selectors: Selectors,
    /// The file that it stands in.
    pub file: PathBuf,
    /// The line of that file, from 1.
    pub line: u32,
}

/// What a quick switch is about: one of the two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// A cgroup v2, by its path in the hierarchy, and all below it.
    Cgroup(String),
    /// A network namespace, by its name or path.
    Netns(String),
}

impl Target {
    fn selectors(&self) -> Selectors {
        match self {
            Self::Cgroup(path) => Selectors { cgroup: Some(vec![path.clone()]), ..Selectors::default() },
            Self::Netns(name) => Selectors { netns: Some(vec![name.clone()]), ..Selectors::default() },
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cgroup(path) => write!(f, "cgroup {path}"),
            Self::Netns(name) => write!(f, "netns {name}"),
        }
    }
}

/// A quick switch: comes before all rules of the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SwitchRecord {
    /// What it does.
    pub action: Switch,
    /// What it is about.
    pub target: Target,
    /// When it ends; `None` (null) if it does not.
    pub until: Option<Timestamp>,
    /// The same as `CLOCK_MONOTONIC` in nanoseconds, by which the kernel ends it; 0 if it does not end.
    pub deadline: u64,
}

/// A sysctl that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FormerSysctl {
    /// The network namespace, by its path.
    pub netns: PathBuf,
    /// Its inode.
    pub inode: u64,
    /// The value from before.
    pub value: String,
}

/// Everything that is converted, and what has to be undone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConvertRecord {
    /// Version of this form.
    pub version: u32,
    /// How it is done; `None` (null) if nothing is to be converted, or cannot be.
    pub mechanism: Option<Mechanism>,
    /// Counts up with every change of what is in the kernel.
    pub generation: u64,
    /// What happens to sockets that no rule matches.
    pub default: Switch,
    /// The rules of the policy, in order.
    pub rules: Vec<ConvertRuleRecord>,
    /// The switches, which come first.
    pub switches: Vec<SwitchRecord>,
    /// What sysctls were before.
    pub sysctls: Vec<FormerSysctl>,
}

impl ConvertRecord {
    /// Reads the record; an empty one if there is none.
    pub fn read(places: &Places) -> io::Result<Self> {
        let path = places.convert_record();
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| at("read", &path)(error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Self { version: VERSION, ..Self::default() })
            }
            Err(error) => Err(at("read", &path)(error)),
        }
    }

    /// Writes the record to its place; nothing is there half written.
    pub fn write(&self, places: &Places) -> io::Result<()> {
        files::write_json(&places.convert_record(), self)
    }

    /// Takes the rules of a policy.
    pub fn set_policy(&mut self, convert: Option<&Convert>) {
        self.default = convert.is_some_and(|convert| convert.default_on).into();
        let rules = convert.map(|convert| convert.rules.as_slice()).unwrap_or_default();
        self.rules = rules
            .iter()
            .map(|rule| ConvertRuleRecord {
                name: rule.name.clone(),
                action: rule.on.into(),
                selectors: rule.selectors.clone(),
                file: rule.place.file.clone(),
                line: rule.place.line,
            })
            .collect();
    }

    /// Forgets switches whose time has passed.
    pub fn drop_expired(&mut self) {
        let now = monotonic_now();
        self.switches.retain(|switch| switch.deadline == 0 || switch.deadline > now);
    }

    /// Whether anything is to be converted.
    pub fn converts(&self) -> bool {
        let on = Switch::On;
        self.default == on
            || self.rules.iter().any(|rule| rule.action == on)
            || self.switches.iter().any(|switch| switch.action == on)
    }

    /// Switches and rules as they are compiled, in this order.
    pub fn entries(&self) -> Vec<Entry> {
        let switches = self.switches.iter().map(|switch| Entry {
            on: switch.action == Switch::On,
            selectors: switch.target.selectors(),
            deadline: switch.deadline,
        });
        let rules = self.rules.iter().map(|rule| Entry {
            on: rule.action == Switch::On,
            selectors: rule.selectors.clone(),
            deadline: 0,
        });
        switches.chain(rules).collect()
    }
}
