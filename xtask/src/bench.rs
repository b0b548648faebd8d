//! `cargo xtask bench`: the figures of docs/benchmarks.md.

use std::ffi::OsString;

use anyhow::{Result, bail};
use lexopt::prelude::*;

use crate::build::{self, Bpf};
use crate::kernel::{self, Kernel};
use crate::{cargo, setup, vm};

/// What a guest does for the cost of hs-ctrl: connections that are allowed and refused, and then the kernel's statistics.
const HS_CTRL: &str = "
set -e
printf '{ version: 1, default: allow, rules: [{ name: r, action: deny, port: 7001 }] }' > /tmp/policy.yaml
smc-agent run --backend hs-ctrl --policy /tmp/policy.yaml > /tmp/agent 2>&1 &
tries=0
until smc-agent status > /dev/null 2>&1; do
  tries=$((tries + 1))
  [ $tries -lt 120 ] || { cat /tmp/agent; exit 1; }
  sleep 1
done
echo 1 > /proc/sys/kernel/bpf_stats_enabled
for port in 7000 7001; do
  i=0
  while [ $i -lt 100 ]; do
    smctest pair --port $port --bytes 64 > /dev/null
    i=$((i + 1))
  done
done
smctest programs
smc-agent detach > /dev/null
";

const HELP: &str = "\
Measures smc-agent in the running kernel. Needs root, and the BPF side built from source. `enforce` also measures hs-ctrl,
in a guest of 7.3 if that is at hand.

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
    let well = command.status()?.success();
    if what == "enforce" {
        return Ok(hs_ctrl()? && well);
    }
    Ok(well)
}

/// Shows what a question to hs-ctrl costs, by the kernel's own run-time statistics. Only a guest has it, which is emulated where
/// there is no KVM: such figures are many times those of a processor.
fn hs_ctrl() -> Result<bool> {
    if kernel::at_hand(Kernel::V7_3)?.is_none() {
        eprintln!("hs-ctrl is not measured: kernel 7.3 is not at hand (cargo xtask kernel 7.3)");
        return Ok(true);
    }
    let programs = build::guest_programs()?;
    let command = ["sh", "-c", HS_CTRL].map(OsString::from).to_vec();
    eprintln!("hs-ctrl, in a guest of 7.3, 200 connections, half of them refused:");
    let outcome = vm::run(&vm::Request::new(Kernel::V7_3, command), &programs)?;
    if let Some(problem) = &outcome.problem {
        eprintln!("{problem}");
    }
    Ok(outcome.code == 0 && outcome.problem.is_none())
}
