//! The programs of smc-agent-ebpf's `decide-probe`, which judge flows in the running kernel without any connection.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail};
use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{Array, MapData},
    programs::{SchedClassifier, TestRun as _, TestRunOptions},
};
use smc_agent::{
    kernel::maps::{Maps, PINNED},
    trace::EventSource,
};
use smc_agent_common::{Flow, RULE_DEFAULT, Role, Verdict};

/// A flow as the probe reads it.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProbeFlow {
    peer: [u32; 4],
    local: [u32; 4],
    port: u32,
    role: u32,
}

// SAFETY: plain integers without padding.
unsafe impl Pod for ProbeFlow {}

/// How large the probe's maps are to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Flows; a power of 2.
    pub(crate) flows: u32,
    /// Elements of the array that random loads are made from.
    pub(crate) loads: u32,
    /// Prefixes that each of the kernel's tries can hold.
    pub(crate) trie: u32,
}

/// What the kernel decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decided {
    /// The verdict.
    pub(crate) verdict: Verdict,
    /// The rule's number; `None` for the default.
    pub(crate) rule: Option<u16>,
    /// Whether the rule asks for a report.
    pub(crate) log: bool,
    /// The generation of the table that decided.
    pub(crate) generation: u32,
}

impl Decided {
    /// Reads what the probe wrote; `None` if it made no decision.
    #[expect(clippy::cast_possible_truncation, reason = "the fields of a packed word")]
    fn unpack(word: u64) -> Option<Self> {
        let rule = word as u16;
        (word >> 18 & 1 == 1).then_some(Self {
            verdict: if word >> 16 & 1 == 1 { Verdict::Deny } else { Verdict::Allow },
            rule: (rule != RULE_DEFAULT).then_some(rule),
            log: word >> 17 & 1 == 1,
            generation: (word >> 32) as u32,
        })
    }
}

/// Why the probe cannot be used here; `None` if it can.
pub(crate) fn missing() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Some("needs root");
    }
    if !Path::new(env!("SMC_AGENT_PROBE")).is_file() {
        return Some("the BPF side was not built from source");
    }
    None
}

/// The probe, loaded, with the maps that the agent would pin.
pub(crate) struct Probe {
    ebpf: Ebpf,
    sizes: Sizes,
    folder: tempfile::TempDir,
}

impl Probe {
    /// Loads it. With `write`, the results can be read.
    pub(crate) fn load(sizes: Sizes, write: bool) -> Result<Self> {
        Self::load_with(sizes, write, 0)
    }

    /// Loads it to make events, of one code and peer no more than `event_rate` a second (0: all).
    pub(crate) fn load_for_events(flows: u32, event_rate: u32) -> Result<Self> {
        Self::load_with(Sizes { flows, loads: 1, trie: 1 }, false, event_rate)
    }

    fn load_with(sizes: Sizes, write: bool, event_rate: u32) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        nix::mount::mount(
            Some("bpf"),
            folder.path(),
            Some("bpf"),
            nix::mount::MsFlags::empty(),
            None::<&str>,
        )
        .context("mount a bpf file system")?;
        let object = fs::read(env!("SMC_AGENT_PROBE"))?;
        let (mask, write) = (sizes.flows - 1, u32::from(write));
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        loader.override_global("MASK", &mask, true);
        loader.override_global("LOAD_COUNT", &sizes.loads, true);
        loader.override_global("WRITE", &write, true);
        loader.override_global("EVENT_RATE", &event_rate, true);
        for (map, entries) in [
            ("FLOWS", sizes.flows),
            ("RESULTS", sizes.flows),
            ("LOADS", sizes.loads),
            ("TRIE_V4", sizes.trie),
            ("TRIE_V6", sizes.trie),
        ] {
            loader.map_max_entries(map, entries);
        }
        for name in PINNED {
            loader.map_pin_path(name, folder.path().join(name));
        }
        Ok(Self { ebpf: loader.load(&object)?, sizes, folder })
    }

    /// The maps that hold the policy table.
    pub(crate) fn maps(&self) -> Result<Maps> {
        Ok(Maps::open(self.folder.path())?)
    }

    /// The inner maps of the outer map `name` in its slots: their ids.
    pub(crate) fn inner_maps(&self, name: &str) -> Result<Vec<Option<u32>>> {
        let map = self.ebpf.map(name).context("no such map")?;
        let map = aya::maps::ArrayOfMaps::<&MapData, MapData>::try_from(map)?;
        (0..2)
            .map(|slot| match map.get(&slot, 0) {
                Ok(inner) => Ok(Some(inner.info()?.id())),
                Err(aya::maps::MapError::KeyNotFound) => Ok(None),
                Err(error) => Err(error.into()),
            })
            .collect()
    }

    /// A map of the probe's own.
    pub(crate) fn map<T: Pod>(&mut self, name: &str) -> Result<Array<&mut MapData, T>> {
        Ok(self.ebpf.map_mut(name).with_context(|| format!("no map {name}"))?.try_into()?)
    }

    /// The kernel's trie.
    pub(crate) fn trie<K: Pod>(&mut self, name: &str) -> Result<aya::maps::LpmTrie<&mut MapData, K, u32>> {
        Ok(self.ebpf.map_mut(name).with_context(|| format!("no map {name}"))?.try_into()?)
    }

    /// The events that the probe makes. Within a tokio runtime.
    pub(crate) fn events(&mut self, limited: bool) -> Result<EventSource> {
        Ok(EventSource::new(&mut self.ebpf, limited)?)
    }

    /// Sets the flows, over and over up to the size of the map.
    pub(crate) fn set_flows(&mut self, flows: &[Flow]) -> Result<()> {
        if flows.is_empty() {
            bail!("no flows");
        }
        let count = self.sizes.flows;
        let mut map = self.map::<ProbeFlow>("FLOWS")?;
        for (index, flow) in (0..count).zip(flows.iter().cycle()) {
            let role = match flow.role {
                Role::Client => 1,
                Role::Server => 2,
            };
            let flow = ProbeFlow {
                peer: flow.peer.words(),
                local: flow.local.words(),
                port: flow.port.into(),
                role,
            };
            map.set(index, flow, 0)?;
        }
        self.start_over(false)
    }

    /// Begins with the first flow again. If runs are to wait, each begins with what the one before came to: how long one
    /// takes shows, not how many the processor does at a time.
    pub(crate) fn start_over(&mut self, wait: bool) -> Result<()> {
        Ok(self.map::<[u64; 3]>("CURSOR")?.set(0, [0, 0, u64::from(wait)], 0)?)
    }

    /// Runs a program `repeat` times, and says how long one run took.
    pub(crate) fn run(&mut self, program: &str, repeat: u32) -> Result<Duration> {
        let program: &mut SchedClassifier =
            self.ebpf.program_mut(program).with_context(|| format!("no program {program}"))?.try_into()?;
        if program.fd().is_err() {
            program.load()?;
        }
        let packet = [0; 64];
        let options = TestRunOptions { data_in: Some(&packet), repeat, ..TestRunOptions::new() };
        let result = program.test_run(options)?;
        if result.return_value != 0 {
            bail!("the probe found no flow or table");
        }
        Ok(result.duration)
    }

    /// How many instructions the verifier followed to accept a program that has run.
    pub(crate) fn verified_instructions(&mut self, program: &str) -> Result<Option<u32>> {
        let program: &mut SchedClassifier =
            self.ebpf.program_mut(program).context("no such program")?.try_into()?;
        Ok(program.info()?.verified_instruction_count())
    }

    /// What came of the first `count` flows; `None` where there was no decision.
    pub(crate) fn results(&mut self, count: u32) -> Result<Vec<Option<Decided>>> {
        let map = self.map::<u64>("RESULTS")?;
        (0..count).map(|index| Ok(Decided::unpack(map.get(&index, 0)?))).collect()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = nix::mount::umount(self.folder.path());
    }
}
