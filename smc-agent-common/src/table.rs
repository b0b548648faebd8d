//! The compiled policy: one fixed-size value and an array of cache lines, swapped as one generation.
//!
//! # The parts
//! [`Fixed`] is the value that one map lookup returns: the header, the class of each port, the roots of the four
//! address searches, and the rule sets. [`Line`]s hold the rest of the searches, and rule sets that no longer fit.
//!
//! # A search
//! An address is a 64-bit key (two for IPv6). The root takes the leading bits and gives a *value*; a value is a class, or
//! the place of a further root for the bits that follow (where many regions crowd: roots are read without a map lookup
//! and stay in the processor's caches), or points at a line, which is a node or a leaf of a static tree:
//! - *node*: word 0 is the base, words 1 to 6 hold the least keys of all children but the first, as offsets from the
//!   base, shifted right, in lanes of 15 or 31 bits. All lanes are compared at once by arithmetic on 64-bit words, which
//!   costs no branch, and counting them does not depend on the order of bytes. The children follow one another.
//! - *narrow leaf*: word 0 is the base, words 1 and 2 hold 8 keys in lanes of 15 bits, 9 values follow. IPv4 with a root of
//!   2^18 entries has such leaves: 9 regions in 64 bytes.
//! - *full leaf*: words 0 to 4 hold 5 keys of 64 bits, 6 values follow.
//! - *short leaf*: 7 keys of 32 bits, 8 values, and the shift that brings a key to 32 bits; the bits above those all keys
//!   that come here have in common.
//!
//! # Values
//! The upper three bits are the kind (`KIND_*`), the rest is an index.
//!
//! All integers are in the byte order of the host: the table never leaves it.

/// The most rules of one policy.
pub const MAX_RULES: usize = 4096;
/// The rule number that stands for "no rule matched, the default decides".
pub const RULE_DEFAULT: u16 = u16::MAX;
/// 64-bit words of a bitmap with one bit for each rule.
pub const RULE_WORDS: usize = MAX_RULES / 64;
/// Entries of the area that holds the roots of the four searches.
pub const ROOT_ENTRIES: usize = 1 << 19;
/// 64-bit words of the area that holds rule sets.
pub const SET_WORDS: usize = 1 << 17;
/// Number of ports.
pub const PORTS: usize = 1 << 16;
/// First word of a valid header: "smcT" in ASCII, read as a big-endian number.
pub const MAGIC: u32 = 0x736d_6354;
/// Changes with every change of the layout or of the meaning of the table.
pub const LAYOUT: u32 = 3;

/// Bits that hold the kind of a value start here.
pub const KIND_SHIFT: u32 = 29;
/// The index part of a value.
pub const INDEX_MASK: u32 = (1 << KIND_SHIFT) - 1;
/// Class: a rule set in [`Fixed::sets`], the index is that of its summary word. Class 0 is the empty set.
pub const KIND_SET: u32 = 0;
/// Class, of peers only: a rule set within a line; the index is the line times 8 plus the word that holds the summary.
pub const KIND_LINE_SET: u32 = 1;
/// Search: a leaf.
pub const KIND_LEAF: u32 = 2;
/// Search: a node. A child of a node is a leaf or a node: one of these two kinds, which differ in the lowest bit.
pub const KIND_NODE: u32 = 3;
/// Search: a short leaf.
pub const KIND_SHORT: u32 = 4;
/// As [`KIND_LEAF`], and from here on the key is the trailing half of the address.
pub const KIND_LEAF_LOW: u32 = 5;
/// As [`KIND_NODE`], and from here on the key is the trailing half of the address.
pub const KIND_NODE_LOW: u32 = 6;
/// Search: a further root. The index has its first entry in [`Fixed::roots`] and, from [`BRANCH_BITS_SHIFT`] on, how many
/// bits of the key it takes.
pub const KIND_BRANCH: u32 = 7;
/// In a value of kind [`KIND_BRANCH`], where the number of bits stands.
pub const BRANCH_BITS_SHIFT: u32 = 24;
/// Further roots that one search passes at most.
pub const MAX_BRANCHES: usize = 3;

/// Lines that one search reads at most. The verifier follows each, and a search of the most prefixes that are possible needs
/// about 9; the compiler refuses what needs more than this.
pub const MAX_DEPTH: usize = 12;

/// 32-bit word of a node, a narrow or a short leaf that holds, in the lower 6 bits, the shift of its keys.
pub const LINE_SHIFT_WORD: usize = 15;
/// In that word of a node, bit `NODE_MASK_SHIFT + i` says that child `i` is a node.
pub const NODE_MASK_SHIFT: u32 = 6;
/// 32-bit word of a node that holds the line of its first child.
pub const NODE_CHILD_WORD: usize = 14;
/// First 32-bit word of a narrow leaf's values.
pub const NARROW_VALUES: usize = 6;
/// Keys of a narrow leaf.
pub const NARROW_KEYS: usize = 8;
/// First 32-bit word of a full leaf's values.
pub const FULL_VALUES: usize = 10;
/// Keys of a full leaf.
pub const FULL_KEYS: usize = 5;
/// Keys of a short leaf, at its beginning; the values follow.
pub const SHORT_KEYS: usize = 7;
/// 64-bit words of keys in a node.
pub const NODE_KEY_WORDS: usize = 6;

/// Flag in [`Header::flags`]: the default verdict is deny.
pub const FLAG_DEFAULT_DENY: u32 = 1;
/// Flag in [`Header::flags`]: some rule asks for an address of this host. Without it every such address has class 0.
pub const FLAG_LOCAL: u32 = 2;
/// Flag in [`Header::flags`]: some rule asks for a port. Without it every port has class 0.
pub const FLAG_PORT: u32 = 4;

/// Indexes of [`Fixed::tries`] and of the first four of [`Fixed::any`].
pub const PEER_V4: usize = 0;
/// IPv6 peers.
pub const PEER_V6: usize = 1;
/// IPv4 addresses of this host.
pub const LOCAL_V4: usize = 2;
/// IPv6 addresses of this host.
pub const LOCAL_V6: usize = 3;
/// Ports, in [`Fixed::any`] only.
pub const PORT: usize = 4;

/// One bit for each rule; rule `r` is bit `r % 64` of word `r / 64`.
pub type RuleBits = [u64; RULE_WORDS];

/// How the search of one kind of address begins, and how its lines are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Trie {
    /// The leading bits that all prefixes share.
    pub prefix: u64,
    /// Which bits of the key `prefix` speaks of; a key that differs there has class `outside`.
    pub prefix_mask: u64,
    /// The highest bit of each lane of a key word.
    pub lanes_high: u64,
    /// The lowest bit of each lane.
    pub lanes_low: u64,
    /// The highest offset that a lane can hold; a lane that is not used holds one more, and one that is used holds one
    /// more than its offset.
    pub limit: u64,
    /// Bits to shift a key right by to make it an index into the root; 64 if the root has one entry only.
    pub shift: u32,
    /// Mask of that index.
    pub index_mask: u32,
    /// First entry of the root in [`Fixed::roots`].
    pub root: u32,
    /// The class outside the shared prefix.
    pub outside: u32,
    /// Bits to shift a word of compared lanes right by to bring each result to the bottom of its lane.
    pub lane_shift: u32,
    /// 1 if leaves are narrow and lanes have 15 bits; 0 if leaves are full and lanes have 31 bits.
    pub narrow: u32,
}

/// What the table says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`LAYOUT`].
    pub layout: u32,
    /// Counts up with every table that the agent loads.
    pub generation: u64,
    /// When the table came into force: nanoseconds of `CLOCK_MONOTONIC`, 0 as long as it is not. The agent writes it.
    pub activated: u64,
    /// Number of rules.
    pub rules: u32,
    /// Number of words of rule bitmaps in use: rules / 64, rounded up.
    pub words: u32,
    /// Number of lines.
    pub lines: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Which words of rule bitmaps are in use: the lowest `words` bits.
    pub all_words: u64,
    /// Which words of [`Fixed::shadow`] are not 0.
    pub shadow_summary: u64,
    /// For each of the five dimensions, which words of [`Fixed::any`] are not 0.
    pub any_summary: [u64; 5],
    /// For each role (client, server), which words of [`Fixed::roles`] are not 0.
    pub role_summary: [u64; 2],
}

/// The part of the table that has one size.
#[cfg_attr(feature = "user", derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C, align(64))]
pub struct Fixed {
    /// What the table says of itself.
    pub header: Header,
    /// Always 0: brings the size to a multiple of 64 without a hole that the compiler leaves.
    pub padding: [u64; 2],
    /// The searches: peer IPv4, peer IPv6, local IPv4, local IPv6.
    pub tries: [Trie; 4],
    /// Rules that ask nothing of a dimension: peer IPv4, peer IPv6, local IPv4, local IPv6, port.
    pub any: [RuleBits; 5],
    /// Rules that hold for the client, and for the server.
    pub roles: [RuleBits; 2],
    /// Of those, the rules that are not in shadow mode.
    pub enforced: [RuleBits; 2],
    /// Rules whose action is deny.
    pub deny: RuleBits,
    /// Rules that only report.
    pub shadow: RuleBits,
    /// Rules whose decisions are reported as events.
    pub log: RuleBits,
    /// The class of each port.
    pub ports: [u32; PORTS],
    /// The roots of the searches.
    pub roots: [u32; ROOT_ENTRIES],
    /// Rule sets: a summary (which words of a rule bitmap follow), then those words in order. Words that are left out
    /// are 0. At the beginning is the empty set, followed by as many words of 0 as a set can have.
    pub sets: [u64; SET_WORDS],
}

/// One cache line of the table: a node of a search, or rule sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C, align(64))]
pub struct Line {
    /// The content; nodes: word 0 is the base, keys follow, values and the shift stand at the end.
    pub words: [u64; 8],
}

impl Line {
    /// The line as 32-bit words in the order of memory.
    #[inline(always)]
    #[must_use]
    pub const fn halves(&self) -> &[u32; 16] {
        // SAFETY: both arrays are 64 bytes of plain integers, and the source has the stricter alignment.
        unsafe { &*(&raw const self.words).cast::<[u32; 16]>() }
    }
}

const _: () = {
    assert!(size_of::<Line>() == 64 && align_of::<Line>() == 64);
    assert!(size_of::<Trie>() == 64 && align_of::<Trie>() == 8);
    assert!(size_of::<Header>() == 112);
    assert!(size_of::<Fixed>().is_multiple_of(64));
    // Kernels before 5.19 refuse an array map whose value is larger than one kmalloc can give.
    assert!(size_of::<Fixed>() <= 4 << 20);
    // Every part is counted: nothing is left to padding, which user space could not read or write.
    assert!(
        size_of::<Fixed>()
            == size_of::<Header>()
                + 2 * 8
                + 4 * size_of::<Trie>()
                + 12 * size_of::<RuleBits>()
                + PORTS * 4
                + ROOT_ENTRIES * 4
                + SET_WORDS * 8
    );
    assert!(PORTS.is_power_of_two() && ROOT_ENTRIES.is_power_of_two() && SET_WORDS.is_power_of_two());
    assert!(ROOT_ENTRIES <= 1 << BRANCH_BITS_SHIFT);
};
