//! From rules to the table and the selectors that the kernel side looks up.

use std::{collections::BTreeMap, io};

use smc_agent_common::convert::{
    COMM, ConvertRules, ConvertTable, DEFAULT_ON, DIMENSIONS, Dimension, MAX_CONVERT_RULES, MAX_PATH, Name,
    SelectorKey,
};

use super::resolve::System;
use crate::{
    kernel::convert::{Compiled, GroupPath},
    policy::{LIFE_LINES, Selectors},
};

/// A rule as it is compiled: of the policy, or of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whether it converts.
    pub on: bool,
    /// Whose sockets.
    pub selectors: Selectors,
    /// `CLOCK_MONOTONIC` in nanoseconds, from when on it matches nothing; 0 if it has no end.
    pub deadline: u64,
}

/// Compiles rules; `own` is the agent's executable. Names that lead nowhere at present match nothing.
pub fn compile(
    entries: &[Entry],
    default_on: bool,
    own: Option<(u64, u64)>,
    system: &impl System,
) -> io::Result<Compiled> {
    if entries.len() > MAX_CONVERT_RULES {
        return Err(io::Error::other(format!(
            "{} rules of conversion, switches included: at most {MAX_CONVERT_RULES} are possible",
            entries.len()
        )));
    }
    let mut table: ConvertTable = bytemuck::Zeroable::zeroed();
    let mut selectors: BTreeMap<SelectorKey, ConvertRules> = BTreeMap::new();
    let mut groups: BTreeMap<GroupPath, ConvertRules> = BTreeMap::new();
    table.flags = if default_on { DEFAULT_ON } else { 0 };
    table.rules = u32::try_from(entries.len()).map_err(io::Error::other)?;
    for (rule, entry) in entries.iter().enumerate() {
        table.deadlines[rule] = entry.deadline;
        if entry.on {
            table.on.insert(rule);
        }
        let asks = &entry.selectors;
        if asks.names_program() {
            table.named.insert(rule);
        }
        for path in asks.cgroup.iter().flatten() {
            table.levels |= 1 << level(path);
            groups.entry(group_path(path)).or_default().insert(rule);
        }
        let mut add = |key: SelectorKey| selectors.entry(key).or_default().insert(rule);
        for uid in asks.uid.iter().flatten() {
            add(SelectorKey::new(Dimension::Uid, u64::from(*uid), 0));
        }
        for gid in asks.gid.iter().flatten() {
            add(SelectorKey::new(Dimension::Gid, u64::from(*gid), 0));
        }
        for comm in asks.comm.iter().flatten() {
            add(SelectorKey::of_name(Dimension::Comm, name(comm)));
        }
        for (device, inode) in asks.exe.iter().flatten().filter_map(|path| system.exe(path)) {
            add(SelectorKey::new(Dimension::Exe, device, inode));
        }
        for cookie in asks.netns.iter().flatten().filter_map(|name| system.netns(name)) {
            add(SelectorKey::new(Dimension::Netns, cookie, 0));
        }
        // One for each dimension, in the order of their numbers.
        let asked: [bool; DIMENSIONS] = [
            asks.cgroup.is_some(),
            asks.uid.is_some(),
            asks.gid.is_some(),
            asks.comm.is_some(),
            asks.exe.is_some(),
            asks.netns.is_some(),
        ];
        for (dimension, asked) in asked.into_iter().enumerate() {
            if asked {
                table.asked |= 1 << dimension;
            } else {
                table.any[dimension].insert(rule);
            }
        }
    }
    for life_line in LIFE_LINES {
        selectors.entry(SelectorKey::of_name(Dimension::LifeLine, name(life_line))).or_default();
    }
    if let Some((device, inode)) = own {
        selectors.entry(SelectorKey::new(Dimension::Own, device, inode)).or_default();
    }
    Ok(Compiled { table, selectors, groups })
}

/// The level of a cgroup: the number of names in its path.
pub fn level(path: &str) -> u32 {
    let names = path.split('/').filter(|name| !name.is_empty()).count();
    // The language allows fewer levels than this type has bits.
    u32::try_from(names).unwrap_or(u32::MAX)
}

/// The ids of the cgroups that exist at present, with the rules that name them.
pub fn present_groups(compiled: &Compiled, system: &impl System) -> Vec<(u64, ConvertRules)> {
    let id = |(path, rules): (&GroupPath, &ConvertRules)| {
        let length = path.iter().position(|byte| *byte == 0).unwrap_or(MAX_PATH);
        Some((system.cgroup(std::str::from_utf8(&path[..length]).ok()?)?, *rules))
    };
    compiled.groups.iter().filter_map(id).collect()
}

fn group_path(path: &str) -> GroupPath {
    let mut bytes = [0; MAX_PATH];
    for (to, from) in bytes.iter_mut().take(MAX_PATH - 1).zip(path.bytes()) {
        *to = from;
    }
    bytes
}

fn name(text: &str) -> Name {
    let mut bytes = [0; COMM];
    for (to, from) in bytes.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    Name::new(bytes)
}
