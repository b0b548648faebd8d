//! Takes records out of the ring buffer.

use std::{io, os::fd::AsRawFd as _};

use aya::maps::{MapData, RingBuf};
use smc_agent_common as common;
use tokio::io::unix::AsyncFd;
use tracing::warn;

/// Reads the ring buffer without blocking a thread.
pub struct EventReader {
    ring: AsyncFd<RingBuf<MapData>>,
}

impl EventReader {
    /// Reads from `ring` within a tokio runtime.
    pub fn new(ring: RingBuf<MapData>) -> io::Result<Self> {
        debug_assert!(ring.as_raw_fd() >= 0, "an open map");
        // SAFETY: the ring owns its descriptor, which is the same and open for as long as the ring lives.
        let ring = unsafe { AsyncFd::register_with_interest(ring, tokio::io::Interest::READABLE) };
        Ok(Self { ring: ring.map_err(|error| error.into_parts().1)? })
    }

    /// Waits for records, and hands some of them to `take`: not more at a time than lets everything else have its turn.
    pub async fn read(&mut self, mut take: impl FnMut(&common::Event)) -> io::Result<()> {
        const AT_ONCE: usize = 1024;
        let mut guard = self.ring.readable_mut().await?;
        let ring = guard.get_inner_mut();
        for _ in 0..AT_ONCE {
            let Some(item) = ring.next() else {
                guard.clear_ready();
                break;
            };
            match bytemuck::try_pod_read_unaligned::<common::Event>(&item) {
                Ok(event) => take(&event),
                // Cannot be, of programs that came with this agent.
                Err(error) => warn!("a record of {} bytes is no event: {error}", item.len()),
            }
        }
        Ok(())
    }
}
