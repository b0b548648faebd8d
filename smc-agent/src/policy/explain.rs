//! Why a flow is decided as it is.

use super::flow::format_flow;
use super::model::{Action, Mode, Place, Policy, Rule};
use super::table::PolicyTable;
use schemars::JsonSchema;
use serde::Serialize;
use smc_agent_common::{Flow, Role};
use std::fmt;
use std::net::IpAddr;

/// A decision and the way to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Explanation {
    /// Version of this form.
    pub version: u32,
    /// The flow, as it can be written.
    pub flow: String,
    /// Which side this host is: `client` or `server`.
    pub role: &'static str,
    /// What happens.
    pub verdict: Action,
    /// The name of the rule that decided; `None` (null) for the default.
    pub rule: Option<String>,
    /// Where that rule is.
    pub place: Option<Place>,
    /// The rule reports its decisions.
    pub log: bool,
    /// Every rule before the one that decided, in order.
    pub earlier: Vec<Passed>,
}

/// A rule that did not decide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Passed {
    /// Its name.
    pub rule: String,
    /// Where it is.
    pub place: Place,
    /// What about the flow it does not match.
    pub reason: Reason,
    /// The reason in words.
    pub text: String,
}

/// Why a rule did not decide: the first of these that is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// It is for the other side of a connection.
    Role,
    /// The service port is another.
    Port,
    /// The other end's address is another.
    Peer,
    /// This host's address is another.
    Local,
    /// It matches, and only reports.
    Shadow,
}

/// Explains what `table`, compiled from `policy`, does with a flow.
pub fn explain(policy: &Policy, table: &PolicyTable, flow: &Flow) -> Explanation {
    let decision = table.decide(flow);
    let decider = policy.rules().get(usize::from(decision.rule));
    let before = decider.map_or(policy.rules().len(), |_| usize::from(decision.rule));
    let earlier = policy.rules()[..before].iter().map(|rule| {
        let (reason, text) = reason(rule, flow);
        Passed { rule: rule.name.clone(), place: rule.place.clone(), reason, text }
    });
    Explanation {
        version: 1,
        flow: format_flow(flow),
        role: role_name(flow.role),
        verdict: decision.verdict.into(),
        rule: decider.map(|rule| rule.name.clone()),
        place: decider.map(|rule| rule.place.clone()),
        log: decision.log,
        earlier: earlier.collect(),
    }
}

pub(super) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Client => "client",
        Role::Server => "server",
    }
}

fn reason(rule: &Rule, flow: &Flow) -> (Reason, String) {
    if let Some(role) = rule.role
        && role != flow.role
    {
        let text = format!("is for the {}, this host is the {}", role_name(role), role_name(flow.role));
        return (Reason::Role, text);
    }
    if rule.ports.as_ref().is_some_and(|ports| !ports.iter().any(|range| range.contains(&flow.port))) {
        return (Reason::Port, format!("port {} is not among its ports", flow.port));
    }
    let peer = IpAddr::from(flow.peer);
    if rule.peer.as_ref().is_some_and(|addresses| !addresses.contains(peer)) {
        return (Reason::Peer, format!("peer {peer} is not among its peers"));
    }
    let local = IpAddr::from(flow.local);
    if rule.local.as_ref().is_some_and(|addresses| !addresses.contains(local)) {
        return (Reason::Local, format!("local address {local} is not among its local addresses"));
    }
    debug_assert_eq!(rule.mode, Mode::Shadow, "an enforced rule that matches has decided");
    (Reason::Shadow, format!("matches, would {}, and only reports (mode: shadow)", rule.action))
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.flow, self.role, self.verdict)?;
        match (&self.rule, &self.place) {
            (Some(rule), Some(place)) => write!(f, " by rule `{rule}` ({place})")?,
            _ => write!(f, " by default, no rule matches")?,
        }
        if self.log {
            write!(f, ", logged")?;
        }
        for passed in &self.earlier {
            write!(f, "\n  not `{}` ({}): {}", passed.rule, passed.place, passed.text)?;
        }
        Ok(())
    }
}
