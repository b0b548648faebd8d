//! The BPF object that is built into this program: loaded with the running kernel's offsets, its maps pinned.

use std::{fmt::Write as _, path::Path};

use aya::{Ebpf, EbpfError, EbpfLoader};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use sha2::{Digest as _, Sha256};

use super::{maps::PINNED, offsets::Offset};

/// The bytes of the object.
pub static BYTES: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/smc-agent-bpf.o"));

/// What a load depends on.
#[derive(Debug)]
pub struct Options<'a> {
    /// Where to pin the maps; those that are pinned there already are used. `None`: they go with the object.
    pub maps: Option<&'a Path>,
    /// Offsets of the running kernel.
    pub offsets: &'a [Offset],
    /// Whether the policy is enforced, so that a refused option may be its doing.
    pub enforcing: bool,
    /// Level of the messages of the programs themselves, as aya-log counts it; 0 is off.
    pub log_level: u8,
    /// Events a second with one code and one peer that are reported; 0: all.
    pub event_rate: u32,
    /// Whether there is the tracepoint for fallbacks.
    pub fallback_tracepoint: bool,
}

/// Loads the maps and prepares the programs; none is in the kernel yet.
pub fn load(options: &Options<'_>) -> Result<Ebpf, EbpfError> {
    raise_memory_limit();
    let enforcing = u32::from(options.enforcing);
    let mut loader = EbpfLoader::new();
    // Fields are found by offsets given below: nothing in the object asks for relocation by aya.
    loader.btf(None);
    loader.override_global("ENFORCING", &enforcing, true);
    loader.override_global("AYA_LOG_LEVEL", &options.log_level, false);
    for (name, offset) in options.offsets {
        loader.override_global(name, offset, true);
    }
    let by_probe = u32::from(!options.fallback_tracepoint);
    loader.override_global("EVENT_RATE", &options.event_rate, true);
    loader.override_global("FALLBACK_BY_PROBE", &by_probe, true);
    match options.maps {
        Some(folder) => {
            for name in PINNED {
                loader.map_pin_path(name, folder.join(name));
            }
        }
        // Nothing is decided: no room is needed for a policy.
        None => {
            for name in ["TABLE_FIXED", "HITS", "REFUSALS"] {
                loader.map_max_entries(name, 1);
            }
        }
    }
    loader.load(BYTES)
}

/// Before 5.11 maps count as locked memory. Where the limit cannot be raised, making the maps fails by itself.
pub fn raise_memory_limit() {
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
}

/// Whether [`raise_memory_limit`] did nothing.
pub fn memory_is_limited() -> bool {
    getrlimit(Resource::RLIMIT_MEMLOCK).is_ok_and(|(limit, _)| limit != RLIM_INFINITY)
}

/// Name of the folder in which the pins of an object are made before they are complete. (Names with a dot are refused in a
/// bpf file system.)
pub const UNFINISHED: &str = "unfinished";

const BYTES_SHOWN: usize = 6;

/// Whether a name is of the form of an [`id`], or [`UNFINISHED`].
pub fn is_id(name: &str) -> bool {
    let (digits, level) = name.split_once("-log").unwrap_or((name, "0"));
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_digest = digits.len() == BYTES_SHOWN * 2 && digits.bytes().all(is_hex);
    name == UNFINISHED || (is_digest && level.parse::<u8>().is_ok())
}

/// Names the object by its content, and by the level of its messages, which is fixed when it is loaded: what an earlier
/// agent left is usable as it is exactly if it has the same name.
pub fn id(log_level: u8) -> String {
    let mut text = digest(BYTES);
    if log_level > 0 {
        let _ = write!(text, "-log{log_level}");
    }
    text
}

/// The beginning of an object's SHA-256, in hexadecimal digits.
pub(super) fn digest(object: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(object).iter().take(BYTES_SHOWN) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
