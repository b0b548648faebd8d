//! `smc-agent convert …`: which TCP sockets become SMC ones.

mod status;
mod switch;

use std::process::ExitCode;

use clap::Subcommand;

use super::{Failure, Output, OutputArguments, print, print_json, privileges};
use crate::enforce::Places;

pub(super) use status::summary;

#[derive(Debug, Subcommand)]
pub(super) enum ConvertCommand {
    /// Show what is converted, how, and by which rule how many sockets were
    Status(OutputArguments),
    /// Convert a cgroup or a network namespace, before all rules of the policy
    On(switch::OnArguments),
    /// Convert nothing of a cgroup or a network namespace, whatever the policy says
    Off(switch::OffArguments),
    /// Take switches away again: the policy's rules decide
    Reset(switch::ResetArguments),
}

pub(super) fn convert(places: &Places, command: ConvertCommand) -> Result<ExitCode, Failure> {
    match command {
        ConvertCommand::Status(arguments) => status::status(places, arguments.output),
        ConvertCommand::On(arguments) => switch::on(places, &arguments),
        ConvertCommand::Off(arguments) => switch::off(places, &arguments),
        ConvertCommand::Reset(arguments) => switch::reset(places, &arguments),
    }
}
