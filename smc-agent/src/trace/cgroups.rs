//! Paths of cgroups by their ids, and the containers in them.

use std::{
    collections::HashMap,
    ffi::CString,
    fs,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

/// Where systems have their cgroups: version 2 alone, or beside version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// `CGROUP2_SUPER_MAGIC` (include/uapi/linux/magic.h).
const CGROUP2: i64 = 0x6367_7270;
/// `FILEID_KERNFS` (include/linux/exportfs.h): a handle that is an id.
const FILEID_KERNFS: libc::c_int = 0xfe;
/// Paths that are remembered; ids are never used again, so that none gets wrong while its cgroup is there.
const REMEMBERED: usize = 4096;

/// Paths of cgroups by id.
#[derive(Debug, Default)]
pub(super) struct Cgroups {
    mount: Option<PathBuf>,
    paths: HashMap<u64, Option<String>>,
}

/// `struct file_handle` (fcntl.h) with room for an id.
#[repr(C)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    id: [u8; 8],
}

impl Cgroups {
    /// The path of the cgroup `id` below the mount; `None` if it has gone, or cgroups of version 2 are not mounted.
    pub(super) fn path(&mut self, id: u64) -> Option<String> {
        if let Some(known) = self.paths.get(&id) {
            return known.clone();
        }
        if self.mount.is_none() {
            self.mount = MOUNTS.iter().map(PathBuf::from).find(|mount| is_cgroup2(mount));
        }
        // A mount may come later: nothing is remembered without one.
        let found = path(self.mount.as_deref()?, id);
        if self.paths.len() >= REMEMBERED {
            self.paths.clear();
        }
        self.paths.insert(id, found.clone());
        found
    }
}

fn is_cgroup2(folder: &Path) -> bool {
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else { return false };
    // SAFETY: statfs is plain data that the call fills in; the path is a valid C string.
    unsafe {
        let mut info: libc::statfs = std::mem::zeroed();
        libc::statfs(path.as_ptr(), &raw mut info) == 0 && info.f_type == CGROUP2
    }
}

fn path(mount: &Path, id: u64) -> Option<String> {
    let folder = fs::File::open(mount).ok()?;
    let mut handle =
        Handle { bytes: u32::try_from(size_of::<u64>()).ok()?, kind: FILEID_KERNFS, id: id.to_ne_bytes() };
    // SAFETY: the structure has the layout of a struct file_handle with 8 bytes, as its first field says, and outlives the
    // call; the kernel only reads it.
    let descriptor = unsafe {
        libc::open_by_handle_at(folder.as_raw_fd(), (&raw mut handle).cast(), libc::O_PATH | libc::O_CLOEXEC)
    };
    if descriptor < 0 {
        return None;
    }
    // SAFETY: the kernel just made this descriptor for us alone.
    let cgroup = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let target = fs::read_link(format!("/proc/self/fd/{}", cgroup.as_raw_fd())).ok()?;
    let below = target.strip_prefix(mount).ok()?;
    let text = below.to_string_lossy();
    // What was removed in between is still shown, with a remark.
    (!text.ends_with(" (deleted)")).then(|| format!("/{text}"))
}

/// The id of the container that a cgroup is of: 64 hexadecimal digits, alone or between what container managers put
/// around them (`docker-ID.scope`, `cri-containerd-ID.scope`, `/docker/ID`). Of several the innermost.
pub(super) fn container(path: &str) -> Option<&str> {
    const DIGITS: usize = 64;
    path.rsplit('/').find_map(|part| {
        part.split(['-', '.', ':', '_'])
            .find(|word| word.len() == DIGITS && word.bytes().all(|byte| byte.is_ascii_hexdigit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_known_by_their_id() {
        let id = "0123456789abcdef".repeat(4);
        for path in [
            format!("/system.slice/docker-{id}.scope"),
            format!("/docker/{id}"),
            format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"),
            format!("/machine.slice/libpod-{id}.scope/container"),
            format!("/kubepods/besteffort/pod2/crio-{id}"),
        ] {
            assert_eq!(container(&path), Some(id.as_str()), "{path}");
        }
        for path in ["/", "/system.slice/ssh.service", &format!("/user.slice/{id}0"), &format!("/x{id}")] {
            assert_eq!(container(path), None, "{path}");
        }
    }

    #[test]
    fn a_cgroup_that_is_not_there_has_no_path() {
        let mut cgroups = Cgroups { mount: Some(PathBuf::from("/nonexistent")), ..Cgroups::default() };
        assert_eq!(cgroups.path(1), None);
        assert!(!is_cgroup2(Path::new("/proc")));
    }
}
