//! Codes explained, as a form for programs and as what `cli` prints.

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Check, CodeInfo, CodeQuery, Earlier, OPTIONS, Origin, SeenBy, SocketOption, current, info, retired,
};

/// Version of the JSON forms here.
const VERSION: u32 = 1;

/// What is known of a code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KnownCode {
    /// The number.
    pub value: u32,
    /// The number as it is written, with eight hexadecimal digits.
    pub hex: String,
    /// The name without `SMC_CLC_DECL_`; `null` if Linux does not have the code.
    pub name: Option<&'static str>,
    /// Whose it is; `null` if unknown.
    pub origin: Option<Origin>,
    /// Whether only kernels before 5.4 use the number.
    pub retired: bool,
    /// The first kernel that has it.
    pub since: Option<&'static str>,
    /// The last kernel that sets it, if there was one.
    pub until: Option<&'static str>,
    /// Which side sets it.
    pub seen_by: Option<SeenBy>,
    /// What it means.
    pub meaning: Option<&'static str>,
    /// What is likely behind it, the likeliest first.
    pub causes: &'static [&'static str],
    /// What to run to tell them apart, in this order.
    pub checks: &'static [Check],
    /// What else to know.
    pub note: Option<&'static str>,
    /// What the number meant to earlier kernels.
    pub earlier: &'static [Earlier],
    /// Socket options that have to do with it.
    pub socket_options: &'static [SocketOption],
}

impl KnownCode {
    fn of(value: u32, code: Option<&'static CodeInfo>) -> Self {
        Self {
            value,
            hex: format!("{value:#010x}"),
            name: code.map(|code| code.name),
            origin: code.map(|code| code.origin),
            retired: code.is_some() && info(value).is_none(),
            since: code.map(|code| code.since),
            until: code.and_then(|code| code.until),
            seen_by: code.map(|code| code.seen_by),
            meaning: code.map(|code| code.meaning),
            causes: code.map_or(&[], |code| code.causes),
            checks: code.map_or(&[], |code| code.checks),
            note: code.and_then(|code| code.note),
            earlier: code.map_or(&[], |code| code.earlier),
            socket_options: if code.is_some_and(|code| code.about_options) { OPTIONS } else { &[] },
        }
    }

    /// Looks a number up among all codes.
    pub fn look_up(value: u32) -> Self {
        Self::of(value, info(value).or_else(|| retired().find(|code| code.value == value)))
    }

    /// Whether anything is known of it.
    pub fn is_known(&self) -> bool {
        self.name.is_some()
    }
}

/// What was asked, explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Asked {
    /// The code of this host.
    pub code: KnownCode,
    /// The code of the peer, if two were asked for.
    pub peer_code: Option<KnownCode>,
}

/// The answer of `smc-agent code`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Explanation {
    /// 1
    pub version: u32,
    /// In the order asked.
    pub codes: Vec<Asked>,
}

/// The answer of `smc-agent code --list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CodeList {
    /// 1
    pub version: u32,
    /// The codes of current kernels, then those that only old ones use, each in the order of their numbers.
    pub codes: Vec<KnownCode>,
    /// Socket options that behave otherwise than on a TCP socket.
    pub socket_options: &'static [SocketOption],
}

impl Explanation {
    /// Whether all that was asked for is known.
    pub fn is_complete(&self) -> bool {
        self.codes
            .iter()
            .all(|asked| asked.code.is_known() && asked.peer_code.as_ref().is_none_or(KnownCode::is_known))
    }
}

/// Explains what was asked for.
pub fn explain(queries: &[CodeQuery]) -> Explanation {
    let asked = |query: &CodeQuery| Asked {
        code: KnownCode::look_up(query.code),
        peer_code: query.peer.map(KnownCode::look_up),
    };
    Explanation { version: VERSION, codes: queries.iter().map(asked).collect() }
}

/// All codes.
pub fn list() -> CodeList {
    let codes = current().into_iter().chain(retired()).map(|code| KnownCode::of(code.value, Some(code)));
    CodeList { version: VERSION, codes: codes.collect(), socket_options: OPTIONS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_looked_up_among_current_and_retired_ones() {
        let known = KnownCode::look_up(0x0306_0000);
        assert_eq!((known.name, known.retired), (Some("OPTUNSUPP"), false));
        assert_eq!(known.socket_options.len(), OPTIONS.len());
        let old = KnownCode::look_up(0x9999_0000);
        assert_eq!((old.name, old.retired), (Some("INTERR"), true));
        let foreign = KnownCode::look_up(0x1234);
        assert!(!foreign.is_known() && foreign.meaning.is_none());
        assert_eq!(foreign.hex, "0x00001234");
        let of = |code, peer| explain(&[CodeQuery { code, peer }]).is_complete();
        assert!(of(0x0500_0000, Some(0x0303_0001)) && of(0x0500_0000, None));
        assert!(!of(0x0500_0000, Some(7)) && !of(7, None));
        assert_eq!(list().codes.len(), 39 + 8);
    }
}
