//! The closing table.

/// One flow.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// What it was.
    pub(crate) flow: String,
    /// What the policy says of it.
    pub(crate) policy: String,
    /// How it ran.
    pub(crate) over: String,
    /// Why.
    pub(crate) reason: String,
    /// Whether that is as it should be.
    pub(crate) holds: bool,
}

const HEADINGS: [&str; 5] = ["flow", "policy says", "ran over", "reason", "as expected"];

/// The rows as an aligned table.
pub(crate) fn render(rows: &[Row]) -> String {
    let mark = |holds: bool| if holds { "✓" } else { "✗" };
    let cells = |row: &Row| {
        let reason = if row.reason.is_empty() { "-".to_owned() } else { row.reason.clone() };
        [row.flow.clone(), row.policy.clone(), row.over.clone(), reason, mark(row.holds).to_owned()]
    };
    let lines: Vec<[String; 5]> =
        std::iter::once(HEADINGS.map(str::to_owned)).chain(rows.iter().map(cells)).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let padded: Vec<String> = line
            .iter()
            .enumerate()
            .map(|(column, cell)| {
                let width = lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
                format!("{cell:width$}")
            })
            .collect();
        let line = padded.join("  ");
        text += line.trim_end();
        text.push('\n');
        if number == 0 {
            text += &"-".repeat(line.trim_end().chars().count());
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |flow: &str, holds| Row {
            flow: flow.to_owned(),
            policy: "allow".to_owned(),
            over: "TCP".to_owned(),
            reason: String::new(),
            holds,
        };
        let text = render(&[row("a", true), row("a longer one", false)]);
        let expected = "\
flow          policy says  ran over  reason  as expected
--------------------------------------------------------
a             allow        TCP       -       ✓
a longer one  allow        TCP       -       ✗
";
        assert_eq!(text, expected);
    }
}
