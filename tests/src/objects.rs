//! What is in the kernel's BPF lists and in a folder of pins: compared before and after, it shows what was left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use aya::maps::{MapInfo, loaded_maps};
use aya::programs::{ProgramInfo, loaded_links, loaded_programs};

/// Ids of all BPF objects of the kernel, each list by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// Programs, with their names.
    pub programs: BTreeMap<u32, String>,
    /// Maps, with their names.
    pub maps: BTreeMap<u32, String>,
    /// Links.
    pub links: BTreeSet<u32>,
}

impl Objects {
    /// Lists them. Those that go while they are listed are left out. Needs `CAP_SYS_ADMIN`.
    pub fn now() -> Self {
        let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            programs: loaded_programs().flatten().map(|info| (info.id(), name(info.name()))).collect(),
            maps: loaded_maps().flatten().map(|info| (info.id(), name(info.name()))).collect(),
            links: loaded_links().flatten().map(|info| info.id()).collect(),
        }
    }

    /// What is here and was not there before.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let new = |now: &BTreeMap<u32, String>, old: &BTreeMap<u32, String>| {
            now.iter().filter(|(id, _)| !old.contains_key(id)).map(|(id, name)| (*id, name.clone())).collect()
        };
        Self {
            programs: new(&self.programs, &before.programs),
            maps: new(&self.maps, &before.maps),
            links: self.links.difference(&before.links).copied().collect(),
        }
    }

    /// Whether there is none at all.
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty() && self.maps.is_empty() && self.links.is_empty()
    }
}

/// Ids of the maps and programs that are pinned below a folder, by their paths in it. Links, whose ids say nothing, have 0.
pub fn pinned(folder: &Path) -> Result<BTreeMap<String, u32>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("cannot list {}", next.display()))? {
            let (entry, path) = entry.map(|entry| (entry.file_type(), entry.path()))?;
            if entry?.is_dir() {
                folders.push(path);
                continue;
            }
            let id = MapInfo::from_pin(&path)
                .map(|info| info.id())
                .or_else(|_| ProgramInfo::from_pin(&path).map(|info| info.id()))
                .unwrap_or_default();
            found.insert(path.strip_prefix(folder).unwrap_or(&path).display().to_string(), id);
        }
    }
    Ok(found)
}
