//! Takes records out of the ring buffer.
//!
//! The kernel wakes the reader exactly when a record arrives after it has read all before (the default of
//! `bpf_ringbuf_submit()`). A reader that is always done at once would be woken for each record, which costs the producer
//! far more than the record does. So it looks at the buffer at most every [`PAUSE`]: the first record after a quiet time is
//! read at once, those that follow are read many at a time, and without records nothing wakes up at all.

use std::{io, os::fd::AsRawFd as _, time::Duration};

use smc_agent_common as common;
use tokio::{io::unix::AsyncFd, time::Instant};
use tracing::warn;

use crate::kernel::ring::{Read, Ring};

/// How long the reader leaves the buffer alone after it was empty. A buffer of 16 MiB takes many times the records that can
/// come meanwhile.
const PAUSE: Duration = Duration::from_millis(2);
/// Records that are read at a time: not more than lets everything else have its turn.
const AT_ONCE: u64 = 4096;
/// Bytes that a record takes in the buffer: 8 come before it (`BPF_RINGBUF_HDR_SZ`, uapi/linux/bpf.h).
const RECORD: u64 = size_of::<common::Event>() as u64 + 8;

/// Reads the ring buffer without blocking a thread.
pub(super) struct EventReader {
    ring: AsyncFd<Ring>,
    not_before: Instant,
}

impl EventReader {
    /// Reads from `ring` within a tokio runtime.
    pub(super) fn new(ring: Ring) -> io::Result<Self> {
        debug_assert!(ring.as_raw_fd() >= 0, "an open map");
        // SAFETY: the ring owns its descriptor, which is the same and open for as long as the ring lives.
        let ring = unsafe { AsyncFd::register_with_interest(ring, tokio::io::Interest::READABLE) };
        Ok(Self { ring: ring.map_err(|error| error.into_parts().1)?, not_before: Instant::now() })
    }

    /// Records that were read since the buffer was made, by whichever agent.
    pub(super) fn taken(&self) -> u64 {
        self.ring.get_ref().positions().1 / RECORD
    }

    /// Records that are in the buffer, as it says itself.
    pub(super) fn pending(&self) -> u64 {
        let (written, read) = self.ring.get_ref().positions();
        written.wrapping_sub(read) / RECORD
    }

    /// Waits for records, and hands some of them to `take`. Says how many, and whether the buffer was empty after them.
    /// Nothing is lost if this is dropped while it waits.
    pub(super) async fn read(&mut self, mut take: impl FnMut(&common::Event)) -> io::Result<(u64, bool)> {
        let mut guard = self.ring.readable_mut().await?;
        if Instant::now() < self.not_before {
            tokio::time::sleep_until(self.not_before).await;
        }
        let Read { count, is_empty } = guard.get_inner_mut().read(AT_ONCE, |record| {
            match bytemuck::try_from_bytes::<common::Event>(record) {
                Ok(event) => take(event),
                // Cannot be, of programs that came with this agent.
                Err(error) => warn!("a record of {} bytes is no event: {error}", record.len()),
            }
        });
        if is_empty {
            guard.clear_ready();
            self.not_before = Instant::now() + PAUSE;
        }
        Ok((count, is_empty))
    }
}
