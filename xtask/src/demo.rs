//! `cargo xtask demo`: the agent at work on real SMC, in a VM.

use std::ffi::OsString;
use std::time::Instant;

use anyhow::{Result, bail};
use lexopt::prelude::*;

use crate::kernel::{self, Kernel};
use crate::{build, setup, sys, vm};

const PROGRAM: &str = "smc-demo";

const HELP: &str = "\
Shows the agent deciding which flows use SMC, in a VM with real SMC.

Usage: cargo xtask demo [--kernel K]

Options:
  --kernel K  6.12 (backend tc) or 7.3 (backend hs-ctrl); default: 7.3 when its image is at hand, else 6.12
  -h, --help  this text";

/// Runs `cargo xtask demo`; gives the exit code.
pub(crate) fn main(mut args: lexopt::Parser) -> Result<i32> {
    let mut asked = None;
    while let Some(arg) = args.next()? {
        match arg {
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(0);
            }
            Long("kernel") => asked = Some(Kernel::parse(&args.value()?.string()?)?),
            other => return Err(other.unexpected().into()),
        }
    }
    let start = Instant::now();
    let kernel = match asked {
        Some(kernel) => kernel,
        None => choose()?,
    };
    setup::ensure_all(&[kernel])?;
    let programs = build::guest_programs()?;
    if !programs.iter().any(|program| program.name == PROGRAM) {
        bail!("smc-agent-tests has no program {PROGRAM}");
    }
    sys::say(format_args!("ready to boot after {}", sys::human(start.elapsed())));
    let outcome = vm::run(&vm::Request::new(kernel, vec![OsString::from(PROGRAM)]), &programs)?;
    if let Some(problem) = &outcome.problem {
        sys::say(problem);
    }
    sys::say(format_args!("the demo took {}", sys::human(start.elapsed())));
    Ok(outcome.code)
}

/// 7.3 when nobody has to wait for it.
fn choose() -> Result<Kernel> {
    if kernel::at_hand(Kernel::V7_3)?.is_some() {
        sys::say("kernel 7.3, backend hs-ctrl; for 6.12 and backend tc: cargo xtask demo --kernel 6.12");
        return Ok(Kernel::V7_3);
    }
    sys::say(
        "kernel 6.12, backend tc; for 7.3 and backend hs-ctrl: cargo xtask demo --kernel 7.3 \
         (its kernel has to be built first: 20-25 minutes on 2 cores)",
    );
    Ok(Kernel::V6_12)
}
