//! What a decision is made about: one TCP connection as one of its two ends sees it.

/// The address family of an [`Address`], after folding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Family {
    /// IPv4, and IPv4 written as `::ffff:a.b.c.d`.
    V4 = 4,
    /// IPv6 outside `::ffff:0:0/96`.
    V6 = 6,
}

/// An IP address as two 64-bit keys in host order, the most significant bits first.
///
/// IPv4 occupies the upper 32 bits of `high`, so that one search serves both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    family: Family,
    high: u64,
    low: u64,
}

impl Address {
    /// An IPv4 address from its 32-bit value in host order (192.0.2.1 is `0xc000_0201`).
    #[inline(always)]
    #[must_use]
    pub const fn v4(value: u32) -> Self {
        Self { family: Family::V4, high: (value as u64) << 32, low: 0 }
    }

    /// An IPv6 address from its four 32-bit words in host order, the first word being the leading 32 bits.
    ///
    /// `::ffff:a.b.c.d` becomes the IPv4 address that it stands for.
    #[inline(always)]
    #[must_use]
    pub const fn v6(words: [u32; 4]) -> Self {
        let [a, b, c, d] = words;
        if a == 0 && b == 0 && c == 0xffff {
            return Self::v4(d);
        }
        Self { family: Family::V6, high: ((a as u64) << 32) | b as u64, low: ((c as u64) << 32) | d as u64 }
    }

    /// The family, after folding.
    #[inline(always)]
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// The leading 64 bits in host order; an IPv4 address fills the upper half of them.
    #[inline(always)]
    #[must_use]
    pub const fn high(&self) -> u64 {
        self.high
    }

    /// The trailing 64 bits in host order; 0 for IPv4.
    #[inline(always)]
    #[must_use]
    pub const fn low(&self) -> u64 {
        self.low
    }

    /// The address as the four words of IPv6 in host order; IPv4 as `::ffff:a.b.c.d`. [`Address::v6`] undoes it.
    #[inline(always)]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the shifts leave the 32 bits that are meant")]
    pub const fn words(&self) -> [u32; 4] {
        match self.family {
            Family::V4 => [0, 0, 0xffff, (self.high >> 32) as u32],
            Family::V6 => {
                [(self.high >> 32) as u32, self.high as u32, (self.low >> 32) as u32, self.low as u32]
            }
        }
    }
}

/// Which side of the connection this host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// This host sends the SYN.
    Client = 1,
    /// This host answers the SYN.
    Server = 2,
}

/// A connection as the policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The other end's address.
    pub peer: Address,
    /// This host's address.
    pub local: Address,
    /// The service port in host order: the destination port of the SYN, whichever side this host is.
    pub port: u16,
    /// Which side this host is.
    pub role: Role,
}

#[cfg(feature = "user")]
mod user {
    extern crate std;
    use super::{Address, Family};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    impl From<Ipv4Addr> for Address {
        fn from(address: Ipv4Addr) -> Self {
            Self::v4(address.to_bits())
        }
    }

    impl From<Ipv6Addr> for Address {
        #[expect(clippy::cast_possible_truncation, reason = "the shifts leave the 32 bits that are meant")]
        fn from(address: Ipv6Addr) -> Self {
            let bits = address.to_bits();
            Self::v6([(bits >> 96) as u32, (bits >> 64) as u32, (bits >> 32) as u32, bits as u32])
        }
    }

    impl From<IpAddr> for Address {
        fn from(address: IpAddr) -> Self {
            match address {
                IpAddr::V4(address) => address.into(),
                IpAddr::V6(address) => address.into(),
            }
        }
    }

    impl From<Address> for IpAddr {
        fn from(address: Address) -> Self {
            match address.family() {
                Family::V4 => Ipv4Addr::from_bits((address.high() >> 32) as u32).into(),
                Family::V6 => {
                    Ipv6Addr::from_bits((u128::from(address.high()) << 64) | u128::from(address.low())).into()
                }
            }
        }
    }
}
