//! JSON whose texts hold nothing that a terminal obeys, written without holding all of it.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

/// Writes a value and a line feed.
pub(super) fn write(out: &mut impl Write, value: &impl Serialize, pretty: bool) -> io::Result<()> {
    if pretty {
        value.serialize(&mut Serializer::with_formatter(&mut *out, Safe(PrettyFormatter::new())))?;
    } else {
        value.serialize(&mut Serializer::with_formatter(&mut *out, Safe(CompactFormatter)))?;
    }
    writeln!(out)
}

/// A form of JSON in which also those control characters are escaped that JSON lets through.
struct Safe<F>(F);

/// Whether JSON may show it as it is: not C1 controls, and not what turns the direction of writing.
fn is_harmless(character: char) -> bool {
    !matches!(character, '\u{7f}'..='\u{9f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
}

impl<F: Formatter> Formatter for Safe<F> {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(place) = rest.find(|character| !is_harmless(character)) {
            let (before, after) = rest.split_at(place);
            writer.write_all(before.as_bytes())?;
            let mut characters = after.chars();
            // All of these are in the basic plane: one unit each.
            let number = characters.next().map_or(0, u32::from);
            write!(writer, "\\u{number:04x}")?;
            rest = characters.as_str();
        }
        writer.write_all(rest.as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_gets_through() {
        let value = json!({ "a": ["x\u{1b}\u{9b}\u{202e}\u{7f}é"], "b": {}, "\u{85}": 1.5 });
        for pretty in [true, false] {
            let mut out = Vec::new();
            write(&mut out, &value, pretty).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(text.contains("x\\u001b\\u009b\\u202e\\u007fé"), "{text}");
            assert_eq!(
                text.chars().filter(|character| character.is_control() && *character != '\n').count(),
                0
            );
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
            assert_eq!(text.contains("\n  "), pretty);
        }
    }
}
