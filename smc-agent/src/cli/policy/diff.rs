//! `smc-agent policy diff`.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::{Failure, Output, print, print_json, read, running::Running};
use crate::{enforce::Places, policy};

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// The old policy and the new one, each a file or a folder; with --running only the new one
    #[arg(required = true, num_args = 1..=2, value_name = "POLICY")]
    policies: Vec<PathBuf>,
    /// Take the policy that runs as the old one, read anew from where it came from
    #[arg(long)]
    running: bool,
    /// How to write the result
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(super) fn diff(places: &Places, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let one = |policy: &PathBuf| read(std::slice::from_ref(policy)).map(|loaded| loaded.policy);
    let (old, new) = match (&arguments.policies[..], arguments.running) {
        ([new], true) => (Running::find(places, "policy diff --running")?.read()?.0, one(new)?),
        ([old, new], false) => (one(old)?, one(new)?),
        (_, true) => return Err(Failure::usage("policy diff --running takes one policy: the new one")),
        (_, false) => {
            return Err(Failure::usage("policy diff takes two policies: the old one and the new one"));
        }
    };
    let diff = policy::diff(&old, &new).map_err(|error| Failure::not_so(error.to_string()))?;
    match arguments.output {
        Output::Json => print_json(&diff)?,
        Output::Text => print(format_args!("{diff}\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}
