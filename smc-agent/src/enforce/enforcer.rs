//! The life of what enforces: found, replaced without a gap, given new tables.
//!
//! An object's pins are made in a folder of another name and renamed when complete. A new table, a new program and a
//! new ctrl each take the place of the old in one step of the kernel; only then is the old removed. So whenever the
//! process dies, what is enforced is the old policy or the new one.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use aya::{Ebpf, EbpfError};
use thiserror::Error;
use tracing::{debug, info, warn};

use super::{
    Backend, BackendChoice, Candidate, PolicyRecord,
    detach::remove_object,
    places::{ObjectPlaces, Places, at},
};
use crate::{
    files::{remove_file, remove_folder},
    kernel::{
        clsact,
        features::{Features, Smc},
        hs_ctrl::{self, HsCtrlError, Prepared, Registered},
        loader::{Loader, LoaderError},
        maps::{Maps, MapsError},
        object,
        tc::{self, Tc, TcError, Way},
    },
    netlink::link::{self, Link},
    netns,
    policy::{self, Policy},
};

/// Why the policy could not be put into force.
#[derive(Debug, Error)]
pub enum EnforceError {
    /// No backend of those asked for works on this kernel.
    #[error("no backend works on this kernel: {}", list(.0))]
    NoBackend(Vec<Candidate>),
    /// The object could not be loaded.
    #[error("load the BPF object: {}", crate::kernel::with_causes(.0))]
    Object(#[from] EbpfError),
    /// A program of an own kind could not be loaded.
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// A map could not be used.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// A step of the backend hs-ctrl failed.
    #[error(transparent)]
    HsCtrl(#[from] HsCtrlError),
    /// A step of the backend tc failed.
    #[error(transparent)]
    Tc(#[from] TcError),
    /// The interfaces could not be listed.
    #[error(transparent)]
    Netlink(#[from] crate::netlink::Error),
    /// The policy does not compile to a table.
    #[error(transparent)]
    Compile(#[from] policy::CompileError),
    /// No interface could be covered.
    #[error("traffic control took the programs, but none of the interfaces did (the reasons are above)")]
    NothingCovered,
    /// A file or folder could not be used.
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn list(candidates: &[Candidate]) -> String {
    let each = candidates.iter().map(|candidate| format!("{}: {}", candidate.backend, candidate.reason));
    each.collect::<Vec<_>>().join("; ")
}

/// How to enforce.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where things are kept.
    pub places: Places,
    /// Which backend to use.
    pub backend: BackendChoice,
    /// Bounds of the policy.
    pub limits: policy::Limits,
    /// Level of the programs' own messages, as aya-log counts it; 0 is off.
    pub log_level: u8,
    /// Events a second with one code and one peer that are reported; 0: all.
    pub event_rate: u32,
}

#[derive(Debug)]
enum Active {
    HsCtrl(Registered),
    Tc(Tc),
    Observe,
}

/// What enforces the policy at present. Dropping it leaves everything in the kernel as it is.
pub struct Enforcer {
    options: Options,
    maps: Maps,
    ebpf: Ebpf,
    active: Active,
    candidates: Vec<Candidate>,
    adopted: bool,
    generation: u64,
    netns: u32,
}

impl Enforcer {
    /// Puts `policy`, read from `sources`, into force. Nothing in the kernel has changed if this fails before the
    /// last steps, and what an earlier agent left goes on until the new policy is there.
    pub fn start(
        options: Options,
        features: &Features,
        policy: &Policy,
        sources: &[PathBuf],
    ) -> Result<Self, EnforceError> {
        options.places.prepare()?;
        let netns = netns::own_inode()?;
        let generation = last_generation(&options.places)? + 1;
        // Compiled before anything is touched: a policy that is too large changes nothing.
        let mut table = policy::compile(policy, generation, &options.limits)?;

        let id = object::id(options.log_level);
        let finished = options.places.of_object(&id);
        let unfinished = options.places.of_object(object::UNFINISHED);
        unfinished.remove()?;
        let adopted = finished.root.exists();
        let pins = if adopted { &finished } else { &unfinished };
        make(&pins.maps())?;
        let offsets = features.offsets();
        let mut ebpf = object::load(&object::Options {
            maps: Some(&pins.maps()),
            offsets: &offsets,
            enforcing: options.backend != BackendChoice::Observe,
            log_level: options.log_level,
            event_rate: options.event_rate,
            fallback_tracepoint: features.fallback_tracepoint,
        })?;
        let mut candidates = Vec::new();
        let prepared = choose(&options, features, &mut ebpf, pins, &mut candidates);
        let Some(prepared) = prepared else {
            unfinished.remove()?;
            return Err(EnforceError::NoBackend(candidates));
        };
        if !adopted {
            fs::rename(&unfinished.root, &finished.root).map_err(at("rename", &unfinished.root))?;
        }
        let mut maps = Maps::open(&finished.maps())?;

        // The names before the table, so that every event can be named.
        PolicyRecord::new(policy, sources, generation).write(&options.places)?;
        maps.install(&mut table)?;
        maps.set_scope(&[netns])?;
        let others = options.places.of_other_objects(&id)?;
        let active = prepared.activate(&options.places, &finished, &others, netns)?;
        let mut enforcer = Self { options, maps, ebpf, active, candidates, adopted, generation, netns };
        enforcer.remove_leftovers(features, &finished, &others);
        Ok(enforcer)
    }

    /// Puts another policy into force, in one step.
    pub fn reload(&mut self, policy: &Policy, sources: &[PathBuf]) -> Result<(), EnforceError> {
        let generation = self.generation + 1;
        let mut table = policy::compile(policy, generation, &self.options.limits)?;
        PolicyRecord::new(policy, sources, generation).write(&self.options.places)?;
        self.maps.install(&mut table)?;
        self.generation = generation;
        // Events of the generation before may still be on their way.
        if let Err(error) = PolicyRecord::remove_before(&self.options.places, generation - 1) {
            warn!("{error}");
        }
        Ok(())
    }

    /// Covers an interface that has appeared or changed.
    pub fn cover(&mut self, interface: &Link) -> Result<(), EnforceError> {
        if let Active::Tc(tc) = &mut self.active {
            tc.attach(self.netns, interface, &[])?;
        }
        Ok(())
    }

    /// Takes note that an interface has gone.
    pub fn uncover(&mut self, interface: &Link) {
        if let Active::Tc(tc) = &self.active {
            tc.forget(self.netns, interface.index);
        }
    }

    /// The backend in use.
    pub fn backend(&self) -> Backend {
        match self.active {
            Active::HsCtrl(_) => Backend::HsCtrl,
            Active::Tc(_) => Backend::Tc,
            Active::Observe => Backend::Observe,
        }
    }

    /// The backends that were considered.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Whether the programs of an earlier agent are in use.
    pub fn adopted(&self) -> bool {
        self.adopted
    }

    /// The generation in force.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The maps.
    pub fn maps(&self) -> &Maps {
        &self.maps
    }

    /// The loaded object: for tracing, which uses the same maps.
    pub fn ebpf_mut(&mut self) -> &mut Ebpf {
        &mut self.ebpf
    }

    /// Removes what is not in use any more: objects of earlier versions, and the other backend's part of this one.
    /// What cannot be removed is reported and left for the next start.
    fn remove_leftovers(&mut self, features: &Features, mine: &ObjectPlaces, others: &[ObjectPlaces]) {
        let mut problems = Vec::new();
        let in_use = match &self.active {
            Active::HsCtrl(registered) => Some(registered.name()),
            Active::Tc(_) | Active::Observe => None,
        };
        if in_use.is_none()
            && let Err(error) = hs_ctrl::deselect()
        {
            problems.push(error.to_string());
        }
        if let Ok(btf) = &features.smc_btf {
            for registered in Registered::all(btf).unwrap_or_default() {
                if Some(registered.name()) != in_use {
                    debug!("unregistering {} of an earlier agent", registered.name());
                    problems.extend(registered.unregister().err().map(|error| error.to_string()));
                }
            }
        }
        if !matches!(self.active, Active::HsCtrl(_)) {
            problems.extend(remove_file(&mine.hs_ctrl()).err().map(|error| error.to_string()));
        }
        if !matches!(self.active, Active::Tc(_)) {
            problems.extend(tc::remove_links(&mine.links()).err().map(|error| error.to_string()));
            problems.extend(remove_folder(&mine.programs()).err().map(|error| error.to_string()));
            clsact::remove_all(self.netns, &self.options.places.clsact_marks(), &mut problems);
        }
        for other in others {
            info!("removing what an earlier version left in {}", other.root.display());
            remove_object(other, &mut problems);
        }
        let oldest = PolicyRecord::remove_before(&self.options.places, self.generation.saturating_sub(1));
        problems.extend(oldest.err().map(|error| error.to_string()));
        for problem in problems {
            warn!("left behind: {problem}");
        }
    }
}

/// A backend whose programs the kernel has accepted; it decides nothing yet.
enum Ready {
    HsCtrl(Box<(Prepared, Loader)>),
    HsCtrlAdopted(Registered),
    Tc,
    Observe,
}

impl Ready {
    /// Lets it decide from now on, in the place of what decided before.
    fn activate(
        self,
        places: &Places,
        pins: &ObjectPlaces,
        others: &[ObjectPlaces],
        netns: u32,
    ) -> Result<Active, EnforceError> {
        match self {
            Self::HsCtrl(ready) => {
                let (prepared, loader) = *ready;
                remove_file(&pins.hs_ctrl())?;
                let registered = prepared.register(&loader, &pins.hs_ctrl())?;
                if let Err(error) = hs_ctrl::select(registered.name()) {
                    let _ = registered.unregister();
                    let _ = remove_file(&pins.hs_ctrl());
                    return Err(error.into());
                }
                Ok(Active::HsCtrl(registered))
            }
            Self::HsCtrlAdopted(registered) => {
                hs_ctrl::select(registered.name())?;
                Ok(Active::HsCtrl(registered))
            }
            Self::Tc => {
                let way = Way::of_this_kernel(pins.links(), places.clsact_marks());
                let mut tc = Tc::open(&pins.programs(), way)?;
                tc.leave_other_namespaces(netns)?;
                let former: Vec<PathBuf> = others.iter().map(ObjectPlaces::links).collect();
                let interfaces = link::list()?;
                let mut covered = 0;
                for interface in &interfaces {
                    match tc.attach(netns, interface, &former) {
                        Ok(()) => covered += 1,
                        // The others are covered all the same; `status` names this one.
                        Err(error) => warn!("{error}"),
                    }
                }
                if covered == 0 && !interfaces.is_empty() {
                    return Err(EnforceError::NothingCovered);
                }
                Ok(Active::Tc(tc))
            }
            Self::Observe => Ok(Active::Observe),
        }
    }
}

/// Takes the first backend whose programs the kernel accepts, and says of each what came of it.
fn choose(
    options: &Options,
    features: &Features,
    ebpf: &mut Ebpf,
    pins: &ObjectPlaces,
    candidates: &mut Vec<Candidate>,
) -> Option<Ready> {
    for backend in options.backend.candidates().iter().copied() {
        let result = match backend {
            Backend::HsCtrl => prepare_hs_ctrl(features, ebpf, pins),
            Backend::Tc => prepare_tc(ebpf, pins),
            Backend::Observe => Ok((Ready::Observe, "asked for".to_owned())),
        };
        match result {
            Ok((ready, reason)) => {
                candidates.push(Candidate { backend, chosen: true, reason });
                return Some(ready);
            }
            Err(reason) => candidates.push(Candidate { backend, chosen: false, reason }),
        }
    }
    None
}

fn prepare_hs_ctrl(features: &Features, ebpf: &Ebpf, pins: &ObjectPlaces) -> Result<(Ready, String), String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    if features.smc == Smc::Absent {
        return Err("this kernel has no SMC (module smc is not loaded)".to_owned());
    }
    // Before the types: older kernels describe none of a module's.
    if !Path::new(hs_ctrl::SYSCTL).exists() {
        return Err(HsCtrlError::NoType.to_string());
    }
    let btf = features.smc_btf.as_ref().map_err(|error| text(error))?;
    if let Some(foreign) =
        hs_ctrl::selected().map_err(|error| text(&error))?.filter(|name| !hs_ctrl::is_ours(name))
    {
        return Err(HsCtrlError::Foreign(foreign).to_string());
    }
    if let Ok(Some(registered)) = Registered::open(&pins.hs_ctrl(), btf) {
        let reason = format!("{} of an earlier agent is registered", registered.name());
        return Ok((Ready::HsCtrlAdopted(registered), reason));
    }
    let loader = Loader::new(object::BYTES, ebpf).map_err(|error| text(&error))?;
    let object =
        features.smc_btf_object().map_err(|error| format!("look up the BTF of module smc: {error}"))?;
    let prepared = Prepared::new(&loader, btf, object).map_err(|error| {
        if let HsCtrlError::Load(LoaderError::Program { log, .. }) = &error {
            debug!("verifier log:\n{log}");
        }
        text(&error)
    })?;
    let place = if features.smc == Smc::Module { "module smc" } else { "this kernel" };
    Ok((Ready::HsCtrl(Box::new((prepared, loader))), format!("{place} has struct smc_hs_ctrl")))
}

fn prepare_tc(ebpf: &mut Ebpf, pins: &ObjectPlaces) -> Result<(Ready, String), String> {
    let way = match Way::of_this_kernel(PathBuf::new(), PathBuf::new()) {
        Way::Tcx { .. } => "traffic control takes the programs (tcx)",
        Way::Clsact { .. } => "traffic control takes the programs (clsact: tcx came with 6.6)",
    };
    let programs = pins.programs();
    if programs.exists() {
        return Ok((Ready::Tc, format!("{way}; those of an earlier agent are there")));
    }
    make(&programs).map_err(|error| error.to_string())?;
    tc::load(ebpf, &programs).map_err(|error| {
        let _ = remove_folder(&programs);
        error.to_string()
    })?;
    Ok((Ready::Tc, way.to_owned()))
}

/// The highest generation that any earlier agent got to; 0 if there was none.
fn last_generation(places: &Places) -> io::Result<u64> {
    let objects = places.of_other_objects("")?;
    let generations =
        objects.iter().filter_map(|object| Maps::open(&object.maps()).ok()?.generation().ok()?);
    Ok(generations.max().unwrap_or(0))
}

fn make(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder).map_err(at("make", folder))
}
