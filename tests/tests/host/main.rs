//! The agent on the kernel of the machine that built it, in a network namespace and with a BPF file system of each test's own:
//! what it says to bad input and lacking kernels, and what its packet programs do to every kind of SYN.

mod crashes;
mod input;
mod lacking;
mod lives;
mod packet;
mod readers;
mod rewriting;
mod sandbox;
mod wire;

use std::path::Path;

use anyhow::Result;
use libtest_mimic::{Arguments, Completion, Trial};
use nix::unistd::geteuid;

use sandbox::Sandbox;

type Test = fn(&Sandbox) -> Result<()>;

/// What a test cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// Nothing but root.
    Root,
    /// Traffic control programs by links.
    Tcx,
    /// A kernel without SMC.
    NoSmc,
}

const TESTS: [(&str, Needs, Test); 25] = [
    ("input::missing_policy_file", Needs::Root, input::missing_file),
    ("input::bad_policies_are_told_by_place", Needs::Root, input::bad_policies),
    ("input::bad_set_file", Needs::Root, input::bad_set_file),
    ("input::usage", Needs::Root, input::usage),
    ("input::help_and_version", Needs::Root, input::help_and_version),
    ("input::a_reader_that_has_gone", Needs::Root, input::broken_pipe),
    ("input::no_agent_to_talk_to", Needs::Root, input::no_agent),
    ("lacking::not_privileged", Needs::Root, lacking::not_privileged),
    ("lacking::no_smc", Needs::NoSmc, lacking::no_smc),
    ("lacking::no_btf", Needs::Root, lacking::no_btf),
    ("lacking::no_place_for_pins", Needs::NoSmc, lacking::no_place_for_pins),
    ("lacking::no_place_for_the_socket", Needs::Tcx, lacking::no_place_for_the_socket),
    ("lacking::no_place_for_state", Needs::NoSmc, lacking::no_place_for_state),
    ("lives::a_bpf_file_system_is_mounted_where_none_is", Needs::Tcx, lives::mounts_bpf),
    ("lives::killed_adopted_detached", Needs::Tcx, lives::killed_adopted_detached),
    ("lives::detach_takes_programs_off_at_once", Needs::Tcx, lives::detach_is_immediate),
    ("lives::the_control_socket_is_for_root", Needs::Tcx, lives::socket_is_for_root),
    ("lives::plain_tcp_is_left_alone", Needs::Tcx, lives::plain_tcp),
    ("lives::interfaces_are_renamed_and_moved", Needs::Tcx, lives::moved),
    ("lives::foreign_programs_keep_their_place", Needs::Tcx, lives::foreign_programs),
    ("rewriting::ipv4", Needs::Tcx, rewriting::ipv4),
    ("rewriting::ipv6", Needs::Tcx, rewriting::ipv6),
    ("rewriting::headers_before_tcp", Needs::Tcx, rewriting::headers),
    ("rewriting::who_is_asked", Needs::Tcx, rewriting::who_is_asked),
    ("rewriting::outgoing_packets_of_others", Needs::Tcx, rewriting::outgoing),
];

/// Readers of events.
const READERS: [(&str, Needs, Test); 2] = [
    ("readers::verdicts_are_shown_and_counted", Needs::Tcx, readers::verdicts),
    ("readers::one_that_does_not_read_stalls_nobody", Needs::Tcx, readers::stalled),
];

/// The agent killed at each step.
const CRASHES: [(&str, Needs, Test); 5] = [
    ("crashes::first_start", Needs::Tcx, crashes::first_start),
    ("crashes::next_start", Needs::Tcx, crashes::next_start),
    ("crashes::upgrade", Needs::Tcx, crashes::upgrade),
    ("crashes::reload", Needs::Tcx, crashes::reload),
    ("crashes::detach", Needs::Tcx, crashes::detaching),
];

/// Packets on interfaces.
const WIRE: [(&str, Needs, Test); 7] = [
    ("wire::ethernet", Needs::Tcx, wire::ethernet),
    ("wire::vlan_tags", Needs::Tcx, wire::vlan_tags),
    ("wire::without_a_link_layer", Needs::Tcx, wire::without_a_link_layer),
    ("wire::headers_and_jumbo_frames", Needs::Tcx, wire::headers),
    ("wire::checksums", Needs::Tcx, wire::checksums),
    ("wire::routed_syns_of_others", Needs::Tcx, wire::routed),
    ("wire::bridged_syns_of_others", Needs::Tcx, wire::bridged),
];

fn main() {
    let trial = |(name, needs, test): (&str, Needs, Test)| {
        Trial::ignorable_test(name, move || {
            if let Some(reason) = missing(needs) {
                return Ok(Completion::ignored_with(reason));
            }
            sandbox::run(test).map_err(|error| format!("{error:#}"))?;
            Ok(Completion::Completed)
        })
    };
    libtest_mimic::run(
        &Arguments::from_args(),
        TESTS.into_iter().chain(READERS).chain(CRASHES).chain(WIRE).map(trial).collect(),
    )
    .exit();
}

/// What of it this machine does not have.
fn missing(needs: Needs) -> Option<&'static str> {
    if !geteuid().is_root() {
        return Some("needs root: CAP_SYS_ADMIN and CAP_NET_ADMIN");
    }
    if let Err(reason) = sandbox::possible() {
        return Some(reason);
    }
    let btf = Path::new("/sys/kernel/btf/vmlinux").exists();
    let release = smc_agent_tests::setup::kernel_release().unwrap_or_default();
    let version = smc_agent_tests::setup::version_of(&release).unwrap_or_default();
    match needs {
        Needs::Tcx | Needs::NoSmc if !btf => Some("needs /sys/kernel/btf/vmlinux"),
        Needs::Tcx if version < (6, 6) => Some("needs tcx (kernel 6.6)"),
        Needs::NoSmc if Path::new("/sys/module/smc").exists() => Some("needs a kernel without SMC"),
        Needs::Root | Needs::Tcx | Needs::NoSmc => None,
    }
}
