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
    Backend, BackendChoice, Candidate, PolicyRecord, Where,
    active::{Active, Ready},
    coverage::Coverage,
    detach::remove_object,
    places::{ObjectPlaces, Places, at},
    scope::{Found, Scope},
};
use crate::{
    files::{remove_file, remove_folder},
    kernel::{
        features::{Features, Smc},
        hs_ctrl::{self, HsCtrlError, Prepared, Registered},
        loader::{Loader, LoaderError},
        maps::{Maps, MapsError},
        object,
        tc::{self, TcError, Way},
    },
    netlink::link::Link,
    policy::{self, Policy},
};

/// How often all network namespaces are searched for what an earlier agent left, at most: each time some may be made that
/// begin with it.
const SEARCHES: usize = 8;

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
    #[error("traffic control took the programs, but none of the interfaces did: {}", .0.join("; "))]
    NothingCovered(Vec<String>),
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
    /// In which network namespaces.
    pub place: Where,
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
    coverage: Coverage,
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
        let generation = last_generation(&options.places)? + 1;
        // Compiled before anything is touched: a policy that is too large changes nothing.
        let mut table = policy::compile(policy, generation, &options.limits)?;

        let id = object::id(options.log_level);
        let finished = options.places.of_object(&id);
        let unfinished = options.places.of_object(object::UNFINISHED);
        unfinished.remove()?;
        let adopted = finished.root.exists();
        let pins = if adopted { &finished } else { &unfinished };
        let found = options.place.scope.find()?;
        let loaded = Loaded::new(&options, features, pins, &found).inspect_err(|_| {
            // What is left of it is removed at the next start.
            let _ = unfinished.remove();
        })?;
        if !adopted {
            fs::rename(&unfinished.root, &finished.root).map_err(at("rename", &unfinished.root))?;
        }
        let mut maps = Maps::open(&finished.maps())?;

        // The names before the table, so that every event can be named.
        PolicyRecord::new(policy, sources, generation).write(&options.places)?;
        maps.install(&mut table)?;
        let others = options.places.of_other_objects(&id)?;
        let Loaded { ebpf, candidates, ready } = loaded;
        let (active, coverage) = put_into_force(&options, ready, &mut maps, found, &others)?;
        let mut enforcer = Self { options, maps, ebpf, active, candidates, adopted, generation, coverage };
        enforcer.remove_leftovers(features, &others);
        Ok(enforcer)
    }

    /// Takes into account that the kernel has something now that it had not, or lacks something that it had: module smc was
    /// loaded or removed. The policy stays in force meanwhile. The object is another one afterwards.
    pub fn renew(&mut self, features: &Features) -> Result<(), EnforceError> {
        let pins = self.pins();
        let found = self.options.place.scope.find()?;
        let Loaded { ebpf, candidates, ready } = Loaded::new(&self.options, features, &pins, &found)?;
        let (active, coverage) = put_into_force(&self.options, ready, &mut self.maps, found, &[])?;
        self.active = active;
        self.coverage = coverage;
        self.candidates = candidates;
        self.ebpf = ebpf;
        self.remove_leftovers(features, &[]);
        Ok(())
    }

    fn pins(&self) -> ObjectPlaces {
        self.options.places.of_object(&object::id(self.options.log_level))
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

    /// Covers an interface that has appeared or changed in the network namespace of that number; `None` is the agent's own.
    pub fn cover(&mut self, namespace: Option<i32>, interface: &Link) -> Result<(), EnforceError> {
        self.coverage.cover(&mut self.active, namespace, interface)
    }

    /// Takes note that an interface has gone.
    pub fn uncover(&mut self, namespace: Option<i32>, interface: &Link) {
        if let Active::Tc(tc) = &self.active {
            self.coverage.uncover(tc, namespace, interface);
        }
    }

    /// Covers all interfaces, after news of some were lost.
    pub fn cover_all(&mut self) {
        self.coverage.cover_all(&mut self.active);
    }

    /// Looks for network namespaces that have come or gone, and whether the policy is still asked in each.
    pub fn look_again(&mut self) -> Result<(), EnforceError> {
        self.coverage.look_again(&mut self.active, &mut self.maps)
    }

    /// What of the scope is not there, in words.
    pub fn not_found(&self) -> &[String] {
        self.coverage.not_found()
    }

    /// The backend in use.
    pub fn backend(&self) -> Backend {
        self.active.backend()
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

    /// Removes what is not in use any more: objects of earlier versions, the other backend's part of this one, and what was
    /// put into network namespaces that are not of the scope. What cannot be removed is reported and left for the next start.
    fn remove_leftovers(&mut self, features: &Features, others: &[ObjectPlaces]) {
        let mut problems = Vec::new();
        let mine = self.pins();
        if let Err(error) = self.search() {
            problems.push(error.to_string());
        }
        let in_use = match &self.active {
            Active::HsCtrl(registered) => Some(registered.name()),
            Active::Tc(_) | Active::Observe => None,
        };
        let marks = self.options.places.clsact_marks();
        self.active.leave_others(&marks, |inode| self.coverage.has(inode), &mut problems);
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
        if let Active::Tc(tc) = &self.active {
            let left = tc.leave_other_namespaces(&self.coverage.inodes());
            problems.extend(left.err().map(|error| error.to_string()));
        } else {
            problems.extend(tc::remove_links(&mine.links()).err().map(|error| error.to_string()));
            problems.extend(remove_folder(&mine.programs()).err().map(|error| error.to_string()));
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

    /// Looks for network namespaces until there is no new one: those that were made before the first one got what is in use now
    /// began with the ctrl of an earlier agent, and some of them may not have been seen yet.
    fn search(&mut self) -> Result<(), EnforceError> {
        if !self.options.place.scope.has_others() {
            return Ok(());
        }
        for _ in 0..SEARCHES {
            let before = self.coverage.inodes();
            self.look_again()?;
            if self.coverage.inodes() == before {
                break;
            }
        }
        Ok(())
    }
}

/// An object with a backend whose programs the kernel has accepted.
struct Loaded {
    ebpf: Ebpf,
    candidates: Vec<Candidate>,
    ready: Ready,
}

impl Loaded {
    /// Loads the object, with the maps that are pinned in `pins` or will be.
    fn new(
        options: &Options,
        features: &Features,
        pins: &ObjectPlaces,
        found: &Found,
    ) -> Result<Self, EnforceError> {
        make(&pins.maps())?;
        let mut ebpf = object::load(&object::Options {
            maps: Some(&pins.maps()),
            offsets: &features.offsets(),
            enforcing: options.backend != BackendChoice::Observe,
            log_level: options.log_level,
            event_rate: options.event_rate,
            fallback_tracepoint: features.fallback_tracepoint,
        })?;
        let mut candidates = Vec::new();
        match choose(options, features, &mut ebpf, pins, found, &mut candidates) {
            Some(ready) => Ok(Self { ebpf, candidates, ready }),
            None => Err(EnforceError::NoBackend(candidates)),
        }
    }
}

/// Lets a backend decide from now on, in the place of what decided before. Where it is to decide and can in no place, nothing
/// of it is left.
fn put_into_force(
    options: &Options,
    ready: Ready,
    maps: &mut Maps,
    found: Found,
    others: &[ObjectPlaces],
) -> Result<(Active, Coverage), EnforceError> {
    let pins = options.places.of_object(&object::id(options.log_level));
    let is_new = matches!(ready, Ready::HsCtrl(_));
    let mut active = ready.activate(&options.places, &pins)?;
    let former: Vec<PathBuf> = others.iter().map(ObjectPlaces::links).collect();
    match Coverage::begin(options.place.clone(), found, &mut active, &former) {
        Ok(coverage) => {
            coverage.write(maps)?;
            Ok((active, coverage))
        }
        Err(error) => {
            if let (Active::HsCtrl(registered), true) = (&active, is_new) {
                // The next start finds what cannot be removed now.
                let _ = registered.unregister();
                let _ = remove_file(&pins.hs_ctrl());
            }
            Err(error)
        }
    }
}

/// Takes the first backend whose programs the kernel accepts, and says of each what came of it.
fn choose(
    options: &Options,
    features: &Features,
    ebpf: &mut Ebpf,
    pins: &ObjectPlaces,
    found: &Found,
    candidates: &mut Vec<Candidate>,
) -> Option<Ready> {
    for backend in options.backend.candidates().iter().copied() {
        let result = match backend {
            Backend::HsCtrl => prepare_hs_ctrl(&options.place, features, ebpf, pins, found),
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

fn prepare_hs_ctrl(
    place: &Where,
    features: &Features,
    ebpf: &Ebpf,
    pins: &ObjectPlaces,
    found: &Found,
) -> Result<(Ready, String), String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    if features.smc == Smc::Absent {
        return Err("this kernel has no SMC (module smc is not loaded)".to_owned());
    }
    // Before the types: older kernels describe none of a module's.
    if !Path::new(hs_ctrl::SYSCTL).exists() {
        return Err(HsCtrlError::NoType.to_string());
    }
    let btf = features.smc_btf.as_ref().map_err(|error| text(error))?;
    if !place.take_over
        && let Some(foreign) = foreign_everywhere(found)
    {
        return Err(HsCtrlError::Foreign(foreign).to_string());
    }
    let inheritable = place.scope == Scope::All;
    if let Ok(Some(registered)) = Registered::open(&pins.hs_ctrl(), btf)
        && registered.is_inheritable() == inheritable
    {
        let reason = format!("{} of an earlier agent is registered", registered.name());
        return Ok((Ready::HsCtrlAdopted(registered), reason));
    }
    let loader = Loader::new(object::BYTES, ebpf).map_err(|error| text(&error))?;
    let object =
        features.smc_btf_object().map_err(|error| format!("look up the BTF of module smc: {error}"))?;
    let prepared = Prepared::new(&loader, btf, object, inheritable).map_err(|error| {
        if let HsCtrlError::Load(LoaderError::Program { log, .. }) = &error {
            debug!("verifier log:\n{log}");
        }
        text(&error)
    })?;
    let place = if features.smc == Smc::Module { "module smc" } else { "this kernel" };
    Ok((Ready::HsCtrl(Box::new((prepared, loader))), format!("{place} has struct smc_hs_ctrl")))
}

/// The other ctrl that is selected, if one is in each network namespace that was found.
fn foreign_everywhere(found: &Found) -> Option<String> {
    let mut last = None;
    for namespace in found.namespaces.values() {
        let selected = namespace.enter(hs_ctrl::selected).ok()?.ok()??;
        last = Some(selected).filter(|name| !hs_ctrl::is_ours(name));
        last.as_ref()?;
    }
    last
}

fn prepare_tc(ebpf: &mut Ebpf, pins: &ObjectPlaces) -> Result<(Ready, String), String> {
    let way = match Way::of_this_kernel(PathBuf::new(), PathBuf::new()) {
        Way::Tcx { .. } => "traffic control takes the programs (tcx)",
        Way::Clsact { .. } => "traffic control takes the programs (clsact: tcx came with 6.6)",
    };
    let programs = pins.programs();
    if tc::is_loaded(&programs) {
        return Ok((Ready::Tc, format!("{way}; those of an earlier agent are there")));
    }
    remove_folder(&programs).and_then(|()| make(&programs)).map_err(|error| error.to_string())?;
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
