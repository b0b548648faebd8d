//! `cargo xtask build`, and the programs that guests get.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use crate::vm::Program;
use crate::{cargo, sys, toolchain};

/// How the BPF side is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bpf {
    /// From source where the tools are there, else the checked-in object.
    Best,
    /// From source, or not at all.
    Source,
    /// The checked-in object.
    Prebuilt,
}

/// Gives a cargo command the environment that `smc-agent/build.rs` reads.
pub(crate) fn set_bpf_env(command: &mut Command, bpf: Bpf) -> Result<()> {
    let env = toolchain::bpf_env()?;
    match bpf {
        Bpf::Source if env.is_none() => bail!("rust-src or bpf-linker is missing: run `cargo xtask setup`"),
        Bpf::Source => command.env("SMC_AGENT_BPF", "source"),
        Bpf::Prebuilt => command.env("SMC_AGENT_BPF", "prebuilt"),
        Bpf::Best => command.env_remove("SMC_AGENT_BPF"),
    };
    if bpf != Bpf::Prebuilt {
        command.envs(env.into_iter().flatten());
    }
    Ok(())
}

/// A cargo command whose results run in a guest: for the GNU target, but without libraries.
pub(crate) fn guest_cargo(subcommand: &str) -> Result<Command> {
    let mut command = cargo::cargo()?;
    command.arg(subcommand).args(["--locked", "--target", &cargo::rustc_fact("host")?]);
    command.arg("--target-dir").arg(cargo::target_dir()?.join("vm"));
    command.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", "-Ctarget-feature=+crt-static");
    // Guests read these into memory under emulation: small matters more than a debugger.
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_STRIP", "debuginfo");
    // What reads the kernel's types and hashes and loads the object takes seconds under emulation when it is not optimised.
    for package in ["smc-agent", "aya", "aya-obj", "object", "sha2"] {
        command.arg("--config").arg(format!("profile.dev.package.{package}.opt-level=1"));
    }
    set_bpf_env(&mut command, Bpf::Best)?;
    Ok(command)
}

/// Builds the workspace's programs for guests.
pub(crate) fn guest_programs() -> Result<Vec<Program>> {
    let mut command = guest_cargo("build")?;
    command.args(["-p", "smc-agent", "-p", "smc-agent-tests", "--bins"]);
    sys::say("building the guest's programs");
    let built = cargo::build(&mut command)?;
    let programs: Vec<Program> =
        built.executables.into_iter().map(|(name, file)| Program { name, file }).collect();
    if !programs.iter().any(|program| program.name == "smctest") {
        if cargo::has_target("tests", "bin", "smctest")? {
            bail!("the build left no smctest");
        }
        sys::say("smc-agent-tests has no program smctest yet: the guest gets no UEID and no rxe device");
    }
    Ok(programs)
}

/// Builds the library that `smc-agent exec` starts programs with; programs in guests are linked dynamically as here.
pub(crate) fn preload_library() -> Result<PathBuf> {
    let mut command = cargo::cargo()?;
    command.args(["build", "--locked", "-p", "smc-agent-preload"]);
    cargo::build(&mut command)?;
    Ok(cargo::target_dir()?.join("debug/libsmc_agent_preload.so"))
}

const HELP: &str = "\
Builds smc-agent with the environment that the BPF side needs.

Usage: cargo xtask build [--release] [--bpf source|prebuilt]

Options:
  --release              optimised
  --bpf source|prebuilt  compile the BPF side from source or fail; or embed the checked-in object
                         (default: from source where `cargo xtask setup` ran, else the checked-in object)
  -h, --help             this text";

/// Runs `cargo xtask build`.
pub(crate) fn main(mut args: lexopt::Parser) -> Result<()> {
    let (mut release, mut bpf) = (false, Bpf::Best);
    while let Some(arg) = args.next()? {
        match arg {
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(());
            }
            Long("release") => release = true,
            Long("bpf") => {
                bpf = match args.value()?.string()?.as_str() {
                    "source" => Bpf::Source,
                    "prebuilt" => Bpf::Prebuilt,
                    other => bail!("--bpf takes source or prebuilt, not `{other}`"),
                }
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let mut command = cargo::cargo()?;
    command.args(["build", "--locked", "-p", "smc-agent"]);
    if release {
        command.arg("--release");
    }
    set_bpf_env(&mut command, bpf)?;
    let built = cargo::build(&mut command)?;
    println!("{}", built.executable("smc-agent").context("the build left no smc-agent")?.display());
    Ok(())
}
