//! The agent on real SMC, inside a guest of `cargo xtask test`. Each test starts from a clean state and leaves one, which
//! is itself checked: no program, map, link, pin, sysctl value or file of the agent is left.

mod events;
mod flows;
mod interfaces;
mod lab;
mod lifecycle;
mod policies;
mod reloading;
mod timing;

use std::env;

use anyhow::Result;
use libtest_mimic::{Arguments, Completion, Trial};

use lab::{Backend, Lab};

/// Set in guests, to the kernel's name.
const GUEST_VARIABLE: &str = "SMC_AGENT_VM";
const NOT_A_GUEST: &str = "needs the VM: cargo xtask test";

type Test = fn(&mut Lab) -> Result<()>;

/// What every backend has to do.
const EVERYWHERE: [(&str, Test); 21] = [
    ("a_client_rule", flows::client_rule),
    ("a_server_rule", flows::server_rule),
    ("an_empty_policy_leaves_all_to_smc", flows::nothing_denied),
    ("events_name_the_rule", events::exact_events),
    ("plain_tcp_peers_are_no_denial", events::plain_tcp_peers),
    ("logged_verdicts", events::logged_verdicts),
    ("shadow_rules_count_only", events::shadow_rules),
    ("the_first_matching_rule_decides", policies::order),
    ("default_deny", policies::default_deny),
    ("peer_prefixes", policies::peer_prefixes),
    ("role_any", policies::role_any),
    ("status_explains_the_backend", lifecycle::status_explains),
    ("reload_changes_verdicts", reloading::changes_verdicts),
    ("a_bad_policy_changes_nothing", reloading::bad_policy),
    ("kill_leaves_enforcement_and_the_next_adopts", lifecycle::killed),
    ("sigterm_leaves_enforcement_and_the_next_adopts", lifecycle::terminated),
    ("detach_by_the_running_agent", lifecycle::detach_running),
    ("detach_without_an_agent", lifecycle::detach_alone),
    ("a_second_agent_is_refused", lifecycle::second_agent),
    ("no_gap_over_five_agents", lifecycle::restart_loop),
    ("connection_times", timing::connection_times),
];

/// What only traffic control does.
const TC: [(&str, Test); 2] = [
    ("new_interfaces_are_covered_and_gone_ones_forgotten", interfaces::come_and_go),
    ("a_flow_over_a_new_interface", interfaces::flow_over_veth),
];

/// What only a kernel with both backends can do.
const BOTH: [(&str, Test); 1] = [("backends_replace_each_other", lifecycle::change_of_backend)];

/// What only a kernel without `smc_hs_ctrl` can show.
const WITHOUT_HS_CTRL: [(&str, Test); 1] =
    [("the_other_backend_is_refused_by_name", lifecycle::hs_ctrl_is_refused)];

fn main() {
    let guest = env::var(GUEST_VARIABLE).ok();
    let has_hs_ctrl = guest.is_none() || lab::has_hs_ctrl();
    let mut trials = Vec::new();
    let mut add = |tests: &[(&str, Test)], backend: Backend| {
        for (name, test) in tests.iter().copied() {
            trials.push(trial(&format!("{backend}::{name}"), backend, test, guest.is_some()));
        }
    };
    if has_hs_ctrl {
        add(&EVERYWHERE, Backend::HsCtrl);
        add(&BOTH, Backend::HsCtrl);
    } else {
        add(&WITHOUT_HS_CTRL, Backend::Tc);
    }
    add(&EVERYWHERE, Backend::Tc);
    add(&TC, Backend::Tc);
    // All share one kernel.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial(name: &str, backend: Backend, test: Test, in_guest: bool) -> Trial {
    Trial::ignorable_test(name, move || {
        if !in_guest {
            return Ok(Completion::ignored_with(NOT_A_GUEST));
        }
        let mut lab = Lab::new(backend).map_err(|error| format!("before the test: {error:#}"))?;
        let result = test(&mut lab);
        let clean = lab.clean();
        result.map_err(|error| format!("{error:#}"))?;
        clean.map_err(|error| format!("after the test: {error:#}"))?;
        Ok(Completion::Completed)
    })
}
