//! `show stats`, and the text of `show fallbacks`.

use std::fmt::Write as _;

use clap::Args;

use super::super::Failure;
use super::table::Table;
use super::{Page, human_count};
use crate::netlink::smc::{Direction, Side, Technology};
use crate::show::{self, Fallbacks, Report, ShowError, Stats, mark};

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub(super) struct StatsArguments {
    /// Only SMC-R in text
    #[arg(long)]
    smcr: bool,
    /// Only SMC-D in text
    #[arg(long)]
    smcd: bool,
    /// Keep the present figures as the mark to count from, for this user only
    #[arg(long, conflicts_with = "since_mark")]
    mark: bool,
    /// Show what was counted since the mark
    #[arg(long)]
    since_mark: bool,
}

pub(super) fn show(page: &Page, arguments: &StatsArguments) -> Result<(), Failure> {
    let collect = || {
        let mut report = show::collect(&page.scope, Stats::read)?;
        if arguments.since_mark {
            since_mark(&mut report)?;
        }
        if arguments.mark {
            let found = report.namespaces.iter().map(|namespace| (&namespace.netns, &namespace.found));
            mark::set(&mark::path()?, found)?;
        }
        Ok(report)
    };
    page.show_all(collect, |report, raw| {
        super::page::by_namespace(report, |stats| text(stats, arguments, raw))
    })
}

fn since_mark(report: &mut Report<Stats>) -> Result<(), ShowError> {
    let path = mark::path()?;
    for namespace in &mut report.namespaces {
        namespace.found = mark::since(&path, &namespace.netns, &namespace.found)?;
    }
    Ok(())
}

fn text(stats: &Stats, arguments: &StatsArguments, raw: bool) -> String {
    let mut text = String::new();
    if let Some(since) = &stats.since {
        let _ = writeln!(text, "since {}", super::escape(since));
    }
    if stats.reset {
        text.push_str("the kernel's counters began again at 0 since then: all that they count is shown\n");
    }
    let both = arguments.smcr == arguments.smcd;
    let statistics = &stats.statistics;
    for (shown, name, technology) in
        [(arguments.smcr, "SMC-R", &statistics.smcr), (arguments.smcd, "SMC-D", &statistics.smcd)]
    {
        if both || shown {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&mode(name, technology, stats, raw));
        }
    }
    text
}

fn mode(name: &str, technology: &Technology, stats: &Stats, raw: bool) -> String {
    let statistics = &stats.statistics;
    let connections = technology.connections();
    let errors = statistics.client_handshake_errors.wrapping_add(statistics.server_handshake_errors);
    let fallbacks = stats.fallbacks.client.wrapping_add(stats.fallbacks.server);
    let handled = connections.wrapping_add(errors).wrapping_add(fallbacks);
    let requests = technology.rx.requests.wrapping_add(technology.tx.requests);
    let mut text = format!("{name} Connections Summary\n");
    text.push_str(&line("Total connections handled", handled));
    text.push_str(&line("SMC connections", connections));
    text.push_str(&line("Handshake errors", errors));
    let _ = writeln!(text, "  {:<27}{:>15.1}", "Avg requests per SMC conn", ratio(requests, connections));
    text.push_str(&line("TCP fallback", fallbacks));
    text.push_str("\nRX Stats\n");
    text.push_str(&direction(&technology.rx, false, raw));
    text.push_str("\nTX Stats\n");
    text.push_str(&direction(&technology.tx, true, raw));
    text.push_str("\nExtras\n");
    text.push_str(&line("Special socket calls", technology.special_calls()));
    text
}

fn direction(direction: &Direction, sending: bool, raw: bool) -> String {
    let human = |number: u64| if raw { String::new() } else { format!(" ({})", human_count(number)) };
    let share = |number: u64| format!(" ({:.2}%)", 100.0 * ratio(number, direction.requests));
    let with = |label: &str, number: u64, more: String| format!("  {label:<27}{number:>13}{more}\n");
    let mut text = with("Data transmitted (Bytes)", direction.bytes, human(direction.bytes));
    text.push_str(&line("Total requests", direction.requests));
    match direction.buffer_usage {
        Some(bytes) => text.push_str(&with("Buffer usage (Bytes)", bytes, human(bytes))),
        None => text.push_str("  Buffer usage (Bytes)                   - (needs kernel 6.12)\n"),
    }
    let mut events = vec![("Buffer full", direction.buffer_full)];
    if sending {
        events.push(("Buffer full (remote)", direction.peer_buffer_full));
        events.push(("Buffer too small", direction.buffer_small));
        events.push(("Buffer too small (remote)", direction.peer_buffer_small));
    } else if direction.buffer_small > 0 {
        events.push(("Buffer too small", direction.buffer_small));
    }
    for (label, number) in events {
        text.push_str(&with(label, number, share(number)));
    }
    if direction.buffers_downgraded > 0 {
        text.push_str(&line("Buffers downgraded", direction.buffers_downgraded));
    }
    text.push_str(&histograms(direction, raw));
    text
}

/// The last two classes are one, as smc-tools have it.
fn histograms(direction: &Direction, raw: bool) -> String {
    let cells = |name: &str, classes: [u64; 9]| {
        let [small @ .., large, larger] = classes;
        let classes = small.into_iter().chain([large.wrapping_add(larger)]);
        let numbers = classes.map(|number| if raw { number.to_string() } else { human_count(number) });
        [name.to_owned()].into_iter().chain(numbers).collect::<Vec<_>>()
    };
    let mut table =
        Table::new(&["    ", ">8KB", ">16KB", ">32KB", ">64KB", ">128KB", ">256KB", ">512KB", ">>512KB"]);
    table.row(cells("Bufs", direction.buffers.classes()));
    table.row(cells("Reqs", direction.request_sizes.classes()));
    table.to_string().lines().fold(String::new(), |text, line| text + "  " + line + "\n")
}

fn line(label: &str, number: u64) -> String {
    format!("  {label:<27}{number:>13}\n")
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

pub(super) fn fallbacks(fallbacks: &Fallbacks, _raw: bool) -> String {
    let mut table = Table::new(&["Side", ">Count", "Code", "Name"]);
    let side = |side: Side| match side {
        Side::Server => "server",
        Side::Client => "client",
    };
    for reason in &fallbacks.reasons {
        let name = reason.code.name.clone().unwrap_or_else(|| "(not one of Linux)".to_owned());
        let code = format!("0x{:08x}", reason.code.value);
        table.row(vec![side(reason.side).to_owned(), reason.count.to_string(), code, name]);
    }
    let unlisted = [(Side::Server, fallbacks.server_unlisted), (Side::Client, fallbacks.client_unlisted)];
    for (end, count) in unlisted {
        if count > 0 {
            table.row(vec![
                side(end).to_owned(),
                count.to_string(),
                "-".to_owned(),
                "(the kernel kept no reason)".to_owned(),
            ]);
        }
    }
    format!("fallbacks: {} as server, {} as client\n{table}", fallbacks.server_total, fallbacks.client_total)
}
