//! Which new TCP sockets become SMC ones: the layout of the compiled rules, and the decision that both sides share.
//!
//! Each thing that a rule can ask of a socket's owner is a *dimension*. For each the rules that are satisfied are a bitmap:
//! those that do not ask it ([`ConvertTable::any`]) and those that a lookup of the owner's own value gives. The first rule
//! that is in all bitmaps decides. What it costs follows the number of dimensions that rules ask, and not that of rules:
//! of cgroups too, because one lookup for each level of the hierarchy that rules name finds the rules of all ancestors.
//!
//! All integers are in the byte order of the host.

/// `AF_INET` and `AF_INET6` (include/linux/socket.h).
const FAMILIES: [i32; 2] = [2, 10];
/// `SOCK_TYPE_MASK` and `SOCK_STREAM` (include/linux/net.h): flags such as `SOCK_NONBLOCK` are above the mask.
const TYPE_MASK: i32 = 0xf;
const SOCK_STREAM: i32 = 1;
/// `IPPROTO_IP`, which means the family's own protocol, and `IPPROTO_TCP` (uapi/linux/in.h).
const TCP: [i32; 2] = [0, 6];
/// `IPPROTO_SMC` (uapi/linux/in.h, 6.11).
pub const IPPROTO_SMC: i32 = 256;

/// The most rules, those of switches among them.
pub const MAX_CONVERT_RULES: usize = 256;
/// The most rules with a deadline.
pub const MAX_TIMED: usize = 16;
/// Levels of the cgroup hierarchy at which a rule may name a group; the root is level 0.
pub const MAX_LEVELS: u32 = 32;
/// The rule number that stands for "no rule matched, the default decides".
pub const CONVERT_DEFAULT: u32 = 256;
const _: () = assert!(CONVERT_DEFAULT as usize == MAX_CONVERT_RULES, "the number behind all rules");
/// Hit counters of a generation: one a rule, and one for the default after them.
pub const CONVERT_HITS: usize = MAX_CONVERT_RULES + 1;
/// Bytes of a cgroup's path with the zero behind it; longer ones are not followed.
pub const MAX_PATH: usize = 256;
/// Bytes of a process' name with the zero behind it: `TASK_COMM_LEN` (include/linux/sched.h).
pub const COMM: usize = 16;

const WORDS: usize = MAX_CONVERT_RULES / 64;

/// [`ConvertTable::flags`]: sockets that no rule matches are converted.
pub const DEFAULT_ON: u32 = 1;

/// What a rule can ask, as [`SelectorKey::kind`].
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    /// A cgroup that the owner is in or below; `a` is its id.
    Cgroup = 0,
    /// Real user id, in `a`.
    Uid = 1,
    /// Real group id, in `a`.
    Gid = 2,
    /// Name of the process, its 16 bytes in `a` and `b`.
    Comm = 3,
    /// The executable: its file system's device number in `a`, as the kernel keeps it, and its inode in `b`.
    Exe = 4,
    /// Network namespace: its cookie, in `a`.
    Netns = 5,
    /// Not asked by rules: names of programs that a rule has to name to convert them, as [`Dimension::Comm`].
    LifeLine = 6,
    /// Not asked by rules: the agent's own executable, as [`Dimension::Exe`].
    Own = 7,
}

/// Dimensions that rules ask.
pub const DIMENSIONS: usize = 6;

/// Key of a lookup.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct SelectorKey {
    /// A [`Dimension`].
    pub kind: u64,
    /// See there.
    pub a: u64,
    /// See there.
    pub b: u64,
}

impl SelectorKey {
    /// The key of a value.
    #[inline(always)]
    pub fn new(dimension: Dimension, a: u64, b: u64) -> Self {
        Self { kind: dimension as u64, a, b }
    }

    /// The key of a name of a process; the rest of the bytes is zero.
    #[inline(always)]
    pub fn of_name(dimension: Dimension, name: Name) -> Self {
        Self::new(dimension, name.0[0], name.0[1])
    }
}

const _: () = assert!(size_of::<SelectorKey>() == 24 && align_of::<SelectorKey>() == 8);

/// The name of a process: 16 bytes as they are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(pub [u64; 2]);

impl Name {
    /// Takes the bytes up to the first zero, 15 at most: what is behind it may be anything.
    #[inline(always)]
    pub fn new(bytes: [u8; COMM]) -> Self {
        let mut halves = [[0; 8]; 2];
        let mut at = 0;
        while at < COMM - 1 && bytes[at] != 0 {
            halves[at / 8][at % 8] = bytes[at];
            at += 1;
        }
        Self(halves.map(u64::from_ne_bytes))
    }

    /// The bytes.
    #[inline(always)]
    pub fn bytes(self) -> [u8; COMM] {
        let mut bytes = [0; COMM];
        bytes[..8].copy_from_slice(&self.0[0].to_ne_bytes());
        bytes[8..].copy_from_slice(&self.0[1].to_ne_bytes());
        bytes
    }
}

/// A set of rules, a bit each.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct ConvertRules {
    /// Rule N is bit N % 64 of word N / 64.
    pub words: [u64; WORDS],
}

impl ConvertRules {
    /// Adds a rule; numbers that there are not are ignored.
    pub fn insert(&mut self, rule: usize) {
        if let Some(word) = self.words.get_mut(rule / 64) {
            *word |= 1 << (rule % 64);
        }
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.words[0] | self.words[1] | self.words[2] | self.words[3] == 0
    }

    /// Whether rule number `rule`, below [`MAX_CONVERT_RULES`], is in it.
    #[inline(always)]
    pub fn has(&self, rule: u32) -> bool {
        self.words[(rule / 64) as usize & (WORDS - 1)] >> (rule % 64) & 1 != 0
    }

    #[inline(always)]
    fn union(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
    }

    #[inline(always)]
    fn intersect(&mut self, one: &Self, other: &Self) {
        for (at, word) in self.words.iter_mut().enumerate() {
            *word &= one.words[at] | other.words[at];
        }
    }

    /// Takes the first rule out.
    #[inline(always)]
    fn take_first(&mut self) -> Option<u32> {
        for (at, word) in self.words.iter_mut().enumerate() {
            if *word != 0 {
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                #[expect(clippy::cast_possible_truncation, reason = "below 4")]
                return Some(at as u32 * 64 + bit);
            }
        }
        None
    }
}

const _: () = assert!(size_of::<ConvertRules>() == 32 && align_of::<ConvertRules>() == 8);

/// The rules of a generation, but for the selectors themselves, which are in a hash table from [`SelectorKey`] to
/// [`ConvertRules`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct ConvertTable {
    /// Counts up with every table; 0 in one that was never written.
    pub generation: u64,
    /// Bit N: a rule names a cgroup at level N.
    pub levels: u32,
    /// Bit N: a rule asks dimension N.
    pub asked: u32,
    /// [`DEFAULT_ON`].
    pub flags: u32,
    /// Number of rules.
    pub rules: u32,
    /// For each dimension the rules that do not ask it.
    pub any: [ConvertRules; DIMENSIONS],
    /// The rules that convert.
    pub on: ConvertRules,
    /// The rules that convert programs that operators depend on, too: those that name the program.
    pub named: ConvertRules,
    /// For each rule `CLOCK_MONOTONIC` in nanoseconds, from when on it matches nothing; 0 if it has no end.
    pub deadlines: [u64; MAX_CONVERT_RULES],
}

const _: () = assert!(size_of::<ConvertTable>() == 24 + 8 * 32 + 2048 && align_of::<ConvertTable>() == 8);

/// What the kernel side counts besides the hits of rules.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvertCounter {
    /// Sockets of commands under `smc-agent exec` that were converted.
    Exec = 0,
    /// Sockets that were not converted because an operator depends on the program and no rule names it.
    LifeLine = 1,
    /// Sockets of the agent itself.
    Own = 2,
    /// New cgroups that a rule names and whose id found no room.
    GroupsMissed = 3,
}

impl ConvertCounter {
    /// How many there are.
    pub const COUNT: usize = 4;
    /// Every counter with its name.
    pub const ALL: [(Self, &'static str); Self::COUNT] = [
        (Self::Exec, "exec"),
        (Self::LifeLine, "life_line"),
        (Self::Own, "own"),
        (Self::GroupsMissed, "groups_missed"),
    ];
}

/// The owner of a new socket, as far as rules ask for it, and the table's selectors.
pub trait Owner {
    /// The rules that are satisfied by a value of a dimension.
    fn rules(&self, key: &SelectorKey) -> Option<ConvertRules>;
    /// Id of the owner's cgroup, or of the ancestor of it, at a level; 0 where there is none.
    fn cgroup(&self, level: u32) -> u64;
    /// Real user id.
    fn uid(&self) -> u32;
    /// Real group id.
    fn gid(&self) -> u32;
    /// Name of the process.
    fn comm(&self) -> Name;
    /// Device and inode of the executable; `None` if it cannot be read.
    fn exe(&self) -> Option<(u64, u64)>;
    /// Cookie of the network namespace; `None` if it cannot be read.
    fn netns(&self) -> Option<u64>;
    /// `CLOCK_MONOTONIC`, nanoseconds.
    fn now(&self) -> u64;
}

/// What was decided of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// The rule's number, or [`CONVERT_DEFAULT`].
    pub rule: u32,
    /// Whether it is converted, unless [`is_life_line`] says that it is not to be.
    pub on: bool,
    /// Whether the rule names the program.
    pub named: bool,
}

/// Whether a socket is one that conversion is about: a stream of TCP. One of MPTCP, for instance, is not.
#[inline(always)]
pub fn is_tcp(family: i32, kind: i32, protocol: i32) -> bool {
    (family == FAMILIES[0] || family == FAMILIES[1])
        && kind & TYPE_MASK == SOCK_STREAM
        && (protocol == TCP[0] || protocol == TCP[1])
}

/// Decides whether a socket of `owner` is converted.
#[inline(always)]
pub fn decide_conversion(table: &ConvertTable, owner: &impl Owner) -> Conversion {
    let mut left = ConvertRules { words: [u64::MAX; WORDS] };
    let none = ConvertRules { words: [0; WORDS] };
    // The one that most policies ask, and in which most sockets have no rule, first: it often ends the search.
    let mut found = none;
    for level in 0..MAX_LEVELS {
        let rest = table.levels >> level;
        if rest == 0 {
            break;
        }
        if rest & 1 != 0 {
            let id = owner.cgroup(level);
            if id == 0 {
                break;
            }
            if let Some(rules) = owner.rules(&SelectorKey::new(Dimension::Cgroup, id, 0)) {
                found.union(&rules);
            }
        }
    }
    left.intersect(&table.any[Dimension::Cgroup as usize], &found);
    let asks = |left: &ConvertRules, dimension: Dimension| {
        !left.is_empty() && table.asked >> (dimension as u32) & 1 != 0
    };
    let satisfied = |dimension: Dimension, key: Option<SelectorKey>, left: &mut ConvertRules| {
        let rules = key.and_then(|key| owner.rules(&key)).unwrap_or(none);
        left.intersect(&table.any[dimension as usize], &rules);
    };
    if asks(&left, Dimension::Uid) {
        let key = SelectorKey::new(Dimension::Uid, u64::from(owner.uid()), 0);
        satisfied(Dimension::Uid, Some(key), &mut left);
    }
    if asks(&left, Dimension::Gid) {
        let key = SelectorKey::new(Dimension::Gid, u64::from(owner.gid()), 0);
        satisfied(Dimension::Gid, Some(key), &mut left);
    }
    if asks(&left, Dimension::Comm) {
        let key = SelectorKey::of_name(Dimension::Comm, owner.comm());
        satisfied(Dimension::Comm, Some(key), &mut left);
    }
    if asks(&left, Dimension::Netns) {
        let key = owner.netns().map(|cookie| SelectorKey::new(Dimension::Netns, cookie, 0));
        satisfied(Dimension::Netns, key, &mut left);
    }
    if asks(&left, Dimension::Exe) {
        let key = owner.exe().map(|(device, inode)| SelectorKey::new(Dimension::Exe, device, inode));
        satisfied(Dimension::Exe, key, &mut left);
    }
    // All whose time has passed may come before one that decides.
    for _ in 0..=MAX_TIMED {
        let Some(rule) = left.take_first() else { break };
        let deadline = table.deadlines[rule as usize & (MAX_CONVERT_RULES - 1)];
        if deadline == 0 || owner.now() < deadline {
            return Conversion { rule, on: table.on.has(rule), named: table.named.has(rule) };
        }
    }
    Conversion { rule: CONVERT_DEFAULT, on: table.flags & DEFAULT_ON != 0, named: false }
}

/// Whether an operator depends on a program of this name to get at the host, or the host on it to run: all of systemd's own,
/// and those that the table lists.
#[inline(always)]
pub fn is_life_line(owner: &impl Owner, name: Name) -> bool {
    /// "systemd", as it is in the first word.
    const SYSTEMD: u64 = u64::from_ne_bytes(*b"systemd\0");
    const SEVEN_BYTES: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0]);
    name.0[0] & SEVEN_BYTES == SYSTEMD
        || owner.rules(&SelectorKey::of_name(Dimension::LifeLine, name)).is_some()
}
