//! From a policy to the table that kernel and user space judge by.

mod classes;
mod regions;
mod sets;
#[cfg(test)]
mod tests;
mod tree;

use super::addresses::AddressSet;
use super::model::{Action, Addresses, Limits, Mode, Policy, Rule};
use super::table::PolicyTable;
pub(super) use classes::{Classes, Dimension};
use regions::{Source, Space, regions};
use sets::SetPool;
use smc_agent_common::table::{
    FLAG_DEFAULT_DENY, FLAG_LOCAL, FLAG_PORT, LAYOUT, LOCAL_V4, LOCAL_V6, MAGIC, MAX_DEPTH, MAX_RULES,
    PEER_V4, PEER_V6, PORT, PORTS, ROOT_ENTRIES, RULE_WORDS, RuleBits,
};
use smc_agent_common::{Fixed, Line, Role};
use std::collections::HashMap;
use std::sync::Arc;
use thiserror::Error;
use tree::{Region, Root};

/// Why a valid policy cannot become a table.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CompileError {
    /// More rules than allowed.
    #[error("the policy has {rules} rules, at most {limit} are possible; join rules that do the same")]
    Rules {
        /// Rules of the policy.
        rules: usize,
        /// The limit.
        limit: usize,
    },
    /// More prefixes than allowed.
    #[error("the policy has {prefixes} prefixes, at most {limit} are possible")]
    Prefixes {
        /// Prefixes of the policy.
        prefixes: usize,
        /// The limit.
        limit: usize,
    },
    /// The combinations of rules that addresses and ports satisfy are too many and too large.
    #[error(
        "addresses and ports of this policy satisfy more than {sets} different combinations of rules, of which those of \
         many rules must fit {} KiB; let fewer rules overlap",
        smc_agent_common::table::SET_WORDS * 8 / 1024
    )]
    RuleSets {
        /// Combinations that did fit.
        sets: usize,
    },
    /// Prefixes nest and cluster so that a search would take too many steps.
    #[error("a search of this policy's addresses would read {depth} lines, at most {MAX_DEPTH} are possible")]
    Depth {
        /// Lines that one search would read.
        depth: usize,
    },
    /// More memory than allowed.
    #[error("the table takes {memory} bytes, --max-table-memory allows {limit}")]
    Memory {
        /// Bytes that the table takes.
        memory: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

/// Compiles a policy.
///
/// The time is linear in the number of prefixes but for sorting them; the table is the same for the same policy.
pub fn compile(policy: &Policy, generation: u64, limits: &Limits) -> Result<PolicyTable, CompileError> {
    let rules = policy.rules();
    let limit = limits.rules.min(MAX_RULES);
    if rules.len() > limit {
        return Err(CompileError::Rules { rules: rules.len(), limit });
    }
    let prefixes = policy.prefixes();
    if prefixes > limits.prefixes {
        return Err(CompileError::Prefixes { prefixes, limit: limits.prefixes });
    }

    let mut fixed: Box<Fixed> = bytemuck::zeroed_box();
    let mut pool = SetPool::new(rules.len());
    // Line 0 stays empty, so that the array is never without an entry and 0 is no line.
    let mut lines = vec![Line { words: [0; 8] }];

    rule_bits(policy, &mut fixed);
    ports(rules, &mut fixed, &mut pool, &mut lines)?;
    let peer = sources(rules, |rule| rule.peer.as_ref());
    let local = sources(rules, |rule| rule.local.as_ref());
    let local_v4 = family::<u32>(&local, &mut pool, &mut lines)?;
    let local_v6 = family::<u128>(&local, &mut pool, &mut lines)?;
    pool.allow_lines();
    let peer_v4 = family::<u32>(&peer, &mut pool, &mut lines)?;
    let peer_v6 = family::<u128>(&peer, &mut pool, &mut lines)?;
    let searches = [peer_v4, peer_v6, local_v4, local_v6];
    let mut roots: Vec<Root> = Vec::with_capacity(4);
    for (number, (regions, _)) in searches.iter().enumerate() {
        roots.push(Root::choose(regions, matches!(number, PEER_V4 | LOCAL_V4)));
    }
    while roots.iter().map(|root| 1usize << root.bits).sum::<usize>() > ROOT_ENTRIES {
        // The last of the largest: peers of IPv4 keep theirs longest.
        if let Some(largest) = roots.iter_mut().max_by_key(|root| root.bits) {
            largest.bits -= 1;
        }
    }
    // What the first roots leave is for further ones, by the number of regions.
    let mut spare = ROOT_ENTRIES - roots.iter().map(|root| 1usize << root.bits).sum::<usize>();
    let mut to_come: usize = searches.iter().map(|(regions, _)| regions.len()).sum();
    let mut entries = Vec::with_capacity(ROOT_ENTRIES);
    for ((trie, (regions, low_depth)), root) in fixed.tries.iter_mut().zip(searches).zip(roots) {
        let quota = spare * regions.len() / to_come.max(1);
        let before = entries.len();
        let depth;
        (*trie, depth) = tree::write(&regions, root, quota, &mut entries, &mut lines);
        spare -= entries.len() - before - (1 << root.bits);
        to_come -= regions.len();
        let depth = depth + low_depth;
        if depth > MAX_DEPTH {
            return Err(CompileError::Depth { depth });
        }
    }
    fixed.roots[..entries.len()].copy_from_slice(&entries);
    fixed.sets[..pool.words().len()].copy_from_slice(pool.words());

    header(policy, generation, lines.len(), &mut fixed);
    lines.shrink_to_fit();
    let table = PolicyTable::new(fixed, lines, pool.len());
    if table.memory() > limits.table_memory {
        return Err(CompileError::Memory { memory: table.memory(), limit: limits.table_memory });
    }
    Ok(table)
}

fn header(policy: &Policy, generation: u64, lines: usize, fixed: &mut Fixed) {
    let summary = |bits: &RuleBits| {
        bits.iter().enumerate().fold(0, |summary, (word, bits)| summary | (u64::from(*bits != 0) << word))
    };
    let any_summary = fixed.any.each_ref().map(summary);
    let role_summary = fixed.roles.each_ref().map(summary);
    let shadow_summary = summary(&fixed.shadow);
    let header = &mut fixed.header;
    header.magic = MAGIC;
    header.layout = LAYOUT;
    header.generation = generation;
    header.rules = sets::index(policy.rules().len());
    header.words = sets::index(policy.rules().len().div_ceil(64));
    header.lines = sets::index(lines);
    let flag = |condition: bool, flag: u32| if condition { flag } else { 0 };
    header.flags = flag(policy.default_action() == Action::Deny, FLAG_DEFAULT_DENY)
        | flag(policy.rules().iter().any(|rule| rule.local.is_some()), FLAG_LOCAL)
        | flag(policy.rules().iter().any(|rule| rule.ports.is_some()), FLAG_PORT);
    header.all_words = sets::all_words(policy.rules().len().div_ceil(64));
    header.shadow_summary = shadow_summary;
    header.any_summary = any_summary;
    header.role_summary = role_summary;
}

fn rule_bits(policy: &Policy, fixed: &mut Fixed) {
    for (number, rule) in policy.rules().iter().enumerate() {
        let (word, bit) = (number / 64, 1u64 << (number % 64));
        let set = |bits: &mut RuleBits, condition: bool| bits[word] |= if condition { bit } else { 0 };
        set(&mut fixed.any[PEER_V4], rule.peer.is_none());
        set(&mut fixed.any[PEER_V6], rule.peer.is_none());
        set(&mut fixed.any[LOCAL_V4], rule.local.is_none());
        set(&mut fixed.any[LOCAL_V6], rule.local.is_none());
        set(&mut fixed.any[PORT], rule.ports.is_none());
        set(&mut fixed.roles[0], rule.role != Some(Role::Server));
        set(&mut fixed.roles[1], rule.role != Some(Role::Client));
        let enforced = rule.mode != Mode::Shadow;
        set(&mut fixed.enforced[0], enforced && rule.role != Some(Role::Server));
        set(&mut fixed.enforced[1], enforced && rule.role != Some(Role::Client));
        set(&mut fixed.deny, rule.action == Action::Deny);
        set(&mut fixed.shadow, rule.mode == Mode::Shadow);
        set(&mut fixed.log, rule.log);
    }
}

fn ports(
    rules: &[Rule],
    fixed: &mut Fixed,
    pool: &mut SetPool,
    lines: &mut Vec<Line>,
) -> Result<(), CompileError> {
    let mut events: Vec<(usize, usize)> = Vec::new();
    for (number, rule) in rules.iter().enumerate() {
        for range in rule.ports.iter().flatten() {
            events.push((usize::from(*range.start()), number));
            events.push((usize::from(*range.end()) + 1, number));
        }
    }
    events.sort_unstable();
    let mut bits = [0; RULE_WORDS];
    let mut at = 0;
    for run in events.chunk_by(|a, b| a.0 == b.0) {
        let port = run[0].0;
        let class = pool.intern(&bits, lines)?;
        fixed.ports[at..port].fill(class);
        // The ranges of one rule do not touch, so that each event turns its bit.
        for event in run {
            bits[event.1 / 64] ^= 1 << (event.1 % 64);
        }
        at = port;
    }
    // Nothing but 0 is left behind port 65535, and nothing more is to be written.
    if at < PORTS {
        let class = pool.intern(&bits, lines)?;
        fixed.ports[at..].fill(class);
    }
    Ok(())
}

/// The sets that rules name in one dimension, each once.
fn sources(rules: &[Rule], dimension: impl Fn(&Rule) -> Option<&Addresses>) -> Vec<Source<'_>> {
    let mut known: HashMap<*const AddressSet, usize> = HashMap::new();
    let mut sources: Vec<Source<'_>> = Vec::new();
    for (number, rule) in (0u16..).zip(rules) {
        for set in dimension(rule).into_iter().flat_map(|addresses| &addresses.sets) {
            let place = *known.entry(Arc::as_ptr(set)).or_insert_with(|| {
                sources.push(Source { set, rules: Vec::new() });
                sources.len() - 1
            });
            sources[place].rules.push(number);
        }
    }
    sources
}

/// The regions of one family in one dimension as the search wants them, and the lines that searches within them read.
fn family<T: Space + Keys>(
    sources: &[Source<'_>],
    pool: &mut SetPool,
    lines: &mut Vec<Line>,
) -> Result<(Vec<Region>, usize), CompileError> {
    Ok(T::keys(&regions::<T>(sources, pool, lines)?, lines))
}

/// How addresses become 64-bit keys.
trait Keys: Sized {
    fn keys(regions: &[(Self, u32)], lines: &mut Vec<Line>) -> (Vec<Region>, usize);
}

impl Keys for u32 {
    fn keys(regions: &[(Self, u32)], _: &mut Vec<Line>) -> (Vec<Region>, usize) {
        (regions.iter().map(|&(first, class)| (u64::from(first) << 32, class)).collect(), 0)
    }
}

impl Keys for u128 {
    /// Regions that begin within a /64 get a search of their own over the trailing half.
    #[expect(clippy::cast_possible_truncation, reason = "the halves of an address")]
    fn keys(regions: &[(Self, u32)], lines: &mut Vec<Line>) -> (Vec<Region>, usize) {
        let half = |address: u128| ((address >> 64) as u64, address as u64);
        let mut keys: Vec<Region> = Vec::with_capacity(regions.len());
        let mut push = |key: u64, value: u32| {
            if keys.last().is_none_or(|last| last.1 != value) {
                keys.push((key, value));
            }
        };
        let (mut current, mut deepest) = (0, 0);
        let mut low: Vec<Region> = Vec::new();
        for run in regions.chunk_by(|a, b| a.0 >> 64 == b.0 >> 64) {
            let (high, first_low) = half(run[0].0);
            low.clear();
            if first_low != 0 {
                low.push((0, current));
            }
            low.extend(run.iter().map(|&(address, class)| (half(address).1, class)));
            let (value, depth) = tree::write_low(&low, lines);
            deepest = deepest.max(depth);
            push(high, value);
            current = run[run.len() - 1].1;
            if low.len() > 1
                && let Some(next) = high.checked_add(1)
            {
                push(next, current);
            }
        }
        (keys, deepest)
    }
}
