//! Events as users see them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::codes;

/// Version of the form of events as JSON.
pub const VERSION: u32 = 1;

/// Which side of the connection this host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// This host connected.
    Client,
    /// This host was connected to.
    Server,
}

impl Side {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// A fallback code, with its name where Linux has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Code {
    /// The number.
    pub value: u32,
    /// The name without `SMC_CLC_DECL_`.
    pub name: Option<String>,
}

impl Code {
    /// With its name.
    pub fn new(value: u32) -> Self {
        Self { value, name: codes::name(value).map(str::to_owned) }
    }
}

/// A rule of the policy, or its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Decider {
    /// The rule's name; `None` for the default.
    pub rule: Option<String>,
    /// The generation of the policy.
    pub generation: u64,
}

/// When the process that made a connection was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Seen {
    /// When it made the socket.
    Socket,
    /// When it made the socket listen: that of a connection accepted from it.
    Listen,
    /// When it connected the socket.
    Connect,
    /// When it asked for TCP Fast Open, by an option of the socket or by `MSG_FASTOPEN`.
    FastOpen,
}

/// Whose connection it is: the process as it was when it made the socket, listened or connected, which need not be the
/// one that uses the connection, nor be there any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Owner {
    /// Process id, in the initial namespace.
    pub pid: u32,
    /// Name of the thread, at most 15 bytes; anything may be in it.
    pub comm: String,
    /// User id, in the initial namespace.
    pub uid: u32,
    /// Path of the cgroup (version 2) below where cgroups are mounted; `None` if it is not known, as when it has gone.
    pub cgroup: Option<String>,
    /// Id of the container, as far as the cgroup's path has one.
    pub container: Option<String>,
    /// When this was recorded.
    pub seen: Seen,
}

/// The connection that something happened to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Connection {
    /// Inode number of the network namespace.
    pub netns: u32,
    /// The kernel's cookie of the network namespace, which is never used again; `None` where it is not known.
    #[serde(default)]
    pub netns_cookie: Option<u64>,
    /// Name of the network namespace below `/run/netns`; `None` if it has none.
    #[serde(default)]
    pub netns_name: Option<String>,
    /// Which side this host is.
    pub role: Side,
    /// This host's address and port.
    pub local: SocketAddr,
    /// The other end's address and port.
    pub peer: SocketAddr,
    /// The port that the service is at: the peer's for a client, this host's for a server.
    #[serde(default)]
    pub service_port: u16,
    /// Version of SMC of the connection that was being set up; `None` where none was, or it is not known.
    #[serde(default)]
    pub smc_version: Option<u8>,
    /// The RDMA or ISM device that it was to use; `None` where none was chosen yet, or it is not known.
    #[serde(default)]
    pub device: Option<String>,
    /// Whose it is; `None` if that was not seen: only a thread of the kernel was, or it was made before tracing began.
    #[serde(default)]
    pub owner: Option<Owner>,
}

/// An error number of the system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Errno {
    /// The number.
    pub value: u32,
    /// The name, such as `ECONNRESET`.
    pub name: Option<String>,
}

impl Errno {
    /// With its name.
    pub fn new(value: u32) -> Self {
        let known = nix::errno::Errno::from_raw(value.cast_signed());
        let name = (known != nix::errno::Errno::UnknownErrno).then(|| format!("{known:?}"));
        Self { value, name }
    }
}

/// A link of a link group, as far as it can be told when the link goes down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Link {
    /// Inode number of the network namespace.
    pub netns: u32,
    /// The kernel's cookie of the network namespace; `None` where it is not known.
    pub netns_cookie: Option<u64>,
    /// Name of the network namespace below `/run/netns`; `None` if it has none.
    pub netns_name: Option<String>,
    /// The RDMA device.
    pub device: Option<String>,
    /// The device's port.
    pub port: u8,
    /// Id of the link group, as `show linkgroups` has it.
    pub link_group: String,
    /// Number of the link in its group.
    pub link: u8,
    /// Version of SMC.
    pub smc_version: Option<u8>,
    /// This host's GID; an IP address with `RoCEv2`.
    pub local_gid: IpAddr,
    /// The peer's GID.
    pub peer_gid: IpAddr,
    /// Connections that were on the link.
    pub connections: u32,
}

/// What came of reading the policy anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PolicyResult {
    /// It is in force.
    Reloaded,
    /// It is not valid, and the old one stays in force.
    Refused,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Kind {
    /// A connection of an SMC socket goes on as plain TCP.
    Fallback {
        /// Which connection.
        #[serde(flatten)]
        connection: Connection,
        /// Why.
        code: Code,
        /// What the peer gave as its reason, if it did.
        peer_code: Option<Code>,
        /// Whose policy decision caused it, if one did.
        denied_by: Option<Decider>,
    },
    /// A rule with `log: true` decided.
    Verdict {
        /// Which connection.
        #[serde(flatten)]
        connection: Connection,
        /// `allow` or `deny`.
        verdict: String,
        /// Whether the rule is in shadow mode: its verdict was not applied.
        shadow: bool,
        /// The rule.
        by: Decider,
    },
    /// The SMC handshake failed in a way that leaves no connection, not even over TCP.
    HandshakeError {
        /// Which connection.
        #[serde(flatten)]
        connection: Connection,
        /// What the application gets; `None` where it is not known.
        error: Option<Errno>,
        /// What the peer gave as its reason, if it did.
        peer_code: Option<Code>,
    },
    /// A link of a link group went down; its connections move to another link, or break.
    LinkDown {
        /// Which link.
        #[serde(flatten)]
        link: Link,
    },
    /// The policy was read anew.
    Policy {
        /// What came of it.
        result: PolicyResult,
        /// The generation in force from now on: a new one, or still the old one.
        generation: u64,
        /// Why it was refused; empty if it was not.
        problems: Vec<String>,
    },
    /// The kernel had events that found the buffer full.
    Lost {
        /// How many, since the last event of this kind.
        count: u64,
    },
    /// The kernel held events back because there were more of their kind than `--event-rate` allows.
    Suppressed {
        /// Their code.
        code: Code,
        /// The other end's address.
        peer: IpAddr,
        /// Which side this host is.
        role: Side,
        /// How many, since the last event of this kind for the same code and peer.
        count: u64,
    },
    /// This reader was too slow. Of each reader's own stream: such an event has no number.
    Missed {
        /// How many events it did not get.
        count: u64,
    },
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// [`VERSION`].
    pub version: u32,
    /// When, on the wall clock.
    pub time: Timestamp,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub monotonic: u64,
    /// The run of the agent that `seq` counts in: when it started, in milliseconds since 1970.
    #[serde(default)]
    pub run: u64,
    /// Number of the event in its run, from 1 on and without gaps; `None` for what is told to one reader only.
    #[serde(default)]
    pub seq: Option<u64>,
    /// What happened.
    #[serde(flatten)]
    pub kind: Kind,
}

impl Event {
    /// The connection that it happened to, if it is about one.
    pub fn connection(&self) -> Option<&Connection> {
        match &self.kind {
            Kind::Fallback { connection, .. }
            | Kind::Verdict { connection, .. }
            | Kind::HandshakeError { connection, .. } => Some(connection),
            Kind::LinkDown { .. }
            | Kind::Policy { .. }
            | Kind::Lost { .. }
            | Kind::Suppressed { .. }
            | Kind::Missed { .. } => None,
        }
    }

    /// Bytes of all texts in it.
    pub(super) fn text_bytes(&self) -> usize {
        let of = |text: &Option<String>| text.as_ref().map_or(0, String::capacity);
        let code = |code: &Code| of(&code.name);
        let decider = |decider: &Decider| of(&decider.rule);
        let connection = self.connection().map_or(0, |connection| {
            let owner = connection
                .owner
                .as_ref()
                .map_or(0, |owner| owner.comm.capacity() + of(&owner.cgroup) + of(&owner.container));
            of(&connection.netns_name) + of(&connection.device) + owner
        });
        connection
            + match &self.kind {
                Kind::Fallback { code: why, peer_code, denied_by, .. } => {
                    code(why) + peer_code.as_ref().map_or(0, code) + denied_by.as_ref().map_or(0, decider)
                }
                Kind::Verdict { verdict, by, .. } => verdict.capacity() + decider(by),
                Kind::HandshakeError { error, peer_code, .. } => {
                    error.as_ref().map_or(0, |error| of(&error.name)) + peer_code.as_ref().map_or(0, code)
                }
                Kind::LinkDown { link } => {
                    of(&link.netns_name) + of(&link.device) + link.link_group.capacity()
                }
                Kind::Policy { problems, .. } => {
                    problems.iter().map(|problem| size_of::<String>() + problem.capacity()).sum()
                }
                Kind::Suppressed { code: why, .. } => code(why),
                Kind::Lost { .. } | Kind::Missed { .. } => 0,
            }
    }
}

pub(crate) fn address(family: u16, bytes: [u8; 16]) -> IpAddr {
    const AF_INET: u16 = 2;
    if family == AF_INET {
        Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()
    } else {
        Ipv6Addr::from(bytes).to_canonical()
    }
}
