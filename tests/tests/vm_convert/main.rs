//! Conversion of TCP programs in a guest with real SMC: stock programs of the distribution and static ones, each selector,
//! lives and deaths, and `smc-agent exec`. Run it with `cargo xtask test --vm-only`.

mod exec;
mod lab;
mod lives;
mod programs;
mod selectors;
mod sysctl;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use libtest_mimic::{Arguments, Completion, Trial};

use lab::Lab;

const NOT_A_GUEST: &str = "needs the VM: cargo xtask test";

type Test = fn(&Lab) -> Result<()>;

/// What needs a kernel that converts.
const TESTS: [(&str, Test); 23] = [
    ("redis", programs::redis),
    ("nginx", programs::nginx),
    ("python_http_server", programs::python),
    ("iperf3", programs::iperf3),
    ("static_programs", programs::static_programs),
    ("one_peer_denied", programs::one_peer_denied),
    ("select_by_uid_and_gid", selectors::ids),
    ("select_by_comm", selectors::comm),
    ("select_by_exe", selectors::exe),
    ("select_by_netns", selectors::netns),
    ("select_by_cgroup", selectors::cgroup),
    ("mptcp_stays", selectors::mptcp),
    ("kill_leaves_conversion_and_the_next_adopts", lives::killed),
    ("another_object_takes_over_without_a_gap", lives::replaced),
    ("what_dies_half_way_leaves_nothing_wrong", lives::interrupted),
    ("detach_ends_it", lives::detached),
    ("switches_expire_without_an_agent", lives::switches),
    ("reload_changes_rules", lives::reloaded),
    ("life_lines_stay_tcp", lives::life_lines),
    ("cost_of_a_hundred_rules", lives::cost),
    ("exec_by_bpf", exec::by_bpf),
    ("exec_by_preload", exec::by_preload),
    ("redis_over_smc_r", programs::redis_smc_r),
];

/// What older kernels have.
const OLDER: [(&str, Test); 3] = [
    ("exec_by_preload", exec::by_preload),
    ("what_is_missing_is_said", exec::lacking),
    ("sysctl_of_namespaces", sysctl::namespaces),
];

fn main() -> ExitCode {
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let in_guest = std::env::var_os("SMC_AGENT_VM").is_some();
    let tests: &[(&str, Test)] = if in_guest && !lab::has_smc_protocol() { &OLDER } else { &TESTS };
    let trials = tests.iter().copied().map(|(name, test)| {
        Trial::ignorable_test(format!("convert::{name}"), move || {
            if !in_guest {
                return Ok(Completion::ignored_with(NOT_A_GUEST));
            }
            run(test).map_err(|error| format!("{error:#}"))?;
            Ok(Completion::Completed)
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn run(test: Test) -> Result<()> {
    let lab = Lab::new().context("before the test")?;
    let result = test(&lab);
    let clean = lab.clean();
    result?;
    clean.context("after the test")
}
