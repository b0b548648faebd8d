//! From lines to events that pass.

use std::io;
use std::process::ExitCode;

use jiff::{SignedDuration, Timestamp};

use super::super::Failure;
use crate::tail::filter::Filter;
use crate::tail::{Gap, Gaps, Period};
use crate::trace::Event;
use crate::trace::event::{Kind, VERSION};

/// What is done with events.
pub(in super::super) trait Sink {
    /// Takes an event that passed, with its line; without an event, a line that this version does not understand.
    fn event(&mut self, event: Option<Event>, line: &str) -> Result<(), Failure>;

    /// Nothing more comes without waiting.
    fn idle(&mut self) -> Result<(), Failure>;

    /// Says something that is no event, on standard error.
    fn tell(&mut self, text: &str);
}

/// Judges events.
#[derive(Debug)]
pub(in super::super) struct Intake {
    filter: Filter,
    period: Period,
    /// Of an agent; what others kept in a file may lack events on purpose.
    gaps: Option<Gaps>,
    seen_until: Option<Timestamp>,
    lines: u64,
    not_events: u64,
}

impl Intake {
    /// With `numbered`, the numbers of events tell which are missing.
    pub(in super::super) fn new(filter: Filter, period: Period, numbered: bool) -> Self {
        let gaps = numbered.then(Gaps::default);
        Self { filter, period, gaps, seen_until: None, lines: 0, not_events: 0 }
    }

    /// From when on to ask for events again: those of one moment come in any order, so that some come twice; they are known
    /// by their numbers.
    pub(super) fn since(&self) -> Option<Timestamp> {
        const OVERLAP: SignedDuration = SignedDuration::from_secs(5);
        self.seen_until.and_then(|seen| seen.checked_sub(OVERLAP).ok())
    }

    /// Takes one line.
    pub(super) fn line(&mut self, line: &str, sink: &mut impl Sink) -> Result<(), Failure> {
        self.lines += 1;
        let line = line.trim();
        if line.is_empty() {
            return Ok(());
        }
        match serde_json::from_str(line) {
            Ok(event) => self.event(event, line, sink),
            Err(_) if is_of_a_newer_agent(line) => sink.event(None, line),
            Err(error) => {
                self.not_events += 1;
                // The first is enough to see what is wrong.
                if self.not_events == 1 {
                    sink.tell(&format!("line {} is no event: {error}", self.lines));
                }
                Ok(())
            }
        }
    }

    /// Whether an event of a record can pass, as far as the record tells.
    pub(super) fn may_pass(&self, record: &smc_agent_common::Event) -> bool {
        self.filter.may_pass(record)
    }

    /// Takes one event.
    pub(super) fn event(&mut self, event: Event, line: &str, sink: &mut impl Sink) -> Result<(), Failure> {
        if let Some(gaps) = &mut self.gaps {
            match gaps.take(&event) {
                Err(_) => return Ok(()),
                Ok(None) => {}
                Ok(Some(Gap::Events(count))) => missed(count, sink)?,
                Ok(Some(Gap::Restart(count))) => {
                    let from = self.seen_until.unwrap_or(event.time);
                    sink.tell(&format!(
                        "the agent was started again: what happened between {from:.3} and its start is not known"
                    ));
                    if count > 0 {
                        missed(count, sink)?;
                    }
                }
            }
        }
        self.seen_until = Some(self.seen_until.map_or(event.time, |time| time.max(event.time)));
        if self.period.contains(&event) && self.filter.passes(&event) {
            sink.event(Some(event), line)?;
        }
        Ok(())
    }

    /// How it went.
    pub(in super::super) fn end(&self) -> Result<ExitCode, Failure> {
        if self.not_events > 0 {
            return Err(Failure::not_so(format!(
                "{} of {} lines are no events",
                self.not_events, self.lines
            )));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Says in the stream itself that some events did not come.
fn missed(count: u64, sink: &mut impl Sink) -> Result<(), Failure> {
    let kind = Kind::Missed { count };
    let event = Event { version: VERSION, time: Timestamp::now(), monotonic: 0, run: 0, seq: None, kind };
    let line = serde_json::to_string(&event).map_err(io::Error::from)?;
    sink.event(Some(event), &line)
}

/// Whether a line looks like an event all the same.
fn is_of_a_newer_agent(line: &str) -> bool {
    let value = serde_json::from_str::<serde_json::Value>(line);
    value.is_ok_and(|value| value["event"].is_string() && value["version"].is_u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Kept(Vec<String>);

    impl Sink for Kept {
        fn event(&mut self, event: Option<Event>, line: &str) -> Result<(), Failure> {
            self.0.push(match event {
                Some(Event { kind: Kind::Missed { count }, .. }) => format!("missed {count}"),
                Some(event) => format!("event {:?}", event.seq),
                None => format!("unknown {line}"),
            });
            Ok(())
        }

        fn idle(&mut self) -> Result<(), Failure> {
            Ok(())
        }

        fn tell(&mut self, text: &str) {
            self.0.push(format!("told {text}"));
        }
    }

    fn line(run: u64, seq: u64, second: u64) -> String {
        format!(
            r#"{{"version":1,"time":"2026-01-02T03:04:{second:02}Z","monotonic":1,"run":{run},"seq":{seq},"event":"lost","count":1}}"#
        )
    }

    #[test]
    fn what_is_missing_is_told_and_nothing_comes_twice() {
        let mut kept = Kept::default();
        let mut intake = Intake::new(Filter::default(), Period::default(), true);
        for line in [line(1, 1, 1), line(1, 4, 2), line(1, 4, 2), line(2, 1, 9), line(2, 2, 9)] {
            intake.line(&line, &mut kept).unwrap();
        }
        let told = "told the agent was started again: what happened between 2026-01-02T03:04:02.000Z and its start is not \
                    known";
        assert_eq!(
            kept.0,
            ["event Some(1)", "missed 2", "event Some(4)", told, "event Some(1)", "event Some(2)"]
        );
        assert_eq!(intake.since().unwrap().to_string(), "2026-01-02T03:04:04Z");
        assert!(intake.end().is_ok());
    }

    #[test]
    fn what_is_no_event_is_told_once_and_counted() {
        let mut kept = Kept::default();
        let mut intake = Intake::new(Filter::default(), Period::default(), false);
        let newer = r#"{"version":2,"event":"novel","what":1}"#;
        for line in ["", "nonsense", "{}", newer, "[1]", "  ", &line(1, 9, 1), &line(1, 3, 1)] {
            intake.line(line, &mut kept).unwrap();
        }
        assert!(kept.0[0].starts_with("told line 2 is no event: "), "{:?}", kept.0);
        assert_eq!(
            kept.0[1..],
            [format!("unknown {newer}"), "event Some(9)".to_owned(), "event Some(3)".to_owned()]
        );
        assert_eq!(intake.end().unwrap_err().to_string(), "3 of 8 lines are no events");
    }
}
