//! Aligned columns.

use std::fmt;

/// A table whose columns are as wide as they need to be; a name that begins with `>` is that of numbers.
#[derive(Debug)]
pub(in super::super) struct Table {
    names: Vec<String>,
    right: Vec<bool>,
    lines: Vec<Line>,
}

#[derive(Debug)]
enum Line {
    Row(Vec<String>),
    Note(String),
}

impl Table {
    pub(in super::super) fn new(names: &[&str]) -> Self {
        let right = names.iter().map(|name| name.starts_with('>')).collect();
        let names = names.iter().map(|name| name.strip_prefix('>').unwrap_or(name).to_owned()).collect();
        Self { names, right, lines: Vec::new() }
    }

    pub(in super::super) fn row(&mut self, cells: Vec<String>) {
        self.lines.push(Line::Row(cells));
    }

    /// A line below the last row.
    pub(in super::super) fn note(&mut self, text: impl Into<String>) {
        self.lines.push(Line::Note(text.into()));
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.names.iter().map(|name| name.chars().count()).collect();
        for line in &self.lines {
            if let Line::Row(cells) = line {
                for (width, cell) in widths.iter_mut().zip(cells) {
                    *width = (*width).max(cell.chars().count());
                }
            }
        }
        widths
    }

    fn write_row(&self, f: &mut fmt::Formatter<'_>, widths: &[usize], cells: &[String]) -> fmt::Result {
        let mut row = String::new();
        for ((cell, width), right) in cells.iter().zip(widths).zip(&self.right) {
            let padded = if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
            row.push_str(&padded);
            row.push_str("  ");
        }
        writeln!(f, "{}", row.trim_end())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        self.write_row(f, &widths, &self.names)?;
        for line in &self.lines {
            match line {
                Line::Row(cells) => self.write_row(f, &widths, cells)?,
                Line::Note(text) => writeln!(f, "        {text}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_notes_do_not_widen_them() {
        let mut table = Table::new(&["Name", ">#Conns", "Last"]);
        assert_eq!(Table::new(&[">>512KB"]).names, [">512KB"]);
        table.row(vec!["abcdef".to_owned(), "7".to_owned(), String::new()]);
        table.note("a long note below");
        assert_eq!(table.to_string(), "Name    #Conns  Last\nabcdef       7\n        a long note below\n");
    }
}
