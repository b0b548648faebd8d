//! `smc-agent tail`.

mod filters;
mod input;
mod printer;

pub(super) use filters::FilterArguments;
pub(super) use input::{is_piped, reader_gone};

use std::io::{self, BufRead as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use tokio::time::sleep;

use super::{Failure, Output, runtime};
use crate::daemon::ClientError;
use crate::enforce::Places;
use crate::tail::{AgentEvents, Lines, Period, Query, parse_moment};
use printer::Printer;

/// How many events are shown where nothing says how many.
const LAST: usize = 10;
/// The pauses between looks for an agent that has gone.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

#[derive(Debug, Args)]
pub(super) struct TailArguments {
    /// `-` to read events as JSON lines from standard input, as is done where that is a pipe or a file
    #[arg(value_parser = ["-"])]
    input: Option<String>,
    /// Go on with the events to come
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

impl From<PeriodArguments> for Period {
    fn from(PeriodArguments { since, until }: PeriodArguments) -> Self {
        Self { since, until }
    }
}

fn moment(text: &str) -> Result<Timestamp, String> {
    parse_moment(text, Timestamp::now())
}

pub(super) fn tail(places: &Places, arguments: &TailArguments) -> Result<ExitCode, Failure> {
    let period = Period::from(arguments.period);
    if let (Some(since), Some(until)) = (period.since, period.until)
        && since > until
    {
        return Err(Failure::usage(format!("--since {since} is after --until {until}")));
    }
    let piped = arguments.input.is_some() || is_piped();
    let timed = period.since.is_some() || period.until.is_some();
    let last = arguments.last.or((!piped && !timed).then_some(LAST));
    let mut printer = Printer::new(arguments, period);
    if piped {
        printer.keep(last);
        return from_stdin(printer);
    }
    let mut tail = Tail { events: AgentEvents::new(places), printer, period };
    runtime()?.block_on(async {
        tokio::select! {
            result = tail.run(last, arguments.follow) => result,
            () = reader_gone() => Ok(()),
        }
    })?;
    tail.printer.end()
}

fn from_stdin(mut printer: Printer) -> Result<ExitCode, Failure> {
    for line in io::stdin().lock().split(b'\n') {
        printer.take(&String::from_utf8_lossy(&line?))?;
    }
    printer.end()
}

/// Events of the agent.
struct Tail {
    events: AgentEvents,
    printer: Printer,
    period: Period,
}

impl Tail {
    async fn run(&mut self, last: Option<usize>, follow: bool) -> Result<(), Failure> {
        let begun = Timestamp::now();
        self.printer.number_events();
        if last != Some(0) {
            self.printer.keep(last);
            let mut lines = self.events.open(&Query { since: self.period.since, follow: false }).await?;
            self.take_all(&mut lines).await?;
            self.printer.release()?;
        }
        if !follow {
            return Ok(());
        }
        self.printer.keep(None);
        let over = async {
            match self.period.until {
                Some(until) => {
                    sleep(until.duration_since(Timestamp::now()).try_into().unwrap_or_default()).await
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            result = follow_events(&self.events, &mut self.printer, begun) => result,
            () = over => Ok(()),
        }
    }

    async fn take_all(&mut self, lines: &mut Lines) -> Result<(), Failure> {
        while let Some(line) = lines.next().await? {
            self.printer.take(&line)?;
        }
        Ok(())
    }
}

/// Takes what comes, and waits for an agent that goes.
async fn follow_events(events: &AgentEvents, printer: &mut Printer, begun: Timestamp) -> Result<(), Failure> {
    let mut gone = false;
    let mut pause = PAUSES.0;
    loop {
        let since = Some(printer.seen_until().unwrap_or(begun));
        match events.open(&Query { since, follow: true }).await {
            Ok(mut lines) => {
                if gone {
                    printer.tell("the agent is there again");
                }
                pause = PAUSES.0;
                let reason = loop {
                    match lines.next().await {
                        Ok(Some(line)) => printer.take(&line)?,
                        Ok(None) => break "it ended".to_owned(),
                        Err(error) => break error.to_string(),
                    }
                    if !lines.has_more() {
                        printer.flush()?;
                    }
                };
                gone = true;
                printer.tell(&format!("the agent has gone ({reason}); waiting for it to come back"));
            }
            // It was there before: it is between its end and its next start.
            Err(ClientError::NotRunning { .. } | ClientError::Http(_)) if gone => {}
            Err(error) => return Err(error.into()),
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}
