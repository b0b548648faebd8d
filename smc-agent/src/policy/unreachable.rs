//! Rules that can never match because an earlier one takes all that they would.

use super::model::{Addresses, Mode, Rule};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Pairs of a rule that can never match and the earlier rule that covers it.
///
/// Several rules that cover one only together are not looked for.
pub(super) fn find(rules: &[Rule]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (number, rule) in rules.iter().enumerate() {
        let cover =
            rules[..number].iter().position(|earlier| earlier.mode == Mode::Enforce && covers(earlier, rule));
        found.extend(cover.map(|cover| (number, cover)));
    }
    found
}

/// Whether `earlier` matches all that `rule` does.
fn covers(earlier: &Rule, rule: &Rule) -> bool {
    (earlier.role.is_none() || earlier.role == rule.role)
        && dimension(earlier.ports.as_ref(), rule.ports.as_ref(), |outer, inner| ports(outer, inner))
        && dimension(earlier.peer.as_ref(), rule.peer.as_ref(), addresses)
        && dimension(earlier.local.as_ref(), rule.local.as_ref(), addresses)
}

fn dimension<T>(outer: Option<&T>, inner: Option<&T>, covers: impl Fn(&T, &T) -> bool) -> bool {
    match (outer, inner) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(outer), Some(inner)) => covers(outer, inner),
    }
}

fn ports(outer: &[RangeInclusive<u16>], inner: &[RangeInclusive<u16>]) -> bool {
    inner
        .iter()
        .all(|range| outer.iter().any(|outer| outer.contains(range.start()) && outer.contains(range.end())))
}

fn addresses(outer: &Addresses, inner: &Addresses) -> bool {
    // A rule that names only empty sets is warned of as such.
    if inner.sets.iter().all(|set| set.is_empty()) {
        return false;
    }
    let missing = || inner.sets.iter().filter(|set| !outer.sets.iter().any(|other| Arc::ptr_eq(other, set)));
    if missing().all(|set| outer.sets.iter().any(|other| other.covers(set))) {
        return true;
    }
    if outer.sets.len() < 2 {
        return false;
    }
    // Joining sets costs; one address outside of all of them is found sooner.
    let first_outside = missing().any(|set| {
        let v4 = set.v4().first().map(|range| std::net::Ipv4Addr::from_bits(range.0).into());
        let v6 = set.v6().first().map(|range| std::net::Ipv6Addr::from_bits(range.0).into());
        [v4, v6].into_iter().flatten().any(|address| !outer.contains(address))
    });
    if first_outside {
        return false;
    }
    let union = outer.joined();
    missing().all(|set| union.covers(set))
}
