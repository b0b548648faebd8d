//! `cargo xtask fuzz`: the fuzz targets of `fuzz/`, each for a while.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use lexopt::prelude::*;

use crate::build::{self, Bpf};
use crate::{cache, cargo, sys};

const HELP: &str = "\
Runs fuzz targets, one after the other, with the pinned compiler. What they find is kept in the cache between runs.

Usage: cargo xtask fuzz [--seconds N] [TARGET...]

Options:
  --seconds N  how long each target runs (default: 60)
  -h, --help   this text

Targets: policy_text, set_file, table_reader (default: all)";

const TARGETS: [&str; 3] = ["policy_text", "set_file", "table_reader"];

/// How code is built whose ways libFuzzer can follow: what `cargo fuzz` does, with a stable compiler.
const FLAGS: [&str; 8] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Zsanitizer=address",
];

/// Runs `cargo xtask fuzz`; true when nothing was found.
pub(crate) fn main(mut args: lexopt::Parser) -> Result<bool> {
    let (mut seconds, mut targets) = (60_u32, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(true);
            }
            Long("seconds") => seconds = args.value()?.parse()?,
            Value(value) => {
                let value = value.string()?;
                let known = TARGETS.into_iter().find(|known| *known == value);
                targets.push(known.with_context(|| format!("no fuzz target is called `{value}`\n\n{HELP}"))?);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if seconds == 0 {
        // libFuzzer takes 0 for no end.
        bail!("--seconds takes 1 or more");
    }
    if targets.is_empty() {
        targets = TARGETS.to_vec();
    }
    let folder = build()?;
    let mut well = true;
    for target in targets {
        let corpus = corpus(target)?;
        let crashes = cargo::target_dir()?.join("fuzz-findings");
        std::fs::create_dir_all(&crashes)?;
        sys::say(format_args!("fuzzing {target} for {seconds} s"));
        let mut command = Command::new(folder.join(target));
        command.arg(format!("-max_total_time={seconds}")).args(["-timeout=30", "-rss_limit_mb=4096"]);
        command.arg(format!("-artifact_prefix={}/{target}-", crashes.display())).arg(corpus);
        let found = !command.status().with_context(|| format!("cannot run {target}"))?.success();
        if found {
            sys::say(format_args!("{target}: found something, see {}", crashes.display()));
        }
        well &= !found;
    }
    println!("{}", if well { "nothing was found" } else { "something was found" });
    Ok(well)
}

/// Builds all targets, and gives the folder that they are in.
fn build() -> Result<PathBuf> {
    let host = cargo::rustc_fact("host")?;
    let root = cargo::workspace()?.join("fuzz");
    let target = cargo::target_dir()?.join("fuzz");
    sys::say("building the fuzz targets: six minutes on two cores the first time");
    let mut command = cargo::cargo()?;
    command.current_dir(&root).args(["build", "--locked", "--release", "--target", &host, "--target-dir"]);
    command.arg(&target).env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"));
    // The pinned compiler takes flags of unstable features, here and nowhere else.
    command.env("RUSTC_BOOTSTRAP", "1").env_remove("RUSTFLAGS");
    build::set_bpf_env(&mut command, Bpf::Prebuilt)?;
    sys::run(&mut command)?;
    Ok(target.join(host).join("release"))
}

/// What a target has found so far, and what it begins with: the examples of `policies/`.
fn corpus(target: &str) -> Result<PathBuf> {
    let folder = cache::root()?.join("fuzz").join(target);
    std::fs::create_dir_all(&folder)?;
    let extension = match target {
        "policy_text" => "yaml",
        "set_file" => "txt",
        _ => return Ok(folder),
    };
    let examples = sys::walk(&cargo::workspace()?.join("policies"))?;
    for file in examples.iter().filter(|file| file.extension().is_some_and(|found| found == extension)) {
        let name = file.file_name().map(Path::new).context("a file without a name")?;
        std::fs::copy(file, folder.join(name))?;
    }
    Ok(folder)
}
