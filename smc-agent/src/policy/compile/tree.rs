//! Writes the search of one kind of address: a root and the lines under it.

use super::sets::index;
use smc_agent_common::Line;
use smc_agent_common::table::{
    BRANCH_BITS_SHIFT, FULL_KEYS, FULL_VALUES, KIND_BRANCH, KIND_LEAF, KIND_LEAF_LOW, KIND_NODE, KIND_SHIFT,
    KIND_SHORT, LINE_SHIFT_WORD, MAX_BRANCHES, NARROW_KEYS, NARROW_VALUES, NODE_CHILD_WORD, NODE_KEY_WORDS,
    NODE_MASK_SHIFT, SHORT_KEYS, Trie,
};

/// From this key on, up to the next one, this value holds.
pub(super) type Region = (u64, u32);

/// A root of this many leading bits (and more) lets the lines of IPv4 be narrow: the rest of a key has 14 bits.
const NARROW_ROOT: u32 = 18;
/// The largest first root of IPv4: what follows is narrow.
const MAX_ROOT: u32 = 18;
/// The largest first root of IPv6. The leading bits of real addresses take few values: a small root tells them apart, and
/// further roots begin where each of them divides.
const MAX_ROOT_V6: u32 = 12;

/// How lines are cut.
#[derive(Clone, Copy)]
struct Shape {
    narrow: bool,
    lane_bits: u32,
    leaf_keys: usize,
}

impl Shape {
    const NARROW: Self = Self { narrow: true, lane_bits: 16, leaf_keys: NARROW_KEYS };
    const FULL: Self = Self { narrow: false, lane_bits: 32, leaf_keys: FULL_KEYS };

    fn limit(self) -> u64 {
        (1 << (self.lane_bits - 1)) - 2
    }

    fn lanes_low(self) -> u64 {
        if self.narrow { 0x0001_0001_0001_0001 } else { 0x0000_0001_0000_0001 }
    }

    fn lanes(self) -> usize {
        (64 / self.lane_bits) as usize
    }

    fn node_keys(self) -> usize {
        NODE_KEY_WORDS * self.lanes()
    }

    /// The keys that a tree of this height surely takes.
    fn capacity(self, height: u32) -> usize {
        // A narrow leaf's first value needs no key: all its neighbours' keys can be written exactly.
        let leaf = if self.narrow { self.leaf_keys + 1 } else { self.leaf_keys };
        leaf.saturating_mul((self.node_keys() + 1).saturating_pow(height - 1))
    }

    /// The kind of leaf that a root's entry of these regions can lead to, if there is one.
    fn root_leaf(self, regions: &[Region], first: u64, last: u64) -> Option<u32> {
        if !self.narrow && short_shift(regions, first, last).is_some() {
            return Some(KIND_SHORT);
        }
        self.leaf_shift(regions).map(|_| KIND_LEAF)
    }

    /// Whether one leaf can hold these regions, and the shift that it then has.
    fn leaf_shift(self, regions: &[Region]) -> Option<u32> {
        if regions.len() > self.leaf_keys {
            return None;
        }
        let [first, .., last] = regions else { return Some(0) };
        if !self.narrow {
            return Some(0);
        }
        let shift =
            regions[1..].iter().map(|region| (region.0 - first.0).trailing_zeros()).min().unwrap_or(0);
        ((last.0 - first.0) >> shift < self.limit()).then_some(shift)
    }
}

/// Whether one short leaf can hold these regions for all keys from `first` to `last`, and the shift that it then has.
fn short_shift(regions: &[Region], first: u64, last: u64) -> Option<u32> {
    let differ = 64 - (first ^ last).leading_zeros();
    let shift = differ.saturating_sub(32);
    let exact = regions.iter().all(|region| region.0.trailing_zeros() >= shift);
    (regions.len() <= SHORT_KEYS && exact).then_some(shift)
}

/// What the root of a family is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    skip: u32,
    /// The root has 2 to the power of `bits` entries.
    pub(super) bits: u32,
    v4: bool,
}

impl Root {
    /// Chooses a root for these regions.
    pub(super) fn choose(regions: &[Region], v4: bool) -> Self {
        let key_bits = if v4 { 32 } else { 64 };
        let (Some(second), Some(first), Some(last)) = (regions.get(1), regions.first(), regions.last())
        else {
            return Self { skip: 0, bits: 0, v4 };
        };
        // Leading bits that all keys share say nothing, if both sides of the space that they name have one class.
        let skip = if first.1 == last.1 && is_class(first.1) {
            (second.0 ^ last.0).leading_zeros().min(key_bits - 1)
        } else {
            0
        };
        // About four regions for each entry: a small table has a small root, which stays in the processor's cache.
        let wanted = (usize::BITS - regions.len().leading_zeros()).saturating_sub(2);
        let most = if v4 { MAX_ROOT } else { MAX_ROOT_V6 };
        let bits = wanted.min(most).min(key_bits - skip);
        Self { skip, bits, v4 }
    }

    /// The same root with another size, as far as the key has bits.
    #[cfg(test)]
    pub(super) fn with_bits(self, bits: u32) -> Self {
        Self { bits: bits.min(if self.v4 { 32 } else { 64 } - self.skip), ..self }
    }

    fn shift(self) -> u32 {
        64 - self.skip - self.bits
    }

    fn shape(self) -> Shape {
        // The key's part under the root, in units of IPv4 addresses.
        let narrow = self.v4 && self.shift() <= 64 - NARROW_ROOT;
        if narrow { Shape::NARROW } else { Shape::FULL }
    }
}

fn is_class(value: u32) -> bool {
    value >> KIND_SHIFT < KIND_LEAF
}

/// Writes the search for `regions` (the first begins at key 0), with at most `spare` entries of further roots. The number
/// is that of the lines which it reads at most.
pub(super) fn write(
    regions: &[Region],
    root: Root,
    spare: usize,
    roots: &mut Vec<u32>,
    lines: &mut Vec<Line>,
) -> (Trie, usize) {
    let shape = root.shape();
    let shift = root.shift();
    let prefix_mask = u64::MAX.checked_shl(64 - root.skip).unwrap_or(0);
    let prefix = regions.last().map_or(0, |region| region.0) & prefix_mask;
    let outside = regions.first().map_or(0, |region| region.1);
    let mut writer = Writer { shape, lines, depth: 1 };
    // Regions whose key lies before the prefix do not exist, except the first.
    let rest = regions.get(1..).unwrap_or_default();
    let span = Span { start: prefix, shift, bits: root.bits, initial: outside, regions: rest };
    let first_entry = writer.root(span, roots, spare, MAX_BRANCHES);
    let depth = writer.depth;
    let trie = Trie {
        prefix,
        prefix_mask,
        lanes_high: shape.lanes_low() << (shape.lane_bits - 1),
        lanes_low: shape.lanes_low(),
        limit: shape.limit(),
        shift,
        index_mask: index((1 << root.bits) - 1),
        root: first_entry,
        outside,
        lane_shift: shape.lane_bits - 1,
        narrow: u32::from(shape.narrow),
    };
    (trie, depth)
}

/// A part of the key space that a root divides into equal entries.
#[derive(Clone, Copy)]
struct Span<'a> {
    /// The first key.
    start: u64,
    /// Bits of the key below those that the root takes; 64 if it takes none.
    shift: u32,
    /// The root has 2 to the power of `bits` entries.
    bits: u32,
    /// The value at the first key, unless a region begins there.
    initial: u32,
    /// The regions that begin in it.
    regions: &'a [Region],
}

/// One entry of a root.
struct Entry<'a> {
    /// The first key.
    start: u64,
    /// The last key.
    last: u64,
    /// The value at `start`.
    initial: u32,
    /// The regions that begin behind `start`.
    regions: &'a [Region],
}

impl<'a> Span<'a> {
    fn entries(self) -> impl Iterator<Item = Entry<'a>> {
        let Self { start: first, shift, bits, mut initial, regions: mut rest } = self;
        (0..1u64 << bits).map(move |entry| {
            let start = if shift >= 64 { first } else { first | (entry << shift) };
            let last = if shift >= 64 { u64::MAX } else { start | ((1 << shift) - 1) };
            if let [(key, value), later @ ..] = rest
                && *key == start
            {
                initial = *value;
                rest = later;
            }
            let (regions, later) = rest.split_at(rest.partition_point_near(last));
            rest = later;
            let entry = Entry { start, last, initial, regions };
            initial = regions.last().map_or(initial, |region| region.1);
            entry
        })
    }
}

/// How many bits a further root is to take that begins below `shift` and has at most `most` entries; 0 if none is worth it.
fn branch_bits(regions: &[Region], shift: u32, most: usize, shape: Shape) -> u32 {
    let fit = |count: usize| count.checked_ilog2().unwrap_or(0);
    let most = fit(most).min(shift);
    // Two entries for what one leaf holds: neighbours share leaves that are not full.
    let leaf_keys = if shape.narrow { NARROW_KEYS } else { SHORT_KEYS };
    let wanted = fit((regions.len() * 2 / leaf_keys).max(2)).min(most);
    // By how many bits neighbours agree: that many more make two entries of one.
    let mut divides = [0usize; 64];
    for pair in regions.windows(2) {
        let common = ((pair[0].0 ^ pair[1].0).leading_zeros() + shift).saturating_sub(64);
        divides[(common & 63) as usize] += 1;
    }
    let used = |bits: u32| 1 + divides[..bits as usize].iter().sum::<usize>();
    // The most entries of which at least every fourth is in use.
    if let Some(bits) = (1..=wanted).rev().find(|bits| used(*bits) > 1 && used(*bits) * 4 >= 1 << bits) {
        return bits;
    }
    // All keys have some bits in common: past them, if most of the room is left for what follows.
    (1..=most)
        .find(|bits| used(*bits) > 1)
        .filter(|bits| bits + 2 <= most)
        .map_or(0, |bits| bits.max(most - 2).min(bits + 3))
}

/// Writes a search within the trailing half of addresses; `regions` begin at key 0. The result is the value that stands
/// for it, and how many lines it reads at most.
pub(super) fn write_low(regions: &[Region], lines: &mut Vec<Line>) -> (u32, usize) {
    let mut writer = Writer { shape: Shape::FULL, lines, depth: 0 };
    let value = match regions {
        [] => 0,
        [(_, value)] => *value,
        [(_, initial), inner @ ..] => {
            writer.tree(*initial, inner) + ((KIND_LEAF_LOW - KIND_LEAF) << KIND_SHIFT)
        }
    };
    (value, writer.depth)
}

trait Near {
    fn partition_point_near(&self, last: u64) -> usize;
}

impl Near for [Region] {
    /// How many regions begin at `last` or before; quick if they are few.
    fn partition_point_near(&self, last: u64) -> usize {
        let mut bound = 16;
        while self.get(bound).is_some_and(|region| region.0 <= last) {
            bound *= 4;
        }
        self[..bound.min(self.len())].partition_point(|region| region.0 <= last)
    }
}

/// A leaf that several neighbouring entries of a root share.
struct Open {
    line: usize,
    /// Its kind, short or not.
    kind: u32,
    /// The first key of the first entry.
    start: u64,
    /// The last key of the last entry.
    last: u64,
    /// The value at `start`.
    initial: u32,
    regions: Vec<Region>,
}

struct Writer<'a> {
    shape: Shape,
    lines: &'a mut Vec<Line>,
    /// The most lines from a root entry down.
    depth: usize,
}

impl Writer<'_> {
    fn allocate(&mut self, count: usize) -> usize {
        let first = self.lines.len();
        self.lines.resize(first + count, Line { words: [0; 8] });
        first
    }

    /// Writes a root, with `spare` entries and `branches` levels for further ones below it. Returns the place of its first
    /// entry.
    fn root(&mut self, span: Span<'_>, roots: &mut Vec<u32>, spare: usize, branches: usize) -> u32 {
        let first = roots.len();
        roots.resize(first + (1 << span.bits), 0);
        // What is spare goes to those entries that one leaf is too small for, by the number of their regions.
        let shape = self.shape;
        let crowded = |entry: &Entry<'_>| {
            let fits = shape.root_leaf(entry.regions, entry.start, entry.last).is_some();
            if fits { 0 } else { entry.regions.len() }
        };
        let mut crowd: usize = span.entries().map(|entry| crowded(&entry)).sum();
        let mut spare = spare;
        let mut open = None;
        for (number, entry) in span.entries().enumerate() {
            let inner = entry.regions;
            let crowded = crowded(&entry);
            roots[first + number] = if inner.is_empty() {
                entry.initial
            } else if let Some(value) = self.shared_leaf(&entry, &mut open) {
                value
            } else {
                let quota = spare * crowded / crowd.max(1);
                let bits = if branches == 0 { 0 } else { branch_bits(inner, span.shift, quota, shape) };
                if bits == 0 {
                    self.tree(entry.initial, inner)
                } else {
                    let shift = span.shift - bits;
                    let below =
                        Span { start: entry.start, shift, bits, initial: entry.initial, regions: inner };
                    let before = roots.len();
                    let place = self.root(below, roots, quota - (1 << bits), branches - 1);
                    spare -= roots.len() - before;
                    (KIND_BRANCH << KIND_SHIFT) | (bits << BRANCH_BITS_SHIFT) | place
                }
            };
            crowd -= crowded;
        }
        self.close(open);
        index(first)
    }

    /// The value of a root's entry whose regions fit a leaf, which its neighbours may share.
    fn shared_leaf(&mut self, entry: &Entry<'_>, shared: &mut Option<Open>) -> Option<u32> {
        let value = |open: &Open| (open.kind << KIND_SHIFT) | index(open.line);
        if let Some(mut open) = shared.take() {
            let before = open.regions.len();
            if open.regions.last().map_or(open.initial, |region| region.1) != entry.initial {
                open.regions.push((entry.start, entry.initial));
            }
            open.regions.extend_from_slice(entry.regions);
            let fits = if open.kind == KIND_SHORT {
                short_shift(&open.regions, open.start, entry.last).is_some()
            } else {
                self.shape.leaf_shift(&open.regions).is_some()
            };
            if fits {
                open.last = entry.last;
                return Some(value(shared.insert(open)));
            }
            open.regions.truncate(before);
            self.close(Some(open));
        }
        let kind = self.shape.root_leaf(entry.regions, entry.start, entry.last)?;
        let open = Open {
            line: self.allocate(1),
            kind,
            start: entry.start,
            last: entry.last,
            initial: entry.initial,
            regions: entry.regions.to_vec(),
        };
        Some(value(shared.insert(open)))
    }

    fn close(&mut self, open: Option<Open>) {
        let Some(Open { line, kind, start, last, initial, regions }) = open else { return };
        match short_shift(&regions, start, last).filter(|_| kind == KIND_SHORT) {
            Some(shift) => self.short_leaf(line, shift, initial, &regions),
            None => self.leaf(line, initial, &regions),
        }
    }

    fn short_leaf(&mut self, line: usize, shift: u32, initial: u32, regions: &[Region]) {
        let last = regions.last().map_or(initial, |region| region.1);
        // A key that is not used is passed by the last address only, whose value is the last one too.
        let mut halves = [u32::MAX; 16];
        halves[SHORT_KEYS..LINE_SHIFT_WORD].fill(last);
        halves[SHORT_KEYS] = initial;
        for (number, (key, value)) in regions.iter().enumerate() {
            #[expect(clippy::cast_possible_truncation, reason = "what is cut all keys have in common")]
            let low = (key >> shift) as u32;
            halves[number] = low;
            halves[SHORT_KEYS + 1 + number] = *value;
        }
        halves[LINE_SHIFT_WORD] = shift;
        self.lines[line] = bytemuck::cast(halves);
    }

    /// Writes a tree and gives the value that stands for it.
    fn tree(&mut self, initial: u32, regions: &[Region]) -> u32 {
        let line = self.allocate(1);
        let node = self.fill(line, initial, regions, 1);
        ((KIND_LEAF + node) << KIND_SHIFT) | index(line)
    }

    /// Writes the top of a tree to a line; 1 if it is a node, 0 if a leaf.
    fn fill(&mut self, line: usize, initial: u32, regions: &[Region], depth: usize) -> u32 {
        self.depth = self.depth.max(depth);
        if self.shape.leaf_shift(regions).is_some() {
            self.leaf(line, initial, regions);
            return 0;
        }
        let parts = split(self.shape, initial, regions);
        let first = self.allocate(parts.children.len());
        let mut nodes = 0;
        for (child, (initial, range)) in parts.children.iter().enumerate() {
            nodes |= self.fill(first + child, *initial, &regions[range.clone()], depth + 1) << child;
        }
        let mut words = [0; 8];
        words[0] = parts.base;
        self.keys(&mut words[1..=NODE_KEY_WORDS], parts.base, parts.shift, &parts.separators);
        let mut halves: [u32; 16] = bytemuck::cast(words);
        halves[NODE_CHILD_WORD] = index(first);
        halves[LINE_SHIFT_WORD] = parts.shift | (nodes << NODE_MASK_SHIFT);
        self.lines[line] = bytemuck::cast(halves);
        KIND_NODE - KIND_LEAF
    }

    fn leaf(&mut self, line: usize, initial: u32, regions: &[Region]) {
        let mut words = [0; 8];
        let last = regions.last().map_or(initial, |region| region.1);
        let mut values = vec![last; self.shape.leaf_keys + 1];
        values[0] = initial;
        for (value, region) in values[1..].iter_mut().zip(regions) {
            *value = region.1;
        }
        let mut halves: [u32; 16];
        if self.shape.narrow {
            let base = regions.first().map_or(0, |region| region.0);
            let shift = self.shape.leaf_shift(regions).unwrap_or(0);
            let keys: Vec<u64> = regions.iter().map(|region| region.0).collect();
            words[0] = base;
            self.keys(&mut words[1..=2], base, shift, &keys);
            halves = bytemuck::cast(words);
            halves[NARROW_VALUES..NARROW_VALUES + values.len()].copy_from_slice(&values);
            halves[LINE_SHIFT_WORD] = shift;
        } else {
            // A key that is not used is never passed, or by the last address only, whose value is the last one too.
            words[..FULL_KEYS].fill(u64::MAX);
            for (word, region) in words.iter_mut().zip(regions) {
                *word = region.0;
            }
            halves = bytemuck::cast(words);
            halves[FULL_VALUES..].copy_from_slice(&values);
        }
        self.lines[line] = bytemuck::cast(halves);
    }

    /// Writes keys to lanes; which lane holds which does not matter.
    fn keys(&self, words: &mut [u64], base: u64, shift: u32, keys: &[u64]) {
        let lanes = self.shape.lanes();
        let unused = self.shape.limit() + 1;
        for (number, word) in words.iter_mut().enumerate() {
            for lane in 0..lanes {
                let key = keys.get(number * lanes + lane).map_or(unused, |key| ((key - base) >> shift) + 1);
                *word |= key << (64 - self.shape.lane_bits * index(lane + 1));
            }
        }
    }
}

/// How the regions of a node are divided among its children.
struct Parts {
    base: u64,
    shift: u32,
    /// The least keys of all children but the first.
    separators: Vec<u64>,
    /// The value before a child's first key, and its regions.
    children: Vec<(u32, std::ops::Range<usize>)>,
}

/// Divides regions that one leaf cannot hold.
fn split(shape: Shape, initial: u32, regions: &[Region]) -> Parts {
    let (first, end) = match regions {
        [first, .., last] => (first.0, last.0),
        _ => (0, 0),
    };
    let shift = (64 - (end - first).leading_zeros()).saturating_sub(shape.lane_bits - 2);
    let floor = |key: u64| key >> shift << shift;
    let base = floor(first);
    let mut height = 1;
    while shape.capacity(height) < regions.len() + usize::from(shape.narrow) {
        height += 1;
    }
    let target = match height {
        1 => regions.len().div_ceil(2),
        _ => shape.capacity(height - 1) - usize::from(shape.narrow),
    };

    let mut parts = Parts { base, shift, separators: Vec::new(), children: Vec::new() };
    let (mut begin, mut before) = (0, initial);
    while parts.separators.len() < shape.node_keys() && begin + target < regions.len() {
        // The key that should begin the next child, cut to what a lane can hold; if that leaves nothing for this child,
        // the next key that can be written.
        let wanted = floor(regions[begin + target].0);
        let mut separator = wanted;
        let mut at = begin + regions[begin..].partition_point(|region| region.0 < separator);
        if at == begin {
            let Some(above) = wanted.checked_add(1 << shift).filter(|above| *above <= end) else { break };
            separator = above;
            at = begin + regions[begin..].partition_point(|region| region.0 < separator);
        }
        parts.separators.push(separator);
        parts.children.push((before, begin..at));
        before = if regions[at].0 == separator { regions[at].1 } else { regions[at - 1].1 };
        begin = at + usize::from(regions[at].0 == separator);
    }
    parts.children.push((before, begin..regions.len()));
    parts
}
