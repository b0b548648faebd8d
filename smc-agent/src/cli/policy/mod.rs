//! `smc-agent policy …`: policies in files, and the one that runs.

mod check;
mod diff;
mod explain;
mod running;
mod show;
mod test;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::Subcommand;

use super::{Failure, Output, print, print_json, printable, run::parse_size};
use crate::{
    enforce::Places,
    policy::{Diagnostic, Limits, Loaded, load},
};

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Say whether a policy is valid, what is odd about it, and how much memory its table takes
    Check(check::Arguments),
    /// Say which rule decides a flow, and why each rule before it does not
    Explain(explain::Arguments),
    /// Say for which flows the verdict changes from one policy to another, and by which rules
    Diff(diff::Arguments),
    /// Judge the flows of test files, and say which are not judged as expected
    Test(test::Arguments),
    /// Show the policy that runs: its rules, how often each decided, and what it takes
    Show(show::Arguments),
}

pub(super) fn policy(places: &Places, command: PolicyCommand) -> Result<ExitCode, Failure> {
    match command {
        PolicyCommand::Check(arguments) => check::check(&arguments),
        PolicyCommand::Explain(arguments) => explain::explain(places, &arguments),
        PolicyCommand::Diff(arguments) => diff::diff(places, &arguments),
        PolicyCommand::Test(arguments) => test::test(&arguments),
        PolicyCommand::Show(arguments) => show::show(places, &arguments),
    }
}

/// Exit code of a command that did its work, and found that what was asked is not so.
fn not_so() -> ExitCode {
    ExitCode::from(1)
}

/// Reads a policy, and writes what is odd about it to standard error.
fn read(files: &[PathBuf]) -> Result<Loaded, Failure> {
    let loaded = load(files, &Limits::default())?;
    tell(&loaded.warnings);
    Ok(loaded)
}

/// Writes diagnostics to standard error, as compilers do.
fn tell(diagnostics: &[Diagnostic]) {
    let mut out = io::stderr().lock();
    for diagnostic in diagnostics {
        // Whoever closed standard error does not want to know.
        let _ = writeln!(out, "{}", printable(&diagnostic.to_string()));
    }
}

/// Writes a remark to standard error.
fn remark(text: &str) {
    let _ = writeln!(io::stderr(), "{}", printable(&format!("smc-agent: {text}")));
}
