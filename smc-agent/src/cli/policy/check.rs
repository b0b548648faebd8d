//! `smc-agent policy check`.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::{Failure, Output, not_so, parse_size, print, print_json, tell};
use crate::policy::{self, Limits};

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Policy files, or folders of them; all make one policy
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Refuse a policy whose table takes more than this (bytes; K, M and G are understood)
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    max_table_memory: usize,
    /// How to write the result
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(super) fn check(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let limits = Limits { table_memory: arguments.max_table_memory, ..Limits::default() };
    let check = policy::check(&arguments.files, &limits)?;
    match arguments.output {
        Output::Json => print_json(&check)?,
        Output::Text => {
            tell(&check.diagnostics);
            if let Some(summary) = &check.summary {
                print(format_args!("valid: {summary}\n"))?;
            }
        }
    }
    Ok(if check.valid { ExitCode::SUCCESS } else { not_so() })
}
