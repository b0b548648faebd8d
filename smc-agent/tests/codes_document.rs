//! `docs/codes.md` says of every code what the program says.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::Path;

use smc_agent::trace::codes::{self, Effect, KnownCode, Origin, SeenBy};

const HEAD: &str = "\
# Codes

Why connections fall back to TCP, and what to do about it. `smc-agent code` says the same of one code: `smc-agent code
0x03010000`, `smc-agent code 50397184`, `smc-agent code PEERNOSMC`; of two, this host's and the peer's: `smc-agent code
0x05000000/0x03030001`. `smc-agent code --list` lists them all; `-o json` has the forms
[`code`](schema/code.schema.json) and [`code-list`](schema/code-list.schema.json). The exit code is 1 for a code that is
not known. (This page is written by the program's tests.)

Names are those of the kernel's `net/smc/smc_clc.h`, without `SMC_CLC_DECL_`; `ALIBABA_…` are this program's names for three
codes that only Alibaba's kernels have. Which host is \"this host\" depends on whose code it is: a peer's code is to be
read from the peer's point of view.
";

fn section(text: &mut String, code: &KnownCode) {
    let seen_by = match code.seen_by {
        Some(SeenBy::Client) => "the client",
        Some(SeenBy::Server) => "the server",
        Some(SeenBy::Both) | None => "either side",
    };
    let linux = if code.origin == Some(Origin::Linux) { "Linux " } else { "" };
    let until = code.until.map_or_else(String::new, |until| format!(", until {until}"));
    let (since, meaning) = (code.since.unwrap(), code.meaning.unwrap());
    write!(text, "\n### `{}` {}\n\n{meaning}\n\n", code.hex, code.name.unwrap()).unwrap();
    writeln!(text, "*Set by {seen_by}; since {linux}{since}{until}.*\n").unwrap();
    for (number, cause) in code.causes.iter().enumerate() {
        writeln!(text, "{}. {cause}", number + 1).unwrap();
    }
    text.push('\n');
    for check in code.checks {
        // Two backticks, since some commands have one.
        writeln!(text, "- `` {} ``: {}", check.command, check.to_see).unwrap();
    }
    if let Some(note) = code.note {
        write!(text, "\n{note}\n").unwrap();
    }
    for earlier in code.earlier {
        let (kernels, name, meaning) = (earlier.kernels, earlier.name, earlier.meaning);
        write!(text, "\nLinux {kernels} used the number for {name}: {meaning}\n").unwrap();
    }
    if !code.socket_options.is_empty() {
        text.push_str("\nSee [socket options](#socket-options).\n");
    }
}

fn document() -> String {
    let list = codes::list();
    let mut text = HEAD.to_owned();
    text.push_str("\n## Socket options\n\nWhat becomes of TCP's socket options on an SMC socket:\n\n");
    text.push_str("| Option | Effect | |\n|---|---|---|\n");
    for option in list.socket_options {
        let effect = match option.effect {
            Effect::FallsBack => "falls back",
            Effect::Refused => "refused",
            Effect::NoEffect => "no effect",
            Effect::Carried => "carried",
        };
        writeln!(text, "| {} | {effect} | {} |", option.name, option.detail).unwrap();
    }
    text.push_str("\n## Codes of current kernels\n");
    list.codes.iter().filter(|code| !code.retired).for_each(|code| section(&mut text, code));
    text.push_str(
        "\n## Numbers of old kernels\n\nKernels before 4.19 do not keep why a connection fell back, but send it when they \
         decline: it shows as the peer's code on a newer host.\n",
    );
    list.codes.iter().filter(|code| code.retired).for_each(|code| section(&mut text, code));
    text
}

#[test]
fn the_document_says_what_the_program_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/codes.md");
    let text = document();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(checked_in == text, "run this test with UPDATE_DOCS=1 and commit {}", path.display());
}
