//! What was measured, against what was asked.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use serde::Serialize;

/// How a bench was asked to run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arguments {
    /// To see that it works, not to measure.
    pub(crate) quick: bool,
    /// Figures as JSON.
    json: bool,
}

impl Arguments {
    /// Reads them; `None` if there is nothing to do, as for `cargo test --benches`: the tests of the figures are the figures.
    pub(crate) fn read(help: &str) -> Result<Option<Self>> {
        let mut read = Self::default();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => read.quick = true,
                "-o" => match arguments.next().as_deref() {
                    Some("json") => read.json = true,
                    Some("text") => read.json = false,
                    _ => bail!("{help}"),
                },
                // What cargo itself says.
                "--bench" => {}
                "--test" => return Ok(None),
                _ => bail!("{help}"),
            }
        }
        Ok(Some(read))
    }

    /// Prints a report as it was asked for.
    pub(crate) fn print(self, report: &Report) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(report)?);
        } else {
            println!("{}", report.text());
        }
        Ok(())
    }
}

/// All figures of a run.
#[derive(Serialize)]
pub(crate) struct Report {
    version: u32,
    kernel: String,
    processor: String,
    quick: bool,
    figures: Vec<Figure>,
}

#[derive(Serialize)]
struct Figure {
    what: String,
    value: f64,
    unit: &'static str,
    /// The bound, if one was asked for.
    target: Option<f64>,
    /// Whether the bound is the least value rather than the most.
    at_least: bool,
    /// Whether it is kept.
    reached: Option<bool>,
}

impl Report {
    pub(crate) fn new(quick: bool) -> Self {
        let first = |text: String, start: &str| {
            text.lines()
                .find(|line| line.starts_with(start))
                .and_then(|line| Some(line.split_once(": ")?.1.to_owned()))
        };
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            version: 1,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: first(read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            quick,
            figures: Vec::new(),
        }
    }

    pub(crate) fn figure(&mut self, what: &str, value: f64, unit: &'static str) {
        self.push(what, value, unit, None, false);
    }

    pub(crate) fn at_most(&mut self, what: &str, value: f64, unit: &'static str, target: Option<f64>) {
        self.push(what, value, unit, target, false);
    }

    pub(crate) fn at_least(&mut self, what: &str, value: f64, unit: &'static str, target: Option<f64>) {
        self.push(what, value, unit, target, true);
    }

    fn push(&mut self, what: &str, value: f64, unit: &'static str, target: Option<f64>, at_least: bool) {
        eprintln!("{what}: {value:.1} {unit}");
        let reached = target.map(|target| if at_least { value >= target } else { value <= target });
        let value = (value * 10.0).round() / 10.0;
        self.figures.push(Figure { what: what.to_owned(), value, unit, target, at_least, reached });
    }

    /// The figures as a table.
    fn text(&self) -> String {
        let mut text = format!("kernel {}, {}\n\n", self.kernel, self.processor);
        text += "| What | Measured | Target | |\n|---|---:|---:|---|\n";
        for figure in &self.figures {
            let bound = if figure.at_least { "≥" } else { "≤" };
            let target =
                figure.target.map_or(String::new(), |target| format!("{bound} {target} {}", figure.unit));
            let reached = match figure.reached {
                Some(true) => "reached",
                Some(false) => "missed",
                None => "",
            };
            let (what, value, unit) = (&figure.what, figure.value, &figure.unit);
            // Writing to a string cannot fail.
            let _ = writeln!(text, "| {what} | {value} {unit} | {target} | {reached} |");
        }
        text
    }
}

/// The middle one of some figures.
pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(0.0)
}
