//! `smc-agent policy explain`.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, ValueEnum};
use serde::Serialize;
use smc_agent_common::Role;

use super::{Failure, Output, print, print_json, read, running::Running};
use crate::{
    enforce::Places,
    policy::{self, Explanation, Limits},
};

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Policy files, or folders of them; all make one policy
    #[arg(required_unless_present = "running", conflicts_with = "running", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Take the policy that runs, read anew from where it came from
    #[arg(long)]
    running: bool,
    /// The flow, as '10.0.0.1 -> 192.0.2.7:6379': the left side sends the SYN, the right side is the service
    #[arg(long, value_name = "FLOW")]
    flow: String,
    /// Which of the two this host is
    #[arg(long, value_enum, default_value_t = Side::Client)]
    role: Side,
    /// How to write the result
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Side {
    /// This host sends the SYN
    Client,
    /// This host answers the SYN
    Server,
}

/// The explanation, and of the policy that runs which generation it is.
#[derive(Serialize)]
struct Explained {
    #[serde(flatten)]
    explanation: Explanation,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    /// Whether the files still say what runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<bool>,
}

pub(super) fn explain(places: &Places, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let role = match arguments.role {
        Side::Client => Role::Client,
        Side::Server => Role::Server,
    };
    let flow = policy::parse_flow(&arguments.flow, role);
    let flow = flow.map_err(|error| Failure::usage(format!("--flow: {error}")))?;
    let (policy, running) = if arguments.running {
        let running = Running::find(places, "policy explain --running")?;
        let (policy, current) = running.read()?;
        (policy, Some((running.generation(), current)))
    } else {
        (read(&arguments.files)?.policy, None)
    };
    let limits = Limits { table_memory: usize::MAX, ..Limits::default() };
    let table = policy::compile(&policy, 0, &limits).map_err(|error| Failure::not_so(error.to_string()))?;
    let explanation = policy::explain(&policy, &table, &flow);
    match arguments.output {
        Output::Json => print_json(&Explained {
            explanation,
            generation: running.map(|(generation, _)| generation),
            current: running.map(|(_, current)| current),
        })?,
        Output::Text => print(format_args!("{explanation}\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}
