//! The maps that the programs share with the agent, and the policy table in them.

use std::{
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use aya::maps::{Array, ArrayOfMaps, HashMap, Map, MapData, MapError, PerCpuArray, PerCpuValues};
use serde::Serialize;
use smc_agent_common::{Counter, Fixed, Line, MAX_RULES, table::MAGIC};
use thiserror::Error;

use super::sys;
use crate::policy::PolicyTable;

/// Table slots: one in force, one to prepare the next table in.
const SLOTS: u32 = 2;
/// Hit counters of a slot: one a rule, and one for the default after them.
#[expect(clippy::cast_possible_truncation, reason = "4096")]
const HITS_PER_SLOT: u32 = MAX_RULES as u32 + 1;
/// `BPF_F_INNER_MAP` (uapi/linux/bpf.h): inner maps of one outer map may differ in size.
const BPF_F_INNER_MAP: u32 = 1 << 12;

/// The maps that are pinned, by the names that the programs know them by.
pub const PINNED: [&str; 9] = [
    "SLOT_IN_FORCE",
    "TABLE_FIXED",
    "TABLE_LINES",
    "HITS",
    "COUNTERS",
    "REFUSALS",
    "SCOPE",
    "EVENTS",
    "OWNERS",
];

/// A step with the maps failed.
#[derive(Debug, Error)]
pub enum MapsError {
    /// aya's word on it.
    #[error("map {map}: {}", super::with_causes(.source))]
    Map {
        /// Which map.
        map: &'static str,
        /// What happened.
        source: MapError,
    },
    /// A call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

pub(super) fn of(map: &'static str) -> impl Fn(MapError) -> MapsError {
    move |source| MapsError::Map { map, source }
}

pub(super) fn failed(what: &str) -> impl FnOnce(io::Error) -> MapsError {
    let what = what.to_owned();
    move |source| MapsError::Io { what, source }
}

/// Handles of the pinned maps.
pub struct Maps {
    slot_in_force: Array<MapData, u32>,
    fixed: MapData,
    lines: ArrayOfMaps<MapData, MapData>,
    hits: PerCpuArray<MapData, u64>,
    counters: PerCpuArray<MapData, u64>,
    scope: HashMap<MapData, u32, u8>,
    folder: PathBuf,
}

/// How often each rule decided (or, in shadow mode, would have), and the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hits {
    /// One count a rule, in the order of the rules.
    pub rules: Vec<u64>,
    /// Flows that no rule decided.
    pub default: u64,
}

/// How long it took to put a table into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Copying it into the kernel.
    pub write: Duration,
    /// Putting it in the place of the former one, which is mostly waiting until nothing uses that.
    pub swap: Duration,
}

/// What a table takes in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct TableSize {
    /// Bytes.
    pub memory: usize,
    /// Rules.
    pub rules: u32,
    /// Cache lines besides the part of fixed size.
    pub lines: u32,
}

impl Maps {
    /// Opens the maps pinned in `folder`.
    pub fn open(folder: &Path) -> Result<Self, MapsError> {
        macro_rules! typed {
            ($name:literal) => {
                open_pinned(folder, $name)?.try_into().map_err(of($name))?
            };
        }
        Ok(Self {
            slot_in_force: typed!("SLOT_IN_FORCE"),
            fixed: MapData::from_pin(folder.join("TABLE_FIXED")).map_err(of("TABLE_FIXED"))?,
            lines: typed!("TABLE_LINES"),
            hits: typed!("HITS"),
            counters: typed!("COUNTERS"),
            scope: typed!("SCOPE"),
            folder: folder.to_owned(),
        })
    }

    /// Generation of the table in force; `None` before the first.
    pub fn generation(&self) -> Result<Option<u64>, MapsError> {
        Ok(self.table_in_force()?.map(|fixed| fixed.header.generation))
    }

    /// What the table in force takes; `None` before the first.
    pub fn table_size(&self) -> Result<Option<TableSize>, MapsError> {
        Ok(self.table_in_force()?.map(|fixed| TableSize {
            memory: size_of::<Fixed>() + fixed.header.lines as usize * size_of::<Line>(),
            rules: fixed.header.rules,
            lines: fixed.header.lines,
        }))
    }

    /// Whether `table` is, word for word, the one in force, whatever the generation of either.
    pub fn holds(&self, table: &PolicyTable) -> Result<bool, MapsError> {
        let Some(mut fixed) = self.table_in_force()? else { return Ok(false) };
        fixed.header.activated = table.fixed.header.activated;
        fixed.header.generation = table.fixed.header.generation;
        if bytemuck::bytes_of(&*fixed) != bytemuck::bytes_of(&*table.fixed) {
            return Ok(false);
        }
        let inner = self.lines.get(&self.slot()?, 0).map_err(of("TABLE_LINES"))?;
        let mut lines = vec![Line { words: [0; 8] }; table.lines.len()];
        let bytes = bytemuck::cast_slice_mut(&mut lines);
        let read = sys::array_lookup(inner.fd().as_fd(), bytes, size_of::<Line>());
        Ok(read.map_err(failed("read the table's lines"))? == lines.len() && lines == table.lines)
    }

    fn table_in_force(&self) -> Result<Option<Box<Fixed>>, MapsError> {
        let slot = self.slot()?;
        let mut fixed: Box<Fixed> = bytemuck::allocation::zeroed_box();
        sys::map_lookup(self.fixed.fd().as_fd(), &slot.to_ne_bytes(), bytemuck::bytes_of_mut(&mut *fixed))
            .map_err(failed("read the table in force"))?;
        Ok((fixed.header.magic == MAGIC).then_some(fixed))
    }

    fn slot(&self) -> Result<u32, MapsError> {
        self.slot_in_force.get(&0, 0).map_err(of("SLOT_IN_FORCE"))
    }

    /// Puts `table` into force in the place of the present one, in one step. Lookups are never blocked, and each sees
    /// one of the two tables as a whole. When this returns, the memory of the former table is free.
    pub fn install(&mut self, table: &mut PolicyTable) -> Result<Installed, MapsError> {
        let start = Instant::now();
        let present = self.slot()?;
        let next = (present + 1) % SLOTS;
        self.clear_hits(next)?;
        let lines = lines_map(table.lines.len().max(1))?;
        sys::array_update(lines.fd().as_fd(), 0, bytemuck::cast_slice(&table.lines), size_of::<Line>())
            .map_err(failed("write the table's lines"))?;
        table.fixed.header.activated = monotonic_now();
        let fixed = bytemuck::bytes_of(&*table.fixed);
        sys::map_update(self.fixed.fd().as_fd(), &next.to_ne_bytes(), fixed)
            .map_err(failed("write the table's fixed part"))?;
        let write = start.elapsed();
        self.lines.set(next, &lines, 0).map_err(of("TABLE_LINES"))?;
        self.slot_in_force.set(0, next, 0).map_err(of("SLOT_IN_FORCE"))?;
        // The kernel waits for a grace period when a map within a map is written, so that after this no program
        // uses the slot that was in force before: only then may it be emptied, and the next call write there.
        self.lines.set(next, &lines, 0).map_err(of("TABLE_LINES"))?;
        self.empty(present)?;
        Ok(Installed { write, swap: start.elapsed().saturating_sub(write) })
    }

    /// One of the maps, for calls that aya has no function for.
    fn pinned(&self, name: &str) -> Result<OwnedFd, MapsError> {
        sys::open_pin(&self.folder.join(name)).map_err(failed("open a pinned map"))
    }

    /// Frees the lines of the table in a slot that no program uses.
    fn empty(&self, slot: u32) -> Result<(), MapsError> {
        match sys::map_delete(self.pinned("TABLE_LINES")?.as_fd(), &slot.to_ne_bytes()) {
            // Before the first table there is none.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result.map_err(failed("free the former table")),
        }
    }

    /// Sets the hit counters of a slot to 0.
    fn clear_hits(&mut self, slot: u32) -> Result<(), MapsError> {
        let cpus =
            aya::util::nr_cpus().map_err(|(what, source)| MapsError::Io { what: what.to_owned(), source })?;
        let first = slot * HITS_PER_SLOT;
        let zeros = vec![0_u64; HITS_PER_SLOT as usize * cpus];
        match sys::array_update(
            self.pinned("HITS")?.as_fd(),
            first,
            bytemuck::cast_slice(&zeros),
            size_of::<u64>() * cpus,
        ) {
            // ENOTSUPP, which libc has no name for: kernels before 5.13 take one element of such a map at a time.
            Err(error) if matches!(error.raw_os_error(), Some(524 | libc::EOPNOTSUPP)) => {}
            result => return result.map_err(failed("clear hit counters")),
        }
        for index in first..first + HITS_PER_SLOT {
            let zeros = PerCpuValues::try_from(vec![0; cpus]).map_err(failed("prepare hit counters"))?;
            self.hits.set(index, zeros, 0).map_err(of("HITS"))?;
        }
        Ok(())
    }

    /// Hits since the table in force was installed; `rules` is its number of rules.
    pub fn hits(&self, rules: usize) -> Result<Hits, MapsError> {
        let first = self.slot()? * HITS_PER_SLOT;
        let read = |index: u32| -> Result<u64, MapsError> {
            Ok(self.hits.get(&(first + index), 0).map_err(of("HITS"))?.iter().sum())
        };
        Ok(Hits {
            rules: (0..HITS_PER_SLOT - 1).take(rules).map(read).collect::<Result<_, _>>()?,
            default: read(HITS_PER_SLOT - 1)?,
        })
    }

    /// What the programs counted.
    pub fn counter(&self, counter: Counter) -> Result<u64, MapsError> {
        Ok(self.counters.get(&(counter as u32), 0).map_err(of("COUNTERS"))?.iter().sum())
    }

    /// Says in which network namespaces (by inode number; [`SCOPE_ALL`] for all) the policy is enforced.
    pub fn set_scope(&mut self, namespaces: &[u32]) -> Result<(), MapsError> {
        for namespace in namespaces {
            self.scope.insert(namespace, 1, 0).map_err(of("SCOPE"))?;
        }
        for namespace in self.scope()?.into_iter().filter(|present| !namespaces.contains(present)) {
            self.scope.remove(&namespace).map_err(of("SCOPE"))?;
        }
        Ok(())
    }

    /// In which network namespaces the policy is enforced, as [`set_scope`](Self::set_scope) was told.
    pub fn scope(&self) -> Result<Vec<u32>, MapsError> {
        self.scope.keys().collect::<Result<_, _>>().map_err(of("SCOPE"))
    }

    /// Unpins all maps: they go when the last program that uses them does.
    pub fn unpin(folder: &Path) -> io::Result<()> {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// Whether any BPF map of the system holds sockets for redirection. Needs `CAP_SYS_ADMIN`.
pub(crate) fn has_sockmaps() -> io::Result<bool> {
    /// `BPF_MAP_TYPE_SOCKMAP` and `BPF_MAP_TYPE_SOCKHASH` (uapi/linux/bpf.h).
    const HOLD_SOCKETS: [u32; 2] = [15, 18];
    for id in sys::map_ids() {
        // Maps come and go while they are listed.
        let Ok(map) = sys::map_by_id(id?) else { continue };
        if sys::map_info(map.as_fd()).is_ok_and(|info| HOLD_SOCKETS.contains(&info.type_)) {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn open_pinned(folder: &Path, name: &'static str) -> Result<Map, MapsError> {
    MapData::from_pin(folder.join(name)).and_then(Map::from_map_data).map_err(of(name))
}

/// Makes a map of so many lines, of the kind that `TABLE_LINES` takes.
fn lines_map(entries: usize) -> Result<MapData, MapsError> {
    const ROOM: &str = "make room for a table in the kernel";
    let entries = u32::try_from(entries).map_err(|error| failed(ROOM)(io::Error::other(error)))?;
    let btf = sys::btf_load(&lines_btf()).map_err(failed("describe a table to the kernel"))?;
    let types = sys::MapTypes { btf: btf.as_fd(), key: 1, value: 3 };
    let fd: OwnedFd =
        sys::array("lines", LINE_SIZE, entries, BPF_F_INNER_MAP, &types).map_err(failed(ROOM))?;
    MapData::from_fd(fd).map_err(of("TABLE_LINES"))
}

#[expect(clippy::cast_possible_truncation, reason = "64")]
const LINE_SIZE: u32 = size_of::<Line>() as u32;

/// BTF of keys (type 1) and values (type 3) of a map of lines, as BTF.rst of the kernel's documentation lays it out.
///
/// Kernels before 6.2 compare what the types of a map say of timers with that of the map that `TABLE_LINES` was made
/// with, and take no types and none with a timer for different (`bpf_map_meta_equal`).
fn lines_btf() -> Vec<u8> {
    const STRINGS: &[u8] = b"\0u32\0Line\0words\0";
    const INT: u32 = 1 << 24;
    const ARRAY: u32 = 3 << 24;
    const STRUCT_OF_ONE: u32 = 4 << 24 | 1;
    let types: [[u32; 6]; 3] = [
        // u32: name, kind, size, bits.
        [1, INT, 4, 32, 0, 0],
        // 16 of type 1, indexed by type 1: no name, kind, nothing, type, index, number.
        [0, ARRAY, 0, 1, 1, LINE_SIZE / 4],
        // struct Line { words: type 2 }: name, kind, size; name, type and offset of the member.
        [5, STRUCT_OF_ONE, LINE_SIZE, 10, 2, 0],
    ];
    let lengths = [4, 6, 6];
    let words: Vec<u32> =
        types.iter().zip(lengths).flat_map(|(words, length)| words[..length].to_vec()).collect();
    let types: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    #[expect(clippy::cast_possible_truncation, reason = "less than a hundred bytes")]
    let (types_length, strings_length) = (types.len() as u32, STRINGS.len() as u32);
    // Length of the header; offset and length of the types, of the strings.
    let header = [24, 0, types_length, types_length, strings_length].map(u32::to_ne_bytes);
    // Magic, version 1, no flags.
    [&0xeb9f_u16.to_ne_bytes()[..], &[1, 0], header.as_flattened(), &types, STRINGS].concat()
}

/// `CLOCK_MONOTONIC`, nanoseconds: the clock of `bpf_ktime_get_ns()`.
pub(crate) fn monotonic_now() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| {
        u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec()).unwrap_or(0)
    })
}
