//! The maps that the programs share with the agent, and the policy table in them.

use std::{
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use aya::maps::{Array, ArrayOfMaps, HashMap, Map, MapData, MapError, PerCpuArray, PerCpuValues, RingBuf};
use serde::Serialize;
use smc_agent_common::{Counter, Fixed, Line, MAX_RULES};
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
pub const PINNED: [&str; 8] =
    ["SLOT_IN_FORCE", "TABLE_FIXED", "TABLE_LINES", "HITS", "COUNTERS", "REFUSALS", "SCOPE", "EVENTS"];

/// A step with the maps failed.
#[derive(Debug, Error)]
pub enum MapsError {
    /// aya's word on it.
    #[error("map {map}: {source}")]
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
    fixed: ArrayOfMaps<MapData, MapData>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
            fixed: typed!("TABLE_FIXED"),
            lines: typed!("TABLE_LINES"),
            hits: typed!("HITS"),
            counters: typed!("COUNTERS"),
            scope: typed!("SCOPE"),
            folder: folder.to_owned(),
        })
    }

    /// The ring buffer of events. Only one reader makes sense at a time.
    pub fn events(&self) -> Result<RingBuf<MapData>, MapsError> {
        let name = "EVENTS";
        open_pinned(&self.folder, name)?.try_into().map_err(of(name))
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
        let inner = match self.fixed.get(&slot, 0) {
            Ok(inner) => inner,
            Err(MapError::KeyNotFound) => return Ok(None),
            Err(error) => return Err(of("TABLE_FIXED")(error)),
        };
        let mut fixed: Box<Fixed> = bytemuck::allocation::zeroed_box();
        sys::map_lookup(inner.fd().as_fd(), &0_u32.to_ne_bytes(), bytemuck::bytes_of_mut(&mut *fixed))
            .map_err(failed("read the table in force"))?;
        Ok(Some(fixed))
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
        let lines = inner_map("lines", size_of::<Line>(), table.lines.len().max(1), BPF_F_INNER_MAP)?;
        sys::array_update(lines.fd().as_fd(), 0, bytemuck::cast_slice(&table.lines), size_of::<Line>())
            .map_err(failed("write the table's lines"))?;
        table.fixed.header.activated = monotonic_now();
        let fixed = inner_map("fixed", size_of::<Fixed>(), 1, 0)?;
        sys::map_update(fixed.fd().as_fd(), &0_u32.to_ne_bytes(), bytemuck::bytes_of(&*table.fixed))
            .map_err(failed("write the table's fixed part"))?;
        let write = start.elapsed();
        both(
            || self.lines.set(next, &lines, 0).map_err(of("TABLE_LINES")),
            || self.fixed.set(next, &fixed, 0).map_err(of("TABLE_FIXED")),
        )?;
        self.slot_in_force.set(0, next, 0).map_err(of("SLOT_IN_FORCE"))?;
        // The kernel waits for a grace period when a map within a map is written, so that after this no program
        // uses the slot that was in force before: only then may it be emptied, and the next call write there.
        self.fixed.set(next, &fixed, 0).map_err(of("TABLE_FIXED"))?;
        self.empty(present)?;
        Ok(Installed { write, swap: start.elapsed().saturating_sub(write) })
    }

    /// One of the maps, for calls that aya has no function for.
    fn pinned(&self, name: &str) -> Result<OwnedFd, MapsError> {
        sys::open_pin(&self.folder.join(name)).map_err(failed("open a pinned map"))
    }

    /// Frees the table in a slot that no program uses.
    fn empty(&self, slot: u32) -> Result<(), MapsError> {
        let delete = |map: OwnedFd| {
            match sys::map_delete(map.as_fd(), &slot.to_ne_bytes()) {
                // Before the first table there is none.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                result => result.map_err(failed("free the former table")),
            }
        };
        let (lines, fixed) = (self.pinned("TABLE_LINES")?, self.pinned("TABLE_FIXED")?);
        both(|| delete(lines), || delete(fixed))
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

    /// Says in which network namespaces (by inode number) the policy is enforced.
    pub fn set_scope(&mut self, namespaces: &[u32]) -> Result<(), MapsError> {
        let stale: Vec<u32> = self
            .scope
            .keys()
            .filter_map(Result::ok)
            .filter(|present| !namespaces.contains(present))
            .collect();
        for namespace in namespaces {
            self.scope.insert(namespace, 1, 0).map_err(of("SCOPE"))?;
        }
        for namespace in stale {
            self.scope.remove(&namespace).map_err(of("SCOPE"))?;
        }
        Ok(())
    }

    /// Unpins all maps: they go when the last program that uses them does.
    pub fn unpin(folder: &Path) -> io::Result<()> {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// Does two things that each wait for a grace period of the kernel, in the time of one.
fn both(
    first: impl FnOnce() -> Result<(), MapsError> + Send,
    second: impl FnOnce() -> Result<(), MapsError>,
) -> Result<(), MapsError> {
    std::thread::scope(|scope| {
        let first = scope.spawn(first);
        let second = second();
        first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and(second)
    })
}

pub(super) fn open_pinned(folder: &Path, name: &'static str) -> Result<Map, MapsError> {
    MapData::from_pin(folder.join(name)).and_then(Map::from_map_data).map_err(of(name))
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

fn inner_map(name: &str, value_size: usize, entries: usize, flags: u32) -> Result<MapData, MapsError> {
    let size = |value: usize| {
        u32::try_from(value).map_err(|error| failed("size of a table")(io::Error::other(error)))
    };
    // BPF_MAP_TYPE_ARRAY, with keys of 4 bytes.
    let fd: OwnedFd = sys::array(name, size(value_size)?, size(entries)?, flags)
        .map_err(failed("make room for a table in the kernel"))?;
    MapData::from_fd(fd).map_err(of("TABLE_LINES"))
}

/// `CLOCK_MONOTONIC`, nanoseconds: the clock of `bpf_ktime_get_ns()`.
pub(crate) fn monotonic_now() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| {
        u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec()).unwrap_or(0)
    })
}
