//! The backend for kernels that ask a `struct smc_hs_ctrl` before they put the SMC option into a SYN or a SYN-ACK
//! (include/net/smc.h, `net/smc/smc_hs_bpf.c`; 6.19 and later with `CONFIG_SMC_HS_CTRL_BPF`).
//!
//! It is registered without a link, because the kernel refuses one, and selected for a namespace by writing its
//! name to `net.smc.hs_ctrl`. Registration and selection outlive the process.

use std::{
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use thiserror::Error;

use super::{
    btf::{Btf, Kind},
    loader::{Loader, LoaderError},
    sys,
};

/// The sysctl that selects a ctrl by its name.
pub const SYSCTL: &str = "/proc/sys/net/smc/hs_ctrl";
/// The names that the agent uses in turn, so that a new ctrl can take over before the old one goes.
pub const NAMES: [&str; 2] = ["smcagent_a", "smcagent_b"];

const STRUCTURE: &str = "smc_hs_ctrl";
/// What `bpf_struct_ops_map_alloc()` looks for (`kernel/bpf/bpf_struct_ops.c`).
const VALUE_STRUCTURE: &str = "bpf_struct_ops_smc_hs_ctrl";
/// Name of our `struct_ops` maps, by which they are found again (at most 15 characters).
const MAP_NAME: &str = "smcagent_ctrl";
/// `BPF_MAP_TYPE_STRUCT_OPS` (uapi/linux/bpf.h).
const MAP_TYPE_STRUCT_OPS: u32 = 26;
/// `SMC_HS_CTRL_FLAG_INHERITABLE` (`include/net/smc.h`): a new network namespace begins with what is selected in the first one.
const FLAG_INHERITABLE: u32 = 1;
const MEMBERS: [(&str, &str); 2] = [("syn_option", "hs_syn_option"), ("synack_option", "hs_synack_option")];
const KEY: [u8; 4] = [0; 4];

/// Why the backend cannot be used, or a step of it failed.
#[derive(Debug, Error)]
pub enum HsCtrlError {
    /// The type is not in the BTF that was searched.
    #[error("this kernel has no struct smc_hs_ctrl (6.19 and later with CONFIG_SMC_HS_CTRL_BPF)")]
    NoType,
    /// The type does not look as expected.
    #[error("struct smc_hs_ctrl of this kernel has no {0}")]
    NoMember(&'static str),
    /// A program was refused.
    #[error(transparent)]
    Load(#[from] LoaderError),
    /// Somebody else's ctrl is selected.
    #[error("net.smc.hs_ctrl is set to {0:?}, which is not this agent's: clear it first, or use --take-over")]
    Foreign(String),
    /// A call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> HsCtrlError {
    let what = what.into();
    move |source| HsCtrlError::Io { what, source }
}

/// Where things are in the value of the `struct_ops` map, by BTF.
struct Layout {
    /// `struct smc_hs_ctrl` itself.
    structure: u32,
    /// The value that holds it.
    value_type: u32,
    /// Size of the value in bytes.
    size: u32,
    /// Offset of the structure in the value.
    data: usize,
    /// Offset of its name in the value.
    name: usize,
    /// Offset of its flags in the value.
    flags: usize,
}

impl Layout {
    fn new(btf: &Btf) -> Result<Self, HsCtrlError> {
        let structure = btf.find(STRUCTURE, Kind::Struct).ok_or(HsCtrlError::NoType)?;
        let value_type = btf.find(VALUE_STRUCTURE, Kind::Struct).ok_or(HsCtrlError::NoType)?;
        let size = btf.size_of(value_type).ok_or(HsCtrlError::NoType)?;
        let data = btf.member(value_type, "data").ok_or(HsCtrlError::NoMember("data"))?.offset as usize;
        let name = btf.member(structure, "name").ok_or(HsCtrlError::NoMember("name"))?.offset as usize;
        let flags = btf.member(structure, "flags").ok_or(HsCtrlError::NoMember("flags"))?.offset as usize;
        Ok(Self { structure, value_type, size, data, name: data + name, flags: data + flags })
    }
}

/// The two programs, loaded; nothing is registered yet.
#[derive(Debug)]
pub struct Prepared {
    value: Vec<u8>,
    value_type: u32,
    name_offset: usize,
    inheritable: bool,
    module_btf: Option<OwnedFd>,
    /// The members' programs; the map takes its own reference when it is registered.
    programs: Vec<OwnedFd>,
}

impl Prepared {
    /// Loads the programs. `btf` describes the kernel, or the module smc on top of it, whose BTF object is then
    /// `module_btf`. With `inheritable`, a network namespace that is made begins with what is selected in the first one.
    pub fn new(
        loader: &Loader,
        btf: &Btf,
        module_btf: Option<OwnedFd>,
        inheritable: bool,
    ) -> Result<Self, HsCtrlError> {
        let layout = Layout::new(btf)?;
        let mut value = vec![0; layout.size as usize];
        let flags = value.get_mut(layout.flags..layout.flags + 4).ok_or(HsCtrlError::NoMember("flags"))?;
        flags.copy_from_slice(&if inheritable { FLAG_INHERITABLE } else { 0 }.to_ne_bytes());
        let mut programs = Vec::new();
        for (member, program) in MEMBERS {
            let place = btf.member(layout.structure, member).ok_or(HsCtrlError::NoMember(member))?;
            let module = module_btf.as_ref().map(|fd| fd.as_fd());
            let fd = loader.struct_ops_member(program, place.index, layout.structure, module)?;
            let at = layout.data + place.offset as usize;
            let slot = value.get_mut(at..at + 8).ok_or(HsCtrlError::NoMember(member))?;
            // Function pointers are given as program descriptors.
            slot.copy_from_slice(
                &u64::from(std::os::fd::AsRawFd::as_raw_fd(&fd).unsigned_abs()).to_ne_bytes(),
            );
            programs.push(fd);
        }
        Ok(Self {
            value,
            value_type: layout.value_type,
            name_offset: layout.name,
            inheritable,
            module_btf,
            programs,
        })
    }

    /// Registers the ctrl under whichever of the two names is free, and pins it.
    pub fn register(mut self, loader: &Loader, pin: &Path) -> Result<Registered, HsCtrlError> {
        let registered = match self.register_as(loader, MAP_NAME, NAMES[0]) {
            // The other name is the one in use.
            Err(HsCtrlError::Io { source, .. }) if source.raw_os_error() == Some(libc::EEXIST) => {
                self.register_as(loader, MAP_NAME, NAMES[1])?
            }
            result => result?,
        };
        if let Err(error) = sys::pin(registered.map.as_fd(), pin) {
            let _ = registered.unregister();
            return Err(failed(format!("pin {}", pin.display()))(error));
        }
        Ok(registered)
    }

    /// Registers the ctrl under a name of at most 15 characters, with a map of such a name too.
    pub fn register_as(
        &mut self,
        loader: &Loader,
        map_name: &str,
        name: &str,
    ) -> Result<Registered, HsCtrlError> {
        debug_assert_eq!(self.programs.len(), MEMBERS.len(), "one program a member");
        let size = u32::try_from(self.value.len()).map_err(|_| HsCtrlError::NoType)?;
        let field = self.value.get_mut(self.name_offset..self.name_offset + 16);
        let field = field.ok_or(HsCtrlError::NoMember("name"))?;
        field.fill(0);
        for (byte, of_name) in field.iter_mut().zip(name.bytes().take(15)) {
            *byte = of_name;
        }
        let module = self.module_btf.as_ref().map(|fd| fd.as_fd());
        let map = sys::struct_ops_map(map_name, size, self.value_type, loader.btf(), module)
            .map_err(failed("make the struct_ops map"))?;
        sys::map_update(map.as_fd(), &KEY, &self.value)
            .map_err(failed(format!("register smc_hs_ctrl {name}")))?;
        Ok(Registered { map, name: name.to_owned(), inheritable: self.inheritable })
    }
}

/// A ctrl that the kernel knows.
#[derive(Debug)]
pub struct Registered {
    map: OwnedFd,
    name: String,
    inheritable: bool,
}

impl Registered {
    /// The name to select it by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether network namespaces that are made begin with it where it is selected in the first one.
    pub fn is_inheritable(&self) -> bool {
        self.inheritable
    }

    /// Opens one that an earlier process pinned; `None` if there is no such pin. Its name is read back from the
    /// kernel.
    pub fn open(pin: &Path, btf: &Btf) -> Result<Option<Self>, HsCtrlError> {
        let map = match sys::open_pin(pin) {
            Ok(map) => map,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(format!("open {}", pin.display()))(error)),
        };
        Self::from_map(map, btf).map(Some)
    }

    fn from_map(map: OwnedFd, btf: &Btf) -> Result<Self, HsCtrlError> {
        let layout = Layout::new(btf)?;
        let mut value = vec![0; layout.size as usize];
        sys::map_lookup(map.as_fd(), &KEY, &mut value).map_err(failed("read the struct_ops map"))?;
        let name = value.get(layout.name..layout.name + 16).ok_or(HsCtrlError::NoMember("name"))?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let flags = value.get(layout.flags..layout.flags + 4).and_then(|flags| flags.try_into().ok());
        let flags = u32::from_ne_bytes(flags.ok_or(HsCtrlError::NoMember("flags"))?);
        let inheritable = flags & FLAG_INHERITABLE != 0;
        Ok(Self { map, name: String::from_utf8_lossy(name).into_owned(), inheritable })
    }

    /// All ctrls of this agent in the kernel, pinned or not: what an earlier process may have left half way. Needs
    /// `CAP_SYS_ADMIN`.
    pub fn all(btf: &Btf) -> Result<Vec<Self>, HsCtrlError> {
        let mut found = Vec::new();
        for id in sys::map_ids() {
            let id = id.map_err(failed("list the kernel's maps"))?;
            // Maps come and go while they are listed.
            let Ok(map) = sys::map_by_id(id) else { continue };
            let Ok(info) = sys::map_info(map.as_fd()) else { continue };
            let name = info.name.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0);
            if info.type_ == MAP_TYPE_STRUCT_OPS && name.eq(MAP_NAME.bytes()) {
                found.push(Self::from_map(map, btf)?);
            }
        }
        Ok(found)
    }

    /// Takes it out of the kernel; it must not be selected anywhere.
    pub fn unregister(&self) -> Result<(), HsCtrlError> {
        match sys::map_delete(self.map.as_fd(), &KEY) {
            // Not registered (any more).
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other.map_err(failed(format!("unregister smc_hs_ctrl {}", self.name))),
        }
    }
}

/// The ctrl that is selected in this thread's network namespace; `None` if none is.
pub fn selected() -> Result<Option<String>, HsCtrlError> {
    let text = fs::read_to_string(SYSCTL).map_err(failed(format!("read {SYSCTL}")))?;
    let name = text.trim();
    Ok((!name.is_empty()).then(|| name.to_owned()))
}

/// Whether a selected name is one of this agent's.
pub fn is_ours(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Selects a ctrl in this thread's network namespace, in one step with letting go of the one before. A foreign one is
/// displaced only with `take_over`. Gives the name of what was selected before.
pub fn select(name: &str, take_over: bool) -> Result<Option<String>, HsCtrlError> {
    let before = selected()?;
    match before {
        Some(foreign) if !is_ours(&foreign) && !take_over => Err(HsCtrlError::Foreign(foreign)),
        // Written even if the name is there already: it may be that of an earlier ctrl which the kernel keeps for this namespace.
        before => {
            fs::write(SYSCTL, name).map_err(failed(format!("write {name} to {SYSCTL}")))?;
            Ok(before)
        }
    }
}

/// Clears the selection in this thread's network namespace if it is this agent's. Says whether it was.
pub fn deselect() -> Result<bool, HsCtrlError> {
    if !Path::new(SYSCTL).exists() || !selected()?.is_some_and(|name| is_ours(&name)) {
        return Ok(false);
    }
    // A newline and nothing before it is the empty name.
    fs::write(SYSCTL, "\n").map_err(failed(format!("clear {SYSCTL}")))?;
    Ok(true)
}
