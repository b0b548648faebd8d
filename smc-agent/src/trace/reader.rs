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
use tracing::warn;

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
