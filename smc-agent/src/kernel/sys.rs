//! The commands of bpf(2) that aya has no function for, each with its own small wrapper.

use std::{
    ffi::{CStr, CString},
    io,
    mem::zeroed,
    os::{
        fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use aya_obj::generated::{bpf_attr, bpf_btf_info, bpf_cmd, bpf_link_info, bpf_map_info, bpf_prog_info};

/// Calls bpf(2).
///
/// # Safety
///
/// Every pointer that `attr` holds for `command` is valid for as long as the call lasts.
unsafe fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i64> {
    // SAFETY: `attr` is a valid bpf_attr of the size given; the caller vouches for the pointers in it.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command as u32, &raw mut *attr, size_of::<bpf_attr>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// # Safety
///
/// As for [`bpf`]; in addition `command` returns a file descriptor.
unsafe fn bpf_fd(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: passed on to the caller.
    let fd = unsafe { bpf(command, attr) }?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn empty() -> bpf_attr {
    // SAFETY: bpf_attr is a union of plain integers and arrays of them; all bytes zero are valid.
    unsafe { zeroed() }
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    // A descriptor that is open is never negative.
    fd.as_raw_fd().unsigned_abs()
}

/// Copies `name` into a kernel name field of 16 bytes, cut to 15.
fn put_name(field: &mut [std::ffi::c_char; 16], name: &str) {
    for (to, from) in field.iter_mut().take(15).zip(name.bytes()) {
        *to = from.cast_signed();
    }
}

/// Loads a BTF object; programs that have one can be told apart and typed.
pub(super) fn btf_load(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = empty();
    // SAFETY: the struct arm of BPF_BTF_LOAD; all its fields are integers.
    let command = unsafe { &mut attr.__bindgen_anon_7 };
    command.btf = bytes.as_ptr() as u64;
    command.btf_size = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    // SAFETY: `bytes` outlives the call.
    unsafe { bpf_fd(bpf_cmd::BPF_BTF_LOAD, &mut attr) }
}

/// What [`prog_load`] needs to know.
#[derive(Debug)]
pub(super) struct ProgLoad<'a> {
    pub(super) name: &'a str,
    pub(super) prog_type: u32,
    pub(super) expected_attach_type: u32,
    /// Instructions, 8 bytes each.
    pub(super) instructions: &'a [u8],
    pub(super) license: &'a CStr,
    pub(super) btf: BorrowedFd<'a>,
    pub(super) func_info: (&'a [u8], u32),
    pub(super) line_info: (&'a [u8], u32),
    pub(super) attach_btf_id: u32,
    /// BTF object of the module that the attach type is in; `None` for the kernel itself.
    pub(super) attach_btf: Option<BorrowedFd<'a>>,
}

/// Loads a program; on failure the verifier's log comes with the error (empty if there was none).
pub(super) fn prog_load(program: &ProgLoad<'_>) -> Result<OwnedFd, (io::Error, String)> {
    const INSTRUCTION: usize = 8;
    const LOG: usize = 4 << 20;
    let count = |bytes: &[u8], record: u32| match record {
        0 => 0,
        record => u32::try_from(bytes.len() / record as usize).unwrap_or(0),
    };
    let mut log: Vec<u8> = Vec::new();
    loop {
        let mut attr = empty();
        // SAFETY: the struct arm of BPF_PROG_LOAD; all its fields are integers.
        let command = unsafe { &mut attr.__bindgen_anon_3 };
        command.prog_type = program.prog_type;
        command.expected_attach_type = program.expected_attach_type;
        command.insns = program.instructions.as_ptr() as u64;
        command.insn_cnt = u32::try_from(program.instructions.len() / INSTRUCTION).unwrap_or(u32::MAX);
        command.license = program.license.as_ptr() as u64;
        put_name(&mut command.prog_name, program.name);
        command.prog_btf_fd = raw(program.btf);
        (command.func_info, command.func_info_rec_size) =
            (program.func_info.0.as_ptr() as u64, program.func_info.1);
        command.func_info_cnt = count(program.func_info.0, program.func_info.1);
        (command.line_info, command.line_info_rec_size) =
            (program.line_info.0.as_ptr() as u64, program.line_info.1);
        command.line_info_cnt = count(program.line_info.0, program.line_info.1);
        command.attach_btf_id = program.attach_btf_id;
        if let Some(btf) = program.attach_btf {
            command.__bindgen_anon_1.attach_btf_obj_fd = raw(btf);
        }
        if !log.is_empty() {
            command.log_buf = log.as_mut_ptr() as u64;
            command.log_size = u32::try_from(log.len()).unwrap_or(u32::MAX);
            command.log_level = 1;
        }
        // SAFETY: all slices, the license and the log outlive the call.
        match unsafe { bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr) } {
            Ok(fd) => return Ok(fd),
            // The second try is for the log: asking for it at once would slow down every load.
            Err(_) if log.is_empty() => log = vec![0; LOG],
            Err(error) => {
                let text = CStr::from_bytes_until_nul(&log).map(|text| text.to_string_lossy().into_owned());
                return Err((error, text.unwrap_or_default()));
            }
        }
    }
}

/// Makes a `BPF_MAP_TYPE_STRUCT_OPS` map for the type `value_type` of the kernel, or of the module whose BTF
/// object is given. Without a link: the registration is the map's own and outlives this process.
pub(super) fn struct_ops_map(
    name: &str,
    value_size: u32,
    value_type: u32,
    own_btf: BorrowedFd<'_>,
    module_btf: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    /// `BPF_MAP_TYPE_STRUCT_OPS` and `BPF_F_VTYPE_BTF_OBJ_FD` (uapi/linux/bpf.h).
    const STRUCT_OPS: u32 = 26;
    const VTYPE_BTF_OBJ_FD: u32 = 1 << 15;
    let mut attr = empty();
    // SAFETY: the struct arm of BPF_MAP_CREATE; all its fields are integers.
    let command = unsafe { &mut attr.__bindgen_anon_1 };
    command.map_type = STRUCT_OPS;
    command.key_size = 4;
    command.value_size = value_size;
    command.max_entries = 1;
    command.btf_fd = raw(own_btf);
    command.btf_vmlinux_value_type_id = value_type;
    if let Some(btf) = module_btf {
        command.map_flags = VTYPE_BTF_OBJ_FD;
        command.value_type_btf_obj_fd = btf.as_raw_fd();
    }
    put_name(&mut command.map_name, name);
    // SAFETY: no pointers are passed.
    unsafe { bpf_fd(bpf_cmd::BPF_MAP_CREATE, &mut attr) }
}

/// BTF types of the keys and values of a map.
pub(super) struct MapTypes<'a> {
    /// The BTF object that has them.
    pub(super) btf: BorrowedFd<'a>,
    /// Id of the keys' type.
    pub(super) key: u32,
    /// Id of the values' type.
    pub(super) value: u32,
}

/// Makes a `BPF_MAP_TYPE_ARRAY`, as an element of a map of maps.
pub(super) fn array(
    name: &str,
    value_size: u32,
    entries: u32,
    flags: u32,
    types: &MapTypes<'_>,
) -> io::Result<OwnedFd> {
    const ARRAY: u32 = 2;
    let mut attr = empty();
    // SAFETY: the struct arm of BPF_MAP_CREATE; all its fields are integers.
    let command = unsafe { &mut attr.__bindgen_anon_1 };
    command.map_type = ARRAY;
    command.key_size = 4;
    command.value_size = value_size;
    command.max_entries = entries;
    command.map_flags = flags;
    command.btf_fd = raw(types.btf);
    command.btf_key_type_id = types.key;
    command.btf_value_type_id = types.value;
    put_name(&mut command.map_name, name);
    // SAFETY: no pointers are passed.
    unsafe { bpf_fd(bpf_cmd::BPF_MAP_CREATE, &mut attr) }
}

/// Makes a `BPF_MAP_TYPE_HASH` whose elements are made as they are needed, as an element of a map of maps.
pub(super) fn hash(name: &str, key_size: u32, value_size: u32, entries: u32) -> io::Result<OwnedFd> {
    /// `BPF_MAP_TYPE_HASH` and `BPF_F_NO_PREALLOC` (uapi/linux/bpf.h).
    const HASH: u32 = 1;
    const NO_PREALLOC: u32 = 1;
    let mut attr = empty();
    // SAFETY: the struct arm of BPF_MAP_CREATE; all its fields are integers.
    let command = unsafe { &mut attr.__bindgen_anon_1 };
    command.map_type = HASH;
    command.key_size = key_size;
    command.value_size = value_size;
    command.max_entries = entries;
    command.map_flags = NO_PREALLOC;
    put_name(&mut command.map_name, name);
    // SAFETY: no pointers are passed.
    unsafe { bpf_fd(bpf_cmd::BPF_MAP_CREATE, &mut attr) }
}

/// Attaches a program that names its target itself when it is loaded, or to the raw tracepoint `name`; the link ends it.
pub(super) fn raw_tracepoint_open(name: Option<&CStr>, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = empty();
    // SAFETY: the struct arm of BPF_RAW_TRACEPOINT_OPEN; all its fields are integers.
    let command = unsafe { &mut attr.raw_tracepoint };
    command.name = name.map_or(0, |name| name.as_ptr() as u64);
    command.prog_fd = raw(program);
    // SAFETY: the name outlives the call.
    unsafe { bpf_fd(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr) }
}

/// How often a program ran, how long that took in nanoseconds, and how often it did not run because it was running already
/// on the same CPU. The first two count while `kernel.bpf_stats_enabled` is set (5.1), the third always (5.12).
pub(super) fn program_statistics(program: BorrowedFd<'_>) -> io::Result<(u64, u64, u64)> {
    // SAFETY: bpf_prog_info is plain data; all bytes zero are valid.
    let mut info: bpf_prog_info = unsafe { zeroed() };
    object_info(program, &mut info)?;
    Ok((info.run_cnt, info.run_time_ns, info.recursion_misses))
}

/// Opens the program of a link.
pub(super) fn program_of_link(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: bpf_link_info is plain data; all bytes zero are valid.
    let mut info: bpf_link_info = unsafe { zeroed() };
    object_info(link, &mut info)?;
    let mut attr = empty();
    // SAFETY: the struct arm of BPF_*_GET_FD_BY_ID; all its fields are integers.
    unsafe { &mut attr.__bindgen_anon_6 }.__bindgen_anon_1.prog_id = info.prog_id;
    // SAFETY: no pointers are passed.
    unsafe { bpf_fd(bpf_cmd::BPF_PROG_GET_FD_BY_ID, &mut attr) }
}

/// Runs a raw tracepoint's program once with these arguments, in the calling process; gives what it returned (5.10).
pub(super) fn run_raw_tracepoint(program: BorrowedFd<'_>, arguments: &[u64]) -> io::Result<u32> {
    let mut attr = empty();
    // SAFETY: the struct arm of BPF_PROG_TEST_RUN; all its fields are integers.
    let command = unsafe { &mut attr.test };
    command.prog_fd = raw(program);
    command.ctx_in = arguments.as_ptr() as u64;
    command.ctx_size_in = u32::try_from(size_of_val(arguments)).map_err(io::Error::other)?;
    // SAFETY: the arguments outlive the call, and the kernel writes to the attributes only.
    unsafe { bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr) }?;
    // SAFETY: the kernel has written retval.
    Ok(unsafe { attr.test.retval })
}

/// Writes an element. For a `struct_ops` map this registers it.
pub(super) fn map_update(map: BorrowedFd<'_>, key: &[u8], value: &[u8]) -> io::Result<()> {
    let mut attr = empty();
    // SAFETY: the struct arm of the map element commands; all its fields are integers.
    let command = unsafe { &mut attr.__bindgen_anon_2 };
    command.map_fd = raw(map);
    command.key = key.as_ptr() as u64;
    command.__bindgen_anon_1.value = value.as_ptr() as u64;
    // SAFETY: the kernel reads key_size and value_size bytes; callers in this module's parent pass slices of the
    // map's own sizes, and both outlive the call.
    unsafe { bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// Reads an element of a map that is not per CPU into `value`, which has the map's value size.
pub(super) fn map_lookup(map: BorrowedFd<'_>, key: &[u8], value: &mut [u8]) -> io::Result<()> {
    let mut attr = empty();
    // SAFETY: the struct arm of the map element commands; all its fields are integers.
    let command = unsafe { &mut attr.__bindgen_anon_2 };
    command.map_fd = raw(map);
    command.key = key.as_ptr() as u64;
    command.__bindgen_anon_1.value = value.as_mut_ptr() as u64;
    // SAFETY: the kernel reads key_size and writes value_size bytes; callers in this module's parent pass slices of
    // the map's own sizes, and both outlive the call.
    unsafe { bpf(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &mut attr) }.map(drop)
}

/// Elements that one call of the batch commands moves.
const AT_ONCE: usize = 1 << 16;

/// Writes the elements from `first` on of an array map in as few calls as the kernel likes (5.6 and later; 5.13 where the
/// map is per CPU). `value_size` is the size of one element as it is written, all CPUs together.
pub(super) fn array_update(
    map: BorrowedFd<'_>,
    first: u32,
    values: &[u8],
    value_size: usize,
) -> io::Result<()> {
    let keys = keys(first, values.len() / value_size)?;
    for (keys, values) in keys.chunks(AT_ONCE).zip(values.chunks(AT_ONCE * value_size)) {
        let mut attr = empty();
        // SAFETY: the struct arm of the batch commands; all its fields are integers.
        let command = unsafe { &mut attr.batch };
        command.map_fd = raw(map);
        command.keys = keys.as_ptr() as u64;
        command.values = values.as_ptr() as u64;
        command.count = u32::try_from(keys.len()).map_err(io::Error::other)?;
        // SAFETY: `count` keys of 4 bytes and values of the map's size are there, and outlive the call.
        unsafe { bpf(bpf_cmd::BPF_MAP_UPDATE_BATCH, &mut attr) }?;
    }
    Ok(())
}

/// The keys of `count` elements of an array from `first` on.
fn keys(first: u32, count: usize) -> io::Result<Vec<u32>> {
    let end = u32::try_from(count).ok().and_then(|count| first.checked_add(count));
    Ok((first..end.ok_or_else(|| io::Error::other("too many elements"))?).collect())
}

/// Reads an array map from its first element on into `values` (5.6 and later). Says how many elements there were.
pub(super) fn array_lookup(map: BorrowedFd<'_>, values: &mut [u8], value_size: usize) -> io::Result<usize> {
    let mut keys = vec![0_u32; AT_ONCE.min(values.len() / value_size)];
    let (mut token, mut read) = (0_u32, 0);
    for values in values.chunks_mut(AT_ONCE * value_size) {
        let mut attr = empty();
        // SAFETY: the struct arm of the batch commands; all its fields are integers.
        let command = unsafe { &mut attr.batch };
        command.map_fd = raw(map);
        command.in_batch = if read == 0 { 0 } else { &raw const token as u64 };
        command.out_batch = &raw mut token as u64;
        command.keys = keys.as_mut_ptr() as u64;
        command.values = values.as_mut_ptr() as u64;
        command.count = u32::try_from(values.len() / value_size).map_err(io::Error::other)?;
        // SAFETY: there is room for `count` keys of 4 bytes, values of the map's size and a token of a key's size; all
        // of it outlives the call.
        let result = unsafe { bpf(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attr) };
        // SAFETY: the kernel has written how many it has read, also with an error.
        read += unsafe { attr.batch.count } as usize;
        match result {
            Ok(_) => {}
            // The end of the array.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// Deletes an element. For a `struct_ops` map this unregisters it.
pub(super) fn map_delete(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<()> {
    let mut attr = empty();
    // SAFETY: the struct arm of the map element commands; all its fields are integers.
    let command = unsafe { &mut attr.__bindgen_anon_2 };
    command.map_fd = raw(map);
    command.key = key.as_ptr() as u64;
    // SAFETY: the kernel reads key_size bytes of `key`, which outlives the call.
    unsafe { bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, &mut attr) }.map(drop)
}

/// Gives a BPF object a name in a bpf file system.
pub(super) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut attr = empty();
    // SAFETY: the struct arm of BPF_OBJ_PIN; all its fields are integers.
    let command = unsafe { &mut attr.__bindgen_anon_4 };
    command.pathname = path.as_ptr() as u64;
    command.bpf_fd = raw(object);
    // SAFETY: the path outlives the call.
    unsafe { bpf(bpf_cmd::BPF_OBJ_PIN, &mut attr) }.map(drop)
}

/// Opens a pinned object.
pub(super) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut attr = empty();
    // SAFETY: the struct arm of BPF_OBJ_GET; all its fields are integers.
    unsafe { &mut attr.__bindgen_anon_4 }.pathname = path.as_ptr() as u64;
    // SAFETY: the path outlives the call.
    unsafe { bpf_fd(bpf_cmd::BPF_OBJ_GET, &mut attr) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// Information about a map.
pub(super) fn map_info(map: BorrowedFd<'_>) -> io::Result<bpf_map_info> {
    // SAFETY: bpf_map_info is plain data; all bytes zero are valid.
    let mut info: bpf_map_info = unsafe { zeroed() };
    object_info(map, &mut info)?;
    Ok(info)
}

fn object_info<T>(object: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    let mut attr = empty();
    // SAFETY: the struct arm of BPF_OBJ_GET_INFO_BY_FD; all its fields are integers.
    let command = unsafe { &mut attr.info };
    command.bpf_fd = raw(object);
    command.info_len = u32::try_from(size_of::<T>()).map_err(io::Error::other)?;
    command.info = &raw mut *info as u64;
    // SAFETY: the kernel writes at most info_len bytes to `info`, which outlives the call.
    unsafe { bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr) }.map(drop)
}

/// The interface of a tcx link; 0 once it has gone.
pub(super) fn tcx_interface(link: BorrowedFd<'_>) -> io::Result<u32> {
    /// `struct bpf_link_info` (uapi/linux/bpf.h): type, id, `prog_id`, then a union on an 8-byte boundary, of which the
    /// arm of tcx begins with the interface.
    #[repr(C)]
    struct LinkInfo {
        link_type: u32,
        id: u32,
        program: u32,
        hole: u32,
        interface: u32,
        rest: [u32; 16],
    }
    // SAFETY: plain integers; all bytes zero are valid.
    let mut info: LinkInfo = unsafe { zeroed() };
    object_info(link, &mut info)?;
    Ok(info.interface)
}

/// Ends a link, whoever still holds it. Removing its last pin does it too, but only some time after the call: the kernel
/// leaves it to a worker (`bpf_link_put` in kernel/bpf/syscall.c).
pub(super) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = empty();
    // SAFETY: the struct arm of BPF_LINK_DETACH; its field is an integer.
    unsafe { &mut attr.link_detach }.link_fd = raw(link);
    // SAFETY: no pointers are passed.
    unsafe { bpf(bpf_cmd::BPF_LINK_DETACH, &mut attr) }.map(drop)
}

/// Ids of all maps of the system, in ascending order. Needs `CAP_SYS_ADMIN`.
pub(super) fn map_ids() -> impl Iterator<Item = io::Result<u32>> {
    ids(bpf_cmd::BPF_MAP_GET_NEXT_ID)
}

fn ids(command: bpf_cmd) -> impl Iterator<Item = io::Result<u32>> {
    let mut last = Some(0);
    std::iter::from_fn(move || {
        let mut attr = empty();
        // SAFETY: the struct arm of BPF_*_GET_NEXT_ID; all its fields are integers.
        unsafe { &mut attr.__bindgen_anon_6 }.__bindgen_anon_1.start_id = last?;
        // SAFETY: no pointers are passed.
        match unsafe { bpf(command, &mut attr) } {
            Ok(_) => {
                // SAFETY: the kernel has written next_id.
                let id = unsafe { attr.__bindgen_anon_6.next_id };
                last = Some(id);
                Some(Ok(id))
            }
            Err(error) => {
                last = None;
                (error.raw_os_error() != Some(libc::ENOENT)).then_some(Err(error))
            }
        }
    })
}

/// Opens a map by its id. Needs `CAP_SYS_ADMIN`.
pub(super) fn map_by_id(id: u32) -> io::Result<OwnedFd> {
    let mut attr = empty();
    // SAFETY: the struct arm of BPF_*_GET_FD_BY_ID; all its fields are integers.
    unsafe { &mut attr.__bindgen_anon_6 }.__bindgen_anon_1.map_id = id;
    // SAFETY: no pointers are passed.
    unsafe { bpf_fd(bpf_cmd::BPF_MAP_GET_FD_BY_ID, &mut attr) }
}

/// Opens the kernel's BTF object of a module (what /sys/kernel/btf has is only its contents); `None` if no such
/// module is loaded. Needs `CAP_SYS_ADMIN`.
pub(super) fn module_btf(module: &str) -> io::Result<Option<OwnedFd>> {
    for id in ids(bpf_cmd::BPF_BTF_GET_NEXT_ID) {
        let mut attr = empty();
        // SAFETY: the struct arm of BPF_*_GET_FD_BY_ID; all its fields are integers.
        unsafe { &mut attr.__bindgen_anon_6 }.__bindgen_anon_1.btf_id = id?;
        // SAFETY: no pointers are passed.
        let fd = match unsafe { bpf_fd(bpf_cmd::BPF_BTF_GET_FD_BY_ID, &mut attr) } {
            Ok(fd) => fd,
            // Gone between the two calls.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
            Err(error) => return Err(error),
        };
        let mut name = [0_u8; 64];
        // SAFETY: bpf_btf_info is plain data; all bytes zero are valid.
        let mut info: bpf_btf_info = unsafe { zeroed() };
        info.name = name.as_mut_ptr() as u64;
        info.name_len = u32::try_from(name.len()).map_err(io::Error::other)?;
        object_info(std::os::fd::AsFd::as_fd(&fd), &mut info)?;
        let name = CStr::from_bytes_until_nul(&name).map_err(io::Error::other)?;
        if info.kernel_btf != 0 && name.to_bytes() == module.as_bytes() {
            return Ok(Some(fd));
        }
    }
    Ok(None)
}
