//! What the rules of a policy ask, in few words.

use super::model::{Addresses, Mode, Policy, Rule};
use super::{AddressSet, explain::role_name};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;

/// The rules and sets of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Outline {
    /// The rules, in order.
    pub rules: Vec<RuleOutline>,
    /// The named sets, in the order of their declaration.
    pub sets: Vec<SetOutline>,
}

/// What a rule asks; what is `None` (null) may be anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RuleOutline {
    /// `client` or `server`: which side this host is.
    pub role: Option<&'static str>,
    /// The other end: sets as `@name`, and prefixes.
    pub peer: Option<Vec<String>>,
    /// This host: sets as `@name`, and prefixes.
    pub local: Option<Vec<String>>,
    /// Service ports.
    pub port: Option<Vec<String>>,
    /// Its decisions are reported.
    pub log: bool,
    /// Whether it decides.
    pub mode: Mode,
}

/// A named set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SetOutline {
    /// Its name, without `@`.
    pub name: String,
    /// How many prefixes it was written with.
    pub prefixes: usize,
    /// The fewest prefixes that say the same; `None` (null) if not asked for.
    pub addresses: Option<Vec<String>>,
}

/// Outlines a policy; with `contents`, also what is in its sets.
pub fn outline(policy: &Policy, contents: bool) -> Outline {
    Outline {
        rules: policy.rules().iter().map(|rule| RuleOutline::new(policy, rule)).collect(),
        sets: policy
            .sets()
            .iter()
            .map(|set| SetOutline {
                name: set.name.clone(),
                prefixes: set.addresses.prefixes(),
                addresses: contents.then(|| prefixes(&set.addresses)),
            })
            .collect(),
    }
}

impl RuleOutline {
    fn new(policy: &Policy, rule: &Rule) -> Self {
        let addresses = |addresses: &Addresses| -> Vec<String> {
            addresses.sets.iter().flat_map(|set| named_or_listed(policy, set)).collect()
        };
        Self {
            role: rule.role.map(role_name),
            peer: rule.peer.as_ref().map(addresses),
            local: rule.local.as_ref().map(addresses),
            port: rule.ports.as_ref().map(|ports| {
                let text = |range: &std::ops::RangeInclusive<u16>| match (range.start(), range.end()) {
                    (start, end) if start == end => start.to_string(),
                    (start, end) => format!("{start}-{end}"),
                };
                ports.iter().map(text).collect()
            }),
            log: rule.log,
            mode: rule.mode,
        }
    }
}

fn named_or_listed(policy: &Policy, set: &Arc<AddressSet>) -> Vec<String> {
    match policy.sets().iter().find(|named| Arc::ptr_eq(&named.addresses, set)) {
        Some(named) => vec![format!("@{}", named.name)],
        None => prefixes(set),
    }
}

fn prefixes(set: &AddressSet) -> Vec<String> {
    set.to_prefixes().map(|prefix| prefix.to_string()).collect()
}

impl fmt::Display for RuleOutline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.role.map(|role| format!("role {role}")).into_iter().collect();
        for (name, list) in [("peer", &self.peer), ("local", &self.local), ("port", &self.port)] {
            parts.extend(list.as_ref().map(|list| format!("{name} {}", list.join(" "))));
        }
        if self.log {
            parts.push("log".to_owned());
        }
        if self.mode == Mode::Shadow {
            parts.push("only reports (mode: shadow)".to_owned());
        }
        if parts.is_empty() {
            parts.push("any flow".to_owned());
        }
        f.write_str(&parts.join(", "))
    }
}
