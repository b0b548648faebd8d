//! The task runner of this repository: everything that a person or CI types.

mod apt;
mod bench;
mod bpf;
mod build;
mod cache;
mod cargo;
mod debver;
mod demo;
mod elf;
mod fuzz;
mod kernel;
mod module;
mod programs;
mod setup;
mod suite;
mod sys;
mod toolchain;
mod vm;

use std::process::ExitCode;

use anyhow::{Result, bail};
use lexopt::prelude::*;

const HELP: &str = "\
The tasks of this repository.

Usage: cargo xtask TASK [--help]

  setup    make this machine able to build everything and to run VMs
  build    build smc-agent, the BPF side included
  bpf      compare the checked-in BPF object with its source, or replace it
  kernel   get a kernel to boot: 5.10, 6.1, 6.12, 7.3
  vm       boot a kernel with real SMC and run a command or a shell in it
  test     everything that has to hold, with one line of totals
  bench    the figures of docs/benchmarks.md
  fuzz     the fuzz targets, each for a while
  demo     the agent at work on real SMC, in a VM";

fn main() -> ExitCode {
    match tasks() {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            sys::say(format_args!("{error:#}"));
            ExitCode::from(2)
        }
    }
}

fn tasks() -> Result<i32> {
    let mut args = lexopt::Parser::from_env();
    let Some(Value(task)) = args.next()? else {
        println!("{HELP}");
        return Ok(0);
    };
    let code = |well: bool| i32::from(!well);
    Ok(match task.string()?.as_str() {
        "setup" => code(setup::main(args)?),
        "build" => build::main(args).map(|()| 0)?,
        "bpf" => code(bpf::main(args)?),
        "bench" => code(bench::main(args)?),
        "fuzz" => code(fuzz::main(args)?),
        "test" => code(suite::main(args)?),
        "demo" => demo::main(args)?,
        "kernel" => kernel::main(args).map(|()| 0)?,
        "vm" => vm::main(args)?,
        "help" => {
            println!("{HELP}");
            0
        }
        other => bail!("no task is called `{other}`\n\n{HELP}"),
    })
}
