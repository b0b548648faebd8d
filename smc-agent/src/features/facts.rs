//! What the kernel has.

use std::{io, os::fd::OwnedFd, path::Path};

use smc_agent_common::convert::IPPROTO_SMC;

use super::{Feature, Seen, State};
use crate::{
    kernel::{
        btf::{BTF_FOLDER, Kind},
        features::{Features, Smc},
        hooks::{self, Place},
        hs_ctrl,
        trial::{self, ModuleState, functions, module},
    },
    netlink::{self, smc},
    netns,
};

/// A fact: its name, what it is, since when it is in Linux (empty: it is not), and what was found.
fn fact(id: &str, what: &str, since: &str, (state, detail): (State, Option<String>)) -> Feature {
    let since = (!since.is_empty()).then(|| since.to_owned());
    Feature { id: id.to_owned(), what: what.to_owned(), since, state, detail }
}

fn yes(detail: &str) -> (State, Option<String>) {
    (State::Yes, Some(detail.to_owned()))
}

fn no(why: impl Into<String>) -> (State, Option<String>) {
    (State::No, Some(why.into()))
}

fn unknown(why: impl Into<String>) -> (State, Option<String>) {
    (State::Unknown, Some(why.into()))
}

fn plain(there: bool) -> (State, Option<String>) {
    (if there { State::Yes } else { State::No }, None)
}

/// How SMC is in this kernel.
pub(super) fn smc(features: Option<&Features>, release: &str) -> ModuleState {
    match features.map(|features| features.smc) {
        Some(Smc::BuiltIn) => ModuleState::BuiltIn,
        Some(Smc::Module) => ModuleState::Loaded,
        Some(Smc::Absent) | None => module("smc", release),
    }
}

pub(super) fn facts(seen: &Seen) -> Vec<Feature> {
    let mut facts = vec![fact("smc", "SMC", "4.11", in_module("smc", seen.smc))];
    facts.extend(types(seen));
    facts.extend(attachments(seen));
    facts.extend(hook_places(seen));
    facts.extend(conversion(seen));
    facts.extend(netlink_parts(seen));
    facts
}

fn in_module(name: &str, state: ModuleState) -> (State, Option<String>) {
    match state {
        ModuleState::BuiltIn => yes("built in"),
        ModuleState::Loaded => yes(&format!("module {name}, loaded")),
        ModuleState::Loadable => (State::Loadable, Some(format!("module {name} is there and not loaded"))),
        ModuleState::Absent => no(format!("no module {name} is loaded or in /lib/modules")),
    }
}

fn types(seen: &Seen) -> Vec<Feature> {
    let kernel = match &seen.features {
        Ok(_) => plain(true),
        Err(error) => no(error.to_string()),
    };
    let smc_types = match (&seen.features, seen.without_smc()) {
        (Ok(features), None) => match &features.smc_btf {
            Ok(_) if features.smc == Smc::BuiltIn => yes("among the kernel's own"),
            Ok(_) => yes(&format!("{BTF_FOLDER}/smc")),
            Err(error) => no(error.to_string()),
        },
        (Err(error), _) => no(error.to_string()),
        (_, Some((state, why))) => (state, Some(why)),
    };
    let layout = |of: fn(&Features) -> Result<(), String>| match (&seen.features, seen.without_smc()) {
        (Ok(features), None) => match of(features) {
            Ok(()) if features.smc_btf.is_err() => {
                yes("by a table for this kernel's release, and only as far as what is read looks right")
            }
            Ok(()) => yes("by types"),
            Err(why) => no(why),
        },
        (Err(error), _) => no(error.to_string()),
        (_, Some((state, why))) => (state, Some(why)),
    };
    let of_sockets = |features: &Features| features.smc_offsets.as_ref().map(drop).map_err(Clone::clone);
    let of_links = |features: &Features| features.link_offsets.as_ref().map(drop).map_err(Clone::clone);
    vec![
        fact("btf-kernel", "types of the kernel (BTF)", "5.4", kernel),
        fact("btf-smc", "types of SMC (BTF)", "5.11", smc_types),
        fact("layout-sockets", "where SMC's sockets have their fields", "", layout(of_sockets)),
        fact("layout-links", "where links of SMC-R have their fields", "", layout(of_links)),
    ]
}

fn attachments(seen: &Seen) -> Vec<Feature> {
    let ctrl = match (&seen.features, seen.without_smc()) {
        (_, Some((state, why))) => (state, Some(why)),
        (Ok(Features { smc_btf: Ok(btf), .. }), None) => {
            let has_type = btf.find("smc_hs_ctrl", Kind::Struct).is_some();
            match (has_type, Path::new(hs_ctrl::SYSCTL).exists()) {
                (true, true) => yes("with net.smc.hs_ctrl"),
                (true, false) => no("the type is there, and net.smc.hs_ctrl is not"),
                (false, _) => no("no such type (CONFIG_SMC_HS_CTRL_BPF)"),
            }
        }
        // The sysctl is there exactly if the kernel asks a ctrl (net/smc/smc_sysctl.c).
        _ => plain(Path::new(hs_ctrl::SYSCTL).exists()),
    };
    let tried = |of: fn(&trial::Trial) -> &Result<bool, String>| match seen.trial().map(of) {
        Ok(Ok(there)) => plain(*there),
        Ok(Err(why)) => unknown(why.clone()),
        Err(why) => unknown(why),
    };
    let cookie = match netns::own_cookie() {
        Ok(_) => plain(true),
        Err(error) => no(error.to_string()),
    };
    vec![
        fact("hs-ctrl", "struct smc_hs_ctrl", "6.19", ctrl),
        fact("tcx", "traffic control programs by links (tcx)", "6.6", tried(|trial| &trial.tcx)),
        fact("clsact", "qdisc clsact", "4.5", clsact(seen)),
        fact("ring-buffer", "BPF ring buffer", "5.8", tried(|trial| &trial.ring_buffer)),
        fact("netns-cookie", "SO_NETNS_COOKIE", "5.14", cookie),
    ]
}

/// Where there is no module to be loaded, trying can load none.
fn clsact(seen: &Seen) -> (State, Option<String>) {
    match (module("sch_ingress", &seen.release), seen.trial().map(|trial| &trial.clsact)) {
        (ModuleState::Absent, Ok(Ok(()))) => yes("built in"),
        (ModuleState::Absent, Ok(Err(why))) => no(why.clone()),
        (ModuleState::Absent, Err(why)) => unknown(why),
        (found, _) => in_module("sch_ingress", found),
    }
}

/// Places where events come from.
fn hook_places(seen: &Seen) -> Vec<Feature> {
    let names: Vec<_> = hooks::places().map(|(place, _)| place.name()).collect();
    let tried = seen.trial().ok().and_then(|trial| trial.hooks.as_ref());
    // Without privileges the kernel's list has to do; reading it is slow.
    let listed = if tried.is_none() && seen.without_smc().is_none() { Some(functions(&names)) } else { None };
    let found = |place: Place| match (seen.without_smc(), tried, &listed) {
        (Some((state, why)), ..) => (state, Some(why)),
        (None, Some(survey), _) => match survey.places.iter().find(|(known, _)| *known == place) {
            Some((_, Ok(()))) => yes("attached for a moment"),
            Some((_, Err(why))) => no(why.clone()),
            None => unknown("not tried"),
        },
        (None, None, Some(Ok(listed))) => match (place, &seen.features) {
            (Place::Function(name), _) if listed.contains(&name) => yes("in /proc/kallsyms; not tried"),
            (Place::Function(_), _) => no("not in /proc/kallsyms: the compiler may have inlined it"),
            (Place::RawTracepoint(name), Ok(Features { smc_btf: Ok(btf), .. })) => {
                // The type that the kernel's macros make for each tracepoint.
                plain(btf.find(&format!("btf_trace_{name}"), Kind::Typedef).is_some())
            }
            _ => unknown("no types to look it up in"),
        },
        (None, None, Some(Err(why))) => unknown(why.clone()),
        (None, None, None) => unknown("not tried"),
    };
    let what = |place: Place| match place {
        Place::RawTracepoint(name) => (format!("tracepoint-{name}"), format!("tracepoint {name}")),
        Place::Function(name) => (format!("function-{name}"), format!("function {name}() to probe")),
    };
    hooks::places()
        .map(|(place, since)| {
            let (id, what) = what(place);
            fact(&id, &what, since, found(place))
        })
        .collect()
}

fn conversion(seen: &Seen) -> Vec<Feature> {
    let function = match &seen.features {
        Ok(features) => plain(features.kernel_btf.find("update_socket_protocol", Kind::Func).is_some()),
        Err(error) => unknown(error.to_string()),
    };
    // Asking for such a socket would load the module.
    let protocol = match seen.without_smc() {
        Some((state, why)) => (state, Some(why)),
        None => match inet_smc_socket() {
            Ok(_) => plain(true),
            Err(error) => no(error.to_string()),
        },
    };
    let sysctl = match seen.without_smc() {
        Some((state, why)) => (state, Some(why)),
        None => plain(Path::new(crate::convert::TCP2SMC).exists()),
    };
    vec![
        fact("update-socket-protocol", "update_socket_protocol() to change", "6.6", function),
        fact("ipproto-smc", "sockets by IPPROTO_SMC", "6.11", protocol),
        fact("tcp2smc", "net.smc.tcp2smc (Alibaba Cloud Linux, Anolis)", "", sysctl),
    ]
}

fn inet_smc_socket() -> io::Result<OwnedFd> {
    // SAFETY: plain numbers; a descriptor that comes back is ours alone and closed by OwnedFd.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, IPPROTO_SMC) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: see above.
    Ok(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(socket) })
}

fn netlink_parts(seen: &Seen) -> Vec<Feature> {
    // Asking for a family or for sockets would load the module.
    let asked = |ask: &dyn Fn() -> netlink::Result<()>| match seen.without_smc() {
        Some((state, why)) => (state, Some(why)),
        None => match ask() {
            Ok(()) => plain(true),
            Err(error) => no(error.to_string()),
        },
    };
    let diag = match module("smc_diag", &seen.release) {
        ModuleState::Loadable => in_module("smc_diag", ModuleState::Loadable),
        _ => asked(&|| netlink::diag::sockets().map(drop)),
    };
    let pnet = asked(&|| netlink::pnet::PnetTable::open().map(drop));
    let mut facts = vec![
        fact("smc-diag", "list SMC sockets", "4.12", diag),
        fact("genl-pnet", "PNET table", "4.11", pnet),
    ];
    let known = match seen.without_smc() {
        Some((state, why)) => Err((state, Some(why))),
        None => smc::commands().map_err(|error| no(error.to_string())),
    };
    let family = known.as_ref().map_or_else(Clone::clone, |_| plain(true));
    facts.push(fact("genl-smc", "SMC's generic netlink", "5.11", family));
    for command in smc::wanted_commands() {
        let state = match &known {
            Ok(known) => plain(known.iter().any(|(other, there)| other.number == command.number && *there)),
            // The family's own line says why.
            Err((state, _)) => (*state, None),
        };
        facts.push(fact(&format!("genl-{}", command.number), command.what, command.since, state));
    }
    facts
}
