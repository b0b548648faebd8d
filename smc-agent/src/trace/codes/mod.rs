//! Why connections fall back: the codes of `net/smc/smc_clc.h` (`SMC_CLC_DECL_*`) and Alibaba's additions, what they mean
//! and what to do about them.

mod explain;
mod options;
mod query;
mod table;

pub use explain::{Asked, CodeList, Explanation, KnownCode, explain, list};
pub use options::{Effect, OPTIONS, SocketOption};
pub use query::{CodeQuery, QueryError, parse_number};

use schemars::JsonSchema;
use serde::Serialize;

/// Whose code it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Every Linux.
    Linux,
    /// Kernels of Alibaba Cloud Linux and Anolis only.
    Alibaba,
}

/// Which side of a connection sets a code of itself, so that it is its own and not the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SeenBy {
    /// The side that connects.
    Client,
    /// The side that is connected to.
    Server,
    /// Either.
    Both,
}

/// Something to run, and what to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Check {
    /// A command; words in capitals stand for what has to be filled in.
    pub command: &'static str,
    /// What it shows.
    pub to_see: &'static str,
}

/// What the same number meant to other kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Earlier {
    /// Which.
    pub kernels: &'static str,
    /// Its name there.
    pub name: &'static str,
    /// What it meant.
    pub meaning: &'static str,
}

/// What is known of a code.
#[derive(Clone, Copy, Debug)]
pub struct CodeInfo {
    /// The number.
    pub value: u32,
    /// The name, without the prefix `SMC_CLC_DECL_`; for Alibaba's codes this program's.
    pub name: &'static str,
    /// Whose it is.
    pub origin: Origin,
    /// The first kernel that has it.
    pub since: &'static str,
    /// The last kernel that sets it, if there was one.
    pub until: Option<&'static str>,
    /// Who sets it.
    pub seen_by: SeenBy,
    /// What it means.
    pub meaning: &'static str,
    /// What is likely behind it, the likeliest first.
    pub causes: &'static [&'static str],
    /// What to run to tell them apart, in this order.
    pub checks: &'static [Check],
    /// What else to know.
    pub note: Option<&'static str>,
    /// What the number meant to earlier kernels.
    pub earlier: &'static [Earlier],
    /// Whether [`OPTIONS`] belong to it.
    pub about_options: bool,
}

/// The codes of current kernels, in the order of their numbers.
pub fn current() -> Vec<&'static CodeInfo> {
    let mut codes: Vec<_> = table::TABLES.into_iter().flatten().collect();
    codes.sort_by_key(|code| code.value);
    codes
}

/// The codes that only old kernels use, in the order of their numbers.
pub fn retired() -> impl Iterator<Item = &'static CodeInfo> {
    table::RETIRED.iter()
}

/// What is known of a code of current kernels.
pub fn info(value: u32) -> Option<&'static CodeInfo> {
    let found = |table: &'static [CodeInfo]| {
        table.binary_search_by_key(&value, |code| code.value).ok().and_then(|index| table.get(index))
    };
    table::TABLES.into_iter().find_map(found)
}

/// The name of a code; `None` for codes that current Linux does not have (other systems use their own).
pub fn name(value: u32) -> Option<&'static str> {
    info(value).map(|code| code.name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn tables_are_sorted_and_every_code_is_in_one() {
        for table in table::TABLES.into_iter().chain([table::RETIRED]) {
            assert!(table.is_sorted_by(|a, b| a.value < b.value));
        }
        let codes = current();
        assert_eq!(codes.len(), 39);
        assert!(codes.is_sorted_by(|a, b| a.value < b.value));
        let names: BTreeSet<_> = codes.iter().map(|code| code.name).collect();
        assert_eq!(names.len(), codes.len(), "two codes have one name");
        assert!(retired().all(|code| info(code.value).is_none()), "a number is both current and retired");
        assert_eq!(name(0x0301_0000), Some("PEERNOSMC"));
        assert_eq!(name(0x0999_0004), Some("ALIBABA_CREDITS"));
        assert_eq!(name(0), None);
        assert_eq!(name(0x9999_0000), None);
    }

    #[test]
    fn every_code_comes_with_advice() {
        for code in current().into_iter().chain(retired()) {
            let name = code.name;
            assert!(!name.is_empty() && !code.since.is_empty(), "{:#010x}", code.value);
            assert!(code.meaning.ends_with('.') && code.meaning.len() > 30, "{name}: {}", code.meaning);
            assert!(!code.causes.is_empty() && !code.checks.is_empty(), "{name}");
            for text in code.causes.iter().copied().chain(code.note) {
                assert!(text.ends_with('.') && !text.contains("  "), "{name}: {text}");
            }
            let mut commands = BTreeSet::new();
            for check in code.checks {
                assert!(!check.command.is_empty() && !check.to_see.is_empty(), "{name}");
                assert!(commands.insert(check.command), "{name}: twice {}", check.command);
                assert!(!check.to_see.ends_with('.'), "{name}: {}", check.to_see);
            }
            for earlier in code.earlier {
                assert!(earlier.meaning.ends_with('.') && !earlier.kernels.is_empty(), "{name}");
            }
        }
    }
}
