//! `smc-agent detach`.

use std::process::ExitCode;

use super::{Failure, Output, print, print_json, privileges, runtime};
use crate::{
    daemon::{Client, ClientError},
    enforce::{self, AgentLock, Places},
};

pub(super) fn detach(places: &Places, output: Output) -> Result<ExitCode, Failure> {
    privileges::require("detach")?;
    // The agent that runs does it itself, and stops; else it is done here, under the lock.
    let report = match runtime()?.block_on(Client::new(places).detach()) {
        Ok(report) => report,
        Err(ClientError::NotRunning { .. }) if !places.state.exists() => enforce::detach(places),
        Err(ClientError::NotRunning { .. }) => {
            let _lock = AgentLock::take(places)?;
            let mut report = enforce::detach(places);
            enforce::remove_state(places, &mut report);
            report
        }
        Err(error) => return Err(error.into()),
    };
    match output {
        Output::Json => print_json(&report)?,
        Output::Text => {
            for removed in &report.removed {
                print(format_args!("removed {removed}\n"))?;
            }
            if report.removed.is_empty() && report.problems.is_empty() {
                print(format_args!("nothing was there\n"))?;
            }
        }
    }
    if report.problems.is_empty() {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Failure::not_so(format!("detach: not all is removed:\n{}", report.problems.join("\n"))))
    }
}
