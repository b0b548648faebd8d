//! The data that connections carry: each byte depends on its position and on the connection, so that lost, doubled,
//! exchanged and foreign bytes all show.

use anyhow::{Result, bail};

/// How many bytes are made at once.
const WORD: u64 = 8;

/// The bytes of one direction of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    seed: u64,
}

impl Pattern {
    /// The pattern of a connection's direction.
    pub(crate) fn new(connection: u64, from_client: bool) -> Self {
        Self { seed: mix(connection ^ if from_client { 0x5eed_c11e } else { 0x5eed_5e12 }) }
    }

    /// Writes the bytes from `position` on.
    pub(crate) fn fill(self, position: u64, buffer: &mut [u8]) {
        // A word at a time: the tests run in emulated machines, where this is most of the work.
        let skip = usize::try_from(position % WORD).unwrap_or_default();
        let (head, body) = buffer.split_at_mut(buffer.len().min((8 - skip) % 8));
        let word = |number: u64| mix(self.seed.wrapping_add(number)).to_le_bytes();
        head.copy_from_slice(&word(position / WORD)[skip..][..head.len()]);
        for (place, number) in body.chunks_mut(8).zip(position.div_ceil(WORD)..) {
            place.copy_from_slice(&word(number)[..place.len()]);
        }
    }

    /// Compares the bytes from `position` on.
    pub(crate) fn check(self, position: u64, received: &[u8]) -> Result<()> {
        let mut expected = vec![0; received.len()];
        self.fill(position, &mut expected);
        if received == expected {
            return Ok(());
        }
        let differing =
            received.iter().zip(&expected).zip(position..).find(|((byte, wanted), _)| byte != wanted);
        let ((byte, wanted), at) = differing.unwrap_or(((&0, &0), position));
        bail!("foreign data: byte {at} is {byte:#04x} instead of {wanted:#04x}")
    }
}

/// The finaliser of `SplitMix64` (Steele, Lea & Flood 2014): every bit of the result depends on every bit of `value`.
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_filled_checks_at_its_place_only() {
        let pattern = Pattern::new(7, true);
        let mut bytes = [0; 100];
        pattern.fill(5, &mut bytes);
        assert!(pattern.check(5, &bytes).is_ok());
        assert!(pattern.check(8, &bytes[3..]).is_ok());
        assert!(pattern.check(6, &bytes).is_err());
        for (begin, end) in (0..20).flat_map(|begin| (begin..30).map(move |end| (begin, end))) {
            assert!(pattern.check(5 + u64::try_from(begin).unwrap(), &bytes[begin..end]).is_ok());
        }
        assert!(Pattern::new(7, false).check(5, &bytes).is_err());
        assert!(Pattern::new(8, true).check(5, &bytes).is_err());
        bytes[50] ^= 1;
        assert!(pattern.check(5, &bytes).unwrap_err().to_string().contains("byte 55 "));
    }
}
