//! `smc-agent run`.

use std::{io, path::PathBuf, process::ExitCode};

use clap::{Args, ValueEnum};
use tracing::{error, info};

use super::{Failure, Output, privileges, runtime};
use crate::{
    daemon::{self, Notice, RunOptions},
    enforce::{self, Backend, BackendChoice, Places, Scope, Where},
    policy::Limits,
    trace::{EventWriter, Format},
};

#[expect(clippy::struct_excessive_bools, reason = "each is a flag on the command line")]
#[derive(Debug, Args)]
pub(super) struct RunArguments {
    /// A policy file, or a folder of them; may be repeated, and all make one policy
    #[arg(long, required = true, value_name = "FILE")]
    policy: Vec<PathBuf>,
    /// How to enforce the policy
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    backend: BackendChoice,
    /// In which network namespaces: that of the agent (host), all of them, or those of these names or paths, with commas between
    /// them
    #[arg(long, default_value = "host", value_name = "host|all|NAME,…")]
    scope: Scope,
    /// Displace another's ctrl where one is selected; else it is left alone, and hs-ctrl does not enforce the policy there
    #[arg(long)]
    take_over: bool,
    /// Put the selection of the agent's ctrl back within a second when somebody clears it
    #[arg(long)]
    hold: bool,
    /// How to write events
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Refuse a policy whose table takes more than this (bytes; K, M and G are understood)
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    max_table_memory: usize,
    /// Read the policy anew whenever its files change; one that is not valid leaves the old one in force
    #[arg(long)]
    watch_policy: bool,
    /// Show no more than this many events a second with one code and one peer; the others are counted (0: all)
    #[arg(long, value_name = "N", default_value_t = 0)]
    event_rate: u32,
    /// Do not have the kernel load the module smc
    #[arg(long)]
    no_load_module: bool,
    /// Show messages of the BPF side itself, up to this level
    #[arg(long, value_enum, value_name = "LEVEL", num_args = 0..=1, default_missing_value = "debug")]
    bpf_log: Option<BpfLogLevel>,
}

/// Levels as aya-log counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BpfLogLevel {
    Error = 1,
    Warn = 2,
    Info = 3,
    Debug = 4,
    Trace = 5,
}

pub(super) fn run(places: Places, arguments: &RunArguments) -> Result<ExitCode, Failure> {
    let limits = Limits { table_memory: arguments.max_table_memory, ..Limits::default() };
    // The policy first: what is wrong with it can be said without privileges.
    crate::policy::load(&arguments.policy, &limits)?;
    privileges::prepare_run(arguments.backend, &arguments.scope)?;
    let options = RunOptions {
        enforce: enforce::Options {
            places,
            backend: arguments.backend,
            limits,
            log_level: arguments.bpf_log.map_or(0, |level| level as u8),
            event_rate: arguments.event_rate,
            place: Where {
                scope: arguments.scope.clone(),
                take_over: arguments.take_over,
                hold: arguments.hold,
            },
        },
        // Others read them too, in a folder of their own: `policy show`, and the agent that comes after this one.
        sources: arguments.policy.iter().map(std::path::absolute).collect::<Result<_, _>>()?,
        load_module: !arguments.no_load_module,
        watch: arguments.watch_policy,
    };
    let format = match arguments.output {
        Output::Text => Format::Text,
        Output::Json => Format::Json,
    };
    let mut events = EventWriter::new(io::stdout(), format);
    let mut broken = false;
    let tell = |notice: Notice<'_>| {
        // Without a reader of its output the agent goes on enforcing.
        if let Err(problem) = say(&notice, &mut events)
            && !broken
        {
            broken = true;
            error!("events are not written any more: {problem}");
        }
    };
    runtime()?.block_on(daemon::run(options, tell))?;
    Ok(ExitCode::SUCCESS)
}

fn say(notice: &Notice<'_>, events: &mut EventWriter<io::Stdout>) -> io::Result<()> {
    match notice {
        Notice::Started { backend, candidates, generation, adopted } => {
            for candidate in *candidates {
                let chosen = if candidate.chosen { "" } else { "not " };
                info!("backend {} {chosen}used: {}", candidate.backend, candidate.reason);
            }
            let adopted = if *adopted { ", with the programs of an earlier agent" } else { "" };
            if *backend == Backend::Observe {
                info!("observing: nothing is enforced");
            } else {
                info!("enforcing generation {generation} by {backend}{adopted}");
            }
            Ok(())
        }
        Notice::Reloaded(reload) => {
            if let Some(generation) = reload.generation {
                info!("policy read anew: generation {generation}");
            } else {
                error!("policy refused, the old one stays: {}", reload.problems.join("\n"));
            }
            Ok(())
        }
        Notice::Event(event) => events.put(event),
        Notice::Pause => events.flush(),
    }
}

/// Reads a number of bytes: `268435456`, `256M`, `1G`.
pub(super) fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.char_indices().find(|(_, c)| !c.is_ascii_digit()) {
        Some((at, _)) => text.split_at(at),
        None => (text, ""),
    };
    let shift = match unit.trim().trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(format!("unknown unit {unit:?}: K, M and G are known")),
    };
    let number: usize = digits.parse().map_err(|_| "a number of bytes is wanted, such as 256M".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_size("12"), Ok(12));
        assert_eq!(parse_size("256M"), Ok(256 << 20));
        assert_eq!(parse_size("1 GiB"), Ok(1 << 30));
        assert!(parse_size("M").is_err() && parse_size("1X").is_err() && parse_size("-1").is_err());
    }
}
