//! `smc-agent policy …`.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};

use super::{Failure, Output, print};
use crate::policy::{self, Limits};

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Say whether a policy is valid, and how much memory its table takes
    Check(CheckArguments),
}

#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    /// Policy files, or folders of them; all make one policy
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// How to write the result
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(super) fn policy(command: PolicyCommand) -> Result<ExitCode, Failure> {
    match command {
        PolicyCommand::Check(arguments) => check(&arguments),
    }
}

fn check(arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    let limits = Limits::default();
    let loaded = policy::load(&arguments.files, &limits)?;
    let table =
        policy::compile(&loaded.policy, 0, &limits).map_err(|error| Failure::not_so(error.to_string()))?;
    for warning in &loaded.warnings {
        eprintln!("{warning}");
    }
    let rules = loaded.policy.rules().len();
    print(format_args!("valid: {rules} rules, table of {} bytes\n", table.memory()))?;
    Ok(ExitCode::SUCCESS)
}
