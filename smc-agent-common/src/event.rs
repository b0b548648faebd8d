//! The records that the kernel side puts into the ring buffer.

/// Which kind of record follows; the discriminant of [`Event::kind`].
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A connection of an SMC socket goes on as plain TCP.
    Fallback = 1,
    /// A rule with `log: true` decided a flow.
    Verdict = 2,
    /// An SMC handshake failed, with no connection left.
    HandshakeError = 3,
    /// A link of an SMC-R link group went down.
    LinkDown = 4,
}

/// [`Event::flags`]: [`Event::rule`] and [`Event::generation`] are set, because the policy refused SMC.
pub const EVENT_DENIED: u8 = 1;
/// [`Event::flags`]: the verdict was deny (only for [`EventKind::Verdict`]).
pub const EVENT_VERDICT_DENY: u8 = 2;
/// [`Event::flags`]: the rule is in shadow mode: its verdict was counted, not applied.
pub const EVENT_SHADOW: u8 = 4;

/// When a process was recorded as the owner of a socket.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerSeen {
    /// It made the socket.
    Socket = 1,
    /// It made the socket listen.
    Listen = 2,
    /// It connected the socket.
    Connect = 3,
    /// It asked for TCP Fast Open, which SMC does not do: by an option of the socket, or by `MSG_FASTOPEN`.
    FastOpen = 4,
}

/// The process that made, connected or listened on a socket, as it was then.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Owner {
    /// Id of its cgroup (version 2), which is its inode number in the cgroup file system.
    pub cgroup: u64,
    /// Process id (of the thread group) in the initial namespace.
    pub pid: u32,
    /// User id in the initial namespace.
    pub uid: u32,
    /// Name of the thread, ended by a zero.
    pub comm: [u8; 16],
    /// An [`OwnerSeen`]; 0 if there is no owner.
    pub seen: u8,
    /// Not 0: it set an option that only listeners have.
    pub listens: u8,
    /// Always zero: keeps the size a multiple of the alignment without hidden padding.
    pub reserved: [u8; 6],
}

const _: () = assert!(size_of::<Owner>() == 40 && align_of::<Owner>() == 8);

/// Longest name of a device in an [`Event`], with its final zero. The kernel's `IB_DEVICE_NAME_MAX` (`rdma/ib_verbs.h`) is
/// 64; longer names are cut.
pub const DEVICE_NAME: usize = 56;

/// One record of the ring buffer. Integers are in host order, addresses in network order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Event {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time: u64,
    /// Generation of the policy table that [`Event::rule`] belongs to.
    pub generation: u64,
    /// Cookie of the network namespace (`struct net`, `net_cookie`); 0 if it is not known.
    pub netns_cookie: u64,
    /// Inode number of the network namespace, as in `/proc/PID/ns/net`.
    pub netns: u32,
    /// An [`EventKind`].
    pub kind: u16,
    /// `AF_INET` (2) or `AF_INET6` (10); says how to read the addresses.
    pub family: u16,
    /// This host's address; IPv4 in the first four bytes. Of a link its GID.
    pub local: [u8; 16],
    /// The other end's address; IPv4 in the first four bytes. Of a link its peer's GID.
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
    /// Of a failed handshake: the error number, positive; 0 if it is not known.
    pub error: u32,
    /// Of a link: its link group's id, as the bytes of the kernel are read.
    pub link_group: u32,
    /// Of a link: connections on it.
    pub connections: u32,
    /// Version of SMC, 1 or 2, of the connection that was being set up, or of the link; 0 if it is not known.
    pub smc_version: u8,
    /// Of a link: the port of its device.
    pub device_port: u8,
    /// Of a link: its number in its group.
    pub link: u8,
    /// Always zero.
    pub reserved: u8,
    /// Name of the RDMA or ISM device, ended by a zero; empty if it is not known.
    pub device: [u8; DEVICE_NAME],
    /// Whose socket it is.
    pub owner: Owner,
}

const _: () = assert!(size_of::<Event>() == 192 && align_of::<Event>() == 8);

/// Key of a count of equal events: see [`Rate`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct RateKey {
    /// The other end's address in the form of IPv6 (IPv4 as `::ffff:a.b.c.d`), network order.
    pub peer: [u8; 16],
    /// As [`Event::code`].
    pub code: u32,
    /// As [`Event::role`].
    pub role: u32,
}

const _: () = assert!(size_of::<RateKey>() == 24 && align_of::<RateKey>() == 4);

/// How many equal events there were.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Rate {
    /// When the present second began: `CLOCK_MONOTONIC`, nanoseconds.
    pub since: u64,
    /// Events in the present second.
    pub count: u64,
    /// Events held back since the entry was made.
    pub suppressed: u64,
}

const _: () = assert!(size_of::<Rate>() == 24 && align_of::<Rate>() == 8);

/// In the place of the inode number of a network namespace, which is never 0: the policy is enforced in all of them.
pub const SCOPE_ALL: u32 = 0;

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
    /// Events that happened, whatever became of them.
    EventsProduced = 8,
    /// Events that found the ring buffer full.
    EventsLost = 9,
    /// Events held back because there were too many equal ones.
    EventsSuppressed = 10,
    /// Sockets that did not look as the table of known layouts says: their fallbacks were not reported.
    LayoutRefused = 11,
    /// Packets left alone because an authentication header (AH, RFC 4302) comes before TCP and covers it.
    AuthenticationHeader = 12,
    /// Answers that went out with the SMC option although a server rule refuses them: traffic control could not tell that
    /// their SYN was for a listener here.
    ServerNotEnforced = 13,
}

impl Counter {
    /// How many there are: the size of the counter map.
    pub const COUNT: usize = 14;

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
        (Self::EventsSuppressed, "events_suppressed"),
        (Self::LayoutRefused, "layout_refused"),
        (Self::AuthenticationHeader, "ah_untouched"),
        (Self::ServerNotEnforced, "server_not_enforced"),
    ];
}
