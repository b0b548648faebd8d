//! smc-demo: what `cargo xtask demo` runs in its guest. The real agent decides which flows use SMC; each claim is made by a
//! connection with checked data, by what the kernel says of its two ends, and by the agent's own event lines.

mod claim;
mod script;
mod table;

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    if env::var_os("SMC_AGENT_VM").is_none() {
        eprintln!("smc-demo: it changes what is enforced on the machine it runs on: use `cargo xtask demo`");
        return ExitCode::from(2);
    }
    match script::run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("smc-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
