//! What can only be told by trying: whether the kernel's verifier takes the programs, and whether they can be attached. All
//! of it goes when the trial ends: nothing is pinned, registered or put on an interface.

use std::{fs, path::Path, thread};

use aya::{maps::MapType, sys::is_map_supported};
use nix::sched::{CloneFlags, unshare};

use super::{
    convert::{self, ConvertBpfError},
    features::Features,
    hooks::{self, Survey},
    hs_ctrl::Prepared,
    loader::Loader,
    object, tc, with_causes,
};
use crate::netlink::{link, qdisc};

/// What came of it.
#[derive(Debug)]
pub struct Trial {
    /// Of the ring buffer that events go through.
    pub ring_buffer: Result<bool, String>,
    /// Of tcx.
    pub tcx: Result<bool, String>,
    /// Of a qdisc clsact in a network namespace of its own; only tried where this loads no module.
    pub clsact: Result<(), String>,
    /// Of the programs for traffic control.
    pub tc: Result<(), String>,
    /// Of the members of `struct smc_hs_ctrl`.
    pub hs_ctrl: Result<(), String>,
    /// Of the program that converts sockets.
    pub convert: Result<(), String>,
    /// Of the places where events come from. `None`: the object could not be loaded.
    pub hooks: Option<Survey>,
}

/// Tries everything. Needs `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`; where SMC is not loaded its parts fail.
pub fn try_all(features: &Features) -> Trial {
    let ring_buffer = is_map_supported(MapType::RingBuf).map_err(|error| with_causes(&error));
    let tcx = tc::has_tcx().map_err(|error| error.to_string());
    let clsact = try_clsact(&features.release);
    let convert = convert::try_load(&features.kernel_btf).map_err(|error| match &error {
        ConvertBpfError::NoFunction => error.to_string(),
        error => with_causes(error),
    });
    let loaded = object::load(&object::Options {
        maps: None,
        offsets: &features.offsets(),
        enforcing: true,
        log_level: 0,
        event_rate: 0,
        fallback_tracepoint: features.fallback_tracepoint,
    });
    let mut ebpf = match loaded {
        Ok(ebpf) => ebpf,
        Err(error) => {
            let why = format!("load the BPF object: {}", with_causes(&error));
            return Trial {
                ring_buffer,
                tcx,
                clsact,
                tc: Err(why.clone()),
                hs_ctrl: Err(why),
                convert,
                hooks: None,
            };
        }
    };
    let hs_ctrl = try_hs_ctrl(features, &ebpf);
    let tc = tc::try_load(&mut ebpf).map_err(|error| error.to_string());
    let hooks = Some(hooks::survey(&mut ebpf, features));
    Trial { ring_buffer, tcx, clsact, tc, hs_ctrl, convert, hooks }
}

fn try_clsact(release: &str) -> Result<(), String> {
    if module("sch_ingress", release) != ModuleState::Absent {
        return Err("not tried: its module would be loaded".to_owned());
    }
    // The namespace goes with the thread, and the qdisc with its interface.
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|error| format!("make a network namespace: {error}"))?;
        let interfaces = link::list().map_err(|error| error.to_string())?;
        let loopback = interfaces.iter().find(|link| link.is_loopback()).ok_or("no loopback interface")?;
        qdisc::add_clsact(loopback.index).map(drop).map_err(|error| error.to_string())
    };
    thread::spawn(inside).join().map_err(|_| "the thread that tried it panicked".to_owned())?
}

fn try_hs_ctrl(features: &Features, ebpf: &aya::Ebpf) -> Result<(), String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let btf = features.smc_btf.as_ref().map_err(|error| text(error))?;
    let loader = Loader::new(object::BYTES, ebpf).map_err(|error| text(&error))?;
    let object =
        features.smc_btf_object().map_err(|error| format!("look up the BTF of module smc: {error}"))?;
    Prepared::new(&loader, btf, object, false).map(drop).map_err(|error| text(&error))
}

/// How a part of the kernel that may be a module is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleState {
    /// Loaded, or built in with something to show in `/sys/module`.
    Loaded,
    /// Built in.
    BuiltIn,
    /// In the folder of this kernel's modules, and not loaded.
    Loadable,
    /// None of it is seen.
    Absent,
}

/// Looks for a module of the running kernel, whose release is given.
pub fn module(name: &str, release: &str) -> ModuleState {
    module_in(Path::new("/sys/module"), &Path::new("/lib/modules").join(release), name)
}

fn module_in(loaded: &Path, folder: &Path, name: &str) -> ModuleState {
    let lists = |file: &str| {
        let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
        text.lines().any(|line| {
            let path = line.split(':').next().unwrap_or_default();
            let file = path.rsplit('/').next().unwrap_or_default();
            file.split(".ko").next().unwrap_or_default().replace('-', "_") == name
        })
    };
    if lists("modules.builtin") {
        ModuleState::BuiltIn
    } else if loaded.join(name).exists() {
        ModuleState::Loaded
    } else if lists("modules.dep") {
        ModuleState::Loadable
    } else {
        ModuleState::Absent
    }
}

/// Which of these functions the kernel or a module of it has by its list of symbols. One that the compiler renamed is not the
/// function.
pub fn functions(names: &[&'static str]) -> Result<Vec<&'static str>, String> {
    let path = "/proc/kallsyms";
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?;
    Ok(functions_in(&text, names))
}

fn functions_in(text: &str, names: &[&'static str]) -> Vec<&'static str> {
    let mut found: Vec<&'static str> = Vec::new();
    for line in text.lines() {
        // Address, kind, name, and the module if it is in one.
        let mut words = line.split_whitespace().skip(1);
        if let (Some("t" | "T"), Some(name)) = (words.next(), words.next())
            && let Some(name) = names.iter().find(|wanted| **wanted == name)
        {
            found.push(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(
            "modules.dep",
            "kernel/net/smc/smc.ko.xz: kernel/x/ib_core.ko.xz\nsch_ingress.ko:\nsmc-diag.ko: smc.ko\n",
        );
        write("modules.builtin", "kernel/net/ipv4/tcp_cubic.ko\n");
        let loaded = folder.path().join("sys");
        fs::create_dir_all(loaded.join("sch_ingress")).unwrap();
        let state = |name| module_in(&loaded, folder.path(), name);
        assert_eq!(state("smc"), ModuleState::Loadable);
        assert_eq!(state("smc_diag"), ModuleState::Loadable);
        assert_eq!(state("sch_ingress"), ModuleState::Loaded);
        assert_eq!(state("tcp_cubic"), ModuleState::BuiltIn);
        assert_eq!(state("ib_core"), ModuleState::Absent, "what others need is no module of its own line");
    }

    #[test]
    fn functions_are_found_by_their_whole_name() {
        let text = "0000000000000000 t smc_release\t[smc]\n0000000000000000 t smc_listen_out.isra.0\t[smc]\n\
                    0000000000000000 d smc_connect\n0000000000000000 T tcp_connect\n";
        let wanted = ["smc_release", "smc_listen_out", "smc_connect", "tcp_connect"];
        assert_eq!(functions_in(text, &wanted), ["smc_release", "tcp_connect"]);
    }
}
