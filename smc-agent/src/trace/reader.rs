//! Takes records out of the ring buffer.

use std::{io, os::fd::AsRawFd as _};

use aya::{
    Ebpf,
    maps::{MapData, RingBuf},
    programs::{ProgramError, RawTracePoint},
};
use smc_agent_common as common;
use thiserror::Error;
use tokio::io::unix::AsyncFd;

const PROGRAM: &str = "smc_fallback";
const TRACEPOINT: &str = "smc_switch_to_fallback";

/// Why fallbacks cannot be seen.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The program is not in the object: a defect of the build.
    #[error("the embedded BPF object has no program {PROGRAM}")]
    NoProgram,
    /// The kernel refused the program.
    #[error("the kernel refused program {PROGRAM}: {0}")]
    Load(#[source] ProgramError),
    /// There is no such tracepoint.
    #[error("no tracepoint {TRACEPOINT} (5.16 and later, with module smc loaded): {0}")]
    Attach(#[source] ProgramError),
}

/// Attaches to the tracepoint for as long as `ebpf` lives: tracing ends with the process.
pub fn attach(ebpf: &mut Ebpf) -> Result<(), TraceError> {
    let program: &mut RawTracePoint =
        ebpf.program_mut(PROGRAM).and_then(|program| program.try_into().ok()).ok_or(TraceError::NoProgram)?;
    program.load().map_err(TraceError::Load)?;
    program.attach(TRACEPOINT).map_err(TraceError::Attach)?;
    Ok(())
}

/// Reads the ring buffer without blocking a thread.
pub struct EventReader {
    ring: AsyncFd<RingBuf<MapData>>,
    malformed: u64,
}

impl EventReader {
    /// Reads from `ring` within a tokio runtime.
    pub fn new(ring: RingBuf<MapData>) -> io::Result<Self> {
        debug_assert!(ring.as_raw_fd() >= 0, "an open map");
        // SAFETY: the ring owns its descriptor, which is the same and open for as long as the ring lives.
        let ring = unsafe { AsyncFd::register_with_interest(ring, tokio::io::Interest::READABLE) };
        Ok(Self { ring: ring.map_err(|error| error.into_parts().1)?, malformed: 0 })
    }

    /// Waits for records, and hands each to `take`.
    pub async fn read(&mut self, mut take: impl FnMut(&common::Event)) -> io::Result<()> {
        let mut guard = self.ring.readable_mut().await?;
        let ring = guard.get_inner_mut();
        while let Some(item) = ring.next() {
            match bytemuck::try_pod_read_unaligned::<common::Event>(&item) {
                Ok(event) => take(&event),
                Err(_) => self.malformed += 1,
            }
        }
        guard.clear_ready();
        Ok(())
    }

    /// Records of a size that is not an event's.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }
}
