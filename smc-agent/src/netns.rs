//! Network namespaces: by which name, path, number and cookie they are known.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    thread,
};

use nix::{
    sched::{CloneFlags, setns},
    sys::socket::{AddressFamily, SockFlag, SockType, socket},
};

use crate::enforce::at;

/// Where `ip netns` keeps named network namespaces.
pub(crate) const FOLDER: &str = "/run/netns";
/// The network namespace of the calling thread.
pub(crate) const OWN: &str = "/proc/thread-self/ns/net";

/// The place of a network namespace given by name or path.
pub(crate) fn path_of(name: &str) -> PathBuf {
    if name.contains('/') { PathBuf::from(name) } else { Path::new(FOLDER).join(name) }
}

/// Inode number of the calling thread's network namespace.
pub(crate) fn own_inode() -> io::Result<u32> {
    let path = Path::new(OWN);
    let inode = fs::metadata(path).map_err(at("look at", path))?.ino();
    u32::try_from(inode).map_err(io::Error::other)
}

/// Runs `job` in a thread that has entered the network namespace at `path`.
pub(crate) fn inside<T: Send>(path: &Path, job: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let file = File::open(path)?;
    let work = || {
        setns(file, CloneFlags::CLONE_NEWNET)?;
        job()
    };
    thread::scope(|scope| scope.spawn(work).join())
        .map_err(|_| io::Error::other("a thread that entered a network namespace panicked"))?
}

/// The cookie of the calling thread's network namespace: the number that the kernel gives to it, and to no other after it (5.14
/// and later).
pub(crate) fn own_cookie() -> io::Result<u64> {
    /// `SO_NETNS_COOKIE` (uapi/asm-generic/socket.h).
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes to `cookie`, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_below_the_folder_and_paths_are_paths() {
        assert_eq!(path_of("blue"), Path::new("/run/netns/blue"));
        assert_eq!(path_of("/proc/1/ns/net"), Path::new("/proc/1/ns/net"));
    }
}
