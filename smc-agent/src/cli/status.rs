//! `smc-agent status`.

use std::process::ExitCode;

use super::{Failure, Output, print, print_json, privileges, runtime};
use crate::{
    daemon::{Client, ClientError, NamespaceStatus, Status},
    enforce::{Backend, Places},
};

pub(super) fn status(places: &Places, output: Output) -> Result<ExitCode, Failure> {
    let status = match runtime()?.block_on(Client::new(places).status()) {
        Ok(status) => status,
        Err(ClientError::NotRunning { .. }) => {
            // Without an agent it is read from the pins, which only the privileged may open.
            privileges::require("status")?;
            Status::read(places, None).map_err(|error| Failure::not_so(error.to_string()))?
        }
        Err(error) => return Err(error.into()),
    };
    match output {
        Output::Json => print_json(&status)?,
        Output::Text => print(format_args!("{}", text(&status)))?,
    }
    Ok(if status.is_enforced() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn text(status: &Status) -> String {
    let mut lines = Vec::new();
    if let Some(agent) = &status.agent {
        let adopted = if agent.adopted { ", went on with the programs of an earlier agent" } else { "" };
        let (version, kernel) = (&agent.version, &agent.kernel);
        lines.push(format!("agent      {version}, pid {}, since {:.0}{adopted}", agent.pid, agent.since));
        lines.push(format!("kernel     {kernel}"));
        for candidate in &agent.candidates {
            let used = if candidate.chosen { "used" } else { "not used" };
            lines.push(format!("backend    {} {used}: {}", candidate.backend, candidate.reason));
        }
        lines.push(format!("scope      {}", agent.scope.escape_debug()));
        if let Some(reload) = &agent.last_reload {
            let outcome = match reload.generation {
                Some(generation) => format!("generation {generation}"),
                None => format!("refused: {}", reload.problems.join("; ")),
            };
            lines.push(format!("reload     {:.0} {outcome}", reload.time));
        }
    } else {
        lines.push("agent      not running".to_owned());
        let enforced = status.backend != Backend::Observe;
        lines.push(format!(
            "backend    {}",
            if enforced { status.backend.to_string() } else { "none".to_owned() }
        ));
    }
    if let Some(ctrl) = &status.hs_ctrl {
        lines.push(format!("hs_ctrl    {ctrl}"));
    }
    if !status.interfaces.is_empty() {
        lines.push(format!("interfaces {}", status.interfaces.join(" ")));
    }
    for namespace in
        status.namespaces.iter().filter(|namespace| namespace.name.is_some() || namespace.pid.is_some())
    {
        lines.push(format!("namespace  {}", of_namespace(namespace)));
    }
    match &status.policy {
        Some(policy) => {
            let sources: Vec<_> = policy.sources.iter().map(|source| source.display().to_string()).collect();
            lines.push(format!("policy     generation {} of {}", policy.generation, sources.join(" ")));
            for rule in &policy.rules {
                lines.push(format!(
                    "  {:<5} {:>10} hits  {}",
                    rule.action,
                    rule.hits,
                    rule.name.escape_debug()
                ));
            }
            lines.push(format!("  {:<5} {:>10} hits  (default)", policy.default, policy.default_hits));
        }
        None => lines.push("policy     none in force".to_owned()),
    }
    if let Some(conversion) = &status.conversion {
        lines.push(super::convert::summary(conversion));
    }
    let counters = status.counters.iter().filter(|(_, value)| **value != 0);
    let counters: Vec<_> = counters.map(|(name, value)| format!("{name}={value}")).collect();
    if !counters.is_empty() {
        lines.push(format!("counters   {}", counters.join(" ")));
    }
    for degraded in &status.degraded {
        lines.push(format!("degraded   {}", degraded.what));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// One that is not the reader's own.
fn of_namespace(namespace: &NamespaceStatus) -> String {
    let name = match (&namespace.name, namespace.pid) {
        (Some(name), _) => name.escape_debug().to_string(),
        (None, Some(pid)) => format!("of process {pid}"),
        (None, None) => String::new(),
    };
    let by = namespace.hs_ctrl.iter().chain(&namespace.interfaces).map(String::as_str);
    let by = by.collect::<Vec<_>>().join(" ");
    format!("{name} ({}) {}{by}", namespace.inode, if namespace.enforced { "" } else { "not all enforced: " })
}
