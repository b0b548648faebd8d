//! The raw tracepoint where the kernel says that a connection falls back.

use aya::{
    Ebpf,
    programs::{ProgramError, RawTracePoint},
};
use thiserror::Error;

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
