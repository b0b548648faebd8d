//! `smc-agent reload`.

use std::process::ExitCode;

use super::{Failure, Output, print, print_json, runtime};
use crate::{daemon::Client, enforce::Places};

pub(super) fn reload(places: &Places, output: Output) -> Result<ExitCode, Failure> {
    let reload = runtime()?.block_on(Client::new(places).reload())?;
    if output == Output::Json {
        print_json(&reload)?;
    }
    match reload.generation {
        Some(generation) if output == Output::Text => print(format_args!("generation {generation}\n"))?,
        Some(_) => {}
        None => {
            return Err(Failure::not_so(format!(
                "policy refused, the old one stays:\n{}",
                reload.problems.join("\n")
            )));
        }
    }
    Ok(ExitCode::SUCCESS)
}
