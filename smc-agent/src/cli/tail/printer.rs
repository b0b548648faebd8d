//! Writes events.

use std::collections::VecDeque;
use std::env;
use std::ffi::OsStr;
use std::io::{self, BufWriter, IsTerminal as _, Stdout, Write as _};

use super::super::{Failure, Output, code, printable};
use super::TailArguments;
use super::intake::Sink;
use crate::tail::{Columns, Look, advice, printable_json};
use crate::trace::Event;

/// Writes events, or keeps the last ones until it is known which these are.
pub(super) struct Printer {
    output: Output,
    explain: bool,
    columns: Columns,
    heading: bool,
    out: BufWriter<Stdout>,
    /// How many are kept, if only the last ones are wanted.
    last: Option<usize>,
    kept: VecDeque<(Option<Event>, String)>,
}

impl Printer {
    /// Keeps the `last` ones, or writes all.
    pub(super) fn new(arguments: &TailArguments, last: Option<usize>) -> Self {
        let terminal = io::stdout().is_terminal();
        let width = terminal.then(terminal_size::terminal_size).flatten();
        let look = Look {
            colour: terminal
                && has_colours(env::var_os("NO_COLOR").as_deref(), env::var_os("TERM").as_deref()),
            width: width.map(|(width, _)| usize::from(width.0)),
        };
        Self {
            output: arguments.output,
            explain: arguments.explain,
            columns: Columns::new(look),
            heading: terminal && arguments.output == Output::Text,
            out: BufWriter::new(io::stdout()),
            last,
            kept: VecDeque::new(),
        }
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
            let (lead, rest) = line.split_at_checked(8).unwrap_or(("", &line));
            code::wrapped(&mut text, &format!("    {lead}"), rest, width);
        }
        Ok(self.out.write_all(text.as_bytes())?)
    }

    /// Writes those that were kept, and from now on all.
    pub(super) fn release(&mut self) -> Result<(), Failure> {
        self.last = None;
        for (event, line) in std::mem::take(&mut self.kept) {
            self.write(event.as_ref(), &line)?;
        }
        Ok(self.out.flush()?)
    }
}

impl Sink for Printer {
    fn event(&mut self, event: Option<Event>, line: &str) -> Result<(), Failure> {
        let Some(last) = self.last else { return self.write(event.as_ref(), line) };
        if last > 0 {
            if self.kept.len() == last {
                self.kept.pop_front();
            }
            self.kept.push_back((event, line.to_owned()));
        }
        Ok(())
    }

    fn idle(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }

    fn tell(&mut self, text: &str) {
        // Events before it come before it; if that fails, the next event tells.
        let _ = self.out.flush();
        say(text);
    }
}

/// Says something on standard error. Whoever does not read it loses nothing else.
pub(in super::super) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{}", printable(&format!("smc-agent: {text}")));
}

/// Whether a terminal is to be coloured (no-color.org).
pub(in super::super) fn has_colours(no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
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
