//! `smc-agent policy explain`.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, ValueEnum};
use serde::Serialize;
use smc_agent_common::Role;

use super::{Failure, Output, print, print_json, read, running::Running};
use crate::{
    enforce::Places,
    policy::{self, Convert, Limits, Policy, SocketOwner},
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
    #[arg(long, value_name = "FLOW", required_unless_present = "socket", conflicts_with = "socket")]
    flow: Option<String>,
    /// Instead of a flow, a process that makes a TCP socket, as 'comm=nginx,uid=33': whether it is converted
    ///
    /// Known are cgroup, uid, gid, comm, exe and netns.
    #[arg(long, value_name = "PROCESS")]
    socket: Option<SocketOwner>,
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
struct Explained<E> {
    #[serde(flatten)]
    explanation: E,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    /// Whether the files still say what runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<bool>,
}

impl<E> Explained<E> {
    fn new(explanation: E, running: Option<(u64, bool)>) -> Self {
        Self {
            explanation,
            generation: running.map(|(generation, _)| generation),
            current: running.map(|(_, current)| current),
        }
    }
}

pub(super) fn explain(places: &Places, arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let Some(owner) = &arguments.socket {
        return explain_conversion(places, arguments, owner);
    }
    let role = match arguments.role {
        Side::Client => Role::Client,
        Side::Server => Role::Server,
    };
    let flow = policy::parse_flow(arguments.flow.as_deref().unwrap_or_default(), role);
    let flow = flow.map_err(|error| Failure::usage(format!("--flow: {error}")))?;
    let (policy, running) = policy_of(places, arguments)?;
    let limits = Limits { table_memory: usize::MAX, ..Limits::default() };
    let table = policy::compile(&policy, 0, &limits).map_err(|error| Failure::not_so(error.to_string()))?;
    let explanation = policy::explain(&policy, &table, &flow);
    match arguments.output {
        Output::Json => print_json(&Explained::new(explanation, running))?,
        Output::Text => print(format_args!("{explanation}\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The policy asked for; of the one that runs also its generation, and whether the files still say what runs.
fn policy_of(places: &Places, arguments: &Arguments) -> Result<(Policy, Option<(u64, bool)>), Failure> {
    if !arguments.running {
        return Ok((read(&arguments.files)?.policy, None));
    }
    let running = Running::find(places, "policy explain --running")?;
    let (policy, current) = running.read()?;
    Ok((policy, Some((running.generation(), current))))
}

fn explain_conversion(
    places: &Places,
    arguments: &Arguments,
    owner: &SocketOwner,
) -> Result<ExitCode, Failure> {
    let (policy, running) = policy_of(places, arguments)?;
    let nothing = Convert::default();
    let explanation = policy::explain_socket(policy.convert().unwrap_or(&nothing), owner);
    match arguments.output {
        Output::Json => print_json(&Explained::new(explanation, running))?,
        Output::Text => print(format_args!("{explanation}\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}
