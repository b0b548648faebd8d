//! The decision: bit-vector classification over a compiled table.
//!
//! Peer address, local address, port and role each give the set of rules that they satisfy; the first rule that
//! is in all four decides (Lakshman & Stiliadis 1998), and summaries tell which words of the sets can matter at
//! all (Baboescu & Varghese 2001).

use crate::flow::{Family, Flow};
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

/// Shadow rules that are told of for one flow, apart from those in the words of 64 rules that are looked at last: more
/// of them matching one flow is not a roll-out that anybody can read.
const SHADOW_STEPS: usize = 16;
/// Every word once, every report, and the end.
const STEPS: usize = SHADOW_STEPS + RULE_WORDS + 1;

/// The class of an address or a port: which rules it satisfies. Only numbers are kept, and the place of a word is looked
/// up anew each time: pointers into two kinds of maps for each of three sets would be eight ways through the walk for
/// the verifier.
struct Set {
    /// Words that are not 0.
    summary: u64,
    /// Where the next of those words is, as in a class: in lines (counted in words) or in [`Fixed::sets`].
    next: u32,
}

impl Set {
    /// The bits of a class of either kind of set.
    const MASK: u32 = (1 << (KIND_SHIFT + 1)) - 1;

    /// Finds the set that a class stands for; `None` if `class` is no class or its line is missing.
    #[inline(always)]
    fn new<R: TableReader>(table: &R, class: u32, unknown: u32) -> Option<Self> {
        const { assert!(KIND_SET == 0 && KIND_LINE_SET == 1) };
        if class > Self::MASK {
            return None;
        }
        let mut set = Self { summary: 1, next: class };
        set.summary = set.word(table, 0, unknown)?;
        Some(set)
    }

    /// The part of the set within word `word` of a rule bitmap. To be called for each word in turn.
    #[inline(always)]
    fn word<R: TableReader>(&mut self, table: &R, word: u32, unknown: u32) -> Option<u64> {
        let present = (self.summary >> (word & 63)) & 1;
        let at = self.next;
        #[expect(clippy::cast_possible_truncation, reason = "one bit")]
        let step = present as u32;
        self.next = at.wrapping_add(step).wrapping_add(unknown) & Self::MASK;
        // Without a branch: what is there is read, and used only if it is meant.
        let value = if at >> KIND_SHIFT == KIND_LINE_SET {
            match table.line((at & INDEX_MASK) >> 3) {
                Some(line) => line.words[(at & 7) as usize],
                None if present == 0 => 0,
                None => return None,
            }
        } else {
            table.fixed().sets[(at as usize) & (SET_WORDS - 1)]
        };
        Some(value & 0u64.wrapping_sub(present))
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

/// Finds the class of an address, given as [`Address::high`] and [`Address::low`]: the rules that it satisfies in one
/// dimension. A part of [`decide()`], public because a program for the kernel has it as a function of its own.
#[inline(always)]
pub fn classify<R: TableReader>(table: &R, trie: &Trie, high: u64, low: u64) -> Option<u32> {
    let mut key = high;
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
            key = low;
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

/// What is known of a flow once its addresses are classified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classified {
    /// Which addresses it has: [`PEER_V4`] or [`PEER_V6`].
    pub peer_dimension: usize,
    /// Which side this host is: 0 for the client, 1 for the server.
    pub side: usize,
    /// The service port.
    pub port: u16,
    /// Class of the peer's address.
    pub peer: u32,
    /// Class of this host's address.
    pub local: u32,
}

/// Judges a flow by a table.
///
/// `sink` is told of shadow rules that matched before the deciding rule, in order, and then, with `false`, of the rule
/// that decided ([`RULE_DEFAULT`] if none did). Of shadow rules at least the first 16 are told.
///
/// Returns `None` if the table is not one or contradicts itself, or if the ends are of different families, which no
/// connection is; the caller then does what the kernel does without a policy. Whatever the table holds, nothing
/// outside of it is read.
#[inline(always)]
pub fn decide<R: TableReader>(flow: &Flow, table: &R, sink: impl FnMut(u16, bool)) -> Option<Decision> {
    let fixed = table.fixed();
    let (peer_dimension, local_dimension) = match (flow.peer.family(), flow.local.family()) {
        (Family::V4, Family::V4) => (PEER_V4, LOCAL_V4),
        (Family::V6, Family::V6) => (PEER_V6, LOCAL_V6),
        _ => return None,
    };
    let classified = Classified {
        peer_dimension,
        side: (flow.role as usize).wrapping_sub(1) & 1,
        port: flow.port,
        peer: classify(table, &fixed.tries[peer_dimension], flow.peer.high(), flow.peer.low())?,
        local: classify(table, &fixed.tries[local_dimension], flow.local.high(), flow.local.low())?,
    };
    first_match(&classified, table, sink)
}

/// Finds the first rule that a classified flow satisfies: the second part of [`decide()`], which tells the rest.
#[inline(always)]
pub fn first_match<R: TableReader>(
    flow: &Classified,
    table: &R,
    mut sink: impl FnMut(u16, bool),
) -> Option<Decision> {
    let fixed = table.fixed();
    let header = &fixed.header;
    if header.magic != MAGIC || header.layout != LAYOUT {
        return None;
    }
    let peer_any = flow.peer_dimension & 1;
    let local_any = peer_any + LOCAL_V4;
    let side = flow.side & 1;
    // 0, which the verifier does not know: what it knows of a counter, it follows value by value. With this added it
    // knows no more than the mask tells, and every turn of the loop is the same to it.
    let unknown = header.first_word;
    let mut peer = Set::new(table, flow.peer, unknown)?;
    let mut local = Set::new(table, flow.local, unknown)?;
    let mut port = Set::new(table, fixed.ports[flow.port as usize], unknown)?;
    let candidates = (header.any_summary[peer_any] | peer.summary)
        & (header.any_summary[local_any] | local.summary)
        & (header.any_summary[PORT] | port.summary)
        & header.role_summary[side];

    // One loop for both, words and the rules within a word, because the verifier follows nested loops through the
    // product of their bounds.
    let mut next = unknown & 127;
    let mut current = 0usize;
    let mut matched = 0u64;
    for step in 0..STEPS {
        if matched == 0 {
            if next >= 64 || candidates >> next == 0 {
                break;
            }
            current = (next & 63) as usize;
            matched = (fixed.any[peer_any][current] | peer.word(table, next, unknown)?)
                & (fixed.any[local_any][current] | local.word(table, next, unknown)?)
                & (fixed.any[PORT][current] | port.word(table, next, unknown)?)
                & fixed.roles[side][current];
            next = (next + 1 + unknown) & 127;
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
