//! What enforcement costs: `cargo xtask bench enforce`. Everything is measured in turn within one run, so that what else the
//! machine does is in all figures alike.

#![expect(clippy::cast_precision_loss, reason = "figures are rounded")]
#![expect(clippy::cast_possible_truncation, reason = "random numbers below a bound")]

mod connections;
mod lab;
#[path = "../policy/list.rs"]
#[expect(dead_code, reason = "what only the other bench uses")]
mod list;
mod packets;
#[path = "../policy/report.rs"]
mod report;

use std::{path::Path, process::ExitCode};

use anyhow::{Result, bail};

use report::{Arguments, Report};

const HELP: &str = "Usage: cargo xtask bench enforce [--quick] [-o text|json]";

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Prefixes of the policy and of the set of iptables.
    prefixes: usize,
    /// Rounds, each with all that is compared in turn.
    rounds: usize,
    /// Runs of a program in a round.
    runs: u32,
    /// Connections in a round.
    connections: u32,
    /// Bytes of bulk data in a round.
    bytes: usize,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench enforce: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let Some(arguments) = Arguments::read(HELP)? else { return Ok(()) };
    if !nix::unistd::geteuid().is_root() {
        bail!("it needs root: it makes network namespaces and loads BPF programs");
    }
    if !Path::new(env!("SMC_AGENT_PROBE")).is_file() {
        bail!("the BPF side was not built from source");
    }
    lab::private_mounts()?;
    let effort = if arguments.quick {
        Effort { prefixes: 20_000, rounds: 5, runs: 10_000, connections: 50, bytes: 1 << 20 }
    } else {
        Effort { prefixes: 1_000_000, rounds: 301, runs: 200_000, connections: 100, bytes: 8 << 20 }
    };
    let mut report = Report::new(arguments.quick);
    packets::cost(&mut report, effort)?;
    connections::compare(&mut report, effort)?;
    arguments.print(&report)
}
