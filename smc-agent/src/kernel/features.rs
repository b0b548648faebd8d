//! What the running kernel has of what the agent needs.

use std::{
    fs, io,
    os::fd::{FromRawFd as _, OwnedFd},
    path::Path,
    sync::Arc,
};

use super::{
    btf::{BTF_FOLDER, Btf, BtfError, Kind},
    layouts::{self, Build},
    offsets::{self, Offset},
    sys,
};

/// `AF_SMC` (include/linux/socket.h).
const AF_SMC: libc::c_int = 43;
/// The module that SMC is in where it is not built in.
const MODULE: &str = "smc";

/// How SMC is in this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Smc {
    /// It is not, or its module is not loaded and cannot be.
    Absent,
    /// As a loaded module.
    Module,
    /// Built in.
    BuiltIn,
}

/// What was found out about the kernel; each part says by itself what is missing.
#[derive(Debug)]
pub struct Features {
    /// `uname -r`.
    pub release: String,
    /// How SMC is in this kernel.
    pub smc: Smc,
    /// The kernel's types.
    pub kernel_btf: Arc<Btf>,
    /// The types of SMC: those of the module on top of the kernel's, or the kernel's own.
    pub smc_btf: Result<Arc<Btf>, BtfError>,
    /// Offsets of the kernel's structures.
    pub kernel_offsets: Vec<Offset>,
    /// Offsets of SMC's structures.
    pub smc_offsets: Result<Vec<Offset>, String>,
    /// Offsets of SMC's links.
    pub link_offsets: Result<Vec<Offset>, String>,
    /// Whether there is the tracepoint `smc_switch_to_fallback` (5.16 and later).
    pub fallback_tracepoint: bool,
}

impl Features {
    /// Looks at the running kernel. With `load_module`, SMC is asked for by making a socket, which loads its module
    /// where it is one.
    pub fn of_running_kernel(load_module: bool) -> Result<Self, BtfError> {
        let kernel_btf = Arc::new(Btf::of_kernel()?);
        let kernel_offsets = offsets::of_kernel(&kernel_btf)?;
        let smc = smc(&kernel_btf, load_module);
        let smc_btf = match smc {
            Smc::Module => Btf::of_module(MODULE, &kernel_btf).map(Arc::new),
            Smc::BuiltIn | Smc::Absent => Ok(Arc::clone(&kernel_btf)),
        };
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        let absent = || Err("this kernel has no SMC (module smc is not loaded)".to_owned());
        let of = |resolve: fn(&Btf) -> Result<Vec<Offset>, BtfError>| match (&smc_btf, smc) {
            (_, Smc::Absent) => absent(),
            (Ok(btf), _) => resolve(btf).map_err(|error| error.to_string()),
            (Err(error), _) => Err(error.to_string()),
        };
        let (mut smc_offsets, link_offsets) = (of(offsets::of_smc), of(offsets::of_links));
        if smc == Smc::Module && smc_btf.is_err() && layouts::modules_have_no_btf(&release) {
            let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
            let build = Build {
                release: &release,
                version: &read("/proc/sys/kernel/version"),
                protocols: &read("/proc/net/protocols"),
            };
            smc_offsets = layouts::of_build(&build, &kernel_btf);
        }
        // The type that the kernel's macros make for each tracepoint.
        let type_of_tracepoint = "btf_trace_smc_switch_to_fallback";
        let fallback_tracepoint =
            smc_btf.as_ref().is_ok_and(|btf| btf.find(type_of_tracepoint, Kind::Typedef).is_some());
        Ok(Self {
            release,
            smc,
            kernel_btf,
            smc_btf,
            kernel_offsets,
            smc_offsets,
            link_offsets,
            fallback_tracepoint,
        })
    }

    /// All offsets that could be resolved.
    pub fn offsets(&self) -> Vec<Offset> {
        let smc = self.smc_offsets.as_deref().unwrap_or_default();
        let links = self.link_offsets.as_deref().unwrap_or_default();
        self.kernel_offsets.iter().chain(smc).chain(links).copied().collect()
    }

    /// The BTF object that a type of SMC is to be looked up in: that of the module, `None` for the kernel's own.
    pub fn smc_btf_object(&self) -> io::Result<Option<OwnedFd>> {
        match self.smc {
            Smc::Module => sys::module_btf(MODULE),
            Smc::BuiltIn | Smc::Absent => Ok(None),
        }
    }
}

fn smc(kernel: &Btf, load_module: bool) -> Smc {
    if load_module {
        // SAFETY: plain integers; a descriptor that comes back is ours alone and closed by OwnedFd.
        let socket = unsafe { libc::socket(AF_SMC, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        if socket >= 0 {
            // SAFETY: see above.
            drop(unsafe { OwnedFd::from_raw_fd(socket) });
        }
    }
    if kernel.find("smc_sock", Kind::Struct).is_some() {
        Smc::BuiltIn
    } else if Path::new("/sys/module").join(MODULE).exists() || Path::new(BTF_FOLDER).join(MODULE).exists() {
        Smc::Module
    } else {
        Smc::Absent
    }
}
