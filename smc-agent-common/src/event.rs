//! The records that the kernel side puts into the ring buffer.

/// Which kind of record follows; the discriminant of [`Event::kind`].
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A connection of an SMC socket goes on as plain TCP.
    Fallback = 1,
    /// A rule with `log: true` decided a flow.
    Verdict = 2,
}

/// [`Event::flags`]: [`Event::rule`] and [`Event::generation`] are set, because the policy refused SMC.
pub const EVENT_DENIED: u8 = 1;
/// [`Event::flags`]: the verdict was deny (only for [`EventKind::Verdict`]).
pub const EVENT_VERDICT_DENY: u8 = 2;
/// [`Event::flags`]: the rule is in shadow mode: its verdict was counted, not applied.
pub const EVENT_SHADOW: u8 = 4;

/// One record of the ring buffer. Integers are in host order, addresses in network order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Event {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time: u64,
    /// Generation of the policy table that [`Event::rule`] belongs to.
    pub generation: u64,
    /// Inode number of the network namespace, as in `/proc/PID/ns/net`.
    pub netns: u32,
    /// An [`EventKind`].
    pub kind: u16,
    /// `AF_INET` (2) or `AF_INET6` (10); says how to read the addresses.
    pub family: u16,
    /// This host's address; IPv4 in the first four bytes.
    pub local: [u8; 16],
    /// The other end's address; IPv4 in the first four bytes.
    pub peer: [u8; 16],
    /// This host's port.
    pub local_port: u16,
    /// The other end's port.
    pub peer_port: u16,
    /// Why the connection fell back: `SMC_CLC_DECL_*` of `net/smc/smc_clc.h`.
    pub code: u32,
    /// What the peer gave as its reason in a DECLINE message; 0 if it sent none.
    pub peer_code: u32,
    /// The rule that decided, or [`crate::RULE_DEFAULT`]; meaningful with [`EVENT_DENIED`] and for verdicts.
    pub rule: u16,
    /// Which side this host is: a [`crate::Role`].
    pub role: u8,
    /// `EVENT_*` bits.
    pub flags: u8,
}

const _: () = assert!(size_of::<Event>() == 72 && align_of::<Event>() == 8);

/// Key of the record that a server-side refusal leaves for the fallback event that it causes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct RefusalKey {
    /// The listener's side in the form of IPv6 (IPv4 as `::ffff:a.b.c.d`), network order.
    pub local: [u8; 16],
    /// The client, in the same form.
    pub peer: [u8; 16],
    /// The listener's port, host order.
    pub local_port: u16,
    /// The client's port, host order.
    pub peer_port: u16,
    /// Inode number of the network namespace.
    pub netns: u32,
}

const _: () = assert!(size_of::<RefusalKey>() == 40 && align_of::<RefusalKey>() == 4);

/// Value of the record that a server-side refusal leaves.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Refusal {
    /// Generation of the policy table that decided.
    pub generation: u64,
    /// The rule, or [`crate::RULE_DEFAULT`].
    pub rule: u16,
    /// Always zero: keeps the size a multiple of the alignment without hidden padding.
    pub reserved: [u16; 3],
}

const _: () = assert!(size_of::<Refusal>() == 16 && align_of::<Refusal>() == 8);

/// What the kernel side counts, one per-CPU 64-bit counter each: nothing happens silently.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// SYNs that carried the SMC option, or were about to, and were judged.
    ClientJudged = 0,
    /// SYNs that were sent without the SMC option because of the policy.
    ClientDenied = 1,
    /// Requests of clients with the SMC option that were judged.
    ServerJudged = 2,
    /// Requests that were answered without the SMC option because of the policy.
    ServerDenied = 3,
    /// Retransmissions that kept the allowing verdict of the first SYN or SYN-ACK.
    VerdictKept = 4,
    /// Handshakes that could not be judged (no table yet, or one that cannot be read): they are allowed.
    Undecided = 5,
    /// SYNs with the SMC option left alone because TCP-AO covers their options.
    TcpAo = 6,
    /// SYNs whose rewriting the kernel refused; they went out as they were.
    RewriteFailed = 7,
    /// Records put into the ring buffer.
    EventsProduced = 8,
    /// Records that found the ring buffer full.
    EventsLost = 9,
}

impl Counter {
    /// How many there are: the size of the counter map.
    pub const COUNT: usize = 10;

    /// Every counter, in the order of its number, with the name that `status` gives it.
    pub const ALL: [(Self, &'static str); Self::COUNT] = [
        (Self::ClientJudged, "client_judged"),
        (Self::ClientDenied, "client_denied"),
        (Self::ServerJudged, "server_judged"),
        (Self::ServerDenied, "server_denied"),
        (Self::VerdictKept, "verdict_kept"),
        (Self::Undecided, "undecided"),
        (Self::TcpAo, "tcp_ao_untouched"),
        (Self::RewriteFailed, "rewrite_failed"),
        (Self::EventsProduced, "events_produced"),
        (Self::EventsLost, "events_lost"),
    ];
}
