//! Names with wildcards.

use std::fmt;

/// A text in which `*` stands for any characters, none included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Of a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether a whole name matches.
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
        let mut last = None;
        for part in parts {
            // What stands between two stars may match as early as it can.
            if let Some(middle) = last.replace(part) {
                let Some(at) = rest.find(middle) else { return false };
                rest = rest.get(at + middle.len()..).unwrap_or_default();
            }
        }
        last.map_or(rest.is_empty(), |last| rest.ends_with(last))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The meaning of a pattern, written down plainly.
    fn naive(pattern: &[char], name: &[char]) -> bool {
        match pattern {
            [] => name.is_empty(),
            ['*', rest @ ..] => (0..=name.len()).any(|skip| naive(rest, &name[skip..])),
            [first, rest @ ..] => name.first() == Some(first) && naive(rest, &name[1..]),
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_their_meaning_says(pattern in "[abé*]{0,7}", name in "[abé]{0,8}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            let expected = naive(&chars(&pattern), &chars(&name));
            prop_assert_eq!(Pattern::new(pattern).matches(&name), expected);
        }
    }

    #[test]
    fn stars_stand_for_anything() {
        let matches = |pattern: &str, name: &str| Pattern::new(pattern).matches(name);
        assert!(matches("nginx", "nginx") && !matches("nginx", "nginx2"));
        assert!(matches("*.service", "/system.slice/a.service") && matches("a*b*c", "aXbXbc"));
        assert!(!matches("a*a", "a") && matches("*", "") && matches("", ""));
    }
}
