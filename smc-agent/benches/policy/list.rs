//! Lists of prefixes shaped like real ones, the same in every run.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    net::IpAddr,
    path::Path,
};

use smc_agent::policy::Prefix;

/// Seed of all lists.
pub(crate) const SEED: u64 = 0x5eed_5eed;

/// xorshift64* (Vigna 2016).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }
}

/// Prefixes of one family: lengths as in a routing table joined with lists of single hosts.
pub(crate) fn list(count: usize, v6: bool) -> Vec<Prefix> {
    let mut random = Random(SEED);
    (0..count).map(|_| if v6 { prefix_v6(&mut random) } else { prefix_v4(&mut random) }).collect()
}

fn prefix_v4(random: &mut Random) -> Prefix {
    let length = match random.below(100) {
        0..2 => 16 + random.below(4),
        2..12 => 20 + random.below(2),
        12..30 => 22 + random.below(2),
        30..80 => 24,
        80..85 => 25 + random.below(6),
        _ => 32,
    };
    let bits = random.word() % 0xdfff_ffff + 0x0100_0000;
    Prefix::new(IpAddr::V4(bits.into()), length as u8)
}

fn prefix_v6(random: &mut Random) -> Prefix {
    let length = match random.below(1000) {
        0..4 => 29 + random.below(3),
        4..60 => 32,
        60..200 => 36 + random.below(12),
        200..750 => 48,
        750..850 => 56,
        850..970 => 64,
        _ => 128,
    };
    let registry = [0x2001u128, 0x2400, 0x2600, 0x2800, 0x2a00, 0x2c00][random.below(6) as usize];
    let bits = (registry << 112) | (u128::from(random.next()) << 52 >> 4) | u128::from(random.next() >> 8);
    Prefix::new(IpAddr::V6(bits.into()), length as u8)
}

/// Writes a set file.
pub(crate) fn write(path: &Path, prefixes: &[Prefix]) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    for prefix in prefixes {
        writeln!(out, "{prefix}")?;
    }
    out.flush()
}

/// Addresses of which half are in the list.
pub(crate) fn peers(prefixes: &[Prefix], count: usize) -> Vec<IpAddr> {
    let mut random = Random(SEED ^ 0xffff);
    let mut peers = Vec::with_capacity(count);
    for number in 0..count {
        let hit = match prefixes[random.below(prefixes.len() as u64) as usize] {
            Prefix::V4(bits, length) => {
                let host = random.word().checked_shr(length.into()).unwrap_or(0);
                IpAddr::V4((bits | host).into())
            }
            Prefix::V6(bits, length) => {
                let any = u128::from(random.next()) << 64 | u128::from(random.next());
                IpAddr::V6((bits | any.checked_shr(length.into()).unwrap_or(0)).into())
            }
        };
        peers.push(match hit {
            _ if number % 2 == 0 => hit,
            IpAddr::V4(_) => IpAddr::V4(random.word().into()),
            // Within the blocks that registries give out: no peer has another address.
            IpAddr::V6(_) => match prefix_v6(&mut random) {
                Prefix::V6(bits, _) => {
                    let any = u128::from(random.next()) << 64 | u128::from(random.next());
                    IpAddr::V6((bits >> 112 << 112 | any >> 16).into())
                }
                Prefix::V4(..) => hit,
            },
        });
    }
    peers
}
