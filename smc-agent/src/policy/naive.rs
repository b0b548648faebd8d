//! The language's meaning, written down as plainly as it can be: tests compare everything else with it.

use super::model::{Mode, Policy, Rule};
use smc_agent_common::{Decision, Flow, RULE_DEFAULT};

/// The decision, and the shadow rules that matched before it.
pub(super) fn decide(policy: &Policy, flow: &Flow) -> (Decision, Vec<u16>) {
    let mut shadows = Vec::new();
    for (number, rule) in policy.rules().iter().enumerate() {
        if !matches(rule, flow) {
            continue;
        }
        let number = u16::try_from(number).unwrap();
        if rule.mode == Mode::Shadow {
            shadows.push(number);
            continue;
        }
        return (Decision { verdict: rule.action.into(), rule: number, log: rule.log }, shadows);
    }
    (Decision { verdict: policy.default_action().into(), rule: RULE_DEFAULT, log: false }, shadows)
}

fn matches(rule: &Rule, flow: &Flow) -> bool {
    rule.role.is_none_or(|role| role == flow.role)
        && rule.peer.as_ref().is_none_or(|peer| peer.contains(flow.peer.into()))
        && rule.local.as_ref().is_none_or(|local| local.contains(flow.local.into()))
        && rule.ports.as_ref().is_none_or(|ports| ports.iter().any(|range| range.contains(&flow.port)))
}
