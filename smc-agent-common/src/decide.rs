//! The decision: bit-vector classification over a compiled table.
//!
//! Peer address, local address, port and role each give the set of rules that they satisfy; the first rule that
//! is in all four decides (Lakshman & Stiliadis 1998), and summaries tell which words of the sets can matter at
//! all (Baboescu & Varghese 2001).

use crate::flow::{Address, Family, Flow};
use crate::table::{
    FLAG_DEFAULT_DENY, FULL_VALUES, Fixed, INDEX_MASK, KIND_LEAF, KIND_LEAF_LOW, KIND_LINE_SET, KIND_NODE,
    KIND_NODE_LOW, KIND_SET, KIND_SHIFT, LAYOUT, LINE_SHIFT_WORD, LOCAL_V4, LOCAL_V6, Line, MAGIC, MAX_DEPTH,
    NARROW_VALUES, NODE_CHILD_WORD, NODE_MASK_SHIFT, PEER_V4, PEER_V6, PORT, ROOT_ENTRIES, RULE_DEFAULT,
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

/// Steps of the walk in which shadow rules are still reported. A step is one shadow rule or one word of 64 rules, so
/// at least this number less [`RULE_WORDS`] are; more than that many shadow rules matching one flow is not a roll-out
/// that anybody can read.
const SHADOW_STEPS: usize = 2 * RULE_WORDS;
/// Every word once, every report, and the end.
const STEPS: usize = SHADOW_STEPS + RULE_WORDS + 1;

/// The class of an address or a port: which rules it satisfies.
struct Set<'a> {
    /// Words that are not 0.
    summary: u64,
    /// Where the next of those words is: within the line, or within [`Fixed::sets`].
    next: u32,
    line: Option<&'a Line>,
}

impl Set<'_> {
    /// Passes over `count` words from `word` on; both are below 64.
    #[inline(always)]
    fn skip(&mut self, word: u32, count: u32) {
        let passed = (self.summary >> (word & 63)) & ((1 << (count & 63)) - 1);
        self.next = self.next.wrapping_add(passed.count_ones());
    }

    /// The part of the set within word `word` of a rule bitmap. To be called for each word in turn.
    #[inline(always)]
    fn word(&mut self, fixed: &Fixed, word: u32) -> u64 {
        let present = (self.summary >> (word & 63)) & 1;
        let value = match self.line {
            Some(line) => line.words[(self.next & 7) as usize],
            None => fixed.sets[(self.next as usize) & (SET_WORDS - 1)],
        };
        // Without a branch: read what is there, and use it only if it is meant.
        self.next = self.next.wrapping_add(u32::from(present != 0));
        value & 0u64.wrapping_sub(present)
    }
}

/// Finds the set that a class stands for; `None` if `class` is no class or its line is missing.
#[inline(always)]
fn set<R: TableReader>(table: &R, class: u32) -> Option<Set<'_>> {
    let index = class & INDEX_MASK;
    match class >> KIND_SHIFT {
        KIND_SET => Some(Set {
            summary: table.fixed().sets[(index as usize) & (SET_WORDS - 1)],
            next: index.wrapping_add(1),
            line: None,
        }),
        KIND_LINE_SET => {
            let line = table.line(index >> 3)?;
            Some(Set {
                summary: line.words[(index & 7) as usize],
                next: index.wrapping_add(1),
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
        let mut count = lanes(offset, words[1], high, shift) + lanes(offset, words[2], high, shift);
        if node {
            count += lanes(offset, words[3], high, shift)
                + lanes(offset, words[4], high, shift)
                + lanes(offset, words[5], high, shift)
                + lanes(offset, words[6], high, shift);
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
/// rule that decided ([`RULE_DEFAULT`] if none did). Of shadow rules at least the first 64 are told.
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
    let peer_dim = if matches!(flow.peer.family(), Family::V4) { PEER_V4 } else { PEER_V6 };
    let local_dim = if matches!(flow.local.family(), Family::V4) { LOCAL_V4 } else { LOCAL_V6 };
    let side = (flow.role as usize).wrapping_sub(1) & 1;

    let mut peer = set(table, classify(table, &fixed.tries[peer_dim], &flow.peer)?)?;
    let mut local = set(table, classify(table, &fixed.tries[local_dim], &flow.local)?)?;
    let mut port = set(table, fixed.ports[flow.port as usize])?;
    let candidates = (header.any_summary[peer_dim] | peer.summary)
        & (header.any_summary[local_dim] | local.summary)
        & (header.any_summary[PORT] | port.summary)
        & header.role_summary[side];

    // One loop for both, words and the rules within a word, because the verifier follows nested loops through the
    // product of their bounds.
    let mut next = header.first_word;
    let mut current = 0usize;
    let mut matched = 0u64;
    for step in 0..STEPS {
        if matched == 0 {
            if next >= 64 || candidates >> next == 0 {
                break;
            }
            let ahead = candidates >> next;
            if ahead & 1 == 0 {
                // Jump to the next word that can matter. To look at words one by one is cheaper only where most do.
                let skipped = ahead.trailing_zeros() & 63;
                peer.skip(next, skipped);
                local.skip(next, skipped);
                port.skip(next, skipped);
                next += skipped;
            }
            current = (next & 63) as usize;
            matched = (fixed.any[peer_dim][current] | peer.word(fixed, next))
                & (fixed.any[local_dim][current] | local.word(fixed, next))
                & (fixed.any[PORT][current] | port.word(fixed, next))
                & fixed.roles[side][current];
            next += 1;
            if step >= SHADOW_STEPS {
                matched &= !fixed.shadow[current];
            }
        } else {
            let bit = matched & matched.wrapping_neg();
            #[expect(clippy::cast_possible_truncation, reason = "at most 64 * 64")]
            let rule = (current as u32 * 64 + bit.trailing_zeros()) as u16;
            if fixed.shadow[current] & bit == 0 {
                sink(rule, false);
                return Some(Decision {
                    verdict: if fixed.deny[current] & bit != 0 { Verdict::Deny } else { Verdict::Allow },
                    rule,
                    log: fixed.log[current] & bit != 0,
                });
            }
            if step < SHADOW_STEPS {
                sink(rule, true);
                matched ^= bit;
            } else {
                matched &= !fixed.shadow[current];
            }
        }
    }
    sink(RULE_DEFAULT, false);
    Some(Decision {
        verdict: if header.flags & FLAG_DEFAULT_DENY != 0 { Verdict::Deny } else { Verdict::Allow },
        rule: RULE_DEFAULT,
        log: false,
    })
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
