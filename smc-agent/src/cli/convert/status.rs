//! `smc-agent convert status`.

use std::process::ExitCode;

use super::{Failure, Output, print, print_json, privileges};
use crate::{convert::ConvertStatus, enforce::Places};

pub(super) fn status(places: &Places, output: Output) -> Result<ExitCode, Failure> {
    // Pins are for the privileged only.
    privileges::require("convert status")?;
    let status = ConvertStatus::read(places)?;
    match output {
        Output::Json => print_json(&status)?,
        Output::Text => print(format_args!("{}\n", text(&status)))?,
    }
    Ok(if status.mechanism.is_some() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// One line for `status`.
pub(in crate::cli) fn summary(status: &ConvertStatus) -> String {
    let Some(mechanism) = status.mechanism else { return "convert    none".to_owned() };
    let rules = status.rules.len() + status.switches.len();
    let converted: u64 =
        status.rules.iter().filter_map(|rule| rule.sockets).sum::<u64>() + status.default_sockets;
    format!(
        "convert    by {mechanism}, {rules} rules and switches, default {}; {converted} sockets decided (convert status)",
        status.default
    )
}

fn text(status: &ConvertStatus) -> String {
    let mut lines = Vec::new();
    lines.push(match (status.mechanism, &status.lacks) {
        (Some(mechanism), _) => format!("mechanism  {mechanism}"),
        (None, Some(lacks)) => format!("mechanism  none: {lacks}"),
        (None, None) => {
            let available = status.available.map(|mechanism| mechanism.to_string()).unwrap_or_default();
            format!("mechanism  none: nothing is to be converted ({available} is available)")
        }
    });
    let count = |sockets: Option<u64>| sockets.map_or_else(|| "-".to_owned(), |sockets| sockets.to_string());
    for switch in &status.switches {
        let until = switch.until.map(|until| format!(", until {until:.0}")).unwrap_or_default();
        let sockets = count(switch.sockets);
        lines.push(format!(
            "  {:<3} {sockets:>10} sockets  switch for {}{until}",
            switch.action, switch.target
        ));
    }
    for rule in &status.rules {
        let sockets = count(rule.sockets);
        lines.push(format!(
            "  {:<3} {sockets:>10} sockets  {} ({})",
            rule.action,
            rule.name.escape_debug(),
            rule.selectors
        ));
    }
    lines.push(format!("  {:<3} {:>10} sockets  (default)", status.default, status.default_sockets));
    if status.exec_groups > 0 {
        lines.push(format!("exec       {} cgroups of commands", status.exec_groups));
    }
    let counters: Vec<_> = status
        .counters
        .iter()
        .filter(|(_, value)| **value != 0)
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if !counters.is_empty() {
        lines.push(format!("counters   {}", counters.join(" ")));
    }
    for former in &status.sysctls {
        lines.push(format!(
            "sysctl     net.smc.tcp2smc in {}, before {}",
            former.netns.display(),
            former.value
        ));
    }
    lines.push(format!(
        "life-lines systemd* {} (converted only by a rule with comm or exe)",
        status.life_lines.join(" ")
    ));
    lines.join("\n")
}
