//! Samples as lines of text or CSV.

use std::io::{self, IsTerminal as _};
use std::os::fd::AsRawFd as _;

use jiff::Zoned;

use super::super::show::{escape, human_bytes, human_count};
use super::{Form, MonitorArguments, What};
use crate::show::{InNamespace, Namespace, Report, Sample, Traffic};

/// How many lines a screen has when nobody says.
const SCREEN: usize = 24;

/// The columns, with their names in text and in CSV and their width.
const SPEED: [(&str, &str, usize); 4] = [
    ("Rx Rate", "rx_bytes_per_second", 12),
    ("Rx Rps", "rx_requests_per_second", 10),
    ("Tx Rate", "tx_bytes_per_second", 12),
    ("Tx Rps", "tx_requests_per_second", 10),
];
const CONNECTIONS: [(&str, &str, usize); 2] = [("#Conn", "connections", 7), ("New", "new_per_second", 9)];
const MEMORY: [(&str, &str, usize); 2] =
    [("Rx Bufs", "rx_buffer_bytes", 11), ("Tx Bufs", "tx_buffer_bytes", 11)];

/// Writes samples, with a header once per screen.
#[derive(Debug)]
pub(super) struct Writer {
    what: What,
    csv: bool,
    raw: bool,
    netns: bool,
    modes: Vec<&'static str>,
    /// How many lines still fit below the last header; `None` before the first.
    room: Option<usize>,
    /// Lines of the screen; `None` where there is none, which gets one header.
    screen: Option<usize>,
}

impl Writer {
    pub(super) fn new(arguments: &MonitorArguments) -> Self {
        let both = arguments.smcr == arguments.smcd;
        let modes = [
            ("smcr", both || arguments.smcr),
            ("smcd", both || arguments.smcd),
            ("fallback", both && matches!(arguments.what, What::Connections | What::All)),
        ];
        let screen = (arguments.output == Form::Text).then(screen_lines).flatten();
        Self {
            what: arguments.what,
            csv: arguments.output == Form::Csv,
            raw: arguments.raw,
            netns: arguments.netns.as_deref() == Some("all"),
            modes: modes.into_iter().filter(|(_, shown)| *shown).map(|(mode, _)| mode).collect(),
            room: None,
            screen,
        }
    }

    pub(super) fn write(&mut self, report: &Report<Sample>) -> String {
        let rows: Vec<Vec<String>> = report.namespaces.iter().flat_map(|found| self.rows(found)).collect();
        let mut text = String::new();
        if self.room.is_none_or(|room| room < rows.len()) {
            text.push_str(&self.header());
            self.room = Some(self.screen.map_or(usize::MAX, |screen| screen.saturating_sub(2)));
        }
        if self.screen.is_some() {
            self.room = self.room.map(|room| room.saturating_sub(rows.len()));
        }
        for row in rows {
            text.push_str(&self.line(&row));
        }
        text
    }

    fn columns(&self) -> Vec<(&'static str, &'static str, usize)> {
        let mut columns = vec![("Date", "time", 19)];
        if self.netns {
            columns.push(("NetNS", "netns", 12));
        }
        columns.push(("Mode", "mode", 8));
        if self.shows(What::Speed) {
            columns.extend(SPEED);
        }
        if self.shows(What::Connections) {
            columns.extend(CONNECTIONS);
        }
        if self.shows(What::Memory) {
            columns.extend(MEMORY);
        }
        columns
    }

    fn shows(&self, what: What) -> bool {
        self.what == what || self.what == What::All
    }

    fn header(&self) -> String {
        let columns = self.columns();
        let names = columns
            .iter()
            .map(|(text, csv, _)| if self.csv { (*csv).to_owned() } else { (*text).to_owned() });
        let mut names: Vec<_> = names.collect();
        if self.csv {
            names.push("reset".to_owned());
        }
        self.line(&names)
    }

    fn line(&self, cells: &[String]) -> String {
        if self.csv {
            let cells: Vec<_> = cells.iter().map(|cell| quoted(cell)).collect();
            return cells.join(",") + "\n";
        }
        let mut line = String::new();
        let widths = self.columns().into_iter().map(|(_, _, width)| width).chain(std::iter::repeat(0));
        for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let left = index < 2 + usize::from(self.netns);
            let padded = if left { format!("{cell:<width$}  ") } else { format!("{cell:>width$}  ") };
            line.push_str(&padded);
        }
        line.trim_end().to_owned() + "\n"
    }

    fn rows(&self, found: &InNamespace<Sample>) -> Vec<Vec<String>> {
        let sample = &found.found;
        let time = if self.csv {
            sample.time.clone()
        } else {
            Zoned::now().strftime("%Y-%m-%d %H:%M:%S").to_string()
        };
        let row = |mode: &&'static str| {
            let traffic = match *mode {
                "smcr" => Some(&sample.smcr),
                "smcd" => Some(&sample.smcd),
                _ => None,
            };
            let mut row = vec![time.clone()];
            if self.netns {
                row.push(name(&found.netns));
            }
            row.push((*mode).to_owned());
            row.extend(self.cells(mode, traffic, sample));
            match (self.csv, sample.reset) {
                (true, reset) => row.push(reset.to_string()),
                (false, true) => row.push("(counters began again at 0)".to_owned()),
                (false, false) => {}
            }
            row
        };
        self.modes.iter().map(row).collect()
    }

    fn cells(&self, mode: &str, traffic: Option<&Traffic>, sample: &Sample) -> Vec<String> {
        let none = || if self.csv { String::new() } else { "-".to_owned() };
        let mut cells = Vec::new();
        if self.shows(What::Speed) {
            let rates = traffic.map(|traffic| traffic.rates);
            let cell = |rate: Option<f64>, bytes| rate.map_or_else(none, |rate| self.rate(rate, bytes));
            cells.push(cell(rates.map(|rates| rates.rx_bytes), true));
            cells.push(cell(rates.map(|rates| rates.rx_requests), false));
            cells.push(cell(rates.map(|rates| rates.tx_bytes), true));
            cells.push(cell(rates.map(|rates| rates.tx_requests), false));
        }
        if self.shows(What::Connections) {
            let connections = sample.connections.unwrap_or_default();
            let (number, new) = match mode {
                "smcr" => (connections.smcr, sample.smcr.new_connections),
                "smcd" => (connections.smcd, sample.smcd.new_connections),
                _ => (connections.fallback, connections.new_fallbacks),
            };
            cells.extend([number.to_string(), self.rate(new, false)]);
        }
        if self.shows(What::Memory) {
            let cell = |bytes: Option<u64>| match bytes {
                None => none(),
                Some(bytes) if self.raw || self.csv => bytes.to_string(),
                Some(bytes) => human_bytes(bytes),
            };
            cells.push(cell(traffic.and_then(|traffic| traffic.rx_buffers)));
            cells.push(cell(traffic.and_then(|traffic| traffic.tx_buffers)));
        }
        cells
    }

    fn rate(&self, rate: f64, bytes: bool) -> String {
        if self.csv {
            return format!("{rate:.3}");
        }
        if self.raw {
            return format!("{rate:.1}{}", if bytes { " B/s" } else { " /s" });
        }
        let whole = whole(rate);
        if bytes { format!("{}/s", human_bytes(whole)) } else { format!("{} /s", human_count(whole)) }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is positive, and `as` saturates"
)]
fn whole(rate: f64) -> u64 {
    rate.round() as u64
}

fn name(netns: &Namespace) -> String {
    netns.name.as_deref().map_or_else(|| netns.inode.to_string(), escape)
}

/// RFC 4180: quoted where it has to be.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// The height of the terminal that standard output is; `None` if it is none.
fn screen_lines() -> Option<usize> {
    let out = io::stdout();
    if !out.is_terminal() {
        return None;
    }
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open, and TIOCGWINSZ writes one `winsize`, which lives through the call.
    let result = unsafe { libc::ioctl(out.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    let rows = usize::from(size.ws_row);
    Some(if result == 0 && rows > 2 { rows } else { SCREEN })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::{Rates, VERSION};

    fn report() -> Report<Sample> {
        let mut smcr = Traffic { rx_buffers: Some(524_288), ..Traffic::default() };
        smcr.rates = Rates { rx_bytes: 2048.0, tx_requests: 21_660.0, ..Rates::default() };
        let sample = Sample {
            time: "2026-01-02T03:04:05Z".to_owned(),
            seconds: 1.0,
            reset: true,
            smcr,
            smcd: Traffic::default(),
            connections: None,
        };
        let netns = Namespace { inode: 7, name: Some("a,\u{1b}b".to_owned()), pid: None };
        Report { version: VERSION, namespaces: vec![InNamespace { netns, found: sample }] }
    }

    fn writer(what: What, csv: bool, screen: Option<usize>) -> Writer {
        Writer { what, csv, raw: false, netns: csv, modes: vec!["smcr", "fallback"], room: None, screen }
    }

    #[test]
    fn csv_has_one_header_and_escapes() {
        let mut writer = writer(What::All, true, None);
        let text = writer.write(&report());
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("time,netns,mode,rx_bytes_per_second,") && lines[0].ends_with(",reset"));
        assert_eq!(
            lines[1],
            "2026-01-02T03:04:05Z,\"a,\\u{1b}b\",smcr,2048.000,0.000,0.000,21660.000,0,0.000,524288,,true"
        );
        assert!(lines[2].contains(",fallback,,,,,0,0.000,,,true"), "{}", lines[2]);
        assert_eq!(writer.write(&report()).lines().count(), 2);
    }

    #[test]
    fn text_has_a_header_once_per_screen() {
        let mut writer = writer(What::Speed, false, Some(6));
        let text = writer.write(&report());
        assert!(text.contains("2.000 KB/s") && text.contains("21.66K /s"), "{text}");
        assert!(text.contains("(counters began again at 0)"));
        assert_eq!(writer.write(&report()).lines().count(), 2);
        assert_eq!(writer.write(&report()).lines().count(), 3);
    }
}
