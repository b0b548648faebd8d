//! Events as lines of columns for people, and advice below them.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

use super::filter::{kind_name, service_port};
use crate::trace::codes::{self, CodeInfo};
use crate::trace::event::{Connection, Errno, Event, Kind, Link, PolicyResult, Side};

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// With colours, for a terminal that has them.
    pub colour: bool,
    /// How wide the terminal is; without it nothing is shortened.
    pub width: Option<usize>,
}

/// Colours by their numbers of ECMA-48 (SGR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Colour {
    Red = 31,
    Green = 32,
    Yellow = 33,
    Magenta = 35,
    Cyan = 36,
    Grey = 90,
}

/// Below this width the date and the owner are left out.
const NARROW: usize = 120;
/// The most that an owner takes.
const OWNER: usize = 24;

/// Lines whose columns grow with what comes, so that they stay below each other.
#[derive(Clone, Debug)]
pub struct Columns {
    look: Look,
    kind: usize,
    local: usize,
    peer: usize,
    owner: usize,
}

impl Columns {
    /// Columns that fit IPv4.
    pub fn new(look: Look) -> Self {
        Self { look, kind: 8, local: 21, peer: 21, owner: 5 }
    }

    /// The names of the columns.
    pub fn heading(&self) -> String {
        let Self { kind, local, peer, owner, .. } = self;
        let time = if self.is_narrow() { 12 } else { 24 };
        let mut text = format!(
            "{:<time$}  {:<kind$}  {:<6}  {:<local$}  {:<peer$}  ",
            "TIME", "EVENT", "ROLE", "LOCAL", "PEER"
        );
        if !self.is_narrow() {
            let _ = write!(text, "{:<owner$}  ", "OWNER");
        }
        text.push_str("WHAT");
        self.painted(&text, Colour::Grey)
    }

    fn is_narrow(&self) -> bool {
        self.look.width.is_some_and(|width| width < NARROW)
    }

    fn painted(&self, text: &str, colour: Colour) -> String {
        if self.look.colour { format!("\u{1b}[{}m{text}\u{1b}[0m", colour as u8) } else { text.to_owned() }
    }

    /// An event in one line. Nothing that comes from outside is in it as it is.
    pub fn line(&mut self, event: &Event) -> String {
        let time = if self.is_narrow() {
            event.time.strftime("%H:%M:%S%.3f").to_string()
        } else {
            format!("{:.3}", event.time)
        };
        let kind = kind_name(&event.kind);
        self.kind = self.kind.max(kind.len());
        let time = self.painted(&time, Colour::Grey);
        let kind = self.painted(&format!("{kind:<width$}", width = self.kind), colour(&event.kind));
        let mut line = format!("{time}  {kind}  ");
        if let Some(connection) = event.connection() {
            line.push_str(&self.connection(connection));
        }
        line.push_str(&what(&event.kind));
        line
    }

    fn connection(&mut self, connection: &Connection) -> String {
        let (local, peer) = (connection.local.to_string(), connection.peer.to_string());
        self.local = self.local.max(local.len());
        self.peer = self.peer.max(peer.len());
        let role = connection.role.word();
        let mut text = format!(
            "{role}  {local:<width$}  {peer:<peer_width$}  ",
            width = self.local,
            peer_width = self.peer
        );
        if !self.is_narrow() {
            let owner = owner_of(connection);
            self.owner = self.owner.max(owner.width());
            text.push_str(&owner);
            text.extend(std::iter::repeat_n(' ', self.owner.saturating_sub(owner.width()) + 2));
        }
        text
    }
}

fn owner_of(connection: &Connection) -> String {
    let Some(owner) = &connection.owner else { return "-".to_owned() };
    let mut text = format!("{}[{}]", clean(&owner.comm), owner.pid);
    if text.width() > OWNER {
        // Escapes make it long; the number stays.
        let number = format!("…[{}]", owner.pid);
        let mut comm = String::new();
        for character in clean(&owner.comm).chars() {
            if comm.width() + number.width() >= OWNER {
                break;
            }
            comm.push(character);
        }
        text = comm + &number;
    }
    text
}

/// Text from outside as it may be shown: whatever is not printable is escaped.
fn clean(text: &str) -> String {
    text.chars()
        .flat_map(|character| {
            let plain = matches!(character, '"' | '\'');
            let escaped = (!plain).then(|| character.escape_debug());
            plain.then_some(character).into_iter().chain(escaped.into_iter().flatten())
        })
        .collect()
}

fn colour(kind: &Kind) -> Colour {
    match kind {
        Kind::Fallback { denied_by: Some(_), .. } => Colour::Cyan,
        Kind::Fallback { .. } => Colour::Yellow,
        Kind::Verdict { shadow: true, .. } => Colour::Grey,
        Kind::Verdict { verdict, .. } if verdict == "deny" => Colour::Cyan,
        Kind::Verdict { .. } | Kind::Policy { result: PolicyResult::Reloaded, .. } => Colour::Green,
        Kind::HandshakeError { .. } | Kind::LinkDown { .. } | Kind::Policy { .. } => Colour::Red,
        Kind::Lost { .. } | Kind::Suppressed { .. } | Kind::Missed { .. } => Colour::Magenta,
    }
}

/// What an event says beside its connection.
fn what(kind: &Kind) -> String {
    match kind {
        Kind::Fallback { connection, code, peer_code, denied_by } => {
            let mut text = code.to_string();
            if let Some(code) = peer_code {
                let _ = write!(text, ", peer {code}");
            }
            if let Some(decider) = denied_by {
                let _ = write!(text, ", denied by {decider}");
            }
            text + &place(connection)
        }
        Kind::Verdict { connection, verdict, shadow, by } => {
            let shadow = if *shadow { " (shadow: not applied)" } else { "" };
            format!("{}{shadow} by {by}{}", clean(verdict), place(connection))
        }
        Kind::HandshakeError { connection, error, peer_code } => {
            let mut text = match error {
                Some(Errno { name: Some(name), .. }) => clean(name),
                Some(Errno { value, .. }) => format!("error {value}"),
                None => "unknown error".to_owned(),
            };
            if let Some(code) = peer_code {
                let _ = write!(text, ", peer {code}");
            }
            text + &place(connection)
        }
        Kind::LinkDown { link } => {
            let Link { device, port, link_group, link, connections, peer_gid, netns_name, .. } = link;
            let peer = peer_gid.to_canonical();
            let device = clean(device.as_deref().unwrap_or("?"));
            let group = clean(link_group);
            let netns = netns_name.as_deref().map(|name| format!(", netns {}", clean(name)));
            format!(
                "{device} port {port}, link {link} of group {group} to {peer}, {connections} connections{}",
                netns.unwrap_or_default()
            )
        }
        Kind::Policy { result: PolicyResult::Reloaded, generation, .. } => {
            format!("reloaded: generation {generation}")
        }
        Kind::Policy { result: PolicyResult::Refused, generation, problems } => {
            let problems = problems.iter().map(|problem| format!("; {}", problem.escape_debug()));
            format!("refused, generation {generation} stays{}", problems.collect::<String>())
        }
        Kind::Lost { count } => format!("{count} events: the kernel's buffer was full"),
        Kind::Suppressed { code, peer, role, count } => {
            format!("{count} events like it: {} {peer} {code}", role.word())
        }
        Kind::Missed { count } => format!("{count} events: this reader was too slow"),
    }
}

/// Where it was, if not in a namespace without a name.
fn place(connection: &Connection) -> String {
    connection.netns_name.as_deref().map_or_else(String::new, |name| format!(", netns {}", clean(name)))
}

/// What to do about an event: lines to stand below it; none where there is nothing to say.
pub fn advice(event: &Event) -> Vec<String> {
    let mut lines = Vec::new();
    match &event.kind {
        Kind::Fallback { connection, denied_by: Some(decider), .. } => {
            lines.push(format!("means   the policy did it, by {decider}: this host did not offer SMC"));
            lines.push(format!("check   $ {}", explain_command(connection)));
        }
        Kind::Fallback { code, peer_code, .. } => {
            // A peer that declines knows why.
            let peer = peer_code.as_ref().and_then(|code| codes::info(code.value));
            match (peer, codes::info(code.value)) {
                (Some(peer), _) => add(&mut lines, peer, "on the peer: "),
                (None, Some(own)) => add(&mut lines, own, ""),
                (None, None) => lines.push("means   unknown: Linux has no such code".to_owned()),
            }
        }
        Kind::HandshakeError { connection, .. } => {
            lines.push("means   both ends offered SMC, and the messages that follow went wrong; there is no connection".to_owned());
            lines.push(
                "likely  something on the way sends TCP options back that it does not know, or drops what follows"
                    .to_owned(),
            );
            lines.push(format!(
                "check   deny SMC for {} by a policy, and see whether it connects",
                connection.peer.ip().to_canonical()
            ));
        }
        Kind::LinkDown { .. } => {
            lines.push("check   $ rdma link show".to_owned());
            lines.push("check   $ smc-agent show links".to_owned());
        }
        Kind::Lost { .. } => {
            lines.push("check   $ smc-agent run --event-rate …, or fewer rules with log: true".to_owned());
        }
        Kind::Verdict { .. } | Kind::Policy { .. } | Kind::Suppressed { .. } | Kind::Missed { .. } => {}
    }
    lines
}

fn explain_command(connection: &Connection) -> String {
    let (client, server) = match connection.role {
        Side::Client => (connection.local, connection.peer),
        Side::Server => (connection.peer, connection.local),
    };
    let port = service_port(connection);
    let server = std::net::SocketAddr::new(server.ip(), port);
    format!(
        "smc-agent policy explain --running --flow '{} -> {server}' --role {}",
        client.ip(),
        connection.role.word()
    )
}

fn add(lines: &mut Vec<String>, code: &CodeInfo, whose: &str) {
    lines.push(format!("means   {whose}{}", code.meaning));
    lines.extend(code.causes.iter().take(2).map(|cause| format!("likely  {cause}")));
    lines.extend(code.checks.iter().take(3).map(|check| format!("check   $ {}", check.command)));
    lines.push(format!("more    $ smc-agent code {}", code.name));
}

#[cfg(test)]
#[path = "lines_tests.rs"]
mod tests;
