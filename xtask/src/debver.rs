//! Debian version numbers: their order, and the choice of one package among several.

use std::cmp::Ordering;

/// Compares two version numbers as dpkg does.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    let (epoch_a, rest_a) = epoch(a);
    let (epoch_b, rest_b) = epoch(b);
    let (up_a, rev_a) = rest_a.rsplit_once('-').unwrap_or((rest_a, ""));
    let (up_b, rev_b) = rest_b.rsplit_once('-').unwrap_or((rest_b, ""));
    epoch_a.cmp(&epoch_b).then_with(|| part(up_a, up_b)).then_with(|| part(rev_a, rev_b))
}

fn epoch(version: &str) -> (u64, &str) {
    version.split_once(':').map_or((0, version), |(number, rest)| (number.parse().unwrap_or(0), rest))
}

/// The weight of a character outside of digits: `~` sorts before the end, letters before the rest.
fn weight(byte: Option<u8>) -> i32 {
    match byte {
        Some(b'~') => -1,
        None | Some(b'0'..=b'9') => 0,
        Some(letter) if letter.is_ascii_alphabetic() => i32::from(letter),
        Some(other) => i32::from(other) + 256,
    }
}

fn part(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    while !a.is_empty() || !b.is_empty() {
        let mut i = 0;
        let digit = |text: &[u8], at: usize| text.get(at).is_none_or(u8::is_ascii_digit);
        while !digit(a, i) || !digit(b, i) {
            let order = weight(a.get(i).copied()).cmp(&weight(b.get(i).copied()));
            if order != Ordering::Equal {
                return order;
            }
            i += 1;
        }
        let (number_a, rest_a) = number(a.get(i..).unwrap_or_default());
        let (number_b, rest_b) = number(b.get(i..).unwrap_or_default());
        if number_a != number_b {
            return number_a.cmp(&number_b);
        }
        (a, b) = (rest_a, rest_b);
    }
    Ordering::Equal
}

fn number(text: &[u8]) -> (u64, &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    (digits.iter().fold(0u64, |n, d| n.saturating_mul(10).saturating_add(u64::from(d - b'0'))), rest)
}

/// Whether a version belongs to exactly this upstream release: `1.95.0+dfsg1-2~bpo13+1` to `1.95.0`.
pub(crate) fn is_release(version: &str, release: &str) -> bool {
    version.strip_prefix(release).is_some_and(|rest| rest.starts_with(['+', '-', '~']) || rest.is_empty())
}

/// A package with a version, as `apt-cache madison` lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    /// The name of the package.
    pub(crate) name: String,
    /// Its whole version.
    pub(crate) version: String,
}

/// Reads what `apt-cache madison` prints.
pub(crate) fn parse_madison(text: &str) -> Vec<Package> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split('|').map(str::trim);
            let (name, version, origin) = (fields.next()?, fields.next()?, fields.next()?);
            origin
                .ends_with("Packages")
                .then(|| Package { name: name.to_owned(), version: version.to_owned() })
        })
        .collect()
}

/// The newest of some packages.
pub(crate) fn newest(packages: Vec<Package>) -> Option<Package> {
    packages.into_iter().max_by(|a, b| compare(&a.version, &b.version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_as_dpkg_sorts_them() {
        for (low, high) in [
            ("6.12.9-1", "6.12.94-1"),
            ("6.1.176-1", "6.12.1-1"),
            ("1.95.0+dfsg1-2~bpo13+1", "1.95.0+dfsg1-2"),
            ("7.3.4-1~bpo13+1", "7.3.4-1"),
            ("1.0~rc1", "1.0"),
            ("1.0", "1.0a"),
            ("1.0a", "1.0+b"),
            ("9", "1:1"),
            ("1.01", "1.2"),
        ] {
            assert_eq!(compare(low, high), Ordering::Less, "{low} < {high}");
            assert_eq!(compare(high, low), Ordering::Greater, "{high} > {low}");
        }
        assert_eq!(compare("1.001", "1.1"), Ordering::Equal);
    }

    #[test]
    fn the_exact_release_is_wanted_not_the_newest() {
        assert!(is_release("1.95.0+dfsg1-2~bpo13+1", "1.95.0"));
        assert!(!is_release("1.95.01-1", "1.95.0"));
        assert!(!is_release("1.97.1+dfsg1-1~bpo13+1", "1.95.0"));
    }

    #[test]
    fn madison_is_read_and_sources_are_left_out() {
        let text = " rust-src | 1.97.1-1 | http://m suite/main amd64 Packages\n rust-src | 1.95.0-2 | http://m suite/main amd64 Packages\n rustc | 1 | http://m suite/main Sources\n";
        let found = parse_madison(text);
        assert_eq!(found.len(), 2);
        assert_eq!(newest(found).unwrap().version, "1.97.1-1");
    }
}
