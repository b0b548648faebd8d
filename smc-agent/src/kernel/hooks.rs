//! What events come from: programs on tracepoints and functions of SMC, for as long as the object that they are of lives.

use std::{collections::BTreeMap, os::fd::AsFd as _};

use aya::{
    Ebpf, Pod,
    maps::{HashMap, Map, MapData, MapError, PerCpuArray},
    programs::{KProbe, ProgramError, RawTracePoint},
};
use smc_agent_common::{Counter, Owner, Rate, RateKey};
use thiserror::Error;

use super::{features::Features, ring::Ring, sys, why_refused, with_causes};

/// Why nothing can be traced.
#[derive(Debug, Error)]
pub enum HooksError {
    /// A map is not in the object: a defect of the build.
    #[error("the embedded BPF object has no map {0}")]
    NoMap(&'static str),
    /// A map could not be used.
    #[error("map {map}: {source}")]
    Map {
        /// Which map.
        map: &'static str,
        /// What happened.
        source: MapError,
    },
}

/// Something that this kernel does not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What events lack because of it.
    pub what: &'static str,
    /// Why.
    pub why: String,
}

/// Where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A raw tracepoint.
    RawTracepoint(&'static str),
    /// A probe of a function.
    Function(&'static str),
}

impl Place {
    /// Its name in the kernel.
    pub fn name(self) -> &'static str {
        match self {
            Self::RawTracepoint(name) | Self::Function(name) => name,
        }
    }
}

/// A program and where it belongs.
struct Hook {
    program: &'static str,
    place: Place,
    /// The first version of Linux that has the place.
    since: &'static str,
}

const fn tracepoint(program: &'static str, name: &'static str, since: &'static str) -> Hook {
    Hook { program, place: Place::RawTracepoint(name), since }
}

const fn function(program: &'static str, name: &'static str, since: &'static str) -> Hook {
    Hook { program, place: Place::Function(name), since }
}

/// Fallbacks as the kernel tells them.
const FALLBACKS: [Hook; 1] = [tracepoint("smc_fallback", "smc_switch_to_fallback", "5.16")];
/// Fallbacks where it comes by after them. (The server's hook is that of its failed handshakes, too.)
const FALLBACKS_AFTERWARDS: [Hook; 1] =
    [function("smc_client_settled", "smc_copy_sock_settings_to_clc", "4.11")];
const CLIENT_FAILURES: [Hook; 1] = [function("smc_client_failed", "smc_connect_decline_fallback", "4.18")];
const SERVER_FAILURES: [Hook; 1] = [function("smc_server_settled", "smc_listen_out", "4.18")];
const LINKS: [Hook; 1] = [tracepoint("smc_link_down", "smcr_link_down", "5.16")];
/// The first one first: without it, an owner would outlive its socket.
const OWNERS: [Hook; 3] = [
    function("smc_owner_release", "smc_release", "4.11"),
    function("smc_owner_connect", "smc_connect", "4.11"),
    function("smc_owner_listen", "smc_listen", "4.11"),
];
const OWNERS_OF_UNUSED: [Hook; 1] = [function("smc_owner_socket", "smc_create_clcsk", "6.11")];
const OPTIONS: [Hook; 1] = [function("smc_owner_option", "smc_setsockopt", "4.11")];
const SETUPS: [Hook; 1] = [function("smc_given_up", "smc_conn_free", "4.11")];

/// What [`Missing::what`] says where fallbacks are missing; the same for the others.
pub const NO_FALLBACKS: &str = "fallbacks";
/// Handshakes that fail at the client's side.
pub const NO_CLIENT_FAILURES: &str = "failed handshakes of clients";
/// Handshakes that fail at the server's side.
pub const NO_SERVER_FAILURES: &str = "failed handshakes of servers";
/// Links of SMC-R.
pub const NO_LINKS: &str = "links that go down";
/// Whose a connection is.
pub const NO_OWNERS: &str = "owners of connections";
/// Whose a socket is that never connected.
pub const NO_OWNERS_OF_UNUSED: &str = "owners of sockets that were not connected (6.11 and later)";
/// The side of a connection whose socket falls back by an option.
pub const NO_OPTIONS: &str = "which side falls back by an option";
/// What a connection would have used.
pub const NO_SETUPS: &str = "version and device of a connection that fails while it is set up";

/// All hooks there are, each once.
fn hooks() -> impl Iterator<Item = &'static Hook> {
    [&FALLBACKS, &LINKS, &FALLBACKS_AFTERWARDS, &CLIENT_FAILURES, &SERVER_FAILURES]
        .into_iter()
        .chain([&OWNERS_OF_UNUSED, &OPTIONS, &SETUPS])
        .flatten()
        .chain(&OWNERS)
}

/// Where programs of this agent can be attached, and the first version of Linux that has the place.
pub fn places() -> impl Iterator<Item = (Place, &'static str)> {
    hooks().map(|hook| (hook.place, hook.since))
}

/// What came of a trial of every hook.
#[derive(Debug)]
pub struct Survey {
    /// Of each place of [`places`], whether its program could be attached, or why not.
    pub places: Vec<(Place, Result<(), String>)>,
    /// What an agent would miss.
    pub missing: Vec<Missing>,
}

/// Attaches every program there is once, for as long as `ebpf` lives.
pub fn survey(ebpf: &mut Ebpf, features: &Features) -> Survey {
    let places: Vec<_> = hooks().map(|hook| (hook.place, attach_one(ebpf, hook))).collect();
    let found = |hook: &Hook| {
        let of_hook = places.iter().find(|(place, _)| *place == hook.place);
        of_hook.map_or(Ok(()), |(_, result)| result.clone())
    };
    let missing = attach_by(features, found);
    Survey { places, missing }
}

/// Attaches all that this kernel takes. Says what it does not.
pub fn attach(ebpf: &mut Ebpf, features: &Features) -> Vec<Missing> {
    // Before anything is recorded: what an agent before this one recorded holds no longer.
    if let Err(error) = forget_owners(ebpf) {
        return vec![Missing { what: NO_OWNERS, why: error.to_string() }];
    }
    attach_by(features, |hook| attach_one(ebpf, hook))
}

/// What is missing where `attach_one` tells what becomes of each hook.
fn attach_by(features: &Features, mut attach_one: impl FnMut(&Hook) -> Result<(), String>) -> Vec<Missing> {
    let mut missing = Vec::new();
    if let Err(why) = &features.smc_offsets {
        missing.push(Missing { what: NO_FALLBACKS, why: why.clone() });
        return missing;
    }
    let mut attach = |what: &'static str, hooks: &[Hook]| {
        let failed = hooks.iter().find_map(|hook| attach_one(hook).err());
        let is_there = failed.is_none();
        missing.extend(failed.map(|why| Missing { what, why }));
        is_there
    };
    // Owners first, so that the first event may have one.
    let mut removes = false;
    if attach(NO_OWNERS, &OWNERS) {
        attach(NO_OWNERS_OF_UNUSED, &OWNERS_OF_UNUSED);
        attach(NO_OPTIONS, &OPTIONS);
        removes = true;
    }
    let server = attach(NO_SERVER_FAILURES, &SERVER_FAILURES);
    // What they leave is removed by the programs before, at the end of a client's socket and of a server's handshake.
    if removes && server && features.link_offsets.is_ok() {
        attach(NO_SETUPS, &SETUPS);
    }
    if features.fallback_tracepoint {
        attach(NO_FALLBACKS, &FALLBACKS);
    } else if server {
        attach(NO_FALLBACKS, &FALLBACKS_AFTERWARDS);
    }
    attach(NO_CLIENT_FAILURES, &CLIENT_FAILURES);
    if features.link_offsets.is_ok() {
        attach(NO_LINKS, &LINKS);
    }
    if !features.fallback_tracepoint && !server {
        let why =
            "this kernel has neither tracepoint smc_switch_to_fallback (5.16) nor function smc_listen_out";
        missing.push(Missing { what: NO_FALLBACKS, why: why.to_owned() });
    }
    if let Err(why) = &features.link_offsets {
        missing.extend([NO_LINKS, NO_SETUPS].map(|what| Missing { what, why: why.clone() }));
    }
    missing
}

/// Empties the map of owners.
fn forget_owners(ebpf: &mut Ebpf) -> Result<(), HooksError> {
    const MAP: &str = "OWNERS";
    let failed = |source| HooksError::Map { map: MAP, source };
    let map = ebpf.map_mut(MAP).ok_or(HooksError::NoMap(MAP))?;
    let mut owners: HashMap<_, u64, Plain<Owner>> = map.try_into().map_err(failed)?;
    let sockets: Vec<u64> = owners.keys().collect::<Result<_, _>>().map_err(failed)?;
    for socket in sockets {
        match owners.remove(&socket) {
            // Pushed out meanwhile.
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// Whether fallbacks are among what is missing.
pub fn without_fallbacks(missing: &[Missing]) -> Option<&str> {
    missing.iter().find(|missing| missing.what == NO_FALLBACKS).map(|missing| missing.why.as_str())
}

fn attach_one(ebpf: &mut Ebpf, hook: &Hook) -> Result<(), String> {
    let name = hook.program;
    let defect = || format!("the embedded BPF object has no program {name}");
    let refused = |error: ProgramError| format!("the kernel refused program {name}: {}", why_refused(&error));
    let program = ebpf.program_mut(name).ok_or_else(defect)?;
    match hook.place {
        Place::RawTracepoint(tracepoint) => {
            let program: &mut RawTracePoint = program.try_into().map_err(|_| defect())?;
            program.load().map_err(refused)?;
            program
                .attach(tracepoint)
                .map_err(|error| format!("no tracepoint {tracepoint}: {}", with_causes(&error)))?;
        }
        Place::Function(function) => {
            let program: &mut KProbe = program.try_into().map_err(|_| defect())?;
            program.load().map_err(refused)?;
            program
                .attach(function, 0)
                .map_err(|error| format!("no probe of function {function}: {}", with_causes(&error)))?;
        }
    }
    Ok(())
}

/// Loads the program for fallbacks without attaching it, and runs it as for the `struct smc_sock` at this address, so many
/// times.
pub fn run_fallback(ebpf: &mut Ebpf, smc: u64, code: u32, times: u32) -> Result<(), String> {
    let [Hook { program: name, .. }] = FALLBACKS;
    let failed = |error: &(dyn std::error::Error + 'static)| format!("{name}: {}", with_causes(error));
    let program = ebpf.program_mut(name).ok_or_else(|| format!("no program {name}"))?;
    let program: &mut RawTracePoint = program.try_into().map_err(|error| failed(&error))?;
    program.load().map_err(|error| failed(&error))?;
    let fd = program.fd().map_err(|error| failed(&error))?;
    for _ in 0..times {
        sys::run_raw_tracepoint(fd.as_fd(), &[smc, code.into()]).map_err(|error| failed(&error))?;
    }
    Ok(())
}

/// Counters of what became of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Events that happened.
    pub produced: u64,
    /// Those that found the ring buffer full.
    pub lost: u64,
    /// Those that the rate limit held back.
    pub suppressed: u64,
}

/// The kernel's side of the stream of events.
pub struct EventMaps {
    counters: PerCpuArray<MapData, u64>,
    rates: HashMap<MapData, Plain<RateKey>, Plain<Rate>>,
}

/// A type of the shared crate as aya wants it.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct Plain<T>(T);

// SAFETY: plain integers without padding, as smc-agent-common asserts.
unsafe impl Pod for Plain<RateKey> {}
// SAFETY: as above.
unsafe impl Pod for Plain<Rate> {}
// SAFETY: as above.
unsafe impl Pod for Plain<Owner> {}

impl EventMaps {
    /// Takes the ring buffer and the maps beside it out of the object.
    pub fn take(ebpf: &mut Ebpf) -> Result<(Ring, Self), HooksError> {
        const MAP: &str = "EVENTS";
        let map = match ebpf.take_map(MAP).ok_or(HooksError::NoMap(MAP))? {
            Map::RingBuf(map) => Ring::new(map).map_err(MapError::from),
            _ => Err(MapError::InvalidMapType { map_type: 0 }),
        };
        let ring = map.map_err(|source| HooksError::Map { map: MAP, source })?;
        let counters = take(ebpf, "COUNTERS")?;
        let rates = take(ebpf, "RATES")?;
        Ok((ring, Self { counters, rates }))
    }

    /// What became of events since the maps were made.
    pub fn totals(&self) -> Result<Totals, HooksError> {
        let read = |counter: Counter| -> Result<u64, HooksError> {
            let values = self
                .counters
                .get(&(counter as u32), 0)
                .map_err(|source| HooksError::Map { map: "COUNTERS", source })?;
            Ok(values.iter().sum())
        };
        // What is part of another number is read before it, so that the parts are never more than the whole.
        let (lost, suppressed) = (read(Counter::EventsLost)?, read(Counter::EventsSuppressed)?);
        Ok(Totals { produced: read(Counter::EventsProduced)?, lost, suppressed })
    }

    /// How many events of each kind were held back since it was first seen.
    pub fn suppressed(&self) -> Result<BTreeMap<RateKey, u64>, HooksError> {
        let mut found = BTreeMap::new();
        for entry in &self.rates {
            let (key, rate) = entry.map_err(|source| HooksError::Map { map: "RATES", source })?;
            if rate.0.suppressed != 0 {
                found.insert(key.0, rate.0.suppressed);
            }
        }
        Ok(found)
    }
}

fn take<T: TryFrom<Map, Error = MapError>>(ebpf: &mut Ebpf, map: &'static str) -> Result<T, HooksError> {
    let found = ebpf.take_map(map).ok_or(HooksError::NoMap(map))?;
    found.try_into().map_err(|source| HooksError::Map { map, source })
}
