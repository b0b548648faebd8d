//! `smc-agent top`.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, timeout};
use unicode_width::UnicodeWidthStr as _;

use super::show::{Table, emit_line, escape, human_count, parse_seconds};
use super::tail::{
    FilterArguments, Intake, NO_PAST, PeriodArguments, Sink, end_of, from_stdin, future, is_piped, past,
    reader_gone, say,
};
use super::{Failure, Output, print, print_json, runtime};
use crate::daemon::Client;
use crate::enforce::Places;
use crate::tail::AgentEvents;
use crate::tail::counts::{Counts, Property, Section, Top};
use crate::trace::codes;
use crate::trace::{Event, FallbackCounts};

#[derive(Debug, Args)]
pub(super) struct TopArguments {
    /// `-` to read events as JSON lines from standard input, as is done where that is a pipe or a file
    #[arg(value_parser = ["-"])]
    input: Option<String>,
    /// Count what the agent remembers (or standard input has), show it once and end
    #[arg(long)]
    once: bool,
    /// How long between two looks, in seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    interval: Duration,
    /// What to count by; all of these unless given
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PROPERTY")]
    by: Vec<By>,
    /// How many values of each to show; as many as fit unless given
    #[arg(short = 'n', long, value_name = "N")]
    rows: Option<usize>,
    #[command(flatten)]
    period: PeriodArguments,
    #[command(flatten)]
    filters: FilterArguments,
    /// How to write it
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    Code,
    Peer,
    Port,
    Owner,
    Rule,
}

impl From<By> for Property {
    fn from(by: By) -> Self {
        match by {
            By::Code => Self::Code,
            By::Peer => Self::Peer,
            By::Port => Self::Port,
            By::Owner => Self::Owner,
            By::Rule => Self::Rule,
        }
    }
}

/// Rows of each section where nothing says how many, and no screen.
const ROWS: usize = 10;

/// Counts what comes.
struct Counting<'a> {
    counts: &'a RefCell<Counts>,
    /// Where notices go while a screen is drawn; else to standard error.
    notice: Option<&'a RefCell<String>>,
}

impl Sink for Counting<'_> {
    fn event(&mut self, event: Option<Event>, _line: &str) -> Result<(), Failure> {
        if let Some(event) = event {
            self.counts.borrow_mut().add(&event);
        }
        Ok(())
    }

    fn idle(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn tell(&mut self, text: &str) {
        match self.notice {
            Some(notice) => text.clone_into(&mut notice.borrow_mut()),
            None => say(text),
        }
    }
}

pub(super) fn top(places: &Places, arguments: &TopArguments) -> Result<ExitCode, Failure> {
    let period = arguments.period.period()?;
    let piped = arguments.input.is_some() || is_piped();
    let by: Vec<Property> = if arguments.by.is_empty() {
        Property::ALL.to_vec()
    } else {
        arguments.by.iter().copied().map(Property::from).collect()
    };
    let mut intake = Intake::new(arguments.filters.filter.clone(), period, !piped);
    let counts = RefCell::new(Counts::new(arguments.filters.names_kinds));
    let notice = RefCell::new(String::new());
    let mut counting = Counting { counts: &counts, notice: None };
    if piped {
        from_stdin(&mut intake, &mut counting)?;
        show_once(&counts.borrow().total(&by, arguments.rows.unwrap_or(ROWS), None), arguments.output)?;
        return intake.end();
    }
    if let Some(since) = period.since {
        counts.borrow_mut().begin(since);
    }
    let events = AgentEvents::new(places);
    let client = Client::new(places);
    runtime()?.block_on(async {
        let begun = Timestamp::now();
        let has_agent = past(&events, period.since, &mut intake, &mut counting).await?;
        if arguments.once {
            if !has_agent {
                return Err(Failure::not_so(NO_PAST));
            }
            let kernel = kernel_counts(&client).await;
            counts.borrow_mut().compare(kernel);
            let to = period.until.map_or(begun, |until| until.min(begun));
            let rows = arguments.rows.unwrap_or(ROWS);
            return show_once(&counts.borrow().total(&by, rows, Some(to)), arguments.output);
        }
        let mut screen = Screen::new(arguments.output);
        counting.notice = screen.terminal.then_some(&notice);
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let draw = async {
            let mut ticks = interval(arguments.interval);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                ticks.tick().await;
                if has_agent {
                    let kernel = kernel_counts(&client).await;
                    counts.borrow_mut().compare(kernel);
                }
                let (rows, width) = screen.room(by.len(), arguments.rows);
                let top = counts.borrow().live(&by, rows, Timestamp::now());
                screen.draw(&top, width, &notice.borrow())?;
            }
        };
        tokio::select! {
            result = future(&events, begun, has_agent, &mut intake, &mut counting) => result,
            result = draw => result,
            () = end_of(period) => Ok(()),
            () = reader_gone() => Ok(()),
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    })?;
    intake.end()
}

/// What the kernel itself counted; of an agent that has gone, or is slow to answer, nothing more is known.
async fn kernel_counts(client: &Client) -> Option<FallbackCounts> {
    const PATIENCE: Duration = Duration::from_secs(1);
    timeout(PATIENCE, client.event_stats()).await.ok()?.ok()?.fallbacks
}

fn show_once(top: &Top, output: Output) -> Result<(), Failure> {
    match output {
        Output::Json => print_json(top),
        Output::Text => print(format_args!("{}", text(top, None))),
    }
}

/// Where counts are drawn again and again.
struct Screen {
    output: Output,
    /// The terminal, as long as it shows the other screen.
    terminal: bool,
}

impl Screen {
    fn new(output: Output) -> Self {
        let terminal = output == Output::Text && io::stdout().is_terminal();
        if terminal {
            // The other screen, without a cursor (xterm's private modes 1049 and 25).
            let _ = write!(io::stdout(), "\u{1b}[?1049h\u{1b}[?25l");
        }
        Self { output, terminal }
    }

    /// How many rows of each section fit, and how wide lines may be.
    fn room(&self, sections: usize, rows: Option<usize>) -> (usize, Option<usize>) {
        let size = self.terminal.then(terminal_size::terminal_size).flatten();
        // Three lines of totals, two for a notice; a heading and an empty line for each section.
        let fitting =
            |height: u16| (usize::from(height).saturating_sub(5) / sections.max(1)).saturating_sub(2).max(1);
        let fitting = size.map_or(ROWS, |(_, height)| fitting(height.0));
        (rows.unwrap_or(fitting), size.map(|(width, _)| usize::from(width.0)))
    }

    fn draw(&mut self, top: &Top, width: Option<usize>, notice: &str) -> Result<(), Failure> {
        if self.output == Output::Json {
            return emit_line(top);
        }
        let mut text = text(top, width);
        if !notice.is_empty() {
            let _ = write!(text, "\n{}", cut(&escape(notice), width.unwrap_or(usize::MAX)));
        }
        let mut out = io::stdout().lock();
        if self.terminal {
            // Home; each line cleared behind its end; the rest cleared: less flicker than clearing first.
            let lines = text.trim_end().replace('\n', "\u{1b}[K\n");
            write!(out, "\u{1b}[H{lines}\u{1b}[K\u{1b}[J")?;
        } else {
            writeln!(out, "{text}")?;
        }
        Ok(out.flush()?)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.terminal {
            // A terminal that has gone needs nothing.
            let _ = write!(io::stdout(), "\u{1b}[?25h\u{1b}[?1049l");
            let _ = io::stdout().flush();
        }
    }
}

fn text(top: &Top, width: Option<usize>) -> String {
    let mut text = String::new();
    let time = |time: Option<Timestamp>| time.map_or_else(|| "-".to_owned(), |time| format!("{time:.0}"));
    let count = |number: u64| if number < 100_000 { number.to_string() } else { human_count(number) };
    let _ = writeln!(text, "{} to {}", time(top.from), time(top.to));
    let _ = write!(
        text,
        "{} fallbacks, {} handshake errors, {} denied",
        count(top.fallbacks),
        count(top.handshake_errors),
        count(top.denied)
    );
    if top.verdicts > 0 {
        let _ = write!(text, ", {} verdicts", count(top.verdicts));
    }
    let beside = [(top.suppressed, "held back"), (top.lost, "lost"), (top.missed, "missed")];
    let beside: Vec<_> = beside
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| format!("{} {what}", count(number)))
        .collect();
    if !beside.is_empty() {
        let _ = write!(text, "; not counted: {}", beside.join(", "));
    }
    text.push('\n');
    if let Some(kernel) = &top.kernel {
        let _ = writeln!(
            text,
            "the kernel's own count: {} before the agent's start, {} since, {} of them not shown",
            count(kernel.before_start),
            count(kernel.since_start),
            count(kernel.not_shown)
        );
    }
    for section in &top.sections {
        text.push('\n');
        text.push_str(&section_text(section));
    }
    match width {
        Some(width) => text.lines().map(|line| cut(line, width) + "\n").collect(),
        None => text,
    }
}

fn section_text(section: &Section) -> String {
    let name = section.by.word().to_uppercase();
    let mut table = Table::new(&[">COUNT", ">PER SECOND", &name]);
    for row in &section.rows {
        let rate = row.per_second.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2}"));
        table.row(vec![row.count.to_string(), rate, label(section.by, &row.value)]);
    }
    if section.others > 0 {
        table.row(vec![section.others.to_string(), "-".to_owned(), "(others)".to_owned()]);
    }
    table.to_string()
}

/// A value as it is shown: codes with their names, and nothing from outside as it is.
fn label(by: Property, value: &str) -> String {
    let named = |code: &str| {
        let number = code.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
        match number.and_then(codes::name) {
            Some(name) => format!("{code} {name}"),
            None => escape(code),
        }
    };
    if by != Property::Code {
        return escape(value);
    }
    match value.split_once('/') {
        Some((code, peer)) => format!("{}, peer {}", named(code), named(peer)),
        None => named(value),
    }
}

/// As much of a line as fits.
fn cut(line: &str, width: usize) -> String {
    if line.width() <= width {
        return line.to_owned();
    }
    let mut cut = String::new();
    for character in line.chars() {
        if cut.width() + 2 > width {
            break;
        }
        cut.push(character);
    }
    cut + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Counts {
        let mut counts = Counts::new(false);
        let connection = |peer: u8| {
            format!(
                r#""version":1,"monotonic":1,"netns":1,"role":"client","local":"10.0.0.1:1","peer":"10.0.0.{peer}:80",
                   "owner":{{"pid":1,"comm":"re\u001b[31mdis","uid":0,"cgroup":null,"container":null,"seen":"socket"}}"#
            )
        };
        for second in 0..12_u8 {
            let code = if second % 3 == 0 {
                r#""code":{"value":83886080,"name":"PEERDECL"},"peer_code":{"value":50528257,"name":"NOSMCDDEV"},"denied_by":null"#
            } else {
                r#""code":{"value":50397184,"name":"PEERNOSMC"},"peer_code":null,"denied_by":{"rule":"no\u202e","generation":1}"#
            };
            let line = format!(
                r#"{{"time":"2026-01-02T03:04:{second:02}Z","event":"fallback",{},{code}}}"#,
                connection(second % 4)
            );
            counts.add(&serde_json::from_str(&line).unwrap());
        }
        counts.miss(2);
        counts
    }

    #[test]
    fn counts_are_shown_as_tables() {
        let total = counts().total(&Property::ALL, 3, None);
        insta::assert_snapshot!("total", text(&total, None));
        let live =
            counts().live(&[Property::Code, Property::Peer], 2, "2026-01-02T03:04:11Z".parse().unwrap());
        insta::assert_snapshot!("live", text(&live, Some(40)));
        let nothing = Counts::new(false).total(&[Property::Code], 3, None);
        insta::assert_snapshot!("nothing", text(&nothing, None));
    }

    #[test]
    fn nothing_from_outside_acts_on_a_terminal() {
        let text = text(&counts().total(&Property::ALL, 10, None), None);
        assert!(!text.contains(|c: char| (c.is_control() && c != '\n') || c == '\u{202e}'), "{text}");
    }
}
