//! What is converted, as it can be read from the kernel and the record, with or without a running agent.

use std::{collections::BTreeMap, io, path::PathBuf};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smc_agent_common::convert::ConvertCounter;

use super::{
    life::{Lock, mechanism, pins_in_force},
    record::{ConvertRecord, FormerSysctl, Mechanism, Switch, Target},
};
use crate::{
    enforce::Places,
    kernel::convert::{self, ConvertMaps},
    policy::{LIFE_LINES, Selectors},
};

/// Version of the form of the status as JSON.
const VERSION: u32 = 1;

/// What is converted, and by what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConvertStatus {
    /// Version of this form.
    pub version: u32,
    /// How sockets are converted; `None` (null) if they are not.
    pub mechanism: Option<Mechanism>,
    /// What would do it; `None` (null) if this kernel has nothing that would.
    pub available: Option<Mechanism>,
    /// What the kernel lacks; `None` (null) if something is available.
    pub lacks: Option<String>,
    /// Whether something is to be converted.
    pub wanted: bool,
    /// Counts up with every change.
    pub generation: u64,
    /// The switches, which come before the rules.
    pub switches: Vec<SwitchStatus>,
    /// The rules of the policy, in order.
    pub rules: Vec<ConvertRuleStatus>,
    /// What happens to sockets that no rule matches.
    pub default: Switch,
    /// How many sockets the default converted.
    pub default_sockets: u64,
    /// Cgroups of commands under `smc-agent exec`.
    pub exec_groups: usize,
    /// What else was counted, by name; `missed` are sockets that the kernel did not ask about, and that stayed TCP.
    pub counters: BTreeMap<String, u64>,
    /// Namespaces whose sysctl was changed, with the values from before.
    pub sysctls: Vec<FormerSysctl>,
    /// Programs that are converted only by a rule that names them; all whose names begin with `systemd` besides.
    pub life_lines: Vec<String>,
}

/// A switch in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SwitchStatus {
    /// What it does.
    pub action: Switch,
    /// What it is about.
    pub target: Target,
    /// When it ends.
    pub until: Option<Timestamp>,
    /// How many sockets it decided since the last change; `None` (null) where that is not counted.
    pub sockets: Option<u64>,
}

/// A rule in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConvertRuleStatus {
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
    /// How many sockets it decided since the last change; `None` (null) where that is not counted.
    pub sockets: Option<u64>,
}

impl ConvertStatus {
    /// Reads what is in the kernel.
    pub fn read(places: &Places) -> io::Result<Self> {
        // Records and counters of one generation. Where nothing was ever enforced there is no folder for a lock.
        let _lock = Lock::take(places).ok();
        let mut record = ConvertRecord::read(places)?;
        let all = record.switches.len();
        let pins = pins_in_force(places);
        let (hits, default_sockets, mut counters, exec_groups) = match &pins {
            Some(pins) => read_maps(pins, all + record.rules.len()).map_err(io::Error::other)?,
            None => (Vec::new(), 0, BTreeMap::new(), 0),
        };
        if let Some(missed) = pins.as_ref().and_then(|pins| convert::missed(pins).ok()) {
            counters.insert("missed".to_owned(), missed);
        }
        let in_kernel = match record.mechanism {
            Some(Mechanism::Sysctl) => Some(Mechanism::Sysctl),
            _ => pins.is_some().then_some(Mechanism::Bpf),
        };
        let alive = |deadline: u64| deadline == 0 || deadline > crate::kernel::maps::monotonic_now();
        let switches = record.switches.iter().enumerate().filter(|(_, switch)| alive(switch.deadline));
        let switches = switches
            .map(|(number, switch)| SwitchStatus {
                action: switch.action,
                target: switch.target.clone(),
                until: switch.until,
                sockets: hits.get(number).copied(),
            })
            .collect();
        let rules = record.rules.iter().enumerate();
        let rules = rules
            .map(|(number, rule)| ConvertRuleStatus {
                name: rule.name.clone(),
                action: rule.action,
                selectors: rule.selectors.clone(),
                file: rule.file.clone(),
                line: rule.line,
                sockets: hits.get(all + number).copied(),
            })
            .collect();
        record.drop_expired();
        let available = mechanism(places);
        Ok(Self {
            version: VERSION,
            mechanism: in_kernel,
            wanted: record.converts(),
            lacks: available.as_ref().err().cloned(),
            available: available.ok(),
            generation: record.generation,
            switches,
            rules,
            default: record.default,
            default_sockets,
            exec_groups,
            counters,
            sysctls: record.sysctls,
            life_lines: LIFE_LINES.iter().map(|name| (*name).to_owned()).collect(),
        })
    }

    /// Whether all that is to be converted is.
    pub fn is_complete(&self) -> bool {
        !self.wanted || self.mechanism.is_some()
    }
}

type Figures = (Vec<u64>, u64, BTreeMap<String, u64>, usize);

fn read_maps(pins: &std::path::Path, rules: usize) -> Result<Figures, crate::kernel::maps::MapsError> {
    let maps = ConvertMaps::open(pins)?;
    let (hits, default) = maps.hits(rules)?;
    let mut counters = BTreeMap::new();
    for (counter, name) in ConvertCounter::ALL {
        counters.insert(name.to_owned(), maps.counter(counter)?);
    }
    Ok((hits, default, counters, maps.exec_groups().len()))
}
