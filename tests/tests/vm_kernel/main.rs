//! What a kernel has, what privileges it takes to work with it, and what systemd is told, in a guest of `cargo xtask test`.

mod features;
mod notify;
mod privileges;

use std::env;
use std::process::ExitCode;

use anyhow::Result;
use libtest_mimic::{Arguments, Completion, Trial};

/// Set in guests, to the kernel's name.
const GUEST_VARIABLE: &str = "SMC_AGENT_VM";
const NOT_A_GUEST: &str = "needs the VM: cargo xtask test";

type Test = fn(&str) -> Result<()>;

const TESTS: [(&str, Test); 9] = [
    ("features::each_line_is_right", features::each_line),
    ("features::without_privileges_what_is_not_known_is_told", features::unprivileged),
    ("features::nothing_is_loaded_or_left", features::nothing_left),
    ("privileges::the_stated_ones_are_enough", privileges::enough),
    ("privileges::each_is_needed", privileges::each_is_needed),
    ("privileges::of_other_commands", privileges::other_commands),
    ("privileges::the_rest_is_dropped", privileges::rest_is_dropped),
    ("notify::systemd_is_told", notify::systemd_is_told),
    // Last, since it takes the module away.
    ("features::without_the_module", features::without_module),
];

fn main() -> ExitCode {
    let guest = env::var(GUEST_VARIABLE).ok();
    let trials = TESTS.into_iter().map(|(name, test)| {
        let guest = guest.clone();
        Trial::ignorable_test(name, move || {
            let Some(kernel) = &guest else { return Ok(Completion::ignored_with(NOT_A_GUEST)) };
            test(kernel).map_err(|error| format!("{error:#}"))?;
            Ok(Completion::Completed)
        })
    });
    // All share one kernel.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
