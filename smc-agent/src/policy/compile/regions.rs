//! Cuts an address space into regions, each with one class, by a sweep over where ranges begin and end.

use super::CompileError;
use super::sets::SetPool;
use crate::policy::addresses::AddressSet;
use smc_agent_common::Line;
use smc_agent_common::table::{RULE_WORDS, RuleBits};
use std::collections::HashMap;

/// Ranges that the same rules ask for.
pub(super) struct Source<'a> {
    /// The ranges.
    pub(super) set: &'a AddressSet,
    /// Numbers of the rules.
    pub(super) rules: Vec<u16>,
}

/// An address family: what the sweep must know of it.
pub(super) trait Space: Copy + Ord {
    fn ranges(set: &AddressSet) -> &[(Self, Self)];
    fn after(self) -> Option<Self>;
    const FIRST: Self;
}

impl Space for u32 {
    fn ranges(set: &AddressSet) -> &[(Self, Self)] {
        set.v4()
    }
    fn after(self) -> Option<Self> {
        self.checked_add(1)
    }
    const FIRST: Self = 0;
}

impl Space for u128 {
    fn ranges(set: &AddressSet) -> &[(Self, Self)] {
        set.v6()
    }
    fn after(self) -> Option<Self> {
        self.checked_add(1)
    }
    const FIRST: Self = 0;
}

/// The sources that hold at the position of the sweep.
struct Active {
    list: Vec<u32>,
    position: Vec<u32>,
    /// The combination as one number: the sources' numbers, scrambled, added up. Two different combinations of the
    /// millions that one table can have share it with a probability below 2^-80.
    fingerprint: u128,
}

impl Active {
    fn toggle(&mut self, source: u32) {
        let place = self.position[source as usize];
        if place == u32::MAX {
            self.position[source as usize] = super::sets::index(self.list.len());
            self.list.push(source);
            self.fingerprint = self.fingerprint.wrapping_add(scramble(source));
        } else {
            self.list.swap_remove(place as usize);
            if let Some(&moved) = self.list.get(place as usize) {
                self.position[moved as usize] = place;
            }
            self.position[source as usize] = u32::MAX;
            self.fingerprint = self.fingerprint.wrapping_sub(scramble(source));
        }
    }
}

/// Spreads a small number over 128 bits: two rounds of the finalizer of splitmix64 (Steele, Lea & Flood 2014).
fn scramble(value: u32) -> u128 {
    let round = |seed: u64| {
        let mut z = u64::from(value).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (u128::from(round(0)) << 64) | u128::from(round(0xd1b5_4a32_d192_ed03))
}

/// The regions of one address family as (first address, class), in order; the first begins at address 0 and neighbours
/// differ in class.
pub(super) fn regions<T: Space>(
    sources: &[Source<'_>],
    pool: &mut SetPool,
    lines: &mut Vec<Line>,
) -> Result<Vec<(T, u32)>, CompileError> {
    let total: usize = sources.iter().map(|source| T::ranges(source.set).len()).sum();
    let mut events: Vec<(T, u32)> = Vec::with_capacity(total * 2);
    for (number, source) in sources.iter().enumerate() {
        let number = super::sets::index(number);
        for &(first, last) in T::ranges(source.set) {
            events.push((first, number));
            events.extend(last.after().map(|after| (after, number)));
        }
    }
    // Stable, because it makes use of what is sorted already: each source is.
    events.sort_by_key(|event| event.0);

    let mut active = Active { list: Vec::new(), position: vec![u32::MAX; sources.len()], fingerprint: 0 };
    let mut classes: HashMap<u128, u32> = HashMap::from([(0, 0)]);
    let mut last = (0, 0);
    let mut regions: Vec<(T, u32)> = vec![(T::FIRST, 0)];
    let mut rest = events.as_slice();
    while let [(at, _), ..] = *rest {
        let count = rest.iter().take_while(|event| event.0 == at).count();
        let (now, later) = rest.split_at(count);
        rest = later;
        for event in now {
            active.toggle(event.1);
        }
        if active.fingerprint != last.0 {
            let class = if let Some(&class) = classes.get(&active.fingerprint) {
                class
            } else {
                let class = pool.intern(&rules(sources, &active.list), lines)?;
                classes.insert(active.fingerprint, class);
                class
            };
            last = (active.fingerprint, class);
        }
        match regions.last_mut() {
            Some(region) if region.0 == at => region.1 = last.1,
            Some(region) if region.1 == last.1 => {}
            _ => regions.push((at, last.1)),
        }
    }
    Ok(regions)
}

fn rules(sources: &[Source<'_>], active: &[u32]) -> RuleBits {
    let mut bits = [0; RULE_WORDS];
    for &source in active {
        for &rule in &sources[source as usize].rules {
            bits[usize::from(rule / 64)] |= 1 << (rule % 64);
        }
    }
    bits
}
