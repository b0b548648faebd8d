//! `set`, and what works without privileges.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::json;
use smc_agent_tests::agent;

use super::scene::Scene;
use super::{found, raw, run};

/// The user EIDs that the kernel has.
fn eids() -> Result<Vec<String>> {
    let answers = raw::generic("SMC_GEN_NETLINK", 9)?;
    Ok(answers.iter().filter_map(|answer| answer.get(&1)).map(|entry| raw::text(entry)).collect())
}

fn limited() -> Result<bool> {
    Ok(raw::generic("SMC_GEN_NETLINK", 16)?.iter().any(|answer| answer.get(&1) == Some(&vec![1])))
}

pub(crate) fn set(_: &Scene) -> Result<()> {
    let before = eids()?;
    ensure!(found(&["show", "ueid"])?["user_eids"] == json!(before), "show ueid");
    run(&["set", "ueid", "add", "SHOW-A", "SHOW.B"], 0)?;
    ensure!(eids()? == [&before[..], &["SHOW-A".to_owned(), "SHOW.B".to_owned()]].concat(), "{:?}", eids()?);
    let full = run(&["set", "ueid", "add", "C", "D"], 1)?;
    ensure!(full.contains("has 3 already"), "{full}");
    ensure!(run(&["set", "ueid", "add", "SHOW-A"], 1)?.contains("already"), "an EID twice");
    for invalid in ["lower", "A B", ".A", &"A".repeat(33)] {
        run(&["set", "ueid", "add", invalid], 2)?;
    }
    run(&["set", "ueid", "del", "SHOW-A", "SHOW.B"], 0)?;
    ensure!(
        run(&["set", "ueid", "del", "SHOW-A"], 1)?.contains("does not have it"),
        "an EID that is not there"
    );
    ensure!(eids()? == before, "{:?}", eids()?);
    for (word, on) in [("on", true), ("off", false)] {
        run(&["set", "hs-limit", word], 0)?;
        ensure!(limited()? == on && found(&["show", "hs-limit"])?["enabled"] == on, "hs-limit {word}");
    }
    found(&["show", "seid"])?;
    Ok(())
}

/// The PNET table as (id, interface, device).
fn table() -> Result<Vec<(String, String, String)>> {
    let answers = raw::generic("SMC_PNETID", 1)?;
    let text = |answer: &raw::Attributes, kind: u16| {
        answer.get(&kind).map(|bytes| raw::text(bytes)).unwrap_or_default()
    };
    let mut table: Vec<_> =
        answers.iter().map(|answer| (text(answer, 1), text(answer, 2), text(answer, 3))).collect();
    table.sort();
    Ok(table)
}

pub(crate) fn pnet(_: &Scene) -> Result<()> {
    let before = table()?;
    run(&["set", "pnet", "add", "shownet", "--interface", "show0"], 0)?;
    ensure!(
        table()?.contains(&("SHOWNET".to_owned(), "show0".to_owned(), "n/a".to_owned())),
        "{:?}",
        table()?
    );
    let rows = found(&["show", "pnet"])?;
    ensure!(
        rows["entries"].as_array().is_some_and(|list| list.len() == table().map_or(0, |table| table.len())),
        "{rows}"
    );
    run(&["set", "pnet", "add", "no-net", "--interface", "show1"], 2)?;
    run(&["set", "pnet", "add", "NET", "--interface", "a-name-that-is-too-long"], 2)?;
    run(&["set", "pnet", "add", "NET"], 2)?;
    run(&["set", "pnet", "del", "shownet"], 0)?;
    ensure!(
        run(&["set", "pnet", "del", "shownet"], 1)?.contains("no such PNET id"),
        "an id that is not there"
    );
    ensure!(table()? == before, "{:?}", table()?);
    let file = std::env::temp_dir().join("vm-show-pnet");
    let path = file.to_string_lossy().into_owned();
    let kept: String = before
        .iter()
        .map(|(id, interface, device)| match interface.as_str() {
            "n/a" => format!("{id} device {device}\n"),
            interface => format!("{id} interface {interface}\n"),
        })
        .collect();
    fs::write(&file, format!("{kept}A interface show0\nB interface show1 # two\n"))?;
    let said = run(&["set", "pnet", "apply", &path], 0)?;
    ensure!(said.contains("0 entries removed, 2 added") && table()?.len() == before.len() + 2, "{said}");
    fs::write(&file, format!("{kept}A interface show2\n"))?;
    let said = run(&["set", "pnet", "apply", &path], 0)?;
    ensure!(said.contains("2 entries removed, 1 added"), "{said}");
    fs::write(&file, "A interface show2\nA what show3\n")?;
    ensure!(run(&["set", "pnet", "apply", &path], 1)?.contains(":2: "), "a file with an error");
    fs::write(&file, kept)?;
    run(&["set", "pnet", "apply", &path], 0)?;
    ensure!(table()? == before, "{:?}", table()?);
    Ok(())
}

pub(crate) fn unprivileged(_: &Scene) -> Result<()> {
    let run = |arguments: &[&str], code: i32| -> Result<String> {
        let output = Command::new(agent::binary()?)
            .args(arguments)
            .uid(65_534)
            .gid(65_534)
            .env("HOME", "/")
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(code), "{arguments:?}: {output:?}");
        Ok(text)
    };
    for what in [
        "sockets",
        "devices",
        "linkgroups",
        "links",
        "stats",
        "fallbacks",
        "info",
        "ueid",
        "seid",
        "hs-limit",
    ] {
        run(&["show", what], 0)?;
    }
    run(&["show", "sockets", "--details"], 0)?;
    run(&["monitor", "all", "--count", "1", "--interval", "0.2"], 0)?;
    for change in [&["ueid", "add", "X"][..], &["hs-limit", "on"], &["pnet", "flush"], &["ueid", "flush"]] {
        let text = run(&[&["set"], change].concat(), 4)?;
        ensure!(text.contains("CAP_NET_ADMIN"), "{text}");
    }
    let text = run(&["show", "netns"], 4)?;
    ensure!(text.contains("CAP_SYS_ADMIN"), "{text}");
    ensure!(run(&["show", "sockets", "--netns", "all"], 4)?.contains("CAP_SYS_ADMIN"), "other namespaces");
    Ok(())
}
