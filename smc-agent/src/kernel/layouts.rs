//! Where SMC's fields are in kernels whose modules have no BTF (before 5.11): the only offsets of a kernel's structures
//! that this program knows by itself. The programs look at what they read before they believe it, and count what does not
//! look right (`layout_refused`).

use super::{
    btf::{Btf, Kind},
    offsets::Offset,
};

/// Distances from the end of `struct sock`, whose size the kernel's own BTF has.
struct Layout {
    /// Releases that it is for, by how they begin.
    release: &'static str,
    /// Global and distance in bytes.
    fields: [(&'static str, u32); 5],
}

/// Read off the `smc.ko` of Debian's 5.10.262 (`struct smc_sock` of net/smc/smc.h).
const LAYOUTS: &[Layout] = &[Layout {
    release: "5.10.",
    fields: [
        ("OFF_SMC_CLCSOCK", 0),
        ("OFF_SMC_LISTEN", 528),
        ("OFF_SMC_USE_FALLBACK", 652),
        ("OFF_SMC_FALLBACK_RSN", 656),
        ("OFF_SMC_PEER_DIAGNOSIS", 660),
    ],
}];

/// The offsets of SMC's structures in a kernel of this release, if they are known.
pub(super) fn of_release(release: &str, kernel: &Btf) -> Option<Vec<Offset>> {
    let layout = LAYOUTS.iter().find(|layout| release.starts_with(layout.release))?;
    let end = kernel.size_of(kernel.find("sock", Kind::Struct)?)?;
    Some(layout.fields.iter().map(|(global, distance)| (*global, end + distance)).collect())
}
