//! The decision: bit-vector classification over a compiled table.
//!
//! Peer address, local address, port and role each give the set of rules that they satisfy; the first rule that
//! is in all four decides (Lakshman & Stiliadis 1998), and summaries tell which words of the sets can matter at
//! all (Baboescu & Varghese 2001).

use crate::flow::{Address, Family, Flow};
use crate::table::{
    FLAG_DEFAULT_DENY, FULL_VALUES, Fixed, INDEX_MASK, KIND_LEAF, KIND_LEAF_LOW, KIND_NODE,
    KIND_NODE_LOW, KIND_SET, KIND_SHIFT, LAYOUT, LINE_SHIFT_WORD, LOCAL_V4, Line, MAGIC, MAX_DEPTH,
    NARROW_VALUES, NODE_CHILD_WORD, NODE_MASK_SHIFT, PEER_V4, PORT, ROOT_ENTRIES, RULE_DEFAULT,
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

/// Shadow rules that are told of for one flow: more of them matching it is not a roll-out that anybody can read.
pub const SHADOW_RULES: usize = 16;

/// The class of an address or a port: which rules it satisfies.
struct Set {
    /// Words that are not 0.
    summary: u64,
    /// Where the first of those words is in [`Fixed::sets`].
    first: u32,
}

impl Set {
    /// Finds the set that a class stands for; `None` if `class` is no class.
    #[inline(always)]
    fn new(fixed: &Fixed, class: u32) -> Option<Self> {
        if class >> KIND_SHIFT != KIND_SET {
            return None;
        }
        let summary = fixed.sets[(class as usize) & (SET_WORDS - 1)];
        Some(Self { summary, first: class.wrapping_add(1) })
    }

    /// The part of the set within word `word` (below 64) of a rule bitmap. Without a branch: what is there is read, and
    /// used only if it is meant. Without memory of the words before: all that changes from turn to turn is `word`, or the
    /// verifier would follow every combination of what it knows of three positions.
    #[inline(always)]
    fn word(&self, fixed: &Fixed, word: u32) -> u64 {
        let before = self.summary & ((1 << (word & 63)) - 1);
        let at = self.first.wrapping_add(before.count_ones());
        let present = (self.summary >> (word & 63)) & 1;
        fixed.sets[(at as usize) & (SET_WORDS - 1)] & 0u64.wrapping_sub(present)
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
    /// The family of the peer's address: 0 for IPv4, 1 for IPv6.
    pub peer_family: usize,
    /// The family of this host's address: 0 for IPv4, 1 for IPv6.
    pub local_family: usize,
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
/// `sink` is told of shadow rules that matched before the deciding rule, in order (of the first [`SHADOW_RULES`], if there
/// are more), and then, with `false`, of the rule that decided ([`RULE_DEFAULT`] if none did).
///
/// Returns `None` if the table is not one or contradicts itself; the caller then does what the kernel does without a
/// policy. Whatever the table holds, nothing outside of it is read.
#[inline(always)]
pub fn decide<R: TableReader>(flow: &Flow, table: &R, mut sink: impl FnMut(u16, bool)) -> Option<Decision> {
    let fixed = table.fixed();
    let family = |address: &Address| usize::from(matches!(address.family(), Family::V6));
    let (peer_family, local_family) = (family(&flow.peer), family(&flow.local));
    let classified = Classified {
        peer_family,
        local_family,
        side: (flow.role as usize).wrapping_sub(1) & 1,
        port: flow.port,
        peer: classify(table, &fixed.tries[PEER_V4 + peer_family], flow.peer.high(), flow.peer.low())?,
        local: classify(table, &fixed.tries[LOCAL_V4 + local_family], flow.local.high(), flow.local.low())?,
    };
    let decision = first_match(&classified, fixed)?;
    if fixed.header.shadow_summary != 0 {
        let mut from = 0;
        for _ in 0..SHADOW_RULES {
            let Some(rule) = next_shadow(&classified, fixed, from).filter(|rule| *rule < decision.rule) else { break };
            sink(rule, true);
            from = rule + 1;
        }
    }
    sink(decision.rule, false);
    Some(decision)
}

/// Where the rules that a flow satisfies are to be looked for.
struct Candidates<'a> {
    fixed: &'a Fixed,
    peer: Set,
    local: Set,
    port: Set,
    peer_any: usize,
    local_any: usize,
    side: usize,
    /// Words of a rule bitmap that can have any.
    words: u64,
}

impl<'a> Candidates<'a> {
    #[inline(always)]
    fn new(flow: &Classified, fixed: &'a Fixed) -> Option<Self> {
        let header = &fixed.header;
        if header.magic != MAGIC || header.layout != LAYOUT {
            return None;
        }
        let peer_any = PEER_V4 + (flow.peer_family & 1);
        let local_any = LOCAL_V4 + (flow.local_family & 1);
        let side = flow.side & 1;
        let peer = Set::new(fixed, flow.peer)?;
        let local = Set::new(fixed, flow.local)?;
        let port = Set::new(fixed, fixed.ports[flow.port as usize])?;
        let words = (header.any_summary[peer_any] | peer.summary)
            & (header.any_summary[local_any] | local.summary)
            & (header.any_summary[PORT] | port.summary)
            & header.role_summary[side];
        Some(Self { fixed, peer, local, port, peer_any, local_any, side, words })
    }

    /// The rules of a word that the flow satisfies.
    #[inline(always)]
    fn rules(&self, word: u32) -> u64 {
        let (fixed, index) = (self.fixed, (word & 63) as usize);
        (fixed.any[self.peer_any][index] | self.peer.word(fixed, word))
            & (fixed.any[self.local_any][index] | self.local.word(fixed, word))
            & (fixed.any[PORT][index] | self.port.word(fixed, word))
            & fixed.roles[self.side][index]
    }
}

/// Finds the first rule that a classified flow satisfies and that is not in shadow mode: the second part of
/// [`decide()`].
#[inline(always)]
pub fn first_match(flow: &Classified, fixed: &Fixed) -> Option<Decision> {
    let candidates = Candidates::new(flow, fixed)?;
    let mut words = candidates.words;
    for _ in 0..RULE_WORDS {
        if words == 0 {
            break;
        }
        let word = words.trailing_zeros() & 63;
        words &= words.wrapping_sub(1);
        let index = word as usize;
        let matched = candidates.rules(word) & !fixed.shadow[index];
        if matched != 0 {
            let bit = matched & matched.wrapping_neg();
            #[expect(clippy::cast_possible_truncation, reason = "at most 64 * 64")]
            let rule = (word * 64 + matched.trailing_zeros()) as u16;
            return Some(Decision {
                verdict: if fixed.deny[index] & bit != 0 { Verdict::Deny } else { Verdict::Allow },
                rule,
                log: fixed.log[index] & bit != 0,
            });
        }
    }
    Some(Decision {
        verdict: if fixed.header.flags & FLAG_DEFAULT_DENY != 0 { Verdict::Deny } else { Verdict::Allow },
        rule: RULE_DEFAULT,
        log: false,
    })
}

/// Finds the first rule from number `from` (below 4096) on that is in shadow mode and that a classified flow satisfies: the
/// last part of [`decide()`], only needed where the header's summary says that there are such rules.
#[inline(always)]
pub fn next_shadow(flow: &Classified, fixed: &Fixed, from: u16) -> Option<u16> {
    let candidates = Candidates::new(flow, fixed)?;
    let number = |word: u32, matched: u64| {
        #[expect(clippy::cast_possible_truncation, reason = "at most 64 * 64")]
        let rule = (word * 64 + matched.trailing_zeros()) as u16;
        rule
    };
    let first = u32::from(from / 64) & 63;
    let matched = candidates.rules(first) & fixed.shadow[first as usize] & (u64::MAX << (from % 64));
    if matched != 0 {
        return Some(number(first, matched));
    }
    let mut words = candidates.words & fixed.header.shadow_summary & (u64::MAX << first << 1);
    for _ in 0..RULE_WORDS {
        if words == 0 {
            break;
        }
        let word = words.trailing_zeros() & 63;
        words &= words.wrapping_sub(1);
        let matched = candidates.rules(word) & fixed.shadow[word as usize];
        if matched != 0 {
            return Some(number(word, matched));
        }
    }
    None
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
