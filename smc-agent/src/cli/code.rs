//! `smc-agent code`.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use clap::Args;

use super::{Failure, Output, print, print_json};
use crate::trace::codes::{
    self, Asked, CodeList, CodeQuery, Effect, Explanation, KnownCode, Origin, SeenBy, SocketOption,
};

#[derive(Debug, Args)]
pub(super) struct CodeArguments {
    /// A code as it is seen anywhere: 0x03010000, 50397184, PEERNOSMC, or this host's and the peer's:
    /// 0x05000000/0x03030001
    #[arg(required_unless_present = "list", conflicts_with = "list", value_parser = CodeQuery::parse)]
    code: Vec<CodeQuery>,
    /// List all codes, and the socket options that SMC does not carry
    #[arg(long)]
    list: bool,
    /// How to write the result
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(super) fn code(arguments: &CodeArguments) -> Result<ExitCode, Failure> {
    if arguments.list {
        let list = codes::list();
        match arguments.output {
            Output::Json => print_json(&list)?,
            Output::Text => print(format_args!("{}", list_text(&list)))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let explanation = codes::explain(&arguments.code);
    match arguments.output {
        Output::Json => print_json(&explanation)?,
        Output::Text => print(format_args!("{}", text(&explanation, width())))?,
    }
    Ok(if explanation.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// How wide text may be: what the terminal has, but lines that are not too long to read.
pub(super) fn width() -> usize {
    const READABLE: usize = 100;
    let terminal = io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
    terminal.map_or(READABLE, |(width, _)| usize::from(width.0).clamp(40, READABLE))
}

fn text(explanation: &Explanation, width: usize) -> String {
    let mut text = String::new();
    for (number, Asked { code, peer_code }) in explanation.codes.iter().enumerate() {
        if number > 0 {
            text.push('\n');
        }
        let whose = if peer_code.is_some() { "this host's code: " } else { "" };
        describe(&mut text, code, whose, width);
        if let Some(code) = peer_code {
            text.push('\n');
            describe(&mut text, code, "the peer's code, seen from there: ", width);
        }
    }
    text
}

fn describe(text: &mut String, code: &KnownCode, whose: &str, width: usize) {
    let Some(name) = code.name else {
        let _ = writeln!(text, "{whose}{} ({}): unknown", code.hex, code.value);
        wrapped(
            text,
            "",
            "Linux has no such code. Other systems (z/OS, AIX) use numbers of their own: as a peer's code, look it up \
             in the manual of the peer's system.",
            width,
        );
        return;
    };
    let old = if code.retired { ", of old kernels" } else { "" };
    let _ = writeln!(text, "{whose}{} {name} ({}{old})", code.hex, code.value);
    wrapped(text, "", code.meaning.unwrap_or_default(), width);
    let seen_by = match code.seen_by {
        Some(SeenBy::Client) => "the client's side",
        Some(SeenBy::Server) => "the server's side",
        Some(SeenBy::Both) | None => "either side",
    };
    let origin = if code.origin == Some(Origin::Alibaba) { "" } else { "Linux " };
    let until = code.until.map_or_else(String::new, |until| format!(", until {until}"));
    let _ = writeln!(text, "\nSet by {seen_by}. Since {origin}{}{until}.", code.since.unwrap_or_default());
    let _ = writeln!(text, "\nLikely causes, the likeliest first:");
    for (number, cause) in code.causes.iter().enumerate() {
        wrapped(text, &format!("  {}. ", number + 1), cause, width);
    }
    let _ = writeln!(text, "\nWhat to check:");
    for check in code.checks {
        let _ = writeln!(text, "  $ {}", check.command);
        wrapped(text, "      ", check.to_see, width);
    }
    if !code.socket_options.is_empty() {
        text.push('\n');
        options(text, code.socket_options, width);
    }
    if let Some(note) = code.note {
        text.push('\n');
        wrapped(text, "Note: ", note, width);
    }
    for earlier in code.earlier {
        text.push('\n');
        let lead = format!("Linux {} used the number for {}: ", earlier.kernels, earlier.name);
        wrapped(text, "", &format!("{lead}{}", earlier.meaning), width);
    }
}

fn options(text: &mut String, options: &[SocketOption], width: usize) {
    let _ = writeln!(text, "Socket options on an SMC socket:");
    for option in options {
        let effect = match option.effect {
            Effect::FallsBack => "falls back",
            Effect::Refused => "refused",
            Effect::NoEffect => "no effect",
            Effect::Carried => "carried",
        };
        wrapped(text, "  ", option.name, width);
        wrapped(text, "      ", &format!("{effect}: {}", option.detail), width);
    }
}

/// Writes a paragraph in lines of at most `width`; further lines are indented as far as `lead` is long.
pub(super) fn wrapped(text: &mut String, lead: &str, paragraph: &str, width: usize) {
    let indent = " ".repeat(lead.chars().count());
    let mut line = lead.to_owned();
    let mut length = indent.len();
    let mut empty = true;
    for word in paragraph.split(' ') {
        let long = word.chars().count();
        if !empty && length + 1 + long > width {
            let _ = writeln!(text, "{}", line.trim_end());
            line.clone_from(&indent);
            length = indent.len();
            empty = true;
        }
        if !empty {
            line.push(' ');
            length += 1;
        }
        line.push_str(word);
        length += long;
        empty = false;
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

fn list_text(list: &CodeList) -> String {
    let mut text = String::new();
    let row = |text: &mut String, code: &KnownCode| {
        let seen_by = match code.seen_by {
            Some(SeenBy::Client) => "client",
            Some(SeenBy::Server) => "server",
            Some(SeenBy::Both) | None => "both",
        };
        let meaning = code.meaning.unwrap_or_default();
        // The first sentence, or what of it comes before a colon.
        let short =
            meaning.split_inclusive(['.', ':']).next().unwrap_or_default().trim_end_matches([':', '.']);
        let _ = writeln!(text, "{}  {:<15}  {seen_by:<6}  {short}", code.hex, code.name.unwrap_or_default());
    };
    let _ = writeln!(text, "Code        Name             Set by  Meaning");
    for code in list.codes.iter().filter(|code| !code.retired) {
        row(&mut text, code);
    }
    let _ = writeln!(text, "\nOf kernels before 5.4 only:");
    for code in list.codes.iter().filter(|code| code.retired) {
        row(&mut text, code);
    }
    text.push('\n');
    options(&mut text, list.socket_options, width());
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::Arguments;
    use super::*;

    #[test]
    fn advice_names_commands_that_there_are() {
        let filled = |word: &str| {
            word.replace("'LOCAL", "10.0.0.1")
                .replace("PEER:PORT'", "10.0.0.2:80")
                .replace("PEERCODE", "0x03030001")
        };
        let mut own = 0;
        for code in codes::list().codes {
            for check in code.checks {
                let Some(command) = check.command.strip_prefix("smc-agent ") else { continue };
                // A flow is one argument, in quotes.
                let command = command.replace("'LOCAL -> PEER:PORT'", "10.0.0.1->10.0.0.2:80");
                let words = command.split_whitespace().map(filled);
                let parsed = Arguments::try_parse_from(["smc-agent".to_owned()].into_iter().chain(words));
                assert!(parsed.is_ok(), "{}: {}\n{}", code.hex, check.command, parsed.err().unwrap());
                own += 1;
            }
        }
        assert!(own > 30, "{own}");
    }

    #[test]
    fn paragraphs_are_wrapped_and_indented() {
        let mut text = String::new();
        wrapped(&mut text, "  1. ", "one two three four", 14);
        assert_eq!(text, "  1. one two\n     three\n     four\n");
        text.clear();
        wrapped(&mut text, "", "averylongwordthatdoesnotfit a b", 10);
        assert_eq!(text, "averylongwordthatdoesnotfit\na b\n");
        text.clear();
        wrapped(&mut text, "", "", 10);
        assert_eq!(text, "\n");
    }

    #[test]
    fn codes_are_explained_in_plain_text() {
        let explained = |text_of: &[&str]| {
            let queries: Vec<_> = text_of.iter().map(|text| CodeQuery::parse(text).unwrap()).collect();
            text(&codes::explain(&queries), 100)
        };
        insta::assert_snapshot!("peernosmc", explained(&["PEERNOSMC"]));
        insta::assert_snapshot!("two_codes", explained(&["0x05000000/0x03030001"]));
        insta::assert_snapshot!("options", explained(&["0x03060000"]));
        insta::assert_snapshot!(
            "earlier_and_unknown",
            explained(&["0x03030003", "0x99990000", "0xdeadbeef"])
        );
        insta::assert_snapshot!("list", list_text(&codes::list()));
    }
}
