//! The data that connections carry: each byte depends on its position and on the connection, so that lost, doubled,
//! exchanged and foreign bytes all show.

use anyhow::{Result, bail};

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
        for (place, at) in buffer.iter_mut().zip(position..) {
            *place = self.byte(at);
        }
    }

    /// Compares the bytes from `position` on.
    pub(crate) fn check(self, position: u64, received: &[u8]) -> Result<()> {
        for (&byte, at) in received.iter().zip(position..) {
            let expected = self.byte(at);
            if byte != expected {
                bail!("foreign data: byte {at} is {byte:#04x} instead of {expected:#04x}");
            }
        }
        Ok(())
    }

    fn byte(self, position: u64) -> u8 {
        let word = mix(self.seed.wrapping_add(position / 8)).to_le_bytes();
        usize::try_from(position % 8).ok().and_then(|index| word.get(index).copied()).unwrap_or_default()
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
        assert!(Pattern::new(7, false).check(5, &bytes).is_err());
        assert!(Pattern::new(8, true).check(5, &bytes).is_err());
        bytes[50] ^= 1;
        assert!(pattern.check(5, &bytes).unwrap_err().to_string().contains("byte 55 "));
    }
}
