//! Enterprise IDs: the names by which SMC version 2 hosts recognise that they belong together.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Serialize;

use crate::netlink::error::Result;
use crate::netlink::wire::Attributes;

/// `SMC_MAX_EID_LEN` (`include/uapi/linux/smc.h`): the length on the wire, in bytes, padded with spaces.
const LENGTH: usize = 32;
/// `SMC_MAX_UEID` (`include/uapi/linux/smc.h`): how many user EIDs the kernel holds.
pub const MAX_USER_EIDS: usize = 4;

/// `SMC_NLA_SEID_ENTRY`, text.
const SEID_ENTRY: u16 = 1;
/// `SMC_NLA_SEID_ENABLED`, u8.
const SEID_ENABLED: u16 = 2;

/// A user EID that the kernel will accept: 1 to 32 of `A-Z`, `0-9`, `.` and `-`, the first a letter or a digit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Eid(String);

/// Why a text is no user EID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEid {
    /// Nothing in it.
    #[error("a user EID cannot be empty")]
    Empty,
    /// More than 32 characters.
    #[error("user EID {0:?} is longer than 32 characters: shorten it")]
    TooLong(String),
    /// A character that is not allowed where it stands.
    #[error(
        "user EID {text:?}: {character:?} at position {position} is not allowed: use A-Z, 0-9, '.' and '-', and begin with a letter or a digit"
    )]
    Character {
        /// The text.
        text: String,
        /// The first wrong character.
        character: char,
        /// Where it stands, counted from 1.
        position: usize,
    },
}

impl Eid {
    /// The EID without padding.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The EID as the kernel wants it: padded with spaces to 32 characters.
    pub(super) fn padded(&self) -> String {
        format!("{:LENGTH$}", self.0)
    }
}

impl FromStr for Eid {
    type Err = InvalidEid;

    /// Trailing spaces are padding and do not count. The rules are those of `smc_clc_ueid_valid` (`net/smc/smc_clc.c`).
    fn from_str(text: &str) -> std::result::Result<Self, InvalidEid> {
        let text = text.trim_end_matches(' ');
        let allowed = |(index, character): (usize, char)| {
            let letter_or_digit = character.is_ascii_uppercase() || character.is_ascii_digit();
            letter_or_digit || (index > 0 && matches!(character, '.' | '-'))
        };
        if text.is_empty() {
            return Err(InvalidEid::Empty);
        }
        if let Some((index, character)) = text.chars().enumerate().find(|&place| !allowed(place)) {
            return Err(InvalidEid::Character { text: text.to_owned(), character, position: index + 1 });
        }
        if text.len() > LENGTH {
            return Err(InvalidEid::TooLong(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Eid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The system EID, which ISM devices of one machine share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Seid {
    /// The EID without padding.
    pub eid: String,
    /// Whether it is offered.
    pub enabled: bool,
}

impl Seid {
    /// Reads an entry of `SMC_NETLINK_DUMP_SEID`: empty, or with an empty text (dibs loopback), where there is no
    /// system EID.
    pub(super) fn parse(attributes: Attributes<'_>) -> Result<Option<Self>> {
        let (mut eid, mut enabled) = (None, false);
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                SEID_ENTRY => {
                    eid = Some(attribute.text().trim_end().to_owned()).filter(|eid| !eid.is_empty());
                }
                SEID_ENABLED => enabled = attribute.u8()? != 0,
                _ => {}
            }
        }
        Ok(eid.map(|eid| Self { eid, enabled }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_eid_is_padded_for_the_kernel() {
        let eid: Eid = "SMCTEST-EID.1   ".parse().unwrap();
        assert_eq!(eid.as_str(), "SMCTEST-EID.1");
        assert_eq!(eid.padded(), "SMCTEST-EID.1                   ");
        assert!("A".repeat(32).parse::<Eid>().is_ok());
    }

    #[test]
    fn what_the_kernel_would_refuse_is_refused_here() {
        let error = |text: &str| text.parse::<Eid>().unwrap_err();
        assert_eq!(error("  "), InvalidEid::Empty);
        assert!(matches!(error(&"A".repeat(33)), InvalidEid::TooLong(_)));
        assert!(matches!(error("lower"), InvalidEid::Character { character: 'l', position: 1, .. }));
        assert!(matches!(error("A B"), InvalidEid::Character { character: ' ', position: 2, .. }));
        assert!(matches!(error(".A"), InvalidEid::Character { character: '.', position: 1, .. }));
        assert!(matches!(error("AÖ"), InvalidEid::Character { character: 'Ö', position: 2, .. }));
        assert!(matches!(error("A\0"), InvalidEid::Character { .. }));
    }

    #[test]
    fn the_system_eid_may_be_absent_or_broken() {
        if cfg!(target_endian = "little") {
            let parse = |bytes| Seid::parse(Attributes::new(bytes));
            let both = [8, 0, 1, 0, b'I', b' ', b' ', 0, 5, 0, 2, 0, 1, 0, 0, 0];
            assert_eq!(parse(&both).unwrap(), Some(Seid { eid: "I".to_owned(), enabled: true }));
            assert_eq!(parse(&[]).unwrap(), None);
            assert_eq!(parse(&[5, 0, 1, 0, 0, 0, 0, 0]).unwrap(), None);
            assert!(parse(&both[..12]).unwrap_err().to_string().contains("attribute"));
        }
    }
}
