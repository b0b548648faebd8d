//! The figures of docs/benchmarks.md: `cargo xtask bench policy`.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "random numbers are cut as they are wanted, and figures are rounded"
)]

mod life;
mod list;
mod lookups;
#[path = "../../tests/probe/mod.rs"]
#[expect(dead_code, reason = "what only the tests use")]
mod probe;
mod report;

use std::process::ExitCode;

use anyhow::{Result, bail};

use lookups::Effort;
use report::{Arguments, Report};

const HELP: &str = "Usage: cargo xtask bench policy [--quick] [-o text|json]";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench policy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let Some(arguments) = Arguments::read(HELP)? else { return Ok(()) };
    let quick = arguments.quick;
    if let Some(why) = probe::missing() {
        bail!("it {why}");
    }
    private_mounts()?;
    let effort = if quick {
        Effort { prefixes: 20_000, rounds: 3, uniform: 1 << 14 }
    } else {
        Effort { prefixes: 1_000_000, rounds: 7, uniform: 1 << 20 }
    };
    let mut report = Report::new(quick);
    lookups::rules(&mut report, effort)?;
    lookups::large(&mut report, effort, false)?;
    lookups::large(&mut report, effort, true)?;
    life::text_to_table(&mut report, effort)?;
    life::agent(&mut report, effort)?;
    arguments.print(&report)
}

/// Mounts made here are nobody else's.
fn private_mounts() -> Result<()> {
    use nix::mount::{MsFlags, mount};
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    Ok(())
}
