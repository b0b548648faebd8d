//! Events as lines, written many at a time.

use std::io::{self, Write};

use super::event::Event;

/// Bytes of lines that are gathered before they are written; lines that come alone are not to wait for others, so that
/// whoever writes them flushes.
const GATHERED: usize = 64 << 10;

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A line for people.
    Text,
    /// A line of JSON.
    Json,
}

/// Writes events a line each. Lines that are not flushed when this is dropped are lost.
#[derive(Debug)]
pub struct EventWriter<W> {
    out: W,
    format: Format,
    lines: Vec<u8>,
}

impl<W: Write> EventWriter<W> {
    /// Writes to `out`.
    pub fn new(out: W, format: Format) -> Self {
        Self { out, format, lines: Vec::with_capacity(GATHERED + (4 << 10)) }
    }

    /// Adds the line of an event.
    pub fn put(&mut self, event: &Event) -> io::Result<()> {
        let before = self.lines.len();
        let made = match self.format {
            Format::Text => write!(self.lines, "{event}"),
            Format::Json => serde_json::to_writer(&mut self.lines, event).map_err(io::Error::from),
        };
        if made.is_err() {
            // Half a line is worse than none.
            self.lines.truncate(before);
            return made;
        }
        self.lines.push(b'\n');
        if self.lines.len() >= GATHERED { self.flush() } else { Ok(()) }
    }

    /// Writes what was gathered. What cannot be written is let go.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let written = self.out.write_all(&self.lines).and_then(|()| self.out.flush());
        self.lines.clear();
        written
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::event::{Kind, VERSION};
    use super::*;

    #[test]
    fn lines_are_whole_and_come_when_there_are_many_or_when_asked_for() {
        let event = Event {
            version: VERSION,
            time: Timestamp::UNIX_EPOCH,
            monotonic: 0,
            run: 1,
            seq: None,
            kind: Kind::Lost { count: 1 },
        };
        for format in [Format::Text, Format::Json] {
            let mut out = Vec::new();
            let mut writer = EventWriter::new(&mut out, format);
            writer.put(&event).unwrap();
            assert!(writer.out.is_empty());
            for _ in 1..5000 {
                writer.put(&event).unwrap();
            }
            assert!(writer.out.len() >= GATHERED && writer.out.ends_with(b"\n"));
            writer.flush().unwrap();
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.lines().count(), 5000);
            let line = match format {
                Format::Text => event.to_string(),
                Format::Json => serde_json::to_string(&event).unwrap(),
            };
            assert!(text.lines().all(|read| read == line));
        }
    }
}
