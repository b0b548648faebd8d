//! A claim about a flow, and whether it holds.

use std::time::Duration;

use smc_agent_tests::agent::Agent;
use smc_agent_tests::pair::{End, Ends, Mode};
use smc_agent_tests::wait::wait_until;

/// How long the agent may take to tell of an event, under emulation.
const EVENT_TIMEOUT: Duration = Duration::from_secs(10);
/// `SMC_CLC_DECL_PEERNOSMC` (`net/smc/smc_clc.h`).
const PEER_NO_SMC: u32 = 0x0301_0000;

/// What a flow is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Claim {
    /// It runs over SMC, and there is nothing to tell.
    Smc,
    /// It runs over TCP because a rule refuses SMC to this role.
    Denied {
        /// The end of the connection that the rule is about.
        role: &'static str,
        /// The rule's name.
        rule: &'static str,
    },
    /// It runs over TCP because the other end is a plain TCP socket, which no rule wants.
    TcpPeer {
        /// The end that speaks SMC.
        role: &'static str,
    },
    /// It runs over TCP, and no agent is there to tell why.
    DeniedUntold,
}

/// What a flow did.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The agent's lines about it.
    pub(crate) lines: Vec<String>,
    /// How its data travelled.
    pub(crate) over: String,
    /// Why, in short.
    pub(crate) reason: String,
    /// Whether all of it is as claimed.
    pub(crate) holds: bool,
}

impl Claim {
    /// Compares a connection that was made, and what the agent says of it, with the claim.
    pub(crate) fn check(self, ends: &Ends, agent: Option<&Agent>) -> Outcome {
        let lines = match agent {
            Some(agent) => self.wait_for_lines(agent, ends),
            None => Vec::new(),
        };
        let line_of = |role: &str| {
            let end = if role == "client" { &ends.client } else { &ends.server };
            let place = format!(" fallback {role} {} <-> {} ", end.local, end.peer);
            lines.iter().find(|line| line.contains(&place))
        };
        let says = |role: &str, text: &str| line_of(role).is_some_and(|line| line.contains(text));
        let refused = [&ends.client, &ends.server].into_iter().all(is_refused);
        let by_a_rule = |line: &String| line.contains("denied by");
        let as_told = match self {
            Self::Smc => ends.client.mode.is_smc() && ends.server.mode.is_smc() && lines.is_empty(),
            Self::Denied { role, rule } => {
                refused
                    && says(role, &format!("0x03010000 PEERNOSMC, peer -, denied by rule {rule:?}"))
                    && lines.iter().filter(|line| by_a_rule(line)).count() == 1
            }
            Self::TcpPeer { role } => {
                refused && says(role, "0x03010000 PEERNOSMC, peer -") && !lines.iter().any(by_a_rule)
            }
            Self::DeniedUntold => refused,
        };
        let reason = match self {
            Self::Smc if as_told => String::new(),
            Self::Denied { role, .. } | Self::TcpPeer { role } => {
                line_of(role).map_or_else(|| "no event".to_owned(), |line| why(line))
            }
            _ if ends.client.reason != 0 => format!("{:#010x}", ends.client.reason),
            _ => String::new(),
        };
        Outcome { lines, over: over(ends), reason, holds: as_told && ends.intact }
    }

    /// The agent's lines about a connection, once all that are claimed have come.
    fn wait_for_lines(self, agent: &Agent, ends: &Ends) -> Vec<String> {
        let wanted = match self {
            Self::Smc | Self::DeniedUntold => 0,
            Self::TcpPeer { .. } => 1,
            Self::Denied { .. } => 2,
        };
        let client = format!(" {} ", ends.client.local);
        let look = || {
            let lines = agent.lines().into_iter();
            // The other end's address is followed by a blank too.
            lines.filter(|line| line.contains(" fallback ") && line.contains(&client)).collect::<Vec<_>>()
        };
        let found = wait_until("the agent's events", EVENT_TIMEOUT, || {
            Ok(Some(look()).filter(|lines| lines.len() >= wanted))
        });
        // What did not come is seen by the claim.
        found.unwrap_or_else(|_| look())
    }
}

fn is_refused(end: &End) -> bool {
    end.mode == Mode::Tcp || end.mode == Mode::FallbackTcp && end.reason == PEER_NO_SMC
}

fn over(ends: &Ends) -> String {
    let word = |mode: Mode| match mode {
        Mode::Tcp | Mode::FallbackTcp => "TCP".to_owned(),
        Mode::SmcR => "SMC-R".to_owned(),
        Mode::SmcD => "SMC-D".to_owned(),
        Mode::Unknown(_) => mode.to_string(),
    };
    let (client, server) = (word(ends.client.mode), word(ends.server.mode));
    if client == server { client } else { format!("{client} / {server}") }
}

/// The code and the rule of an event line.
fn why(line: &str) -> String {
    let rule = line.split_once("denied by ").map_or("no rule", |(_, rule)| rule);
    let code = line.split_whitespace().skip_while(|word| !word.starts_with("0x")).nth(1);
    format!("{}, {rule}", code.unwrap_or("?").trim_end_matches(','))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_read_from_the_line() {
        let line =
            "T fallback client 1.2.3.4:5 <-> 1.2.3.4:6 0x03010000 PEERNOSMC, peer -, denied by rule \"x\"";
        assert_eq!(why(line), "PEERNOSMC, rule \"x\"");
        assert_eq!(why(line.split_once(", denied").unwrap().0), "PEERNOSMC, no rule");
    }
}
