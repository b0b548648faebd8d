//! Loads programs of kinds that aya has no type for: members of a `struct_ops` type, in the kernel or in a module, and those
//! that change what a kernel function returns. Others can be loaded by it too, as what they are or, for tests, as something else.
//! The object is parsed a second time, and relocated against the maps that aya made.

use std::{
    collections::HashSet,
    ffi::CStr,
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
};

use aya::maps::{Map, MapData};
use aya_obj::Object;
use thiserror::Error;

use super::sys;

/// `BPF_PROG_TYPE_STRUCT_OPS` (uapi/linux/bpf.h).
const PROG_TYPE_STRUCT_OPS: u32 = 27;
/// `BPF_PROG_TYPE_TRACING` and its attach type `BPF_MODIFY_RETURN`.
const PROG_TYPE_TRACING: u32 = 26;
const MODIFY_RETURN: u32 = 26;
/// `BPF_PROG_TYPE_RAW_TRACEPOINT`.
const PROG_TYPE_RAW_TRACEPOINT: u32 = 17;

/// Why a program of an own kind could not be loaded.
#[derive(Debug, Error)]
pub enum LoaderError {
    /// The embedded object is not what this program expects: a defect of the build.
    #[error("the embedded BPF object cannot be used: {0}")]
    Object(String),
    /// The kernel refused the object's BTF.
    #[error("the kernel refused the object's BTF: {0}")]
    Btf(#[source] io::Error),
    /// The kernel refused a program.
    #[error("the kernel refused program {program}: {source}")]
    Program {
        /// Its name.
        program: String,
        /// What the system said.
        source: io::Error,
        /// What the verifier said; long.
        log: String,
    },
}

/// The object, ready to load programs of own kinds from.
#[derive(Debug)]
pub struct Loader {
    object: Object,
    btf: OwnedFd,
}

impl Loader {
    /// Parses `bytes` and points its programs at the maps of `ebpf`.
    pub fn new(bytes: &[u8], ebpf: &aya::Ebpf) -> Result<Self, LoaderError> {
        let wrong = |error: &dyn std::fmt::Display| LoaderError::Object(error.to_string());
        let mut object = Object::parse(bytes).map_err(|error| wrong(&error))?;
        let features = aya::features();
        let btf_features = features.btf().ok_or_else(|| wrong(&"this kernel takes no BTF"))?;
        let btf = object
            .fixup_and_sanitize_btf(btf_features)
            .map_err(|error| wrong(&error))?
            .ok_or_else(|| wrong(&"it has no BTF"))?
            .to_bytes();
        let btf = sys::btf_load(&btf).map_err(LoaderError::Btf)?;
        let maps = std::mem::take(&mut object.maps);
        let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        let fds: Vec<(&str, RawFd, &aya_obj::Map)> = maps
            .iter()
            .filter_map(|(name, map)| {
                let data = map_data(ebpf.map(name)?)?;
                Some((name.as_str(), data.fd().as_fd().as_raw_fd(), map))
            })
            .collect();
        object.relocate_maps(fds.into_iter(), &text).map_err(|error| wrong(&error))?;
        object.relocate_calls(&text).map_err(|error| wrong(&error))?;
        object.sanitize_functions(features);
        Ok(Self { object, btf })
    }

    /// BTF object of the BPF object.
    pub fn btf(&self) -> BorrowedFd<'_> {
        self.btf.as_fd()
    }

    /// Loads `program` as member number `member` of the `struct_ops` type `type_id`, which is in the kernel's BTF or
    /// in that of the module given.
    pub fn struct_ops_member(
        &self,
        program: &str,
        member: u32,
        type_id: u32,
        module_btf: Option<BorrowedFd<'_>>,
    ) -> Result<OwnedFd, LoaderError> {
        self.load(program, PROG_TYPE_STRUCT_OPS, member, type_id, module_btf)
    }

    /// Loads `program` as one that may put another value in the place of what the kernel function `function_id` (in
    /// the kernel's BTF) returns.
    pub fn modify_return(&self, program: &str, function_id: u32) -> Result<OwnedFd, LoaderError> {
        self.load(program, PROG_TYPE_TRACING, MODIFY_RETURN, function_id, None)
    }

    /// Loads `program` for a raw tracepoint.
    pub fn raw_tracepoint(&self, program: &str) -> Result<OwnedFd, LoaderError> {
        self.load(program, PROG_TYPE_RAW_TRACEPOINT, 0, 0, None)
    }

    fn load(
        &self,
        program: &str,
        prog_type: u32,
        expected_attach_type: u32,
        attach_btf_id: u32,
        module_btf: Option<BorrowedFd<'_>>,
    ) -> Result<OwnedFd, LoaderError> {
        let missing = || LoaderError::Object(format!("it has no program {program}"));
        let found = self.object.programs.get(program).ok_or_else(missing)?;
        let function = self.object.functions.get(&found.function_key()).ok_or_else(missing)?;
        let license: &CStr = &found.license;
        let instructions = function.instructions.as_slice();
        // SAFETY: bpf_insn is 8 bytes of plain integers without padding.
        let instructions = unsafe {
            std::slice::from_raw_parts(
                instructions.as_ptr().cast::<u8>(),
                std::mem::size_of_val(instructions),
            )
        };
        let record_size = |size: usize| u32::try_from(size).unwrap_or(0);
        sys::prog_load(&sys::ProgLoad {
            name: program,
            prog_type,
            expected_attach_type,
            instructions,
            license,
            btf: self.btf.as_fd(),
            func_info: (&function.func_info.func_info_bytes(), record_size(function.func_info_rec_size)),
            line_info: (&function.line_info.line_info_bytes(), record_size(function.line_info_rec_size)),
            attach_btf_id,
            attach_btf: module_btf,
        })
        .map_err(|(source, log)| LoaderError::Program { program: program.to_owned(), source, log })
    }
}

/// The map that is inside aya's typed one.
fn map_data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::ArrayOfMaps(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::RingBuf(data) => Some(data),
        _ => None,
    }
}
