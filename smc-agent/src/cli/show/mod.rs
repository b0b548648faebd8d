//! `smc-agent show …`: what smc-tools show, with JSON.

mod devices;
mod groups;
mod human;
mod json;
mod page;
mod problems;
mod settings;
mod sockets;
mod stats;
mod table;

pub(super) use human::{bytes as human_bytes, count as human_count};
pub(super) use page::{Page, emit_line, escape};
pub(super) use table::Table;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{Failure, Output};
use crate::show::{
    self, Devices, Fallbacks, HandshakeLimit, Info, LinkGroups, Links, PnetRows, Scope, SocketCounts,
    SystemEid, UserEids,
};

#[derive(Debug, Args)]
pub(super) struct ShowArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Args)]
struct Common {
    /// How to write the result
    #[arg(short, long, value_enum, default_value_t = Output::Text, global = true)]
    output: Output,
    /// Look into this network namespace: a name, a path, or `all`
    #[arg(long, value_name = "NAME|all", global = true)]
    netns: Option<String>,
    /// Show it again and again, every so many seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2",
          value_parser = parse_seconds, global = true)]
    watch: Option<Duration>,
    /// Exact numbers instead of rounded ones
    #[arg(long, global = true)]
    raw: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// SMC sockets, as smcss does
    Sockets(sockets::SocketArguments),
    /// The devices that SMC may use, as smcr and smcd device do
    Devices,
    /// Link groups, as smcr and smcd linkgroup do
    #[command(name = "linkgroups")]
    LinkGroups(groups::GroupArguments),
    /// The links of SMC-R link groups
    Links,
    /// Statistics, as smcr and smcd stats do
    Stats(stats::StatsArguments),
    /// Why connections fell back to TCP: every code, by side
    Fallbacks,
    /// What the kernel's SMC is, and how it is set up
    Info,
    /// The network namespaces that have SMC sockets
    Netns,
    /// The user EIDs
    Ueid,
    /// The system EID
    Seid,
    /// The PNET table, as `smc_pnet` does
    Pnet,
    /// Whether listeners refuse SMC while handshakes queue up
    #[command(name = "hs-limit")]
    HandshakeLimit,
}

pub(super) fn show(arguments: &ShowArguments) -> Result<ExitCode, Failure> {
    let Common { output, netns, watch, raw } = &arguments.common;
    let scope = netns.as_deref().map_or(Scope::Current, Scope::from);
    let page = Page { scope, output: *output, watch: *watch, raw: *raw };
    match &arguments.what {
        What::Sockets(arguments) => sockets::show(&page, arguments)?,
        What::Devices => page.show(Devices::read, devices::text)?,
        What::LinkGroups(arguments) => {
            page.show(LinkGroups::read, |found, raw| groups::text(found, arguments, raw))?;
        }
        What::Links => page.show(Links::read, groups::links)?,
        What::Stats(arguments) => stats::show(&page, arguments)?,
        What::Fallbacks => page.show(Fallbacks::read, stats::fallbacks)?,
        What::Info => page.show(Info::read, settings::info)?,
        What::Netns => namespaces(page)?,
        What::Ueid => page.show(UserEids::read, settings::user_eids)?,
        What::Seid => page.show(SystemEid::read, settings::system_eid)?,
        What::Pnet => page.show(PnetRows::read, settings::pnet)?,
        What::HandshakeLimit => page.show(HandshakeLimit::read, settings::handshake_limit)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Without `--netns` it looks everywhere: that is what it is for.
fn namespaces(page: Page) -> Result<(), Failure> {
    let scope = if page.scope == Scope::Current { Scope::All } else { page.scope };
    let page = Page { scope, ..page };
    page.show_all(
        || {
            let mut report = show::collect(&page.scope, SocketCounts::read)?;
            report.namespaces.retain(|namespace| namespace.found.sockets > 0);
            Ok(report)
        },
        |report, _| {
            let mut table =
                table::Table::new(&["NetNS", "Name", ">Sockets", ">Listen", ">SMCR", ">SMCD", ">TCP"]);
            for found in &report.namespaces {
                let counts = &found.found;
                let numbers = [counts.sockets, counts.listening, counts.smcr, counts.smcd, counts.fallback];
                let mut row = vec![found.netns.inode.to_string(), page::name_of(&found.netns)];
                row.extend(numbers.map(|number| number.to_string()));
                table.row(row);
            }
            table.to_string()
        },
    )
}

pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| *time >= Duration::from_millis(100))
        .ok_or_else(|| "give at least 0.1 seconds".to_owned())
}
