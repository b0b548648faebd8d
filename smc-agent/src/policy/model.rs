//! A policy that has been read and found valid.

use super::addresses::{AddressSet, AddressSetBuilder};
use super::convert::Convert;
use schemars::JsonSchema;
use serde::Serialize;
use smc_agent_common::{Role, Verdict};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

/// What a rule or the default does with the flows it decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The connection may negotiate SMC.
    Allow,
    /// The connection stays TCP.
    Deny,
}

impl From<Action> for Verdict {
    fn from(action: Action) -> Self {
        match action {
            Action::Allow => Self::Allow,
            Action::Deny => Self::Deny,
        }
    }
}

impl From<Verdict> for Action {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allow => Self::Allow,
            Verdict::Deny => Self::Deny,
        }
    }
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        })
    }
}

/// Whether a rule decides or only reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The rule decides.
    #[default]
    Enforce,
    /// The rule is counted and reported, and the flow passes on to later rules.
    Shadow,
}

/// A place in a file. Lines and columns count from 1; a column counts characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, JsonSchema)]
pub struct Place {
    /// The file, as it was named or found.
    pub file: PathBuf,
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// The addresses of a rule's `peer` or `local`: those in any of the sets.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// What the rule names; a set that several rules name is shared.
    pub sets: Vec<Arc<AddressSet>>,
}

impl Addresses {
    /// All of them in one set.
    pub fn joined(&self) -> AddressSet {
        let mut builder = AddressSetBuilder::default();
        self.sets.iter().for_each(|set| builder.extend(set));
        builder.finish_uncounted()
    }

    /// Whether `address` is among them.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.sets.iter().any(|set| set.contains(address))
    }
}

/// One rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The name, unique in the policy.
    pub name: String,
    /// Where the rule begins.
    pub place: Place,
    /// What it does.
    pub action: Action,
    /// The side that this host must be; `None` for any.
    pub role: Option<Role>,
    /// The other end's addresses; `None` for any.
    pub peer: Option<Addresses>,
    /// This host's addresses; `None` for any.
    pub local: Option<Addresses>,
    /// Service ports, sorted and disjoint; `None` for any.
    pub ports: Option<Vec<RangeInclusive<u16>>>,
    /// Each decision is reported as an event.
    pub log: bool,
    /// Whether it decides.
    pub mode: Mode,
}

/// A set with a name.
#[derive(Clone, Debug)]
pub struct NamedSet {
    /// The name, without `@`.
    pub name: String,
    /// Where it is declared.
    pub place: Place,
    /// What is in it.
    pub addresses: Arc<AddressSet>,
}

/// A whole policy, of all its files.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(super) default: Action,
    pub(super) rules: Vec<Rule>,
    pub(super) sets: Vec<NamedSet>,
    pub(super) files: Vec<PathBuf>,
    pub(super) convert: Option<Convert>,
}

impl Policy {
    /// What happens to flows that no rule matches.
    pub fn default_action(&self) -> Action {
        self.default
    }

    /// The rules in order; their positions are the rule numbers of the table.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The named sets in order of their declaration.
    pub fn sets(&self) -> &[NamedSet] {
        &self.sets
    }

    /// Which sockets are converted; `None` if no file says anything about it.
    pub fn convert(&self) -> Option<&Convert> {
        self.convert.as_ref()
    }

    /// Every file that was read, policy files first, in the order of reading.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// How many prefixes the rules and sets were written with.
    pub fn prefixes(&self) -> usize {
        let mut seen = std::collections::HashSet::new();
        let named = self.sets.iter().map(|set| &set.addresses);
        let used =
            self.rules.iter().flat_map(|rule| rule.peer.iter().chain(&rule.local)).flat_map(|a| &a.sets);
        named.chain(used).filter(|set| seen.insert(Arc::as_ptr(set))).map(|set| set.prefixes()).sum()
    }
}

/// Bounds on what is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most rules, at most 4,096.
    pub rules: usize,
    /// The most prefixes, at most 4,194,304.
    pub prefixes: usize,
    /// The most memory that a table may take, in bytes.
    pub table_memory: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rules: smc_agent_common::table::MAX_RULES, prefixes: 4 << 20, table_memory: 256 << 20 }
    }
}

/// Sorts port ranges and joins those that overlap or touch.
pub(super) fn join_ports(mut ranges: Vec<RangeInclusive<u16>>) -> Vec<RangeInclusive<u16>> {
    ranges.sort_unstable_by_key(|range| (*range.start(), *range.end()));
    let mut joined: Vec<RangeInclusive<u16>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if u32::from(*range.start()) <= u32::from(*last.end()) + 1 => {
                *last = *last.start()..=*range.end().max(last.end());
            }
            _ => joined.push(range),
        }
    }
    joined
}
