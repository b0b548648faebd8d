//! Events as users see them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smc_agent_common as common;

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
    fn new(value: u32) -> Self {
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

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Kind {
    /// A connection of an SMC socket goes on as plain TCP.
    Fallback {
        /// Why.
        code: Code,
        /// What the peer gave as its reason, if it did.
        peer_code: Option<Code>,
        /// Whose policy decision caused it, if one did.
        denied_by: Option<Decider>,
    },
    /// A rule with `log: true` decided.
    Verdict {
        /// `allow` or `deny`.
        verdict: String,
        /// Whether the rule is in shadow mode: its verdict was not applied.
        shadow: bool,
        /// The rule.
        by: Decider,
    },
}

/// Something that happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// [`VERSION`].
    pub version: u32,
    /// When, on the wall clock.
    pub time: Timestamp,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub monotonic: u64,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// Which side this host is.
    pub role: Side,
    /// This host's address and port.
    pub local: SocketAddr,
    /// The other end's address and port.
    pub peer: SocketAddr,
    /// What happened.
    #[serde(flatten)]
    pub kind: Kind,
}

/// Where the names of rules come from: generation and number of the rule to its name, `None` if it is the default.
pub trait RuleNames {
    /// The name of a rule.
    fn rule_name(&mut self, generation: u64, rule: u16) -> Option<String>;
    /// `allow` or `deny` for a rule.
    fn rule_action(&mut self, generation: u64, rule: u16) -> Option<String>;
}

/// The difference between the two clocks: add it to monotonic nanoseconds for nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct ClockOffset(i128);

impl ClockOffset {
    /// As it is now; it changes when the wall clock is set.
    pub fn now() -> Self {
        let monotonic = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
        let monotonic =
            monotonic.map_or(0, |now| i128::from(now.tv_sec()) * 1_000_000_000 + i128::from(now.tv_nsec()));
        Self(Timestamp::now().as_nanosecond() - monotonic)
    }
}

impl Event {
    /// Makes an event of a record of the ring buffer; `None` for a kind that this program does not know.
    pub fn new(record: &common::Event, clock: ClockOffset, names: &mut dyn RuleNames) -> Option<Self> {
        let has = |flag: u8| record.flags & flag != 0;
        let mut decider = || Decider {
            rule: names.rule_name(record.generation, record.rule),
            generation: record.generation,
        };
        let kind = if record.kind == common::EventKind::Fallback as u16 {
            Kind::Fallback {
                code: Code::new(record.code),
                peer_code: (record.peer_code != 0).then(|| Code::new(record.peer_code)),
                denied_by: has(common::EVENT_DENIED).then(decider),
            }
        } else if record.kind == common::EventKind::Verdict as u16 {
            let by = decider();
            let shadow = has(common::EVENT_SHADOW);
            let verdict = if shadow {
                names.rule_action(record.generation, record.rule).unwrap_or_else(|| "unknown".to_owned())
            } else if has(common::EVENT_VERDICT_DENY) {
                "deny".to_owned()
            } else {
                "allow".to_owned()
            };
            Kind::Verdict { verdict, shadow, by }
        } else {
            return None;
        };
        let time = clock.0 + i128::from(record.time);
        Some(Self {
            version: VERSION,
            time: Timestamp::from_nanosecond(time).unwrap_or(Timestamp::UNIX_EPOCH),
            monotonic: record.time,
            netns: record.netns,
            role: if record.role == common::Role::Client as u8 { Side::Client } else { Side::Server },
            local: SocketAddr::new(address(record.family, record.local), record.local_port),
            peer: SocketAddr::new(address(record.family, record.peer), record.peer_port),
            kind,
        })
    }
}

fn address(family: u16, bytes: [u8; 16]) -> IpAddr {
    const AF_INET: u16 = 2;
    if family == AF_INET {
        Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()
    } else {
        Ipv6Addr::from(bytes).to_canonical()
    }
}
