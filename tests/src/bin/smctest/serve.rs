//! `smctest serve`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Result;
use smc_agent_tests::pair::{Listener, server};
use smc_agent_tests::wait::Limit;

use crate::arguments::Arguments;
use crate::report;

/// As many connections may wait to be accepted.
const BACKLOG: i32 = 1024;

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let listener = Listener::bind(arguments.kind, arguments.address(), BACKLOG)?;
    // Scripts wait for this line; standard output is flushed at each line end only on a terminal, but Rust's always is.
    println!("listening on {}", listener.local()?);
    let well = AtomicBool::new(true);
    thread::scope(|scope| -> Result<()> {
        let mut served = 0;
        while arguments.count == 0 || served < arguments.count {
            let stream = match listener.accept(&Limit::new(arguments.timeout)) {
                Ok(stream) => stream,
                // Without a count, silence is the agreed end.
                Err(_) if arguments.count == 0 && served > 0 => break,
                Err(error) => return Err(error),
            };
            served += 1;
            let well = &well;
            scope.spawn(move || match server(&stream, &Limit::new(arguments.timeout)) {
                Ok(report) => {
                    report::print("server", &report, None, arguments.json);
                    well.fetch_and(report.problem.is_none(), Ordering::Relaxed);
                }
                Err(error) => {
                    eprintln!("smctest: {error:#}");
                    well.store(false, Ordering::Relaxed);
                }
            });
        }
        Ok(())
    })?;
    Ok(well.into_inner())
}
