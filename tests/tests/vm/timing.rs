//! What deciding costs a connection: reported, never asserted.

use std::time::Duration;

use anyhow::Result;

use crate::lab::{ALLOW_ALL, Flow, Lab, POLICY, Port, detach};

/// Connections of each kind.
const COUNT: usize = 20;

/// The median of the times to connect, without data.
fn median(port: Port) -> Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..COUNT {
        times.push(Flow::smc(port).run()?.connect);
    }
    times.sort_unstable();
    Ok(times[COUNT / 2])
}

pub(crate) fn connection_times(lab: &mut Lab) -> Result<()> {
    lab.start(ALLOW_ALL)?;
    let mut rows = vec![("over SMC, agent, no rules", median(Port::Open)?)];
    lab.reload(POLICY)?;
    rows.push(("over SMC, agent, no rule matches", median(Port::Open)?));
    rows.push(("over TCP, client rule", median(Port::NoClient)?));
    rows.push(("over TCP, server rule", median(Port::NoServer)?));
    lab.kill()?;
    detach()?;
    rows.insert(0, ("over SMC, no agent", median(Port::Open)?));
    println!("\nconnect(), {}, medians of {COUNT} (under emulation: compare, do not believe)", lab.backend);
    for (what, time) in rows {
        println!("  {what:34} {:8} us", time.as_micros());
    }
    Ok(())
}
