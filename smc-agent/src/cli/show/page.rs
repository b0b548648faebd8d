//! Getting a report and writing it: once or again and again, as text or JSON.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::thread;
use std::time::Duration;

use jiff::Zoned;
use serde::Serialize;

use super::super::{Failure, Output, print};
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
                (Output::Json, None) => print(format_args!("{}\n", json(&report, true)?))?,
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
    let line = json(value, false)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// JSON whose texts hold nothing that a terminal obeys: the control characters that JSON itself lets through are escaped.
pub(super) fn json(value: &impl Serialize, pretty: bool) -> Result<String, Failure> {
    let text = if pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    let text = text.map_err(io::Error::from)?;
    if text.chars().all(harmless_in_json) {
        return Ok(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if harmless_in_json(character) {
            escaped.push(character);
        } else {
            // All of these are in the basic plane: one unit each.
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        }
    }
    Ok(escaped)
}

/// Everything but C1 controls and what turns the direction of writing; C0 controls stand only between values.
fn harmless_in_json(character: char) -> bool {
    !matches!(character, '\u{7f}'..='\u{9f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
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
        let text = json(&"x\u{1b}\u{9b}\u{202e}é", false).unwrap();
        assert_eq!(text, "\"x\\u001b\\u009b\\u202eé\"");
        let back: String = serde_json::from_str(&text).unwrap();
        assert_eq!(back, "x\u{1b}\u{9b}\u{202e}é");
    }
}
