//! The BPF object that converts sockets: loaded, attached and pinned, and its rules exchanged.
//!
//! Links and maps are pinned, so that conversion outlives the process. Taking the last pin of a link away ends it, some
//! time after the call: the kernel leaves it to a worker.

use std::{
    collections::BTreeMap,
    ffi::CStr,
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{Array, ArrayOfMaps, HashMap, MapData, PerCpuArray, PerCpuValues},
};
use smc_agent_common::convert::{
    CONVERT_HITS, ConvertCounter, ConvertRules, ConvertTable, Dimension, MAX_PATH, SelectorKey,
};
use thiserror::Error;

use super::{
    btf::{Btf, BtfError, Kind},
    loader::{Loader, LoaderError},
    maps::{MapsError, failed, of, open_pinned},
    object, offsets, sys,
};

/// The bytes of the object.
static BYTES: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/smc-agent-convert.o"));

/// The function whose result is replaced (net/socket.c).
const FUNCTION: &str = "update_socket_protocol";
const SOCKET_PROGRAM: &str = "smc_convert";
/// Programs for raw tracepoints, and which.
const GROUP_PROGRAMS: [(&str, &CStr); 2] =
    [("smc_cgroup_made", c"cgroup_mkdir"), ("smc_cgroup_gone", c"cgroup_rmdir")];
/// Names of pins.
const MAPS: &str = "maps";
const LINKS: &str = "links";

const PINNED: [&str; 8] = [
    "CONVERT_SLOT",
    "CONVERT_TABLE",
    "SELECTORS",
    "GROUPS",
    "CONVERT_HITS_MAP",
    "CONVERT_COUNTERS",
    "EXEC_GROUPS",
    "EXEC_LEVELS",
];
const SLOTS: u32 = 2;
#[expect(clippy::cast_possible_truncation, reason = "257")]
const HITS_PER_SLOT: u32 = CONVERT_HITS as u32;
/// Room for cgroups that appear: for each group that rules name so many, and some more.
const GROUPS_EACH: usize = 16;
const GROUPS_MORE: usize = 64;

/// Why conversion by BPF cannot be had, or a step of it failed.
#[derive(Debug, Error)]
pub enum ConvertBpfError {
    /// The kernel has not the function to hook.
    #[error("this kernel has no {FUNCTION}() to hook (6.6 and later; 6.11 for SMC sockets that way)")]
    NoFunction,
    /// The kernel does not let programs replace the function's result, or the verifier refused the program.
    #[error("{0} (is CONFIG_MPTCP in this kernel? it is what lets programs hook {FUNCTION}())")]
    Program(#[source] LoaderError),
    /// A program for cgroups was refused.
    #[error(transparent)]
    Loader(LoaderError),
    /// A field that is needed is not there.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The object could not be loaded.
    #[error("load the BPF object for conversion: {0}")]
    Object(#[from] EbpfError),
    /// A map could not be used.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// A call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

fn io_failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> ConvertBpfError {
    let what = what.into();
    move |source| ConvertBpfError::Io { what, source }
}

/// Names the object by its content: what is pinned under the same name can be used as it is.
pub fn id() -> String {
    object::digest(BYTES)
}

/// A cgroup that rules name, by its path filled up with zeros.
pub type GroupPath = [u8; MAX_PATH];

/// Rules, ready for the kernel.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The part of fixed size; its generation is set when it is installed.
    pub table: ConvertTable,
    /// Selectors but for cgroups.
    pub selectors: BTreeMap<SelectorKey, ConvertRules>,
    /// Cgroups, whether they exist or not.
    pub groups: BTreeMap<GroupPath, ConvertRules>,
}

/// The object, loaded and with its maps pinned; nothing is attached yet.
pub struct Prepared {
    /// Holds the maps.
    _ebpf: Ebpf,
    loader: Loader,
    socket: OwnedFd,
}

impl Prepared {
    /// Loads the object and has the kernel accept the program, with maps pinned in `folder`.
    pub fn new(folder: &Path, btf: &Btf) -> Result<Self, ConvertBpfError> {
        let function = btf.find(FUNCTION, Kind::Func).ok_or(ConvertBpfError::NoFunction)?;
        let (ebpf, loader) = load(Some(folder), btf)?;
        let socket = loader.modify_return(SOCKET_PROGRAM, function).map_err(ConvertBpfError::Program)?;
        Ok(Self { _ebpf: ebpf, loader, socket })
    }

    /// Follows cgroups from now on. To be called before rules are installed, so that no group is missed.
    pub fn follow_groups(&self, folder: &Path) -> Result<(), ConvertBpfError> {
        let links = folder.join(LINKS);
        fs::create_dir_all(&links).map_err(io_failed(format!("make {}", links.display())))?;
        for (name, tracepoint) in GROUP_PROGRAMS {
            let program = self.loader.raw_tracepoint(name).map_err(ConvertBpfError::Loader)?;
            let link = sys::raw_tracepoint_open(Some(tracepoint), program.as_fd())
                .map_err(io_failed(format!("attach {name}")))?;
            pin(&link, &links.join(name))?;
        }
        Ok(())
    }

    /// Converts from now on.
    pub fn attach(&self, folder: &Path) -> Result<(), ConvertBpfError> {
        let link = sys::raw_tracepoint_open(None, self.socket.as_fd())
            .map_err(io_failed(format!("attach to {FUNCTION}()")))?;
        pin(&link, &folder.join(LINKS).join(SOCKET_PROGRAM))
    }
}

fn pin(link: &OwnedFd, path: &Path) -> Result<(), ConvertBpfError> {
    sys::pin(link.as_fd(), path).map_err(io_failed(format!("pin {}", path.display())))
}

/// Has the kernel verify the program that converts, and attaches it nowhere.
pub fn try_load(btf: &Btf) -> Result<(), ConvertBpfError> {
    let function = btf.find(FUNCTION, Kind::Func).ok_or(ConvertBpfError::NoFunction)?;
    let (_ebpf, loader) = load(None, btf)?;
    loader.modify_return(SOCKET_PROGRAM, function).map_err(ConvertBpfError::Program).map(drop)
}

/// Loads the object. Its maps are pinned below `folder`; without one they go with it.
fn load(folder: Option<&Path>, btf: &Btf) -> Result<(Ebpf, Loader), ConvertBpfError> {
    let offsets = offsets::of_convert(btf)?;
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    for (name, offset) in &offsets {
        loader.override_global(name, offset, true);
    }
    if let Some(folder) = folder {
        let maps = folder.join(MAPS);
        fs::create_dir_all(&maps).map_err(io_failed(format!("make {}", maps.display())))?;
        for name in PINNED {
            loader.map_pin_path(name, maps.join(name));
        }
    }
    let ebpf = loader.load(BYTES)?;
    let loader = Loader::new(BYTES, &ebpf).map_err(ConvertBpfError::Loader)?;
    Ok((ebpf, loader))
}

/// What the kernel lacks, as far as its types tell.
pub fn missing_function(btf: &Btf) -> Option<ConvertBpfError> {
    btf.find(FUNCTION, Kind::Func).is_none().then_some(ConvertBpfError::NoFunction)
}

/// Whether sockets are converted by the pins in `folder`.
pub fn is_attached(folder: &Path) -> bool {
    folder.join(LINKS).join(SOCKET_PROGRAM).exists()
}

/// How often the program was left out, because it was running already on the same CPU: such sockets stay TCP.
pub fn missed(folder: &Path) -> io::Result<u64> {
    Ok(statistics(folder)?.2)
}

/// How often the program ran and for how many nanoseconds in all, while `kernel.bpf_stats_enabled` was set, and how
/// often it was left out.
pub fn statistics(folder: &Path) -> io::Result<(u64, u64, u64)> {
    let link = sys::open_pin(&folder.join(LINKS).join(SOCKET_PROGRAM))?;
    sys::program_statistics(sys::program_of_link(link.as_fd())?.as_fd())
}

/// Handles of the pinned maps.
pub struct ConvertMaps {
    slot: Array<MapData, u32>,
    table: MapData,
    selectors: ArrayOfMaps<MapData, MapData>,
    groups: ArrayOfMaps<MapData, MapData>,
    hits: PerCpuArray<MapData, u64>,
    counters: PerCpuArray<MapData, u64>,
    exec_groups: HashMap<MapData, u64, u32>,
    exec_levels: Array<MapData, u64>,
    folder: PathBuf,
}

impl ConvertMaps {
    /// Opens the maps below `folder`.
    pub fn open(folder: &Path) -> Result<Self, MapsError> {
        let folder = folder.join(MAPS);
        macro_rules! typed {
            ($name:literal) => {
                open_pinned(&folder, $name)?.try_into().map_err(of($name))?
            };
        }
        Ok(Self {
            slot: typed!("CONVERT_SLOT"),
            table: MapData::from_pin(folder.join("CONVERT_TABLE")).map_err(of("CONVERT_TABLE"))?,
            selectors: typed!("SELECTORS"),
            groups: typed!("GROUPS"),
            hits: typed!("CONVERT_HITS_MAP"),
            counters: typed!("CONVERT_COUNTERS"),
            exec_groups: typed!("EXEC_GROUPS"),
            exec_levels: typed!("EXEC_LEVELS"),
            folder,
        })
    }

    fn present(&self) -> Result<u32, MapsError> {
        self.slot.get(&0, 0).map_err(of("CONVERT_SLOT"))
    }

    /// The table in force; its generation is 0 before the first.
    pub fn table(&self) -> Result<ConvertTable, MapsError> {
        let mut table: ConvertTable = bytemuck::Zeroable::zeroed();
        sys::map_lookup(
            self.table.fd().as_fd(),
            &self.present()?.to_ne_bytes(),
            bytemuck::bytes_of_mut(&mut table),
        )
        .map_err(failed("read the rules of conversion"))?;
        Ok(table)
    }

    /// Puts rules into force in the place of the present ones, in one step. `find` gives the ids of the cgroups that exist
    /// by now; those that are made while it looks are entered by the kernel side. When this returns, nothing uses the
    /// former rules.
    pub fn install(
        &mut self,
        compiled: &mut Compiled,
        find: impl FnOnce() -> io::Result<Vec<(u64, ConvertRules)>>,
    ) -> Result<u64, MapsError> {
        let present = self.present()?;
        let next = (present + 1) % SLOTS;
        let room = compiled.selectors.len() + compiled.groups.len() * GROUPS_EACH + GROUPS_MORE;
        let groups = filled(
            ("groups", MAX_PATH),
            compiled.groups.len().max(1),
            compiled.groups.iter().map(|(path, rules)| (&path[..], rules)),
        )?;
        let selectors = filled(
            ("selectors", size_of::<SelectorKey>()),
            room,
            compiled.selectors.iter().map(|(key, rules)| (bytemuck::bytes_of(key), rules)),
        )?;
        self.selectors.set(next, &selectors, 0).map_err(of("SELECTORS"))?;
        self.groups.set(next, &groups, 0).map_err(of("GROUPS"))?;
        for (id, rules) in find().map_err(failed("look for the cgroups that rules name"))? {
            let key = SelectorKey::new(Dimension::Cgroup, id, 0);
            sys::map_update(selectors.fd().as_fd(), bytemuck::bytes_of(&key), bytemuck::bytes_of(&rules))
                .map_err(failed("enter a cgroup"))?;
        }
        self.clear_hits(next)?;
        let generation = self.table()?.generation + 1;
        compiled.table.generation = generation;
        sys::map_update(self.table.fd().as_fd(), &next.to_ne_bytes(), bytemuck::bytes_of(&compiled.table))
            .map_err(failed("write the rules of conversion"))?;
        self.slot.set(0, next, 0).map_err(of("CONVERT_SLOT"))?;
        // The kernel waits for a grace period when a map within a map is written: after it no program uses the former
        // slot.
        self.selectors.set(next, &selectors, 0).map_err(of("SELECTORS"))?;
        for name in ["SELECTORS", "GROUPS"] {
            let map = sys::open_pin(&self.folder.join(name)).map_err(failed("open a pinned map"))?;
            match sys::map_delete(map.as_fd(), &present.to_ne_bytes()) {
                // Before the first rules there are none.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                result => result.map_err(failed("free the former rules of conversion"))?,
            }
        }
        Ok(generation)
    }

    fn clear_hits(&mut self, slot: u32) -> Result<(), MapsError> {
        let cpus =
            aya::util::nr_cpus().map_err(|(what, source)| MapsError::Io { what: what.to_owned(), source })?;
        for index in slot * HITS_PER_SLOT..(slot + 1) * HITS_PER_SLOT {
            let zeros = PerCpuValues::try_from(vec![0; cpus]).map_err(failed("prepare hit counters"))?;
            self.hits.set(index, zeros, 0).map_err(of("CONVERT_HITS_MAP"))?;
        }
        Ok(())
    }

    /// How many sockets each of the first `rules` rules decided since they were put into force, and how many the
    /// default converted.
    pub fn hits(&self, rules: usize) -> Result<(Vec<u64>, u64), MapsError> {
        let first = self.present()? * HITS_PER_SLOT;
        let read = |index: u32| -> Result<u64, MapsError> {
            Ok(self.hits.get(&(first + index), 0).map_err(of("CONVERT_HITS_MAP"))?.iter().sum())
        };
        let each = (0..HITS_PER_SLOT - 1).take(rules).map(read).collect::<Result<_, _>>()?;
        Ok((each, read(HITS_PER_SLOT - 1)?))
    }

    /// What the kernel side counted besides.
    pub fn counter(&self, counter: ConvertCounter) -> Result<u64, MapsError> {
        let values = self.counters.get(&(counter as u32), 0).map_err(of("CONVERT_COUNTERS"))?;
        Ok(values.iter().sum())
    }

    /// How many selectors are in force, those of cgroups among them.
    pub fn selectors(&self) -> Result<usize, MapsError> {
        let inner = self.selectors.get(&self.present()?, 0).map_err(of("SELECTORS"))?;
        let inner: HashMap<MapData, [u8; 24], [u8; 32]> =
            aya::maps::Map::HashMap(inner).try_into().map_err(of("SELECTORS"))?;
        Ok(inner.keys().filter_map(Result::ok).count())
    }

    /// Converts all that runs in a cgroup, by its id and level, and below it.
    pub fn add_exec_group(&mut self, id: u64, level: u32) -> Result<(), MapsError> {
        let levels = self.exec_levels.get(&0, 0).map_err(of("EXEC_LEVELS"))?;
        self.exec_groups.insert(id, std::process::id(), 0).map_err(of("EXEC_GROUPS"))?;
        self.exec_levels.set(0, levels | 1 << level, 0).map_err(of("EXEC_LEVELS"))
    }

    /// Goes on with the cgroups of another object.
    pub fn take_exec_groups(&mut self, former: &Self) -> Result<(), MapsError> {
        for (id, process) in former.exec_groups.iter().filter_map(Result::ok) {
            self.exec_groups.insert(id, process, 0).map_err(of("EXEC_GROUPS"))?;
        }
        let levels = former.exec_levels.get(&0, 0).map_err(of("EXEC_LEVELS"))?;
        self.exec_levels.set(0, levels, 0).map_err(of("EXEC_LEVELS"))
    }

    /// The cgroups whose commands are converted, by their ids.
    pub fn exec_groups(&self) -> Vec<u64> {
        self.exec_groups.keys().filter_map(Result::ok).collect()
    }
}

/// Makes a hash table with these elements.
fn filled<'a>(
    (name, key): (&str, usize),
    room: usize,
    elements: impl Iterator<Item = (&'a [u8], &'a ConvertRules)>,
) -> Result<MapData, MapsError> {
    let size = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let fd = sys::hash(name, size(key), size(size_of::<ConvertRules>()), size(room))
        .map_err(failed("make room for the rules of conversion"))?;
    for (key, rules) in elements {
        sys::map_update(fd.as_fd(), key, bytemuck::bytes_of(rules))
            .map_err(failed("write a selector of conversion"))?;
    }
    MapData::from_fd(fd).map_err(of("SELECTORS"))
}

/// The program as one for a raw tracepoint, which the kernel runs on request: for tests and measurements on kernels that it
/// cannot be attached to, or without being attached.
pub struct Probe {
    _ebpf: Ebpf,
    program: OwnedFd,
    groups: Vec<OwnedFd>,
}

impl Probe {
    /// Loads it, with maps pinned in `folder`, and follows cgroups for as long as this lives.
    pub fn new(folder: &Path, btf: &Btf) -> Result<Self, ConvertBpfError> {
        let (ebpf, loader) = load(Some(folder), btf)?;
        let program = loader.raw_tracepoint(SOCKET_PROGRAM).map_err(ConvertBpfError::Loader)?;
        let mut groups = Vec::new();
        for (name, tracepoint) in GROUP_PROGRAMS {
            let program = loader.raw_tracepoint(name).map_err(ConvertBpfError::Loader)?;
            groups.push(
                sys::raw_tracepoint_open(Some(tracepoint), program.as_fd())
                    .map_err(io_failed(format!("attach {name}")))?,
            );
        }
        Ok(Self { _ebpf: ebpf, program, groups })
    }

    /// What becomes of the protocol when the calling process makes a socket: the program's answer, 0 for "not mine".
    pub fn ask(&self, family: i32, kind: i32, protocol: i32) -> io::Result<u32> {
        debug_assert_eq!(self.groups.len(), GROUP_PROGRAMS.len(), "both are attached");
        let word = |number: i32| u64::from(number.cast_unsigned());
        sys::run_raw_tracepoint(self.program.as_fd(), &[word(family), word(kind), word(protocol)])
    }

    /// How often it ran and for how many nanoseconds in all, while `kernel.bpf_stats_enabled` was set.
    pub fn statistics(&self) -> io::Result<(u64, u64)> {
        sys::program_statistics(self.program.as_fd()).map(|(count, time, _)| (count, time))
    }
}
