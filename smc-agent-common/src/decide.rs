//! The decision: bit-vector classification over a compiled table.
//!
//! Peer address, local address, port and role each give the set of rules that they satisfy; the first rule that
//! is in all four decides (Lakshman & Stiliadis 1998), and summaries tell which words of the sets can matter at
//! all (Baboescu & Varghese 2001).

use crate::flow::{Address, Family, Flow};
use crate::table::{
    FLAG_DEFAULT_DENY, FULL_VALUES, Fixed, INDEX_MASK, KIND_LEAF, KIND_LEAF_LOW, KIND_LINE_SET, KIND_NODE,
    KIND_NODE_LOW, KIND_SET, KIND_SHIFT, LAYOUT, LINE_SHIFT_WORD, LOCAL_V4, Line, MAGIC, MAX_DEPTH,
    MAX_RULES, NARROW_VALUES, NODE_CHILD_WORD, NODE_MASK_SHIFT, PEER_V4, PORT, ROOT_ENTRIES, RULE_DEFAULT,
    RULE_WORDS, SET_WORDS, Trie,
};

/// What is to happen with SMC on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// The connection may negotiate SMC.
    Allow = 1,
    /// The connection stays TCP.
    Deny = 2,
}

/// The outcome for one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// What is to happen.
    pub verdict: Verdict,
    /// The rule that decided, counted from 0, or [`RULE_DEFAULT`].
    pub rule: u16,
    /// The rule asks that its decisions be reported.
    pub log: bool,
}

/// How the two parts of a table are reached.
///
/// Both parts must belong to one generation and must not change while a decision is made.
pub trait TableReader {
    /// The fixed part.
    fn fixed(&self) -> &Fixed;
    /// The line with this number; `None` if there is none.
    fn line(&self, index: u32) -> Option<&Line>;
}

/// Shadow rules that are told of one flow, in order. More than that matching one flow is not a roll-out that anybody can
/// read, and the verifier follows every one.
pub const SHADOW_REPORTS: usize = 16;

/// The class of an address or a port: which rules it satisfies.
#[derive(Clone, Copy)]
struct Set<'a> {
    /// Words that are not 0.
    summary: u64,
    /// Where the first of those words is: within the line, or within [`Fixed::sets`].
    first: u32,
    line: Option<&'a Line>,
}

/// A walk over a set's words, one after the other.
struct Walk<'a> {
    set: Set<'a>,
    next: u32,
}

impl<'a> Set<'a> {
    /// The walk that begins at word `word`, which is below 64.
    #[inline(always)]
    fn walk(self, word: u32) -> Walk<'a> {
        let before = self.summary & ((1 << (word & 63)) - 1);
        Walk { set: self, next: self.first.wrapping_add(before.count_ones()) }
    }
}

impl Walk<'_> {
    /// The part of the set within word `word` of a rule bitmap. To be called for each word in turn.
    #[inline(always)]
    fn word(&mut self, fixed: &Fixed, word: u32) -> u64 {
        let present = (self.set.summary >> (word & 63)) & 1;
        let mask = opaque(present.wrapping_neg());
        let value = match self.set.line {
            Some(line) => line.words[(self.next & 7) as usize],
            None => fixed.sets[(self.next as usize) & (SET_WORDS - 1)],
        };
        // Without a branch: read what is there, and use it only if it is meant.
        self.next = self.next.wrapping_add(present as u32);
        value & mask
    }
}

/// All ones if `value` is 0, else 0.
#[inline(always)]
fn if_zero(value: u64) -> u64 {
    (opaque(value | value.wrapping_neg()) >> 63).wrapping_sub(1)
}

/// The same value, of which the compiler of BPF knows nothing: it would turn masks into branches, for which BPF has no
/// better instruction.
#[inline(always)]
fn opaque<T>(value: T) -> T {
    if cfg!(target_arch = "bpf") { core::hint::black_box(value) } else { value }
}

/// Which of the rules in one word match, for the place in the table that a flow has in each dimension.
struct Cell<'a> {
    fixed: &'a Fixed,
    peer_dim: usize,
    local_dim: usize,
    side: usize,
}

impl Cell<'_> {
    #[inline(always)]
    fn matched(&self, word: u32, peer: &mut Walk<'_>, local: &mut Walk<'_>, port: &mut Walk<'_>) -> u64 {
        let fixed = self.fixed;
        let place = (word & 63) as usize;
        (fixed.any[self.peer_dim][place] | peer.word(fixed, word))
            & (fixed.any[self.local_dim][place] | local.word(fixed, word))
            & (fixed.any[PORT][place] | port.word(fixed, word))
            & fixed.roles[self.side][place]
    }
}

/// Finds the set that a class of local addresses or ports stands for: those have no sets in lines, as each dimension that
/// had would double the verifier's paths.
#[inline(always)]
fn fixed_set(fixed: &Fixed, class: u32) -> Option<Set<'static>> {
    if class >> KIND_SHIFT != KIND_SET {
        return None;
    }
    Some(Set {
        summary: fixed.sets[(class as usize) & (SET_WORDS - 1)],
        first: class.wrapping_add(1),
        line: None,
    })
}

/// Finds the set that a class of peers stands for; `None` if `class` is no class or its line is missing.
#[inline(always)]
fn set<R: TableReader>(table: &R, class: u32) -> Option<Set<'_>> {
    let index = class & INDEX_MASK;
    match class >> KIND_SHIFT {
        KIND_SET => fixed_set(table.fixed(), class),
        KIND_LINE_SET => {
            let line = table.line(index >> 3)?;
            Some(Set {
                summary: line.words[(index & 7) as usize],
                first: index.wrapping_add(1),
                line: Some(line),
            })
        }
        _ => None,
    }
}

/// The lanes of `keys` that hold at most the offset in all lanes of `offset`, as one bit at the bottom of each lane.
#[inline(always)]
fn lanes(offset: u64, keys: u64, high: u64, shift: u32) -> u64 {
    ((offset | high).wrapping_sub(keys) & high) >> (shift & 63)
}

/// 1 if `key` is at least `bound`, else 0: the borrow of a subtraction, since a comparison would be a branch in BPF that
/// no predictor can learn.
#[inline(always)]
fn reached(key: u64, bound: u64) -> usize {
    let borrow = (!key & bound) | ((!key | bound) & key.wrapping_sub(bound));
    let borrow = (borrow >> 63) as usize;
    borrow ^ 1
}

/// Finds the class of an address: the rules that it satisfies in one dimension. A part of [`decide()`], public to be
/// measured and tested alone.
#[inline(always)]
pub fn classify<R: TableReader>(table: &R, trie: &Trie, address: &Address) -> Option<u32> {
    let mut key = address.high();
    if (key ^ trie.prefix) & trie.prefix_mask != 0 {
        return Some(trie.outside);
    }
    #[expect(clippy::cast_possible_truncation, reason = "the mask has 32 bits")]
    let index = (key >> (trie.shift & 63)) as u32 & trie.index_mask;
    let mut value = table.fixed().roots[(trie.root.wrapping_add(index) as usize) & (ROOT_ENTRIES - 1)];
    for _ in 0..MAX_DEPTH {
        let kind = value >> KIND_SHIFT;
        if kind < KIND_LEAF {
            return Some(value);
        }
        if kind > KIND_NODE_LOW {
            return None;
        }
        let line = table.line(value & INDEX_MASK)?;
        if kind >= KIND_LEAF_LOW {
            key = address.low();
        }
        let words = &line.words;
        let halves = line.halves();
        let node = kind == KIND_NODE || kind == KIND_NODE_LOW;
        if !node && trie.narrow == 0 {
            let position = reached(key, words[0])
                + reached(key, words[1])
                + reached(key, words[2])
                + reached(key, words[3])
                + reached(key, words[4]);
            value = halves[position.wrapping_add(FULL_VALUES) & 15];
            continue;
        }

        let base = words[0];
        let shape = halves[LINE_SHIFT_WORD];
        let mut offset = 0;
        if key >= base {
            offset = (key - base) >> (shape & 63);
            offset = if offset >= trie.limit { trie.limit } else { offset + 1 };
        }
        let offset = offset.wrapping_mul(trie.lanes_low);
        let (high, shift) = (trie.lanes_high, trie.lane_shift);
        // No lane of a count exceeds 6 and no sum 24, so that the product has the sum in its topmost 16 bits.
        let mut count =
            lanes(offset, words[1], high, shift).wrapping_add(lanes(offset, words[2], high, shift));
        if node {
            count = count
                .wrapping_add(lanes(offset, words[3], high, shift))
                .wrapping_add(lanes(offset, words[4], high, shift))
                .wrapping_add(lanes(offset, words[5], high, shift))
                .wrapping_add(lanes(offset, words[6], high, shift));
        }
        let position = (count.wrapping_mul(0x0001_0001_0001_0001) >> 48) as u32 & 31;
        value = if node {
            let kind = KIND_LEAF + ((shape >> ((NODE_MASK_SHIFT + position) & 31)) & 1);
            (kind << KIND_SHIFT) | (halves[NODE_CHILD_WORD].wrapping_add(position) & INDEX_MASK)
        } else {
            halves[(position as usize).wrapping_add(NARROW_VALUES) & 15]
        };
    }
    None
}

/// Judges a flow by a table.
///
/// `sink` is told of each shadow rule that matched before the deciding rule, in order, and then, with `false`, of the
/// rule that decided ([`RULE_DEFAULT`] if none did). Of shadow rules the first [`SHADOW_REPORTS`] are told.
///
/// Returns `None` if the table is not one or contradicts itself; the caller then does what the kernel does without a
/// policy. Whatever the table holds, nothing outside of it is read.
#[inline(always)]
pub fn decide<R: TableReader>(flow: &Flow, table: &R, mut sink: impl FnMut(u16, bool)) -> Option<Decision> {
    let fixed = table.fixed();
    let header = &fixed.header;
    if header.magic != MAGIC || header.layout != LAYOUT {
        return None;
    }
    let family = |address: &Address| {
        let place = usize::from(matches!(address.family(), Family::V6));
        (header.family_index[place] & 1) as usize
    };
    let cell = Cell {
        fixed,
        peer_dim: PEER_V4 + family(&flow.peer),
        local_dim: LOCAL_V4 + family(&flow.local),
        side: (header.role_index[(flow.role as usize).wrapping_sub(1) & 1] & 1) as usize,
    };
    let peer = set(table, classify(table, &fixed.tries[cell.peer_dim], &flow.peer)?)?;
    let local = fixed_set(fixed, classify(table, &fixed.tries[cell.local_dim], &flow.local)?)?;
    let port = fixed_set(fixed, fixed.ports[flow.port as usize])?;
    let candidates = (header.any_summary[cell.peer_dim] | peer.summary)
        & (header.any_summary[cell.local_dim] | local.summary)
        & (header.any_summary[PORT] | port.summary)
        & header.role_summary[cell.side];

    // The verifier follows a loop step by step, and forgets states that it saw: a branch within the body that comes back
    // to it would cost the square of the steps. So the body computes and has no way but on and out.
    let mut next = header.first_word;
    let mut bit = 0u64;
    let mut word = 0u32;
    // Words in which shadow rules match.
    let mut shadows = 0u64;
    if candidates != 0 {
        next = next.wrapping_add(candidates.trailing_zeros());
        let (mut peer, mut local, mut port) = (peer.walk(next), local.walk(next), port.walk(next));
        for _ in 0..RULE_WORDS {
            if next >= 64 || candidates >> next == 0 {
                break;
            }
            let matched = cell.matched(next, &mut peer, &mut local, &mut port);
            let shadow = fixed.shadow[(next & 63) as usize];
            let enforced = matched & !shadow;
            word = next;
            bit = enforced & enforced.wrapping_neg();
            // Those before the deciding rule: all of them, if it is not in this word.
            let before = matched & shadow & bit.wrapping_sub(1);
            shadows |= (!if_zero(before) & 1) << (next & 63);
            // Opaque, or the compiler would carry the counter of the loop, which the verifier knows, out of it instead.
            next = opaque(next.wrapping_add(1));
            if bit != 0 {
                break;
            }
        }
    }
    if shadows != 0 {
        let (peer, local, port) = (peer, local, port);
        let (mut current, mut matched) = (0u64, 0u64);
        for _ in 0..SHADOW_REPORTS {
            // Take up the next word if the last has been told of; each has a rule to tell.
            let fresh = if_zero(matched);
            let place = shadows.trailing_zeros() & 63;
            let (mut peer, mut local, mut port) = (peer.walk(place), local.walk(place), port.walk(place));
            let all = cell.matched(place, &mut peer, &mut local, &mut port) & fixed.shadow[place as usize];
            let limit = !if_zero(u64::from(place ^ word)) | bit.wrapping_sub(1);
            matched |= all & limit & fresh;
            current = (u64::from(place) & fresh) | (current & !fresh);
            shadows &= shadows.wrapping_sub(1) | !fresh;
            let first = matched & matched.wrapping_neg();
            matched ^= first;
            sink(rule_number(current, first), true);
            if matched | shadows == 0 {
                break;
            }
        }
    }
    let decision = if bit == 0 {
        let deny = header.flags & FLAG_DEFAULT_DENY != 0;
        Decision { verdict: verdict(deny), rule: RULE_DEFAULT, log: false }
    } else {
        let place = (word & 63) as usize;
        Decision {
            verdict: verdict(fixed.deny[place] & bit != 0),
            rule: rule_number(u64::from(word), bit),
            log: fixed.log[place] & bit != 0,
        }
    };
    sink(decision.rule, false);
    Some(decision)
}

#[inline(always)]
fn verdict(deny: bool) -> Verdict {
    if deny { Verdict::Deny } else { Verdict::Allow }
}

/// The number of the rule with this bit in this word of a bitmap.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the mask leaves 12 bits")]
fn rule_number(word: u64, bit: u64) -> u16 {
    (((word << 6) + u64::from(bit.trailing_zeros() & 63)) & (MAX_RULES as u64 - 1)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reached_is_at_least() {
        let values = [0, 1, 2, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX];
        for key in values {
            for bound in values {
                assert_eq!(reached(key, bound) == 1, key >= bound, "{key} {bound}");
            }
        }
    }

    #[test]
    fn lanes_count_keys_up_to_the_offset() {
        let high = 0x8000_8000_8000_8000u64;
        let keys = 0x7fff_0005_0003_0001;
        for (offset, expected) in [(0u64, 0), (1, 1), (2, 1), (3, 2), (5, 3), (0x7ffe, 3)] {
            let spread = offset * 0x0001_0001_0001_0001;
            let got = lanes(spread, keys, high, 15).count_ones();
            assert_eq!(got, expected, "offset {offset}");
        }
    }
}
