//! Sets of addresses as sorted, disjoint ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The first address of `::ffff:0:0/96`, which stands for all of IPv4.
const MAPPED: u128 = 0xffff << 32;

/// An address prefix without host bits; IPv4-mapped prefixes are IPv4 already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prefix {
    /// IPv4: the network address in host order and the length, 0 to 32.
    V4(u32, u8),
    /// IPv6: the network address in host order and the length, 0 to 128.
    V6(u128, u8),
}

impl Prefix {
    /// The prefix of `length` bits that `address` is in. Lengths beyond the family's are cut to it.
    pub fn new(address: IpAddr, length: u8) -> Self {
        match address {
            IpAddr::V4(address) => {
                let length = length.min(32);
                Self::V4(address.to_bits() & mask32(length), length)
            }
            IpAddr::V6(address) => {
                let length = length.min(128);
                let bits = address.to_bits() & mask128(length);
                if length >= 96 && bits & mask128(96) == MAPPED {
                    #[expect(
                        clippy::cast_possible_truncation,
                        reason = "the lower 32 bits are the IPv4 address"
                    )]
                    return Self::V4(bits as u32, length - 96);
                }
                Self::V6(bits, length)
            }
        }
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::V4(bits, 32) => write!(f, "{}", Ipv4Addr::from_bits(bits)),
            Self::V4(bits, length) => write!(f, "{}/{length}", Ipv4Addr::from_bits(bits)),
            Self::V6(bits, 128) => write!(f, "{}", Ipv6Addr::from_bits(bits)),
            Self::V6(bits, length) => write!(f, "{}/{length}", Ipv6Addr::from_bits(bits)),
        }
    }
}

/// The network mask of an IPv4 prefix of `length` bits.
pub(super) fn mask32(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
}

/// The network mask of an IPv6 prefix of `length` bits.
pub(super) fn mask128(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

/// A set of addresses of both families.
///
/// Both lists hold inclusive ranges, sorted, neither overlapping nor touching.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSet {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
    prefixes: usize,
}

impl AddressSet {
    /// The IPv4 ranges, inclusive, in host order.
    pub fn v4(&self) -> &[(u32, u32)] {
        &self.v4
    }

    /// The IPv6 ranges, inclusive, in host order.
    pub fn v6(&self) -> &[(u128, u128)] {
        &self.v6
    }

    /// How many prefixes the set was written with.
    pub fn prefixes(&self) -> usize {
        self.prefixes
    }

    /// The fewest prefixes that make up the set, IPv4 first.
    pub fn to_prefixes(&self) -> impl Iterator<Item = Prefix> + '_ {
        let v4 = self.v4.iter().map(|range| (u128::from(range.0), u128::from(range.1)));
        let v6 = self.v6.iter().flat_map(|range| prefixes(*range, 128));
        v4.flat_map(|range| prefixes(range, 32)).chain(v6)
    }

    /// Whether no address is in the set.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Whether `address` is in the set.
    pub fn contains(&self, address: IpAddr) -> bool {
        match Prefix::new(address, 128) {
            Prefix::V4(bits, _) => find(&self.v4, bits),
            Prefix::V6(bits, _) => find(&self.v6, bits),
        }
    }

    /// Whether every address of `other` is in the set.
    pub fn covers(&self, other: &Self) -> bool {
        covers(&self.v4, &other.v4) && covers(&self.v6, &other.v6)
    }
}

fn find<T: Ord + Copy>(ranges: &[(T, T)], value: T) -> bool {
    let after = ranges.partition_point(|range| range.0 <= value);
    after > 0 && ranges[after - 1].1 >= value
}

fn covers<T: Ord + Copy>(outer: &[(T, T)], inner: &[(T, T)]) -> bool {
    inner.iter().all(|range| {
        let after = outer.partition_point(|candidate| candidate.0 <= range.0);
        after > 0 && outer[after - 1].1 >= range.1
    })
}

/// Collects prefixes in any order into an [`AddressSet`].
#[derive(Debug, Default)]
pub struct AddressSetBuilder {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
    prefixes: usize,
}

impl AddressSetBuilder {
    /// Adds a prefix.
    pub fn push(&mut self, prefix: Prefix) {
        self.prefixes += 1;
        match prefix {
            Prefix::V4(bits, length) => self.v4.push((bits, bits | !mask32(length))),
            Prefix::V6(bits, length) => self.v6.push((bits, bits | !mask128(length))),
        }
    }

    /// Adds all of another set.
    pub fn extend(&mut self, set: &AddressSet) {
        self.prefixes += set.prefixes;
        self.v4.extend_from_slice(&set.v4);
        self.v6.extend_from_slice(&set.v6);
    }

    /// As [`Self::finish`], for a set that was not written as such: it counts no prefixes.
    pub(super) fn finish_uncounted(self) -> AddressSet {
        AddressSet { prefixes: 0, ..self.finish() }
    }

    /// Sorts and merges what was added.
    pub fn finish(mut self) -> AddressSet {
        merge(&mut self.v4, |value| value.checked_add(1));
        merge(&mut self.v6, |value| value.checked_add(1));
        self.v4.shrink_to_fit();
        self.v6.shrink_to_fit();
        AddressSet { v4: self.v4, v6: self.v6, prefixes: self.prefixes }
    }
}

/// The fewest prefixes that make up a range.
pub(super) fn prefixes((first, end): (u128, u128), bits: u8) -> Vec<Prefix> {
    let mut list = Vec::new();
    let mut next = Some(first);
    while let Some(at) = next.filter(|at| *at <= end) {
        let aligned = at.trailing_zeros().min(u32::from(bits));
        let mut size = aligned;
        // Whether 2^size addresses from here on are too many; written so that 2^128 need not exist.
        while size > 0 && (end - at) < u128::MAX >> (128 - size) {
            size -= 1;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 128, and 32 bits of IPv4")]
        list.push(match bits {
            32 => Prefix::V4(at as u32, (32 - size) as u8),
            _ => Prefix::V6(at, (128 - size) as u8),
        });
        next = 1u128.checked_shl(size).and_then(|count| at.checked_add(count));
    }
    list
}

fn merge<T: Ord + Copy>(ranges: &mut Vec<(T, T)>, next: impl Fn(T) -> Option<T>) {
    ranges.sort_unstable();
    ranges.dedup_by(|range, last| {
        // The last address has no successor: everything that follows it in order overlaps it.
        let touches = next(last.1).is_none_or(|after| range.0 <= after);
        if touches {
            last.1 = last.1.max(range.1);
        }
        touches
    });
}

impl FromIterator<Prefix> for AddressSet {
    fn from_iter<I: IntoIterator<Item = Prefix>>(prefixes: I) -> Self {
        let mut builder = AddressSetBuilder::default();
        prefixes.into_iter().for_each(|prefix| builder.push(prefix));
        builder.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_and_nested_prefixes_become_one_range() {
        let set: AddressSet =
            [Prefix::V4(0x0a00_0000, 9), Prefix::V4(0x0a80_0000, 9), Prefix::V4(0x0a01_0000, 16)]
                .into_iter()
                .collect();
        assert_eq!(set.v4(), [(0x0a00_0000, 0x0aff_ffff)]);
        assert_eq!(set.prefixes(), 3);
    }

    #[test]
    fn the_whole_space_swallows_what_follows() {
        let set: AddressSet = [Prefix::V4(0, 0), Prefix::V4(u32::MAX, 32)].into_iter().collect();
        assert_eq!(set.v4(), [(0, u32::MAX)]);
    }

    #[test]
    fn mapped_prefixes_are_ipv4_from_96_bits_on() {
        let mapped = "::ffff:10.0.0.0".parse().unwrap();
        assert_eq!(Prefix::new(mapped, 104), Prefix::V4(0x0a00_0000, 8));
        assert_eq!(Prefix::new(mapped, 96), Prefix::V4(0, 0));
        assert_eq!(Prefix::new(mapped, 95), Prefix::V6(0xfffe_u128 << 32, 95));
    }

    #[test]
    fn ranges_are_written_as_few_prefixes() {
        let list = |range, bits| prefixes(range, bits).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(list((0, u128::MAX), 128), ["::/0"]);
        assert_eq!(list((0, u128::from(u32::MAX)), 32), ["0.0.0.0/0"]);
        assert_eq!(list((1, 4), 32), ["0.0.0.1", "0.0.0.2/31", "0.0.0.4"]);
        assert_eq!(list((u128::MAX, u128::MAX), 128), ["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]);
    }
}
