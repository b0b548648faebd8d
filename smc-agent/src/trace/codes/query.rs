//! The forms in which users meet codes.

use thiserror::Error;

use super::{current, retired};

/// A code as it was asked for, or two: this host's and the peer's, as `smcss` writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeQuery {
    /// The code.
    pub code: u32,
    /// The peer's code, behind a slash.
    pub peer: Option<u32>,
}

/// Why a text is no code.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QueryError {
    /// Neither a number nor a name.
    #[error("{text:?} is no code: write it as 0x03010000, as 50397184 or as PEERNOSMC, or two with a slash{}", guess(*.nearest))]
    Unknown {
        /// The text.
        text: String,
        /// A name that is like it.
        nearest: Option<&'static str>,
    },
    /// A number of more than 32 bits.
    #[error("{0:?} is no code: codes have 32 bits")]
    TooLarge(String),
}

fn guess(nearest: Option<&'static str>) -> String {
    nearest.map_or_else(String::new, |name| format!(" (did you mean {name}?)"))
}

impl CodeQuery {
    /// Reads a code: hexadecimal, decimal, by name with or without `SMC_CLC_DECL_`, in upper or lower case; or two.
    pub fn parse(text: &str) -> Result<Self, QueryError> {
        let text = text.trim();
        match text.split_once('/') {
            Some((code, peer)) => Ok(Self { code: one(code)?, peer: Some(one(peer)?) }),
            None => Ok(Self { code: one(text)?, peer: None }),
        }
    }
}

/// Reads a code that is a number; `None` if the text is none.
pub fn parse_number(text: &str) -> Option<Result<u32, QueryError>> {
    let too_large = || QueryError::TooLarge(text.to_owned());
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    // Eight digits with a zero in front are a code that lost its 0x: as a decimal number nobody would write it so.
    let bare = (text.len() == 8 && text.starts_with('0')).then_some(text);
    let (digits, radix) = hexadecimal.or(bare).map_or((text, 10), |digits| (digits, 16));
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    Some(u32::from_str_radix(digits, radix).map_err(|_| too_large()))
}

fn one(text: &str) -> Result<u32, QueryError> {
    let text = text.trim();
    if let Some(number) = parse_number(text) {
        return number;
    }
    let upper = text.to_ascii_uppercase();
    let wanted = upper.strip_prefix("SMC_CLC_DECL_").unwrap_or(&upper);
    let known = || current().into_iter().chain(retired());
    if let Some(code) = known().find(|code| code.name == wanted) {
        return Ok(code.value);
    }
    let aliases = [
        ("PEER_NO_SMC", "PEERNOSMC"),
        ("MEMORY", "MEM"),
        ("CNF_ERR", "CNFERR"),
        ("SMCDNOTALK", "NOISM2SUPP"),
    ];
    if let Some((_, name)) = aliases.into_iter().find(|(alias, _)| *alias == wanted)
        && let Some(code) = known().find(|code| code.name == name)
    {
        return Ok(code.value);
    }
    let letters = |text: &str| -> String { text.chars().filter(char::is_ascii_alphanumeric).collect() };
    let like = |name: &str| {
        let (name, wanted) = (letters(name), letters(wanted));
        wanted.len() >= 3 && (name.contains(&wanted) || wanted.contains(&name))
    };
    let nearest = known().map(|code| code.name).find(|name| like(name));
    Err(QueryError::Unknown { text: text.to_owned(), nearest })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn code(text: &str) -> u32 {
        CodeQuery::parse(text).unwrap_or_else(|error| panic!("{error}")).code
    }

    #[test]
    fn every_form_that_users_see_is_read() {
        let peernosmc = [
            "0x03010000",
            "0X03010000",
            "0x3010000",
            "03010000",
            "50397184",
            "PEERNOSMC",
            "peernosmc",
            "SMC_CLC_DECL_PEERNOSMC",
            "smc_clc_decl_peernosmc",
            "PEER_NO_SMC",
            " 0x03010000 ",
        ];
        for text in peernosmc {
            assert_eq!(code(text), 0x0301_0000, "{text}");
        }
        assert_eq!(
            CodeQuery::parse("0x05000000/0x03030001"),
            Ok(CodeQuery { code: 0x0500_0000, peer: Some(0x0303_0001) })
        );
        assert_eq!(
            CodeQuery::parse("peerdecl / NOSMCDDEV"),
            Ok(CodeQuery { code: 0x0500_0000, peer: Some(0x0303_0001) })
        );
        // A name that both current and retired codes have is that of the current one.
        assert_eq!(code("INTERR"), 0x0999_0000);
        assert_eq!(code("TIMEOUT"), 0x0200_0000);
        assert_eq!(code("0x1234"), 0x1234);
    }

    #[test]
    fn what_is_no_code_is_refused_with_a_guess() {
        let error = |text: &str| CodeQuery::parse(text).unwrap_err().to_string();
        for text in
            ["", "/", "0x", "0xzz", "-1", "0x05000000/", "1.5", "0x05000000/0x1/0x2", "PEER-NOSMC\u{1b}"]
        {
            assert!(error(text).contains("is no code"), "{text}: {}", error(text));
        }
        assert!(error("0x123456789").ends_with("codes have 32 bits"));
        assert!(error("4294967296").ends_with("codes have 32 bits"));
        assert!(error("NOSMC_DEV").ends_with("(did you mean NOSMCDEV?)"), "{}", error("NOSMC_DEV"));
        assert!(!error("\u{1b}[31m").contains('\u{1b}'));
    }

    proptest! {
        #[test]
        fn a_number_is_read_in_both_forms(value: u32) {
            prop_assert_eq!(code(&format!("{value:#010x}")), value);
            // Ten digits at the most, and never eight with a zero in front.
            prop_assert_eq!(code(&value.to_string()), value);
        }

        #[test]
        fn no_text_ends_the_program(text in ".{0,40}") {
            let _ = CodeQuery::parse(&text);
        }
    }
}
