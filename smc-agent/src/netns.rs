//! Network namespaces: by which name, path, number and cookie they are known.

use std::{
    collections::BTreeMap,
    fmt,
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
    entered(File::open(path)?, job)?
}

/// Runs `job` in a thread that has entered a network namespace.
fn entered<T: Send>(namespace: File, job: impl FnOnce() -> T + Send) -> io::Result<T> {
    let work = || -> io::Result<T> {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        Ok(job())
    };
    thread::scope(|scope| scope.spawn(work).join())
        .map_err(|_| io::Error::other("a thread that entered a network namespace panicked"))?
}

/// A network namespace, and where it was found. Nothing here keeps it alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Namespace {
    /// The inode number that identifies it, as in `net:[4026531840]`.
    pub(crate) inode: u32,
    /// Its name under `/run/netns`, or the path where it is mounted; `None` if it has none.
    pub(crate) name: Option<String>,
    /// A process in it, if it has no name.
    pub(crate) pid: Option<u32>,
    /// Where it can be opened, for as long as it has that name or process.
    pub(crate) path: PathBuf,
}

impl Namespace {
    /// That of the calling thread.
    pub(crate) fn own() -> io::Result<Self> {
        Ok(Self { inode: own_inode()?, name: None, pid: None, path: PathBuf::from(OWN) })
    }

    /// One given by name or path; `None` if there is none of it.
    pub(crate) fn named(name: &str) -> io::Result<Option<Self>> {
        let path = path_of(name);
        match inode_of(&path) {
            Ok(inode) => Ok(inode.map(|inode| Self { inode, name: Some(name.to_owned()), pid: None, path })),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(error) => Err(at("look at", &path)(error)),
        }
    }

    /// Opens it; an error of kind `NotFound` if it has gone, or something else has its place by now.
    pub(crate) fn open(&self) -> io::Result<File> {
        let file = File::open(&self.path)?;
        if file.metadata()?.ino() == u64::from(self.inode) {
            Ok(file)
        } else {
            Err(io::Error::new(io::ErrorKind::NotFound, format!("{self} has gone")))
        }
    }

    /// Runs `job` in it: in a thread that has entered it, unless the calling thread is there already.
    pub(crate) fn enter<T: Send>(&self, job: impl FnOnce() -> T + Send) -> io::Result<T> {
        if own_inode()? == self.inode {
            return Ok(job());
        }
        entered(self.open()?, job).map_err(|error| {
            io::Error::new(error.kind(), format!("enter {self}: {error} (CAP_SYS_ADMIN is needed)"))
        })
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.pid) {
            (Some(name), _) => write!(formatter, "network namespace {}", name.escape_debug()),
            (None, Some(pid)) => write!(formatter, "the network namespace of process {pid}"),
            (None, None) => formatter.write_str("this network namespace"),
        }
    }
}

/// The inode number of a network namespace; `None` if there is something else at `path`.
fn inode_of(path: &Path) -> io::Result<Option<u32>> {
    let (found, own) = (fs::metadata(path)?, fs::metadata(OWN)?);
    Ok(if found.dev() == own.dev() { u32::try_from(found.ino()).ok() } else { None })
}

/// What was found of network namespaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllNamespaces {
    /// Each once, by inode number.
    pub(crate) found: BTreeMap<u32, Namespace>,
    /// Processes whose namespace this program may not look at (`CAP_SYS_PTRACE` is needed).
    pub(crate) denied: usize,
}

/// All network namespaces that have a name, are mounted, or have a process; known by the first of these. Those that only
/// a descriptor or a socket keeps cannot be found.
pub(crate) fn all() -> io::Result<AllNamespaces> {
    let mut all = AllNamespaces::default();
    let mut add = |path: PathBuf, name: Option<String>, pid: Option<u32>| {
        // What has vanished meanwhile is left out.
        if let Ok(Some(inode)) = inode_of(&path) {
            all.found.entry(inode).or_insert(Namespace { inode, name, pid, path });
        }
    };
    for entry in fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        add(entry.path(), Some(entry.file_name().to_string_lossy().into_owned()), None);
    }
    for path in mounted(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()) {
        add(PathBuf::from(&path), Some(path), None);
    }
    let processes = fs::read_dir("/proc").map_err(at("read", Path::new("/proc")))?.flatten();
    let mut processes: Vec<u32> =
        processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    processes.sort_unstable();
    let mut denied = 0;
    for pid in processes {
        let path = PathBuf::from(format!("/proc/{pid}/ns/net"));
        match fs::metadata(&path) {
            Ok(_) => add(path, None, Some(pid)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => denied += 1,
            Err(_) => {}
        }
    }
    all.denied = denied;
    Ok(all)
}

/// The places where network namespaces are mounted: `ID PARENT MAJOR:MINOR net:[INODE] PLACE …`.
fn mounted(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(3);
            words.next().filter(|root| root.starts_with("net:["))?;
            words.next().map(str::to_owned)
        })
        .collect()
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

    #[test]
    fn mounted_namespaces_are_found() {
        let text = "22 27 0:21 / /proc rw - proc proc rw\n\
                    91 26 0:4 net:[4026532281] /run/docker/netns/a rw shared:1 - nsfs nsfs rw\n";
        assert_eq!(mounted(text), ["/run/docker/netns/a"]);
    }

    #[test]
    fn ones_own_namespace_is_among_all_and_can_be_opened() {
        let own = Namespace::own().unwrap();
        let all = all().unwrap();
        assert!(all.found.contains_key(&own.inode), "{all:?}");
        own.open().unwrap();
        let gone = Namespace { inode: own.inode ^ 1, ..own };
        assert_eq!(gone.open().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_no_namespace_has_no_number() {
        assert_eq!(inode_of(Path::new("/proc/self/maps")).unwrap(), None);
        assert_eq!(Namespace::named("/proc/self/maps").unwrap(), None);
        assert_eq!(Namespace::named("no such name").unwrap(), None);
        let own = Namespace::named(OWN).unwrap().unwrap();
        assert_eq!((own.inode, own.name.as_deref()), (own_inode().unwrap(), Some(OWN)));
    }
}
