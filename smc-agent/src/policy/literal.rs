//! The small forms of the language: addresses, CIDRs and ports.

use super::addresses::Prefix;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// What is wrong with a value, and what to write instead.
pub(super) type Wrong = (String, String);

/// Reads an address or a CIDR. The second part tells whether bits behind the prefix were set.
pub(super) fn prefix(text: &str) -> Result<(Prefix, bool), Wrong> {
    let (address_text, length_text) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let Ok(address) = address_text.parse::<IpAddr>() else { return Err(not_an_address(text, address_text)) };
    let bits: u8 = if address.is_ipv4() { 32 } else { 128 };
    let Some(length_text) = length_text else { return Ok((Prefix::new(address, bits), false)) };
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let digits =
        (1..=3).contains(&length_text.len()) && length_text.bytes().all(|byte| byte.is_ascii_digit());
    let length = if digits { length_text.parse::<u16>().ok() } else { None };
    let Some(length) = length else {
        let help = if length_text.parse::<IpAddr>().is_ok() {
            "write the length of the prefix, as in 10.0.0.0/8, and not a mask".to_owned()
        } else {
            format!("write a number from 0 to {bits} after the slash")
        };
        return Err((format!("`{length_text}` is not the length of a prefix"), help));
    };
    let Some(length) = u8::try_from(length).ok().filter(|length| *length <= bits) else {
        return Err((
            format!("a prefix of {length} bits is longer than an {family} address"),
            format!("write a length from 0 to {bits}"),
        ));
    };
    let prefix = Prefix::new(address, length);
    let exact = Prefix::new(address, bits);
    let host_bits = match (prefix, exact) {
        (Prefix::V4(network, _), Prefix::V4(address, _)) => network != address,
        (Prefix::V6(network, _), Prefix::V6(address, _)) => network != address,
        // A mapped address in a prefix shorter than /96.
        (Prefix::V6(network, _), Prefix::V4(address, _)) => network != (0xffff << 32) | u128::from(address),
        (Prefix::V4(..), Prefix::V6(..)) => true,
    };
    Ok((prefix, host_bits))
}

fn not_an_address(text: &str, address: &str) -> Wrong {
    let message = format!("`{text}` is not an IP address or CIDR");
    let help = if address.split_once('-').is_some_and(|(a, b)| is_address(a) && is_address(b)) {
        "ranges of addresses are not known; write the CIDRs that make up the range".to_owned()
    } else if address.strip_prefix('[').is_some_and(|rest| rest.contains(']')) {
        "write an IPv6 address without brackets".to_owned()
    } else if address.split_once(':').is_some_and(|(a, _)| is_address(a)) {
        "write the address alone; ports belong in `port`".to_owned()
    } else if address.contains('%') {
        "write the address without a zone".to_owned()
    } else if address.bytes().any(|byte| byte.is_ascii_alphabetic()) && !address.contains(':') {
        "names are not resolved; write an address as 192.0.2.1 or 2001:db8::1, or a set as \"@name\""
            .to_owned()
    } else {
        "write an address as 192.0.2.1 or 2001:db8::1, or a CIDR as 10.0.0.0/8 or 2001:db8::/32".to_owned()
    };
    (message, help)
}

fn is_address(text: &str) -> bool {
    text.trim().parse::<IpAddr>().is_ok()
}

/// Reads a port or a range of ports.
pub(super) fn ports(text: &str) -> Result<RangeInclusive<u16>, Wrong> {
    let help = "write a port from 1 to 65535, or a range as 8000-8099";
    let port = |word: &str| -> Result<u16, Wrong> {
        let word = word.trim();
        if word.is_empty() || !word.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err((format!("`{text}` is not a port"), help.to_owned()));
        }
        match word.parse::<u16>() {
            Ok(0) => Err(("port 0 does not exist".to_owned(), help.to_owned())),
            Ok(number) => Ok(number),
            Err(_) => Err((format!("port {word} is above 65535"), help.to_owned())),
        }
    };
    let Some((first, last)) = text.split_once('-') else { return port(text).map(|port| port..=port) };
    let (first, last) = (port(first)?, port(last)?);
    if first > last {
        return Err((format!("the range `{text}` is reversed"), format!("write {last}-{first}")));
    }
    Ok(first..=last)
}

/// The candidate that was probably meant by `word`, if one is near enough.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = |candidate: &&str| distance(word, candidate);
    let best = candidates.into_iter().min_by_key(near)?;
    (near(&best) <= (word.chars().count() / 3).max(1)).then_some(best)
}

/// How many letters must be inserted, removed, replaced or swapped with their neighbour (Damerau 1964).
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(64).flat_map(char::to_lowercase).collect();
    let b: Vec<char> = b.chars().take(64).flat_map(char::to_lowercase).collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[a.len()][b.len()]
}
