//! `cargo xtask bpf`: the checked-in BPF objects against those that their source gives.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use crate::build::{self, Bpf};
use crate::{cache, cargo, elf, setup, sys};

const OBJECTS: [&str; 2] = ["smc-agent-bpf.o", "smc-agent-convert.o"];

/// Where a checked-in object is.
fn checked_in(object: &str) -> Result<PathBuf> {
    Ok(cargo::workspace()?.join("smc-agent/bpf").join(object))
}

/// Builds the BPF side from source; gives the folder that the objects are in.
fn build_source() -> Result<PathBuf> {
    let mut command = cargo::cargo()?;
    command.args(["build", "--locked", "-p", "smc-agent", "--lib"]);
    build::set_bpf_env(&mut command, Bpf::Source)?;
    let built = cargo::build(&mut command)?;
    let out = built.out_dirs.iter().find(|(id, _)| is_agent(id)).map(|(_, folder)| folder.clone());
    out.context("smc-agent has no build script that ran")
}

/// Strips a built object's debug information, keeping the types.
fn stripped(folder: &Path, object: &str) -> Result<Vec<u8>> {
    let strip = setup::LLVM_STRIP.iter().find_map(|name| sys::which(name));
    let strip = strip.context("no llvm-strip: run `cargo xtask setup`")?;
    let stripped = cargo::target_dir()?.join(format!("stripped-{object}"));
    sys::run(Command::new(strip).arg("-g").arg(folder.join(object)).arg("-o").arg(&stripped))?;
    fs::read(&stripped).with_context(|| stripped.display().to_string())
}

/// Whether a package id is that of `smc-agent` and not of a crate whose name starts so.
fn is_agent(id: &str) -> bool {
    id.contains("/smc-agent#") || id.starts_with("smc-agent ") || id.contains("#smc-agent@")
}

/// The sections that decide what the kernel runs; type information and symbols differ from build to build.
fn relevant(file: &[u8]) -> Result<BTreeMap<String, Vec<u8>>> {
    let named = |name: &str| name.starts_with(".rodata") || [".maps", "maps", "license"].contains(&name);
    let sections = elf::sections(file)?;
    let kept = sections.into_iter().filter(|section| {
        let code = section.flags & elf::SHF_EXECINSTR != 0 && !section.data.is_empty();
        let data = section.flags & elf::SHF_ALLOC != 0 && section.kind == elf::SHT_PROGBITS;
        code || (named(section.name) && !section.data.is_empty())
            || (data && section.name.starts_with(".data"))
    });
    Ok(kept.map(|section| (section.name.to_owned(), section.data.to_vec())).collect())
}

/// The sections by which two objects differ, each with how.
fn differences(old: &[u8], new: &[u8]) -> Result<Vec<String>> {
    let (old, new) = (relevant(old).context("checked-in object")?, relevant(new).context("built object")?);
    let mut found = Vec::new();
    for (name, data) in &new {
        match old.get(name) {
            None => found.push(format!("{name}: not in the checked-in object")),
            Some(was) if was != data => {
                found.push(format!(
                    "{name}: {} bytes checked in, {} built, not the same",
                    was.len(),
                    data.len()
                ));
            }
            Some(_) => {}
        }
    }
    found.extend(
        old.keys().filter(|name| !new.contains_key(*name)).map(|name| format!("{name}: no longer built")),
    );
    Ok(found)
}

/// Builds from source and compares with the checked-in objects.
pub(crate) fn check() -> Result<()> {
    let built = build_source()?;
    OBJECTS.iter().try_for_each(|object| check_object(&built, object))
}

fn check_object(built: &Path, object: &str) -> Result<()> {
    let new = stripped(built, object)?;
    let path = checked_in(object)?;
    let old =
        fs::read(&path).with_context(|| format!("{}: run `cargo xtask bpf --update`", path.display()))?;
    let found = differences(&old, &new)?;
    if !found.is_empty() {
        let list = found.join("\n  ");
        bail!("{} is not what its source gives; run `cargo xtask bpf --update`:\n  {list}", path.display());
    }
    println!("{}: {} sections are what the source gives", path.display(), relevant(&new)?.len());
    Ok(())
}

fn update() -> Result<()> {
    let built = build_source()?;
    OBJECTS.iter().try_for_each(|object| update_object(&built, object))
}

fn update_object(built: &Path, object: &str) -> Result<()> {
    let new = stripped(built, object)?;
    let path = &checked_in(object)?;
    if let Ok(old) = fs::read(path)
        && differences(&old, &new).is_ok_and(|found| found.is_empty())
    {
        println!("{}: up to date", path.display());
        return Ok(());
    }
    fs::create_dir_all(path.parent().context("no folder")?)?;
    cache::write_file(path, &new)?;
    println!("{}: replaced, {} bytes", path.display(), new.len());
    Ok(())
}

const HELP: &str = "\
Builds the BPF side from source and compares it with the checked-in objects in smc-agent/bpf.

Usage: cargo xtask bpf --check|--update

Options:
  --check    fail when a program, .text, .rodata, .data, maps or license section differs
  --update   replace a checked-in object when one of them differs
  -h, --help this text";

/// Runs `cargo xtask bpf`.
pub(crate) fn main(mut args: lexopt::Parser) -> Result<bool> {
    match args.next()? {
        Some(Long("check")) => match check() {
            Ok(()) => Ok(true),
            Err(error) => {
                sys::say(format_args!("{error:#}"));
                Ok(false)
            }
        },
        Some(Long("update")) => update().map(|()| true),
        Some(Short('h') | Long("help")) => {
            println!("{HELP}");
            Ok(true)
        }
        Some(other) => Err(other.unexpected().into()),
        None => bail!("--check or --update?\n\n{HELP}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::testing::elf;

    #[test]
    fn only_what_the_kernel_runs_is_compared() {
        let old =
            elf(&[("classifier", 1, 6, b"code"), (".BTF", 1, 0, b"types"), ("license", 1, 2, b"GPL\0")]);
        let other_types =
            elf(&[("classifier", 1, 6, b"code"), (".BTF", 1, 0, b"other"), ("license", 1, 2, b"GPL\0")]);
        assert!(differences(&old, &other_types).unwrap().is_empty());
        let other_code = elf(&[("classifier", 1, 6, b"edoc"), ("fentry/x", 1, 6, b"y")]);
        let found = differences(&old, &other_code).unwrap();
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("classifier: 4 bytes") && found[1].starts_with("fentry/x: not in"));
        assert!(found[2].starts_with("license: no longer"));
    }

    #[test]
    fn the_agent_is_told_from_its_siblings() {
        assert!(is_agent("path+file:///w/smc-agent#0.1.0"));
        assert!(!is_agent("path+file:///w/smc-agent-tests#0.1.0"));
        assert!(is_agent("path+file:///w/agent#smc-agent@0.1.0"));
    }
}
