//! `smc-agent policy test`.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use serde::Serialize;

use super::{Failure, Output, not_so, print, print_json, tell};
use crate::policy::{
    Limits,
    flow_tests::{self, FlowTestError, Report},
};

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Test files: flows and what is expected of them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// How to write the result
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// What came of all files.
#[derive(Serialize)]
struct Reports {
    version: u32,
    passed: usize,
    failed: usize,
    files: Vec<Report>,
}

pub(super) fn test(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut reports = Reports { version: 1, passed: 0, failed: 0, files: Vec::new() };
    for file in &arguments.files {
        let report = flow_tests::run(file, &Limits::default()).map_err(|error| match error {
            FlowTestError::Load(error) => error.into(),
            FlowTestError::Compile(error) => Failure::not_so(format!("{}: {error}", file.display())),
        })?;
        reports.passed += report.passed;
        reports.failed += report.failed.len();
        reports.files.push(report);
    }
    if arguments.output == Output::Json {
        print_json(&reports)?;
    } else {
        for report in &reports.files {
            tell(&report.warnings);
            for failure in &report.failed {
                print(format_args!("{failure}\n"))?;
            }
        }
        print(format_args!("{} passed, {} failed\n", reports.passed, reports.failed))?;
    }
    Ok(if reports.failed == 0 { ExitCode::SUCCESS } else { not_so() })
}
