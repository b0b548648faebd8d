//! `cargo xtask bench`: the figures of docs/benchmarks.md.

use anyhow::{Result, bail};
use lexopt::prelude::*;

use crate::build::{self, Bpf};
use crate::{cargo, setup};

const HELP: &str = "\
Measures smc-agent in the running kernel. Needs root, and the BPF side built from source.

Usage: cargo xtask bench policy|events|convert|enforce [--quick] [-o text|json]

Options:
  --quick       small lists, few rounds, not optimised: to see that it works, not to measure
  -o text|json  how to write the figures
  -h, --help    this text";

/// Runs `cargo xtask bench`; true when it went well.
pub(crate) fn main(mut args: lexopt::Parser) -> Result<bool> {
    let (mut what, mut quick, mut output) = (None, false, "text".to_owned());
    while let Some(arg) = args.next()? {
        match arg {
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(true);
            }
            Long("quick") => quick = true,
            Short('o') | Long("output") => output = args.value()?.string()?,
            Value(value) if what.is_none() => what = Some(value.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let Some(what @ ("policy" | "events" | "convert" | "enforce")) = what.as_deref() else {
        bail!("what is to be measured? `policy`, `events`, `convert` and `enforce` are known\n\n{HELP}");
    };
    if !matches!(output.as_str(), "text" | "json") {
        bail!("-o takes text or json, not `{output}`");
    }
    setup::ensure_bench_tools()?;
    let mut command = cargo::cargo()?;
    command.args(["bench", "--locked", "-p", "smc-agent", "--bench", what]);
    if quick {
        command.args(["--profile", "dev"]);
    }
    command.args(["--", "-o", &output]);
    if quick {
        command.arg("--quick");
    }
    build::set_bpf_env(&mut command, Bpf::Source)?;
    Ok(command.status()?.success())
}
