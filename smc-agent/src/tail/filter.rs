//! Which events are shown: flags that each name a property. Of the values of one flag any will do, and all flags have to
//! hold; a negated value must not match.

use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use super::Pattern;
use crate::trace::codes::{self, CodeQuery};
use crate::trace::event::{Connection, Decider, Event, Kind, Side};

/// Codes that a filter accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeFilter {
    /// One code; and of the peer, if given, one too.
    Code(CodeQuery),
    /// All codes that begin with these bits: `code & mask == value`.
    Class {
        /// The bits.
        value: u32,
        /// Those that count.
        mask: u32,
    },
}

/// Why a text is no filter.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FilterError {
    /// Not a code.
    #[error(transparent)]
    Code(#[from] codes::QueryError),
    /// Not a class of codes.
    #[error(
        "{0:?} is no class of codes: write its first bytes in hexadecimal, such as 0x03/ or 0x0303/, or 3"
    )]
    Class(String),
    /// Not an address.
    #[error("{0:?} is no address or network: write it as 10.0.0.1, 10.0.0.0/8 or 2001:db8::/32")]
    Network(String),
    /// Not a port.
    #[error("{0:?} is no port or range of ports: write it as 443 or 8000-8099")]
    Port(String),
    /// Not a role.
    #[error("{0:?} is no role: client and server are")]
    Role(String),
    /// Not a kind of event.
    #[error(
        "{0:?} is no kind of event: fallback, verdict, handshake_error, link_down, policy and suppressed are"
    )]
    Event(String),
    /// No value at all.
    #[error("a value is empty")]
    Empty,
}

/// One property that an event may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Its code, or the class of it.
    Code(CodeFilter),
    /// The other end's address.
    Peer(IpNet),
    /// This host's address.
    Local(IpNet),
    /// The port that the service is at, within a range, both ends included.
    Port(u16, u16),
    /// Which side this host is.
    Role(Side),
    /// The rule that denied or decided; `(default)` is the default.
    Rule(Pattern),
    /// The network namespace: its name, the number of its inode, or its cookie.
    Netns(Pattern),
    /// The name of the thread that made the connection.
    Comm(Pattern),
    /// The cgroup of it, or one above that.
    Cgroup(Pattern),
    /// What happened.
    Event(String),
    /// The policy denied it.
    Denied,
}

/// A condition, or that it does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The condition.
    pub condition: Condition,
    /// Whether it must not hold.
    pub not: bool,
}

/// Which events are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    terms: Vec<Term>,
}

/// Kinds of events by the names that JSON has, those that tell of the stream itself left out: they are always shown.
pub const KINDS: [&str; 6] = ["fallback", "verdict", "handshake_error", "link_down", "policy", "suppressed"];

/// What happened, as JSON names it.
pub fn kind_name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Fallback { .. } => "fallback",
        Kind::Verdict { .. } => "verdict",
        Kind::HandshakeError { .. } => "handshake_error",
        Kind::LinkDown { .. } => "link_down",
        Kind::Policy { .. } => "policy",
        Kind::Lost { .. } => "lost",
        Kind::Suppressed { .. } => "suppressed",
        Kind::Missed { .. } => "missed",
    }
}

impl CodeFilter {
    /// Reads a code in any form that [`CodeQuery`] knows, or a class: `0x03/`, `0x0303/`, or one digit.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let text = text.trim();
        let class = || FilterError::Class(text.to_owned());
        // No code is that small: a digit is the number of a class, as the manuals count them.
        if text.len() == 1 && text.chars().all(|digit| digit.is_ascii_digit()) {
            let value = text.parse::<u32>().map_err(|_| class())?;
            return Ok(Self::Class { value: value << 24, mask: 0xff00_0000 });
        }
        let Some(prefix) = text.strip_suffix('/') else { return Ok(Self::Code(CodeQuery::parse(text)?)) };
        let digits = prefix.strip_prefix("0x").or_else(|| prefix.strip_prefix("0X")).unwrap_or(prefix);
        let bytes = match digits.len() {
            2 | 4 | 6 => u32::try_from(digits.len() / 2).unwrap_or_default(),
            _ => return Err(class()),
        };
        let is_hex = digits.chars().all(|digit| digit.is_ascii_hexdigit());
        let number = u32::from_str_radix(digits, 16).ok().filter(|_| is_hex).ok_or_else(class)?;
        let shift = 32 - 8 * bytes;
        Ok(Self::Class { value: number << shift, mask: u32::MAX << shift })
    }

    pub(super) fn matches(self, code: u32, peer: Option<u32>) -> bool {
        match self {
            Self::Code(query) => query.code == code && query.peer.is_none_or(|wanted| peer == Some(wanted)),
            Self::Class { value, mask } => code & mask == value,
        }
    }
}

/// Reads an address or a network; an IPv4 address within IPv6 is the IPv4 address.
pub fn parse_network(text: &str) -> Result<IpNet, FilterError> {
    let text = text.trim();
    let network = text.parse::<IpAddr>().map(|address| IpNet::from(address.to_canonical()));
    network.or_else(|_| text.parse::<IpNet>()).map_err(|_| FilterError::Network(text.to_owned()))
}

/// Reads a port or a range of them.
pub fn parse_ports(text: &str) -> Result<(u16, u16), FilterError> {
    let wrong = || FilterError::Port(text.to_owned());
    let port = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (port(first)?, port(last)?),
        None => (port(text)?, port(text)?),
    };
    if first > last { Err(wrong()) } else { Ok((first, last)) }
}

/// Reads a role.
pub fn parse_role(text: &str) -> Result<Side, FilterError> {
    match text.trim() {
        "client" => Ok(Side::Client),
        "server" => Ok(Side::Server),
        other => Err(FilterError::Role(other.to_owned())),
    }
}

/// Reads a kind of event.
pub fn parse_kind(text: &str) -> Result<String, FilterError> {
    let text = text.trim().replace('-', "_");
    if KINDS.contains(&text.as_str()) { Ok(text) } else { Err(FilterError::Event(text)) }
}

impl Filter {
    /// One of these terms.
    pub fn new(terms: Vec<Term>) -> Self {
        Self { terms }
    }

    /// Whether an event is shown. Events that tell what a reader did not get always are.
    pub fn passes(&self, event: &Event) -> bool {
        if matches!(event.kind, Kind::Lost { .. } | Kind::Missed { .. }) {
            return true;
        }
        self.terms.iter().all(|term| {
            if term.not {
                !term.condition.holds(event)
            } else {
                // Of one flag any value will do.
                self.terms.iter().any(|other| {
                    !other.not && other.condition.is_like(&term.condition) && other.condition.holds(event)
                })
            }
        })
    }

    /// The terms, in the order given.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Whether everything is shown.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }
}

impl Condition {
    /// Whether both are values of one flag.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Whether an event has the property.
    pub fn holds(&self, event: &Event) -> bool {
        let connection = event.connection();
        let of = |test: &dyn Fn(&Connection) -> bool| connection.is_some_and(test);
        match self {
            Self::Code(filter) => code_of(&event.kind).is_some_and(|(code, peer)| filter.matches(code, peer)),
            Self::Peer(network) => peer_of(event).is_some_and(|peer| contains(network, peer)),
            Self::Local(network) => of(&|connection| contains(network, connection.local.ip())),
            Self::Port(first, last) => of(&|connection| (*first..=*last).contains(&service_port(connection))),
            Self::Role(role) => role_of(event) == Some(*role),
            Self::Rule(pattern) => decider_of(&event.kind)
                .is_some_and(|decider| pattern.matches(decider.rule.as_deref().unwrap_or("(default)"))),
            Self::Netns(pattern) => netns_of(event).is_some_and(|(inode, cookie, name)| {
                name.is_some_and(|name| pattern.matches(name))
                    || pattern.matches(&inode.to_string())
                    || cookie.is_some_and(|cookie| pattern.matches(&cookie.to_string()))
            }),
            Self::Comm(pattern) => {
                of(&|connection| connection.owner.as_ref().is_some_and(|owner| pattern.matches(&owner.comm)))
            }
            Self::Cgroup(pattern) => of(&|connection| {
                let owner = connection.owner.as_ref();
                owner.and_then(|owner| owner.cgroup.as_deref()).is_some_and(|path| within(path, pattern))
            }),
            Self::Event(name) => kind_name(&event.kind) == name,
            Self::Denied => match &event.kind {
                Kind::Fallback { denied_by, .. } => denied_by.is_some(),
                Kind::Verdict { verdict, shadow, .. } => verdict == "deny" && !shadow,
                _ => false,
            },
        }
    }
}

fn code_of(kind: &Kind) -> Option<(u32, Option<u32>)> {
    match kind {
        Kind::Fallback { code, peer_code, .. } => {
            Some((code.value, peer_code.as_ref().map(|code| code.value)))
        }
        Kind::Suppressed { code, .. } => Some((code.value, None)),
        _ => None,
    }
}

fn peer_of(event: &Event) -> Option<IpAddr> {
    match &event.kind {
        Kind::Suppressed { peer, .. } => Some(*peer),
        _ => event.connection().map(|connection| connection.peer.ip()),
    }
}

fn role_of(event: &Event) -> Option<Side> {
    match &event.kind {
        Kind::Suppressed { role, .. } => Some(*role),
        _ => event.connection().map(|connection| connection.role),
    }
}

fn netns_of(event: &Event) -> Option<(u32, Option<u64>, Option<&str>)> {
    match &event.kind {
        Kind::LinkDown { link } => Some((link.netns, link.netns_cookie, link.netns_name.as_deref())),
        _ => event
            .connection()
            .map(|connection| (connection.netns, connection.netns_cookie, connection.netns_name.as_deref())),
    }
}

/// Whose decision it was.
pub fn decider_of(kind: &Kind) -> Option<&Decider> {
    match kind {
        Kind::Fallback { denied_by, .. } => denied_by.as_ref(),
        Kind::Verdict { by, .. } => Some(by),
        _ => None,
    }
}

/// The port that the service is at; older agents do not name it.
pub fn service_port(connection: &Connection) -> u16 {
    match (connection.service_port, connection.role) {
        (0, Side::Client) => connection.peer.port(),
        (0, Side::Server) => connection.local.port(),
        (port, _) => port,
    }
}

pub(super) fn contains(network: &IpNet, address: IpAddr) -> bool {
    network.contains(&address) || network.contains(&address.to_canonical())
}

/// Whether a cgroup or one above it matches.
fn within(path: &str, pattern: &Pattern) -> bool {
    let above =
        path.match_indices('/').filter_map(|(at, _)| path.get(..at)).filter(|above| !above.is_empty());
    pattern.matches(path) || above.into_iter().any(|above| pattern.matches(above))
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
