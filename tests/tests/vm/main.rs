//! The agent on real SMC, inside a guest of `cargo xtask test`. Each test starts from a clean state and leaves one, which
//! is itself checked: no program, map, link, pin, sysctl value or file of the agent is left.

mod events;
mod flows;
mod interfaces;
mod lab;
mod lifecycle;
mod links;
mod module;
mod namespaces;
mod nat;
mod policies;
mod reloading;
mod retransmission;
mod signed;
mod timing;
mod wireguard;

use std::env;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use libtest_mimic::{Arguments, Completion, Trial};

use lab::{Backend, Lab};

/// Set in guests, to the kernel's name.
const GUEST_VARIABLE: &str = "SMC_AGENT_VM";
const NOT_A_GUEST: &str = "needs the VM: cargo xtask test";

type Test = fn(&mut Lab) -> Result<()>;

/// What an agent that runs already can show: these share one, each with its own policy and from a state that is known, since
/// the kernel takes seconds to verify the programs under emulation.
const SHARED: [(&str, Test); 17] = [
    ("status_explains_the_backend", lifecycle::status_explains),
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
    ("reload_changes_verdicts", reloading::changes_verdicts),
    ("a_bad_policy_changes_nothing", reloading::bad_policy),
    ("a_second_agent_is_refused", lifecycle::second_agent),
    ("syn_cookies", flows::syn_cookies),
    ("connection_times", timing::connection_times),
];

/// What begins without an agent.
const FRESH: [(&str, Test); 6] = [
    ("kill_leaves_enforcement_and_the_next_adopts", lifecycle::killed),
    ("sigterm_leaves_enforcement_and_the_next_adopts", lifecycle::terminated),
    ("detach_by_the_running_agent", lifecycle::detach_running),
    ("detach_without_an_agent", lifecycle::detach_alone),
    ("no_gap_over_five_agents", lifecycle::restart_loop),
    ("lost_packets_keep_the_verdict", retransmission::keep_the_verdict),
];

/// Where the policy holds.
const SCOPES: [(&str, Test); 1] = [("all_network_namespaces", namespaces::all)];

/// What is shown once on a kernel, with the backend that `auto` takes: the agent does it without the kernel's part.
const ONCE: [(&str, Test); 3] = [
    ("no_gap_over_upgrades", lifecycle::upgrade_loop),
    ("named_network_namespaces", namespaces::named),
    ("the_scope_shrinks", namespaces::shrinks),
];

/// What `smc_hs_ctrl` alone has.
const HS_CTRL: [(&str, Test); 2] = [
    ("a_selection_is_held", namespaces::held),
    ("another_ctrl_is_left_alone_or_taken_over", namespaces::taken_over),
];

/// What begins without module smc, whatever the backend is then.
const MODULE: [(&str, Test); 2] =
    [("module_smc_comes_later", module::comes_later), ("module_smc_is_loaded_anew", module::loaded_anew)];

/// What only traffic control does.
const TC: [(&str, Test); 3] = [
    ("a_flow_over_a_new_interface", interfaces::flow_over_veth),
    ("new_interfaces_are_covered_and_gone_ones_forgotten", interfaces::come_and_go),
    ("foreign_filters_keep_their_place", interfaces::foreign_filters),
];

/// What needs more of the kernel or of the guest than SMC: what that is.
type Missing = fn() -> Option<String>;
const NEEDING: [(&str, Test, Missing); 1] = [("md5_signatures", signed::flows, signed::missing)];
/// The same, of traffic control alone.
const TC_NEEDING: [(&str, Test, Missing); 6] = [
    ("nat_on_this_host", nat::flows, nat::missing),
    ("links_veth", links::veth, nothing),
    ("links_vlan", links::vlan, links::missing_vlan),
    ("links_bridge", links::bridge, links::missing_bridge),
    ("links_tunnels", links::tunnels, links::missing_tunnels),
    ("links_wireguard", links::wireguard, links::missing_wireguard),
];

/// What only a kernel with both backends can do.
const BOTH: [(&str, Test); 1] = [("backends_replace_each_other", lifecycle::change_of_backend)];

/// What only a kernel without `smc_hs_ctrl` can show.
const WITHOUT_HS_CTRL: [(&str, Test); 1] =
    [("the_other_backend_is_refused_by_name", lifecycle::hs_ctrl_is_refused)];

/// The environment of the last test of [`SHARED`], with its agent.
static WARM: Mutex<Option<Lab>> = Mutex::new(None);

fn main() -> ExitCode {
    let in_guest = env::var_os(GUEST_VARIABLE).is_some();
    let has_hs_ctrl = !in_guest || lab::has_hs_ctrl();
    let mut trials = Vec::new();
    let mut add = |tests: &[(&str, Test)], backend: Backend, start: Start| {
        for (name, test) in tests.iter().copied() {
            trials.push(trial(&format!("{backend}::{name}"), backend, test, start, in_guest, nothing));
        }
    };
    if has_hs_ctrl {
        add(&SHARED, Backend::HsCtrl, Start::Shared);
        add(&FRESH, Backend::HsCtrl, Start::Fresh);
        add(&BOTH, Backend::HsCtrl, Start::Fresh);
        add(&SCOPES, Backend::HsCtrl, Start::Fresh);
        add(&ONCE, Backend::HsCtrl, Start::Fresh);
        add(&HS_CTRL, Backend::HsCtrl, Start::Fresh);
    }
    if !in_guest || !has_hs_ctrl {
        add(&WITHOUT_HS_CTRL, Backend::Tc, Start::Fresh);
        // On older kernels each start takes long, and shows nothing more.
        if !in_guest || lab::smc_is_possible() {
            add(&ONCE, Backend::Tc, Start::Fresh);
        }
    }
    add(&SHARED, Backend::Tc, Start::Shared);
    add(&FRESH, Backend::Tc, Start::Fresh);
    add(&TC, Backend::Tc, Start::Fresh);
    add(&SCOPES, Backend::Tc, Start::Fresh);
    let backends = if has_hs_ctrl { &[Backend::HsCtrl, Backend::Tc][..] } else { &[Backend::Tc] };
    for backend in backends {
        let more = if *backend == Backend::Tc { &TC_NEEDING[..] } else { &[] };
        for (name, test, missing) in NEEDING.iter().chain(more).copied() {
            let name = format!("{backend}::{name}");
            trials.push(trial(&name, *backend, test, Start::Shared, in_guest, missing));
        }
    }
    // At last: SMC is set up anew by them.
    let backend = if has_hs_ctrl { Backend::HsCtrl } else { Backend::Tc };
    for (name, test) in MODULE {
        trials.push(trial(&format!("{backend}::{name}"), backend, test, Start::Fresh, in_guest, nothing));
    }
    // All share one kernel.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Err(error) = cool_down() {
        eprintln!("after the tests: {error:#}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

/// What a test begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// No agent, nothing enforced.
    Fresh,
    /// An agent that may have run before.
    Shared,
}

/// Nothing is missing.
fn nothing() -> Option<String> {
    None
}

fn trial(name: &str, backend: Backend, test: Test, start: Start, in_guest: bool, missing: Missing) -> Trial {
    Trial::ignorable_test(name, move || {
        if !in_guest {
            return Ok(Completion::ignored_with(NOT_A_GUEST));
        }
        if let Some(missing) = missing() {
            return Ok(Completion::ignored_with(missing));
        }
        run(backend, test, start).map_err(|error| format!("{error:#}"))?;
        Ok(Completion::Completed)
    })
}

fn run(backend: Backend, test: Test, start: Start) -> Result<()> {
    let warm = warm_lock().take_if(|lab| start == Start::Shared && lab.backend == backend);
    let mut lab = match warm {
        Some(lab) => lab,
        None => cool_down().and_then(|()| Lab::new(backend)).context("before the test")?,
    };
    let result = test(&mut lab);
    if start == Start::Shared && result.is_ok() {
        *warm_lock() = Some(lab);
        return Ok(());
    }
    let clean = lab.clean();
    result?;
    clean.context("after the test")
}

/// Ends the shared agent, and checks that nothing of it is left.
fn cool_down() -> Result<()> {
    let lab = warm_lock().take();
    lab.map_or(Ok(()), Lab::clean).context("the agent that tests shared")
}

fn warm_lock() -> MutexGuard<'static, Option<Lab>> {
    WARM.lock().unwrap_or_else(PoisonError::into_inner)
}
