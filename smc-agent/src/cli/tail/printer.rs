//! Writes the events that pass.

use std::collections::VecDeque;
use std::env;
use std::io::{self, BufWriter, IsTerminal as _, Stdout, Write as _};
use std::process::ExitCode;

use jiff::Timestamp;

use super::super::{Failure, Output, code, printable};
use super::TailArguments;
use crate::tail::filter::Filter;
use crate::tail::{Columns, Gap, Gaps, Look, Period, advice, printable_json};
use crate::trace::Event;
use crate::trace::event::{Kind, VERSION};

/// Writes events, or keeps the last ones until it is known which these are.
pub(super) struct Printer {
    filter: Filter,
    period: Period,
    output: Output,
    explain: bool,
    columns: Columns,
    heading: bool,
    out: BufWriter<Stdout>,
    /// How many are kept, if only the last ones are wanted.
    last: Option<usize>,
    kept: VecDeque<(Option<Event>, String)>,
    gaps: Option<Gaps>,
    seen_until: Option<Timestamp>,
    lines: u64,
    not_events: u64,
}

impl Printer {
    pub(super) fn new(arguments: &TailArguments, period: Period) -> Self {
        let terminal = io::stdout().is_terminal();
        let width = terminal.then(terminal_size::terminal_size).flatten();
        let look = Look {
            colour: terminal
                && has_colours(env::var_os("NO_COLOR").as_deref(), env::var_os("TERM").as_deref()),
            width: width.map(|(width, _)| usize::from(width.0)),
        };
        Self {
            filter: arguments.filters.filter.clone(),
            period,
            output: arguments.output,
            explain: arguments.explain,
            columns: Columns::new(look),
            heading: terminal && arguments.output == Output::Text,
            out: BufWriter::new(io::stdout()),
            last: None,
            kept: VecDeque::new(),
            gaps: None,
            seen_until: None,
            lines: 0,
            not_events: 0,
        }
    }

    /// From now on only the last ones, or all.
    pub(super) fn keep(&mut self, last: Option<usize>) {
        self.last = last;
    }

    /// Looks at the numbers of events for what is missing.
    pub(super) fn number_events(&mut self) {
        self.gaps = Some(Gaps::default());
    }

    /// The time of the last event that came, whether it passed or not.
    pub(super) fn seen_until(&self) -> Option<Timestamp> {
        self.seen_until
    }

    /// Takes one line.
    pub(super) fn take(&mut self, line: &str) -> Result<(), Failure> {
        self.lines += 1;
        let line = line.trim();
        if line.is_empty() {
            return Ok(());
        }
        let event: Event = match serde_json::from_str(line) {
            Ok(event) => event,
            Err(error) if is_of_a_newer_agent(line) => {
                self.tell(&format!("an event that this version does not know is shown as it is ({error})"));
                return self.show(None, line);
            }
            Err(error) => {
                self.not_events += 1;
                // The first is enough to see what is wrong.
                if self.not_events == 1 {
                    self.tell(&format!("line {} is no event: {error}", self.lines));
                }
                return Ok(());
            }
        };
        if let Some(gaps) = &mut self.gaps {
            match gaps.take(&event) {
                Err(_) => return Ok(()),
                Ok(None) => {}
                Ok(Some(Gap::Events(count))) => self.missed(count)?,
                Ok(Some(Gap::Restart)) => {
                    let from = self.seen_until.unwrap_or(event.time);
                    self.tell(&format!(
                        "the agent was started again: what happened between {from:.3} and its start is not known"
                    ));
                }
            }
        }
        self.seen_until = Some(self.seen_until.map_or(event.time, |time| time.max(event.time)));
        if !self.period.contains(&event) || !self.filter.passes(&event) {
            return Ok(());
        }
        self.show(Some(event), line)
    }

    /// Says in the stream itself that some events did not come.
    fn missed(&mut self, count: u64) -> Result<(), Failure> {
        let event = Event {
            version: VERSION,
            time: Timestamp::now(),
            monotonic: 0,
            run: 0,
            seq: None,
            kind: Kind::Missed { count },
        };
        let line = serde_json::to_string(&event).map_err(io::Error::from)?;
        self.show(Some(event), &line)
    }

    fn show(&mut self, event: Option<Event>, line: &str) -> Result<(), Failure> {
        let Some(last) = self.last else { return self.write(event.as_ref(), line) };
        if last > 0 {
            if self.kept.len() == last {
                self.kept.pop_front();
            }
            self.kept.push_back((event, line.to_owned()));
        }
        Ok(())
    }

    fn write(&mut self, event: Option<&Event>, line: &str) -> Result<(), Failure> {
        if std::mem::take(&mut self.heading) {
            let heading = self.columns.heading();
            writeln!(self.out, "{heading}")?;
        }
        match (self.output, event) {
            (Output::Text, Some(event)) => {
                let text = self.columns.line(event);
                writeln!(self.out, "{text}")?;
                if self.explain {
                    self.advise(event)?;
                }
            }
            (Output::Json, _) | (Output::Text, None) => writeln!(self.out, "{}", printable_json(line))?,
        }
        Ok(())
    }

    fn advise(&mut self, event: &Event) -> Result<(), Failure> {
        let width = code::width();
        let mut text = String::new();
        for line in advice(event) {
            // The first word stays alone in front of all lines of it.
            let (lead, rest) = line.split_at(line.len().min(8));
            code::wrapped(&mut text, &format!("    {lead}"), rest, width);
        }
        Ok(self.out.write_all(text.as_bytes())?)
    }

    /// Writes the last ones.
    pub(super) fn release(&mut self) -> Result<(), Failure> {
        for (event, line) in std::mem::take(&mut self.kept) {
            self.write(event.as_ref(), &line)?;
        }
        self.flush()
    }

    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }

    /// Says something that is no event, on standard error.
    pub(super) fn tell(&mut self, text: &str) {
        // Events before it come before it. Whoever does not read these notices loses nothing else.
        let _ = self.out.flush();
        let _ = writeln!(io::stderr(), "{}", printable(&format!("smc-agent: {text}")));
    }

    /// Writes what is left, and gives the exit code.
    pub(super) fn end(mut self) -> Result<ExitCode, Failure> {
        self.release()?;
        if self.not_events > 0 {
            return Err(Failure::not_so(format!(
                "{} of {} lines are no events",
                self.not_events, self.lines
            )));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Whether a line looks like an event all the same.
fn is_of_a_newer_agent(line: &str) -> bool {
    let value = serde_json::from_str::<serde_json::Value>(line);
    value.is_ok_and(|value| value["event"].is_string() && value["version"].is_u64())
}

/// Whether a terminal is to be coloured (no-color.org).
fn has_colours(no_color: Option<&std::ffi::OsStr>, term: Option<&std::ffi::OsStr>) -> bool {
    no_color.is_none_or(std::ffi::OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_can_be_declined() {
        assert!(has_colours(None, None) && has_colours(Some("".as_ref()), Some("xterm".as_ref())));
        assert!(!has_colours(Some("1".as_ref()), None) && !has_colours(None, Some("dumb".as_ref())));
    }
}
