//! The smc-agent command.

use std::process::ExitCode;

fn main() -> ExitCode {
    smc_agent::cli::main()
}
