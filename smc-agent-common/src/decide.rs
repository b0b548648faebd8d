//! The decision: bit-vector classification over a compiled table.
//!
//! Peer address, local address, port and role each give the set of rules that they satisfy; the first rule that
//! is in all four decides (Lakshman & Stiliadis 1998), and summaries tell which words of the sets can matter at
//! all (Baboescu & Varghese 2001).

use crate::flow::{Address, Family, Flow};
use crate::table::{
    BRANCH_BITS_SHIFT, FLAG_DEFAULT_DENY, FLAG_LOCAL, FLAG_PORT, FULL_VALUES, Fixed, INDEX_MASK, KIND_BRANCH,
    KIND_LEAF, KIND_LEAF_LOW, KIND_LINE_SET, KIND_NODE, KIND_NODE_LOW, KIND_SET, KIND_SHIFT, KIND_SHORT,
    LAYOUT, LINE_SHIFT_WORD, LOCAL_V4, Line, MAGIC, MAX_BRANCHES, MAX_DEPTH, NARROW_VALUES, NODE_CHILD_WORD,
    NODE_MASK_SHIFT, PEER_V4, PORT, PORTS, ROOT_ENTRIES, RULE_DEFAULT, RULE_WORDS, SET_WORDS, SHORT_KEYS,
    Trie,
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

impl Set<'_> {
    /// The part of the set within word `word` (below 64) of a rule bitmap. Without a branch: what is there is read, and
    /// used only if it is meant. And without memory of the words before: all that changes from turn to turn of a loop is
    /// `word`, or the verifier would follow every combination of what it knows of three positions.
    #[inline(always)]
    fn word(&self, fixed: &Fixed, word: u32) -> u64 {
        let before = self.summary & ((1 << (word & 63)) - 1);
        let at = self.first.wrapping_add(before.count_ones());
        let present = (self.summary >> (word & 63)) & 1;
        let value = match self.line {
            Some(line) => line.words[(at & 7) as usize],
            None => fixed.sets[(at as usize) & (SET_WORDS - 1)],
        };
        value & opaque(present.wrapping_neg())
    }
}

impl Set<'_> {
    /// As [`Self::word`], of one word after the other: what remains of the set begins with the next word.
    #[inline(always)]
    fn next(&mut self, fixed: &Fixed) -> u64 {
        let present = self.summary & 1;
        self.summary >>= 1;
        let value = match self.line {
            Some(line) => line.words[(self.first & 7) as usize],
            None => fixed.sets[(self.first as usize) & (SET_WORDS - 1)],
        };
        let step = present as u32;
        self.first = self.first.wrapping_add(step);
        value & opaque(present.wrapping_neg())
    }
}

/// The same value, of which the compiler of BPF knows nothing: it would turn masks into branches, for which BPF has no
/// better instruction.
#[inline(always)]
fn opaque<T>(value: T) -> T {
    if cfg!(target_arch = "bpf") { core::hint::black_box(value) } else { value }
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
        first: class.wrapping_add(1) & INDEX_MASK,
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
                first: index.wrapping_add(1) & INDEX_MASK,
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

/// The value for `key` in a short leaf.
#[inline(always)]
fn short_leaf(line: &Line, key: u64) -> u32 {
    let halves = line.halves();
    // The borrow of a subtraction, as in `reached`. A compiler that knew of the upper half would compare.
    let offset = opaque((key >> (halves[LINE_SHIFT_WORD] & 63)) & 0xffff_ffff);
    let below = |key: u32| (offset.wrapping_sub(u64::from(key)) >> 63) as usize;
    let below = below(halves[0])
        + below(halves[1])
        + below(halves[2])
        + below(halves[3])
        + below(halves[4])
        + below(halves[5])
        + below(halves[6]);
    halves[opaque((2 * SHORT_KEYS).wrapping_sub(below)) & 15]
}

/// Finds the class of an address, given as [`Address::high`] and [`Address::low`]: the rules that it satisfies in one
/// dimension. The first part of [`decide()`].
#[inline(always)]
pub fn classify<R: TableReader>(table: &R, trie: &Trie, high: u64, low: u64) -> Option<u32> {
    let mut key = high;
    if (key ^ trie.prefix) & trie.prefix_mask != 0 {
        return Some(trie.outside);
    }
    #[expect(clippy::cast_possible_truncation, reason = "the mask has 32 bits")]
    let index = (key >> (trie.shift & 63)) as u32 & trie.index_mask;
    let roots = &table.fixed().roots;
    let mut value = roots[(trie.root.wrapping_add(index) as usize) & (ROOT_ENTRIES - 1)];
    let mut shift = trie.shift;
    for _ in 0..MAX_BRANCHES {
        if value >> KIND_SHIFT != KIND_BRANCH {
            break;
        }
        let bits = (value & INDEX_MASK) >> BRANCH_BITS_SHIFT;
        shift = shift.wrapping_sub(bits);
        #[expect(clippy::cast_possible_truncation, reason = "the mask has at most 31 bits")]
        let index = (key >> (shift & 63)) as u32 & ((1 << (bits & 31)) - 1);
        value = roots[(value.wrapping_add(index) as usize) & (ROOT_ENTRIES - 1)];
    }
    // Only roots lead to short leaves: here, the verifier follows one.
    if value >> KIND_SHIFT == KIND_SHORT {
        value = short_leaf(table.line(value & INDEX_MASK)?, key);
    }
    for _ in 0..MAX_DEPTH {
        let kind = value >> KIND_SHIFT;
        if kind < KIND_LEAF {
            return Some(value);
        }
        if kind == KIND_SHORT || kind == KIND_BRANCH {
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
///
/// A program for the kernel has each of the parts ([`classify`], [`first_match`], [`next_shadow`]) as a function that is
/// verified by itself: in one piece the verifier would follow every way through one for every way through the others.
#[inline(always)]
pub fn decide<R: TableReader>(flow: &Flow, table: &R, mut sink: impl FnMut(u16, bool)) -> Option<Decision> {
    let fixed = table.fixed();
    let family = |address: &Address| usize::from(matches!(address.family(), Family::V6));
    let (peer_family, local_family) = (family(&flow.peer), family(&flow.local));
    let trie = |first: usize, family: usize| &fixed.tries[(first + family) & 3];
    let classified = Classified {
        peer_family,
        local_family,
        side: (flow.role as usize).wrapping_sub(1) & 1,
        port: flow.port,
        peer: classify(table, trie(PEER_V4, peer_family), flow.peer.high(), flow.peer.low())?,
        local: if fixed.header.flags & FLAG_LOCAL == 0 {
            0
        } else {
            classify(table, trie(LOCAL_V4, local_family), flow.local.high(), flow.local.low())?
        },
    };
    let decision = first_match(&classified, table)?;
    if fixed.header.shadow_summary != 0 {
        let mut from = 0;
        for _ in 0..SHADOW_REPORTS {
            let rule = next_shadow(&classified, table, from).filter(|rule| *rule < decision.rule);
            let Some(rule) = rule else { break };
            sink(rule, true);
            from = rule + 1;
        }
    }
    sink(decision.rule, false);
    Some(decision)
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

/// Where the rules that a flow satisfies are to be looked for.
struct Candidates<'a> {
    fixed: &'a Fixed,
    peer: Set<'a>,
    local: Set<'a>,
    port: Set<'a>,
    peer_dim: usize,
    local_dim: usize,
    side: usize,
    /// Words of a rule bitmap that can have any.
    words: u64,
    /// The sets of `local` and `port` have every word, or none.
    whole: bool,
}

impl<'a> Candidates<'a> {
    #[inline(always)]
    fn new<R: TableReader>(flow: &Classified, table: &'a R) -> Option<Self> {
        let fixed = table.fixed();
        let header = &fixed.header;
        if header.magic != MAGIC || header.layout != LAYOUT {
            return None;
        }
        let peer_dim = PEER_V4 + (flow.peer_family & 1);
        let local_dim = LOCAL_V4 + (flow.local_family & 1);
        let side = flow.side & 1;
        let peer = set(table, flow.peer)?;
        let local = fixed_set(fixed, flow.local)?;
        // Where no rule asks for a port, the class of port 0 does for all: one place that stays in the caches. Without a
        // branch, which would double what the verifier follows.
        let asked = opaque((((header.flags / FLAG_PORT) & 1) as usize).wrapping_neg());
        let port = fixed_set(fixed, fixed.ports[flow.port as usize & asked & (PORTS - 1)])?;
        let words = (header.any_summary[peer_dim] | peer.summary)
            & (header.any_summary[local_dim] | local.summary)
            & (header.any_summary[PORT] | port.summary)
            & header.role_summary[side];
        let whole = |set: &Set<'_>| set.summary == 0 || set.summary == header.all_words;
        let whole = whole(&local) && whole(&port);
        Some(Self { fixed, peer, local, port, peer_dim, local_dim, side, words, whole })
    }

    /// The rules of a word that the flow satisfies.
    #[inline(always)]
    fn rules(&self, word: u32) -> u64 {
        let fixed = self.fixed;
        let (peer, local, port) =
            (self.peer.word(fixed, word), self.local.word(fixed, word), self.port.word(fixed, word));
        let place = (word & 63) as usize;
        self.with(place, peer, local, port) & fixed.roles[self.side][place]
    }

    /// The rules of a word that the flow satisfies but for its role, given the sets' parts of that word.
    #[inline(always)]
    fn with(&self, place: usize, peer: u64, local: u64, port: u64) -> u64 {
        let fixed = self.fixed;
        (fixed.any[self.peer_dim][place] | peer)
            & (fixed.any[self.local_dim][place] | local)
            & (fixed.any[PORT][place] | port)
    }
}

/// Finds the first rule that a classified flow satisfies and that is not in shadow mode.
#[inline(always)]
pub fn first_match<R: TableReader>(flow: &Classified, table: &R) -> Option<Decision> {
    let candidates = Candidates::new(flow, table)?;
    let fixed = candidates.fixed;
    let (mut peer, mut local, mut port) = (candidates.peer, candidates.local, candidates.port);
    let found = if candidates.whole {
        let word_of =
            |set: &Set<'_>, word: u32| fixed.sets[(set.first.wrapping_add(word) as usize) & (SET_WORDS - 1)];
        candidates.first(|word| (peer.next(fixed), word_of(&local, word), word_of(&port, word)))
    } else {
        candidates.first(|_| (peer.next(fixed), local.next(fixed), port.next(fixed)))
    };
    let Some((word, bit)) = found else {
        let deny = fixed.header.flags & FLAG_DEFAULT_DENY != 0;
        return Some(Decision { verdict: verdict(deny), rule: RULE_DEFAULT, log: false });
    };
    // Where the compiler knows the bound it leaves the mask out, and 6.12's verifier does not know it any more.
    let word = opaque(word) & 63;
    let place = word as usize;
    Some(Decision {
        verdict: verdict(fixed.deny[place] & bit != 0),
        rule: rule_number(word, bit),
        log: fixed.log[place] & bit != 0,
    })
}

impl Candidates<'_> {
    /// The word and the bit of the first rule that is satisfied and not in shadow mode; `sets` gives the parts of the
    /// three sets within each word, and is asked for one word after the other.
    ///
    /// Word after word rather than from one candidate to the next: BPF has no instructions to count bits or to find one,
    /// and to leave words out would be a branch that the verifier follows both ways, again at every word.
    #[inline(always)]
    fn first(&self, mut sets: impl FnMut(u32) -> (u64, u64, u64)) -> Option<(u32, u64)> {
        #[expect(clippy::cast_possible_truncation, reason = "64")]
        const WORDS: u32 = RULE_WORDS as u32;
        let mut words = self.words;
        for word in 0..WORDS {
            if words == 0 {
                break;
            }
            words >>= 1;
            let (peer, local, port) = sets(word);
            let place = (word & 63) as usize;
            let matched = self.with(place, peer, local, port) & self.fixed.enforced[self.side][place];
            if matched != 0 {
                return Some((word, matched & matched.wrapping_neg()));
            }
        }
        None
    }
}

/// Finds the first rule from number `from` on that is in shadow mode and that a classified flow satisfies. Only needed where
/// [`Header::shadow_summary`](crate::table::Header::shadow_summary) says that there are such rules.
#[inline(always)]
pub fn next_shadow<R: TableReader>(flow: &Classified, table: &R, from: u16) -> Option<u16> {
    let candidates = Candidates::new(flow, table)?;
    let shadow = &candidates.fixed.shadow;
    let first = u32::from(from / 64) & 63;
    let matched = candidates.rules(first) & shadow[first as usize] & (u64::MAX << (from % 64));
    if matched != 0 {
        return Some(rule_number(first, matched));
    }
    let mut words = candidates.words & candidates.fixed.header.shadow_summary & (u64::MAX << first << 1);
    for _ in 0..RULE_WORDS {
        if words == 0 {
            break;
        }
        let word = words.trailing_zeros() & 63;
        words &= words.wrapping_sub(1);
        let matched = candidates.rules(word) & shadow[word as usize];
        if matched != 0 {
            return Some(rule_number(word, matched));
        }
    }
    None
}

#[inline(always)]
fn verdict(deny: bool) -> Verdict {
    if deny { Verdict::Deny } else { Verdict::Allow }
}

/// The number of the rule with the lowest of these bits in this word of a bitmap.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "at most 63 * 64 + 64")]
fn rule_number(word: u32, bits: u64) -> u16 {
    (word * 64 + bits.trailing_zeros()) as u16
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
