//! `smc-agent tail`.

mod feed;
mod filters;
mod input;
mod intake;
mod printer;

pub(super) use feed::{from_stdin, future, past};
pub(super) use filters::FilterArguments;
pub(super) use input::{is_piped, reader_gone};
pub(super) use intake::{Intake, Sink};
pub(super) use printer::say;

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use tokio::time::sleep;

use super::{Failure, Output, runtime};
use crate::enforce::Places;
use crate::tail::{AgentEvents, Period, parse_moment};
use printer::Printer;

/// How many events are shown where nothing says how many.
const LAST: usize = 10;
/// What there is to say where no agent runs and nothing is to come.
pub(super) const NO_PAST: &str =
    "no agent runs, and so there is nothing of the past; --follow shows what happens from now on";

#[derive(Debug, Args)]
pub(super) struct TailArguments {
    /// `-` to read events as JSON lines from standard input, as is done where that is a pipe or a file
    #[arg(value_parser = ["-"])]
    input: Option<String>,
    /// Go on with the events to come; without a running agent, see them itself
    #[arg(short, long)]
    follow: bool,
    /// Show the last N of the events that pass; 10 unless a time or standard input is given
    #[arg(short = 'n', long, value_name = "N")]
    last: Option<usize>,
    #[command(flatten)]
    period: PeriodArguments,
    #[command(flatten)]
    filters: FilterArguments,
    /// Say below each event what it means and what to check
    #[arg(long)]
    explain: bool,
    /// How to write events
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// From when until when.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct PeriodArguments {
    /// Only since then: 2026-01-02T03:04:05Z, or how long ago it was: 45s, 10m, 1h30m, 2d
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Timestamp>,
    /// Only until then
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
}

impl PeriodArguments {
    pub(super) fn period(self) -> Result<Period, Failure> {
        let Self { since, until } = self;
        match (since, until) {
            (Some(since), Some(until)) if since > until => {
                Err(Failure::usage(format!("--since {since} is after --until {until}")))
            }
            _ => Ok(Period { since, until }),
        }
    }
}

fn moment(text: &str) -> Result<Timestamp, String> {
    parse_moment(text, Timestamp::now())
}

pub(super) fn tail(places: &Places, arguments: &TailArguments) -> Result<ExitCode, Failure> {
    let period = arguments.period.period()?;
    let piped = arguments.input.is_some() || is_piped();
    let timed = period.since.is_some() || period.until.is_some();
    let last = arguments.last.or((!piped && !timed).then_some(LAST));
    let mut intake = Intake::new(arguments.filters.filter.clone(), period, !piped);
    let mut printer = Printer::new(arguments, last);
    if piped {
        from_stdin(&mut intake, &mut printer)?;
        printer.release()?;
        return intake.end();
    }
    let events = AgentEvents::new(places);
    runtime()?.block_on(async {
        tokio::select! {
            result = show(&events, last, arguments.follow, period, &mut intake, &mut printer) => result,
            () = reader_gone() => Ok(()),
        }
    })?;
    intake.end()
}

async fn show(
    events: &AgentEvents,
    last: Option<usize>,
    follow: bool,
    period: Period,
    intake: &mut Intake,
    printer: &mut Printer,
) -> Result<(), Failure> {
    let begun = Timestamp::now();
    // Without events of the past, the first of those to come begins the count.
    let asks = last != Some(0);
    let has_agent = asks && past(events, period.since, intake, printer).await?;
    if asks && !has_agent && !follow {
        return Err(Failure::not_so(NO_PAST));
    }
    printer.release()?;
    if !follow {
        return Ok(());
    }
    tokio::select! {
        result = future(events, begun, has_agent, intake, printer) => result,
        () = end_of(period) => Ok(()),
    }
}

/// Waits for the end of a period; for ever if it has none.
pub(super) async fn end_of(period: Period) {
    match period.until {
        Some(until) => sleep(until.duration_since(Timestamp::now()).try_into().unwrap_or_default()).await,
        None => std::future::pending().await,
    }
}
