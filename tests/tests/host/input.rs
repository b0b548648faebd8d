//! Bad input: a message that says what and where, the exit code of its kind, and nothing changed.

use std::io;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use smc_agent_tests::agent;

use crate::sandbox::{Sandbox, check_failure};

pub(crate) fn missing_file(sandbox: &Sandbox) -> Result<()> {
    let file = sandbox.path("none.yaml").display().to_string();
    let message = format!("smc-agent: {file}: No such file or directory (os error 2)");
    sandbox.expect_failure(&["run", "--policy", &file], 2, &message)?;
    sandbox.expect_failure(&["policy", "check", &file], 2, &message)
}

pub(crate) fn bad_policies(sandbox: &Sandbox) -> Result<()> {
    let cases = [
        (
            "version: 1\ndefault: [allow\nrules: []\n",
            "3:6: error: this is not valid YAML: illegal placement of ':' indicator",
        ),
        ("version: 1\ndefault: allow\nrulez: []\n", "3:1: error: unknown key `rulez` in a policy"),
        (
            "version: 1\ndefault: allow\nrules:\n  - { name: a, action: deny, peer: 10.0.0.300 }\n",
            "4:36: error: `10.0.0.300` is not an IP address or CIDR",
        ),
        (
            "version: 1\ndefault: allow\nrules:\n  - { name: a, action: deny, port: 70000 }\n",
            "4:36: error: port 70000 is above 65535",
        ),
    ];
    for (text, message) in cases {
        let file = sandbox.write("bad.yaml", text)?;
        let expected = format!("smc-agent: {file}:{message}");
        for backend in ["auto", "tc"] {
            sandbox.expect_failure(&["run", "--backend", backend, "--policy", &file], 1, &expected)?;
        }
        let checked = sandbox.run(&["policy", "check", &file])?;
        let all = format!("{}\n{}", checked.stdout, checked.stderr);
        ensure!(checked.code == Some(1) && all.contains(&format!("{file}:{message}")), "{checked:?}");
    }
    Ok(())
}

pub(crate) fn bad_set_file(sandbox: &Sandbox) -> Result<()> {
    let set = sandbox.write("set.txt", "10.0.0.0/8\n# a comment\n10.0.0.0/33\n")?;
    let policy = "version: 1\ndefault: allow\nsets: { s: { file: set.txt } }\nrules: [{ name: a, action: deny, peer: \"@s\" }]\n";
    let file = sandbox.write("policy.yaml", policy)?;
    let finished = sandbox.run(&["run", "--policy", &file])?;
    let first = finished.stderr.lines().next().unwrap_or_default();
    ensure!(
        finished.code == Some(1) && first.starts_with(&format!("smc-agent: {set}:3:1: error: ")),
        "{finished:?}"
    );
    sandbox.expect_nothing_enforced()?;

    std::fs::remove_file(sandbox.path("set.txt"))?;
    let finished = sandbox.run(&["run", "--policy", &file])?;
    let first = finished.stderr.lines().next().unwrap_or_default();
    ensure!(
        finished.code == Some(1) && first.contains("policy.yaml:3:") && first.contains("set.txt"),
        "{finished:?}"
    );
    sandbox.expect_nothing_enforced()
}

pub(crate) fn usage(sandbox: &Sandbox) -> Result<()> {
    let cases: [(&[&str], &str); 5] = [
        (&["run"], "error: the following required arguments were not provided:"),
        (&["frobnicate"], "error: unrecognized subcommand 'frobnicate'"),
        (&["status", "--frobnicate"], "error: unexpected argument '--frobnicate' found"),
        (&["status", "extra"], "error: unexpected argument 'extra' found"),
        (&["policy", "check"], "error: the following required arguments were not provided:"),
    ];
    for (arguments, message) in cases {
        sandbox.expect_failure(arguments, 2, message)?;
    }
    let backend = sandbox.run(&["run", "--policy", "x", "--backend", "magic"])?;
    ensure!(backend.code == Some(2) && backend.stderr.contains("hs-ctrl, tc"), "{backend:?}");
    let size = sandbox.run(&["run", "--policy", "x", "--max-table-memory", "huge"])?;
    ensure!(size.code == Some(2) && size.stderr.contains("K, M and G are known"), "{size:?}");
    let nothing = agent::command::<&str>(&[])?;
    ensure!(nothing.code == Some(2) && nothing.stderr.contains("Usage: smc-agent"), "{nothing:?}");
    Ok(())
}

pub(crate) fn help_and_version(_: &Sandbox) -> Result<()> {
    let version = agent::command(&["--version"])?;
    ensure!(version.code == Some(0) && version.stdout.starts_with("smc-agent "), "{version:?}");
    for arguments in [&["--help"][..], &["help"], &["run", "--help"], &["policy", "check", "--help"]] {
        let help = agent::command(arguments)?;
        ensure!(help.code == Some(0) && help.stdout.contains("Usage: smc-agent"), "{help:?}");
        ensure!(help.stderr.is_empty(), "{help:?}");
    }
    Ok(())
}

pub(crate) fn broken_pipe(sandbox: &Sandbox) -> Result<()> {
    let file = sandbox.write("ok.yaml", "{ version: 1, default: allow, rules: [] }")?;
    let commands: [&[&str]; 4] =
        [&["--help"], &["detach"], &["status", "-o", "json"], &["policy", "check", &file]];
    for arguments in commands {
        let (reader, writer) = io::pipe()?;
        drop(reader);
        let output = Command::new(agent::binary()?)
            .args(sandbox.arguments(arguments))
            .stdin(Stdio::null())
            .stdout(writer)
            .output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(0) && stderr.is_empty(), "{arguments:?}: {output:?}");
    }
    Ok(())
}

pub(crate) fn no_agent(sandbox: &Sandbox) -> Result<()> {
    let socket = sandbox.path("state/control.sock").display().to_string();
    let message = format!("smc-agent: no agent runs ({socket}: No such file or directory (os error 2))");
    check_failure(&sandbox.run(&["reload"])?, 1, &message)?;
    let status = sandbox.run(&["status"])?;
    ensure!(status.code == Some(1) && status.stdout.starts_with("agent      not running"), "{status:?}");
    let detach = sandbox.run(&["detach"])?;
    ensure!(detach.code == Some(0) && detach.stdout == "nothing was there", "{detach:?}");
    Ok(())
}
