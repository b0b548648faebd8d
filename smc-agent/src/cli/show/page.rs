//! Getting a report and writing it: once or again and again, as text or JSON.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::thread;
use std::time::Duration;

use jiff::Zoned;
use serde::Serialize;

use super::super::{Failure, Output, print};
use super::json;
use crate::show::{self, Namespace, Report, Scope, ShowError};

/// Where to look and how to write what is found.
#[derive(Clone, Debug)]
pub(in super::super) struct Page {
    pub(in super::super) scope: Scope,
    pub(in super::super) output: Output,
    pub(in super::super) watch: Option<Duration>,
    pub(in super::super) raw: bool,
}

impl Page {
    /// Shows what `read` finds in each network namespace; `text` writes one of them, exactly if asked.
    pub(in super::super) fn show<T: Serialize + Send>(
        &self,
        read: impl Fn() -> Result<T, ShowError> + Sync,
        text: impl Fn(&T, bool) -> String,
    ) -> Result<(), Failure> {
        self.show_all(
            || show::collect(&self.scope, &read),
            |report, raw| by_namespace(report, |found| text(found, raw)),
        )
    }

    /// Shows a report.
    pub(in super::super) fn show_all<T: Serialize>(
        &self,
        mut collect: impl FnMut() -> Result<Report<T>, ShowError>,
        text: impl Fn(&Report<T>, bool) -> String,
    ) -> Result<(), Failure> {
        loop {
            let report = collect()?;
            match (self.output, self.watch) {
                (Output::Json, None) => {
                    let mut out = io::BufWriter::new(io::stdout().lock());
                    json::write(&mut out, &report, true)?;
                    out.flush()?;
                }
                (Output::Json, Some(_)) => emit_line(&report)?,
                (Output::Text, None) => print(format_args!("{}", text(&report, self.raw)))?,
                (Output::Text, Some(every)) => redraw(every, &text(&report, self.raw))?,
            }
            match self.watch {
                Some(every) => thread::sleep(every),
                None => return Ok(()),
            }
        }
    }
}

/// Writes a value as one line of JSON.
pub(in super::super) fn emit_line(value: &impl Serialize) -> Result<(), Failure> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    json::write(&mut out, value, false)?;
    Ok(out.flush()?)
}

/// Text from outside as it may be shown: whatever is not printable is escaped.
pub(in super::super) fn escape(text: &str) -> String {
    text.chars()
        .flat_map(|character| {
            let plain = matches!(character, '"' | '\'');
            let escaped = (!plain).then(|| character.escape_debug());
            plain.then_some(character).into_iter().chain(escaped.into_iter().flatten())
        })
        .collect()
}

/// How a network namespace is called in text.
pub(super) fn name_of(netns: &Namespace) -> String {
    match (&netns.name, netns.pid) {
        (Some(name), _) => escape(name),
        (None, Some(pid)) => format!("(pid {pid})"),
        (None, None) => "-".to_owned(),
    }
}

/// The texts of all namespaces, each with a heading if there are several.
pub(super) fn by_namespace<T>(report: &Report<T>, text: impl Fn(&T) -> String) -> String {
    if let [one] = &report.namespaces[..] {
        return text(&one.found);
    }
    let mut all = String::new();
    for found in &report.namespaces {
        if !all.is_empty() {
            all.push('\n');
        }
        let body = text(&found.found);
        let _ = write!(all, "netns {} {}\n{body}", found.netns.inode, name_of(&found.netns));
    }
    all
}

fn redraw(every: Duration, text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        // Home, then clear to the end: less flicker than clearing first.
        write!(out, "\u{1b}[H\u{1b}[J")?;
    }
    let now = Zoned::now().strftime("%Y-%m-%d %H:%M:%S").to_string();
    writeln!(out, "every {every:?}, {now}\n{text}")?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_gets_through() {
        assert_eq!(escape("a\u{1b}[31m\"b\u{9b}c"), "a\\u{1b}[31m\"b\\u{9b}c");
    }
}
