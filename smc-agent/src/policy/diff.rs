//! What a new policy decides otherwise than an old one: rules and address space, not lines of text.
//!
//! Both policies cut addresses and ports into classes; where both cuts are taken together, each cell of the product
//! (peer, local, port, role) is decided by one rule of either policy. All cells are compared, so the answer is exact.

use super::addresses::prefixes;
use super::compile::{Classes, CompileError};
use super::model::{Action, Mode, Policy, Rule};
use schemars::JsonSchema;
use serde::Serialize;
use smc_agent_common::Role;
use smc_agent_common::table::{RULE_WORDS, RuleBits};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::RangeInclusive;

/// The most cells that are compared.
const CELLS: usize = 50_000_000;
/// The most spaces that are listed for one change.
const SPACES: usize = 32;
/// The most prefixes, and the most ranges of ports, that are listed for one space.
const LISTED: usize = 16;

/// What differs between two policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Diff {
    /// Version of this form.
    pub version: u32,
    /// Names of rules that only the new policy has.
    pub added: Vec<String>,
    /// Names of rules that only the old policy has.
    pub removed: Vec<String>,
    /// Names of rules that both have, and that ask or do something else.
    pub changed: Vec<String>,
    /// Where verdicts differ.
    pub changes: Vec<Change>,
    /// `false` if the policies are too large to compare every cell; `changes` are true then, and not all.
    pub complete: bool,
}

impl Diff {
    /// Whether both policies surely decide alike.
    pub fn same_verdicts(&self) -> bool {
        self.complete && self.changes.is_empty()
    }
}

/// A verdict and who gives it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct Outcome {
    /// The verdict.
    pub verdict: Action,
    /// The rule; `None` (null) for the default.
    pub rule: Option<String>,
}

/// One outcome that becomes another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Change {
    /// What the old policy says.
    pub from: Outcome,
    /// What the new policy says.
    pub to: Outcome,
    /// For which flows.
    pub spaces: Vec<Space>,
    /// How many more spaces there are.
    pub more_spaces: usize,
}

/// A set of flows: all combinations of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Space {
    /// `client`, `server` or `any`.
    pub role: &'static str,
    /// The other end: prefixes, or `any`.
    pub peer: Vec<String>,
    /// How many more prefixes of peers there are.
    pub more_peers: usize,
    /// This host: prefixes, or `any`.
    pub local: Vec<String>,
    /// How many more prefixes of this host there are.
    pub more_locals: usize,
    /// Ports and ranges of ports, or `any`.
    pub port: Vec<String>,
    /// How many more ranges of ports there are.
    pub more_ports: usize,
}

/// The decider of a cell: a rule number, or the number of rules for the default.
type Decider = usize;
/// Joint classes: what both policies have in one place of a dimension.
type Joint<R> = BTreeMap<(u32, u32), R>;

#[derive(Default)]
struct Ranges {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

/// One policy, ready to be asked.
struct Side<'a> {
    policy: &'a Policy,
    classes: Classes,
    any_peer: RuleBits,
    any_local: RuleBits,
    enforced: RuleBits,
    roles: [RuleBits; 2],
}

fn bits(policy: &Policy, holds: impl Fn(&Rule) -> bool) -> RuleBits {
    let mut bits = [0; RULE_WORDS];
    for (number, _) in policy.rules().iter().enumerate().filter(|(_, rule)| holds(rule)) {
        bits[number / 64] |= 1 << (number % 64);
    }
    bits
}

fn and(a: &RuleBits, b: &RuleBits) -> RuleBits {
    std::array::from_fn(|word| a[word] & b[word])
}

fn or(a: &RuleBits, b: &RuleBits) -> RuleBits {
    std::array::from_fn(|word| a[word] | b[word])
}

impl<'a> Side<'a> {
    fn new(policy: &'a Policy) -> Result<Self, CompileError> {
        Ok(Self {
            policy,
            classes: Classes::new(policy)?,
            any_peer: bits(policy, |rule| rule.peer.is_none()),
            any_local: bits(policy, |rule| rule.local.is_none()),
            enforced: bits(policy, |rule| rule.mode == Mode::Enforce),
            roles: [
                bits(policy, |rule| rule.role != Some(Role::Server)),
                bits(policy, |rule| rule.role != Some(Role::Client)),
            ],
        })
    }

    fn first(&self, addresses: &RuleBits, ports: &RuleBits, role: usize) -> Decider {
        let words = self.policy.rules().len().div_ceil(64);
        for word in 0..words.min(RULE_WORDS) {
            let bits = addresses[word] & ports[word] & self.roles[role][word];
            if bits != 0 {
                return word * 64 + bits.trailing_zeros() as usize;
            }
        }
        self.policy.rules().len()
    }

    fn outcome(&self, decider: Decider) -> Outcome {
        match self.policy.rules().get(decider) {
            Some(rule) => Outcome { verdict: rule.action, rule: Some(rule.name.clone()) },
            None => Outcome { verdict: self.policy.default_action(), rule: None },
        }
    }

    fn verdict(&self, decider: Decider) -> Action {
        self.policy.rules().get(decider).map_or(self.policy.default_action(), |rule| rule.action)
    }
}

/// Compares two policies. Fails if one of them cannot become a table.
pub fn diff(old: &Policy, new: &Policy) -> Result<Diff, CompileError> {
    let (a, b) = (Side::new(old)?, Side::new(new)?);
    let peers = join(&a.classes.peer, &b.classes.peer);
    let locals = join(&a.classes.local, &b.classes.local);
    let ports = join_ports(old, new);
    let (changes, complete) = compare(&a, &b, &peers, &locals, &ports);

    let names = |policy: &Policy| -> BTreeMap<String, usize> {
        policy.rules().iter().enumerate().map(|(number, rule)| (rule.name.clone(), number)).collect()
    };
    let (old_names, new_names) = (names(old), names(new));
    let only = |names: &BTreeMap<String, usize>, others: &BTreeMap<String, usize>| -> Vec<String> {
        names.keys().filter(|name| !others.contains_key(*name)).cloned().collect()
    };
    let both = old_names.iter().filter(|(name, number)| {
        new_names.get(*name).is_some_and(|other| !same(&old.rules()[**number], &new.rules()[*other]))
    });
    Ok(Diff {
        version: 1,
        added: only(&new_names, &old_names),
        removed: only(&old_names, &new_names),
        changed: both.map(|(name, _)| name.clone()).collect(),
        changes,
        complete,
    })
}

fn same(a: &Rule, b: &Rule) -> bool {
    let addresses = |a: &Option<super::Addresses>, b: &Option<super::Addresses>| match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => a.joined() == b.joined(),
        _ => false,
    };
    (a.action, a.role, a.log, a.mode, &a.ports) == (b.action, b.role, b.log, b.mode, &b.ports)
        && addresses(&a.peer, &b.peer)
        && addresses(&a.local, &b.local)
}

fn join(a: &super::compile::Dimension, b: &super::compile::Dimension) -> Joint<Ranges> {
    let mut joint: Joint<Ranges> = BTreeMap::new();
    walk(
        &a.v4,
        &b.v4,
        u32::MAX,
        |bits| bits - 1,
        |class, range| joint.entry(class).or_default().v4.push(range),
    );
    walk(
        &a.v6,
        &b.v6,
        u128::MAX,
        |bits| bits - 1,
        |class, range| joint.entry(class).or_default().v6.push(range),
    );
    joint
}

/// Goes over two cuts of one space together.
fn walk<T: Copy + Ord>(
    a: &[(T, u32)],
    b: &[(T, u32)],
    end: T,
    before: impl Fn(T) -> T,
    mut each: impl FnMut((u32, u32), (T, T)),
) {
    let (mut i, mut j) = (0, 0);
    while let (Some(left), Some(right)) = (a.get(i), b.get(j)) {
        let first = left.0.max(right.0);
        let next = [a.get(i + 1), b.get(j + 1)].into_iter().flatten().map(|region| region.0).min();
        each((left.1, right.1), (first, next.map_or(end, &before)));
        i += usize::from(a.get(i + 1).is_some_and(|region| Some(region.0) == next));
        j += usize::from(b.get(j + 1).is_some_and(|region| Some(region.0) == next));
        if next.is_none() {
            break;
        }
    }
}

struct Ports {
    a: RuleBits,
    b: RuleBits,
    ranges: Vec<RangeInclusive<u16>>,
}

fn join_ports(old: &Policy, new: &Policy) -> Vec<Ports> {
    let mut starts = BTreeSet::from([1u16]);
    for range in old.rules().iter().chain(new.rules()).flat_map(|rule| rule.ports.iter().flatten()) {
        starts.insert(*range.start());
        starts.extend(range.end().checked_add(1));
    }
    let starts: Vec<u16> = starts.into_iter().collect();
    let mut known: HashMap<(RuleBits, RuleBits), usize> = HashMap::new();
    let mut classes: Vec<Ports> = Vec::new();
    for (number, first) in starts.iter().enumerate() {
        let last = starts.get(number + 1).map_or(u16::MAX, |next| next - 1);
        let holds = |rule: &Rule| {
            rule.ports.as_ref().is_none_or(|ports| ports.iter().any(|range| range.contains(first)))
        };
        let (a, b) = (bits(old, holds), bits(new, holds));
        let class = *known.entry((a, b)).or_insert_with(|| {
            classes.push(Ports { a, b, ranges: Vec::new() });
            classes.len() - 1
        });
        classes[class].ranges.push(*first..=last);
    }
    classes
}

/// Who decides in the old policy, and who in the new.
type Pair = (Decider, Decider);
/// Joint classes of a dimension.
type Several = Vec<(u32, u32)>;
/// Cells with the same change that differ in the peer only.
type Key = (Pair, usize, (u32, u32), Vec<usize>);
/// Cells with the same change, role, ports and peers.
type ByLocal = BTreeMap<(Pair, usize, Vec<usize>, Several), Several>;
/// Cells with the same change, ports, peers and local addresses.
type ByRole = BTreeMap<(Pair, Vec<usize>, Several, Several), Vec<usize>>;

fn compare(
    a: &Side<'_>,
    b: &Side<'_>,
    peers: &Joint<Ranges>,
    locals: &Joint<Ranges>,
    ports: &[Ports],
) -> (Vec<Change>, bool) {
    let mut cells = 0usize;
    let mut complete = true;
    let mut found: BTreeMap<Key, Vec<(u32, u32)>> = BTreeMap::new();
    let local_bits: Vec<_> = locals
        .keys()
        .map(|&class| {
            let (left, right) = (a.classes.rules(class.0), b.classes.rules(class.1));
            (class, and(&or(&a.any_local, &left), &a.enforced), and(&or(&b.any_local, &right), &b.enforced))
        })
        .collect();
    'all: for &peer in peers.keys() {
        let left = or(&a.any_peer, &a.classes.rules(peer.0));
        let right = or(&b.any_peer, &b.classes.rules(peer.1));
        for (local, local_left, local_right) in &local_bits {
            cells += ports.len() * 2;
            if cells > CELLS {
                complete = false;
                break 'all;
            }
            let (left, right) = (and(&left, local_left), and(&right, local_right));
            for role in 0..2 {
                let mut here: BTreeMap<Pair, Vec<usize>> = BTreeMap::new();
                for (number, class) in ports.iter().enumerate() {
                    let pair = (a.first(&left, &class.a, role), b.first(&right, &class.b, role));
                    if a.verdict(pair.0) != b.verdict(pair.1) {
                        here.entry(pair).or_default().push(number);
                    }
                }
                for (pair, classes) in here {
                    found.entry((pair, role, *local, classes)).or_default().push(peer);
                }
            }
        }
    }
    (changes(a, b, peers, locals, ports, found), complete)
}

/// Joins cells to larger spaces and writes them down.
fn changes(
    a: &Side<'_>,
    b: &Side<'_>,
    peers: &Joint<Ranges>,
    locals: &Joint<Ranges>,
    ports: &[Ports],
    found: BTreeMap<Key, Vec<(u32, u32)>>,
) -> Vec<Change> {
    let mut by_local = ByLocal::new();
    for ((pair, role, local, classes), peer) in found {
        by_local.entry((pair, role, classes, peer)).or_default().push(local);
    }
    let mut by_role = ByRole::new();
    for ((pair, role, classes, peer), local) in by_local {
        by_role.entry((pair, classes, peer, local)).or_default().push(role);
    }
    let mut changes: BTreeMap<Pair, Change> = BTreeMap::new();
    for ((pair, classes, peer, local), roles) in by_role {
        let change = changes.entry(pair).or_insert_with(|| Change {
            from: a.outcome(pair.0),
            to: b.outcome(pair.1),
            spaces: Vec::new(),
            more_spaces: 0,
        });
        if change.spaces.len() == SPACES {
            change.more_spaces += 1;
            continue;
        }
        let (peer, more_peers) = addresses(&peer, peers);
        let (local, more_locals) = addresses(&local, locals);
        let (port, more_ports) = port_ranges(&classes, ports);
        let role = match roles[..] {
            [0] => "client",
            [1] => "server",
            _ => "any",
        };
        change.spaces.push(Space { role, peer, more_peers, local, more_locals, port, more_ports });
    }
    changes.into_values().collect()
}

fn port_ranges(classes: &[usize], ports: &[Ports]) -> (Vec<String>, usize) {
    let ranges = classes.iter().flat_map(|class| ports[*class].ranges.iter().cloned()).collect();
    let ranges = super::model::join_ports(ranges);
    if ranges == [1..=u16::MAX] {
        return (vec!["any".to_owned()], 0);
    }
    let text = |range: &RangeInclusive<u16>| {
        if range.start() == range.end() {
            range.start().to_string()
        } else {
            format!("{}-{}", range.start(), range.end())
        }
    };
    (ranges.iter().take(LISTED).map(text).collect(), ranges.len().saturating_sub(LISTED))
}

fn addresses(classes: &[(u32, u32)], joint: &Joint<Ranges>) -> (Vec<String>, usize) {
    if classes.len() == joint.len() {
        return (vec!["any".to_owned()], 0);
    }
    let mut v4: Vec<(u128, u128)> = Vec::new();
    let mut v6: Vec<(u128, u128)> = Vec::new();
    for ranges in classes.iter().filter_map(|class| joint.get(class)) {
        v4.extend(ranges.v4.iter().map(|range| (u128::from(range.0), u128::from(range.1))));
        v6.extend(ranges.v6.iter());
    }
    let mut list = Vec::new();
    let mut more = 0;
    for (ranges, bits) in [(&mut v4, 32u8), (&mut v6, 128u8)] {
        ranges.sort_unstable();
        ranges.dedup_by(|range, last| {
            let touches = last.1.checked_add(1) == Some(range.0);
            if touches {
                last.1 = range.1;
            }
            touches
        });
        for range in ranges {
            for prefix in prefixes(*range, bits) {
                if list.len() < LISTED {
                    list.push(prefix.to_string());
                } else {
                    more += 1;
                }
            }
        }
    }
    (list, more)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rule {
            Some(rule) => write!(f, "{} by `{rule}`", self.verdict),
            None => write!(f, "{} by default", self.verdict),
        }
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (sign, names) in [('+', &self.added), ('-', &self.removed), ('~', &self.changed)] {
            for name in names {
                writeln!(f, "{sign} rule `{name}`")?;
            }
        }
        let more = |list: &[String], more: usize| match more {
            0 => list.join(", "),
            _ => format!("{} and {more} more", list.join(", ")),
        };
        for change in &self.changes {
            writeln!(f, "{} -> {}:", change.from, change.to)?;
            for space in &change.spaces {
                let peer = more(&space.peer, space.more_peers);
                let local = more(&space.local, space.more_locals);
                let port = more(&space.port, space.more_ports);
                writeln!(f, "  role {}, peer {peer}, local {local}, port {port}", space.role)?;
            }
            if change.more_spaces > 0 {
                writeln!(f, "  and {} more", change.more_spaces)?;
            }
        }
        if !self.complete {
            return f
                .write_str("the policies are too large to compare all of their space: there may be more");
        }
        f.write_str(if self.changes.is_empty() {
            "no verdict changes"
        } else {
            "all other verdicts are the same"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Limits, load_text};
    use std::path::Path;

    fn policy(text: &str) -> Policy {
        load_text(Path::new("p.yaml"), text, &Limits::default()).unwrap().policy
    }

    fn said(old: &str, new: &str) -> String {
        diff(&policy(old), &policy(new)).unwrap().to_string()
    }

    #[test]
    fn a_policy_does_not_differ_from_itself_or_from_itself_rewritten() {
        let old = "version: 1\ndefault: allow\nrules:\n  - {name: a, action: deny, peer: 10.0.0.0/8}\n";
        assert_eq!(said(old, old), "no verdict changes");
        let new = "version: 1\ndefault: allow\nrules:\n  - {name: b, action: deny, peer: [10.0.0.0/9, 10.128.0.0/9]}\n";
        assert_eq!(said(old, new), "+ rule `b`\n- rule `a`\nno verdict changes");
    }

    #[test]
    fn changes_are_told_by_rule_and_space() {
        let old = "version: 1\ndefault: allow\nrules:\n  - {name: a, action: deny, peer: 10.0.0.0/8, port: 1-100}\n";
        let new = "version: 1\ndefault: allow\nrules:\n  - {name: ok, action: allow, role: client, peer: 10.1.0.0/16}\n  - {name: a, action: deny, peer: 10.0.0.0/8, port: 1-200}\n";
        insta::assert_snapshot!("diff_rule_and_space", said(old, new));
        insta::assert_snapshot!("diff_default", said(old, "version: 1\ndefault: deny\n"));
    }
}
