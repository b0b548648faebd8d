//! Commands: arguments in, text or JSON out. Nothing else of the library prints.

mod code;
mod convert;
mod detach;
mod exec;
mod failure;
mod features;
mod monitor;
mod policy;
mod privileges;
mod reload;
mod run;
mod set;
mod show;
mod status;
mod tail;
mod top;

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;

use crate::enforce::Places;
use failure::Failure;

const EXIT_CODES: &str = "\
Exit codes:
  0  well
  1  the thing asked is not so: policy invalid, nothing enforced, …
  2  usage, or a file named on the command line cannot be read
  3  this kernel lacks what is needed
  4  not privileged";

#[derive(Debug, Parser)]
#[command(
    name = "smc-agent",
    version,
    about = "Decides by policy which TCP connections may negotiate SMC, enforces it in the kernel, and shows why connections fall back to TCP.",
    after_help = EXIT_CODES
)]
struct Arguments {
    #[command(flatten)]
    places: PlaceArguments,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct PlaceArguments {
    /// Folder of the lock, the control socket and the records of what is enforced
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "/run/smc-agent",
        help_heading = "Places"
    )]
    state_dir: PathBuf,
    /// Folder of the pins, in a bpf file system
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "/sys/fs/bpf/smc-agent",
        help_heading = "Places"
    )]
    pin_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put a policy into force and show what falls back; enforcement stays when the agent stops
    Run(run::RunArguments),
    /// Take everything of the agent out of the kernel
    Detach(OutputArguments),
    /// Have the running agent read its policy anew
    Reload(OutputArguments),
    /// Show what is enforced, and how; works without a running agent too
    Status(OutputArguments),
    /// Show what this kernel has, since which version, and what works here; changes nothing
    Features(features::FeaturesArguments),
    /// Turn TCP sockets of programs into SMC ones: what is, and quick switches
    #[command(subcommand)]
    Convert(convert::ConvertCommand),
    /// Run a command whose TCP sockets, and its children's, become SMC ones
    Exec(exec::ExecArguments),
    /// Work with policies
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Show what there is of SMC: sockets, devices, link groups, statistics, settings
    Show(show::ShowArguments),
    /// Change what SMC keeps in the kernel: EIDs, PNET ids, the handshake limitation
    Set(set::SetArguments),
    /// Show rates, connections and memory of SMC, again and again
    Monitor(monitor::MonitorArguments),
    /// Show events: what fell back, why, and whose it was
    Tail(tail::TailArguments),
    /// Count events by code, peer, port, owner and rule, again and again
    Top(top::TopArguments),
    /// Explain why connections fall back: what a code means and what to do about it
    Code(code::CodeArguments),
}

#[derive(Debug, Args)]
struct OutputArguments {
    /// How to write the result
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are errors too for the parser, but not for the user.
            let code = u8::from(error.use_stderr()) * failure::USAGE;
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    start_log();
    match run_command(arguments) {
        Ok(code) => code,
        // A reader that has seen enough is no error.
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "{}", printable(&format!("smc-agent: {failure}")));
            ExitCode::from(failure.code())
        }
    }
}

fn run_command(arguments: Arguments) -> Result<ExitCode, Failure> {
    let places = Places { pins: arguments.places.pin_dir, state: arguments.places.state_dir };
    match arguments.command {
        Command::Run(arguments) => run::run(places, &arguments),
        Command::Detach(arguments) => detach::detach(&places, arguments.output),
        Command::Reload(arguments) => reload::reload(&places, arguments.output),
        Command::Status(arguments) => status::status(&places, arguments.output),
        Command::Features(arguments) => features::features(&arguments),
        Command::Convert(command) => convert::convert(&places, command),
        Command::Exec(arguments) => exec::exec(&places, &arguments),
        Command::Policy(command) => policy::policy(&places, command),
        Command::Show(arguments) => show::show(&arguments),
        Command::Set(arguments) => set::set(&arguments),
        Command::Monitor(arguments) => monitor::monitor(&arguments),
        Command::Tail(arguments) => tail::tail(&places, &arguments),
        Command::Top(arguments) => top::top(&places, &arguments),
        Command::Code(arguments) => code::code(&arguments),
    }
}

/// Messages go to standard error; `RUST_LOG` chooses among them.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,aya=warn,aya_obj=warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_target(false)
        // A log that cannot be written must not end the agent.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal())
        .init();
}

/// A runtime of one thread: everything that waits, waits there.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::not_so(format!("start the runtime: {error}")))
}

fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

fn print(text: std::fmt::Arguments<'_>) -> Result<(), Failure> {
    Ok(io::stdout().lock().write_all(printable(&text.to_string()).as_bytes())?)
}

/// The same text without what a terminal acts on, or what makes it read otherwise than it is: control characters but the
/// ends of lines and tabs, and marks that turn or hide text. Names and files come from outside.
fn printable(text: &str) -> String {
    let acts = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    text.chars().map(|c| if acts(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn nothing_from_outside_acts_on_a_terminal() {
        assert_eq!(printable("a\u{1b}[31m\u{202e}b\n\tc\u{9b}"), "a\u{fffd}[31m\u{fffd}b\n\tc\u{fffd}");
    }
}
