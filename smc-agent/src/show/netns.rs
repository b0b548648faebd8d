//! Network namespaces: found, and looked into by a thread of their own each.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use schemars::JsonSchema;
use serde::Serialize;

use super::error::{Result, ShowError};
use crate::netns::{OWN, path_of};

/// Which network namespace something was found in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, JsonSchema)]
pub struct Namespace {
    /// The inode that identifies it, as in `net:[4026531840]`.
    pub inode: u64,
    /// Its name under `/run/netns`, or the path where it is mounted; `null` if it has none.
    pub name: Option<String>,
    /// A process in it, if it has no name.
    pub pid: Option<u32>,
}

/// Where a command looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The namespace of the caller.
    #[default]
    Current,
    /// One with a name under `/run/netns`, or a path.
    Named(String),
    /// All that have a name, are mounted, or have a process.
    All,
}

impl From<&str> for Scope {
    fn from(text: &str) -> Self {
        if text == "all" { Self::All } else { Self::Named(text.to_owned()) }
    }
}

/// Runs `job` in each namespace of `scope`. With [`Scope::All`], those that vanish meanwhile are left out.
pub fn visit<T: Send>(scope: &Scope, job: impl Fn() -> Result<T> + Sync) -> Result<Vec<(Namespace, T)>> {
    match scope {
        Scope::Current => Ok(vec![(own()?, job()?)]),
        Scope::Named(name) => {
            let path = path_of(name);
            let namespace =
                Namespace { inode: identity(&path, name)?.1, name: Some(name.clone()), pid: None };
            Ok(vec![(namespace, inside(&path, name, &job)?)])
        }
        Scope::All => {
            let mut found = Vec::new();
            for (namespace, path) in all()? {
                match inside(&path, &path.to_string_lossy(), &job) {
                    Ok(value) => found.push((namespace, value)),
                    Err(ShowError::NoNamespace(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(found)
        }
    }
}

/// The namespace of the calling thread.
pub fn own() -> Result<Namespace> {
    let inode = fs::metadata(OWN).map_err(ShowError::io(format!("read {OWN}")))?.ino();
    Ok(Namespace { inode, name: None, pid: None })
}

/// The device and inode of a namespace.
fn identity(path: &Path, name: &str) -> Result<(u64, u64)> {
    let metadata = fs::metadata(path).map_err(|error| opening(error, path, name))?;
    Ok((metadata.dev(), metadata.ino()))
}

fn opening(error: io::Error, path: &Path, name: &str) -> ShowError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ShowError::NoNamespace(name.to_owned()),
        io::ErrorKind::PermissionDenied => ShowError::NotPermitted {
            what: format!("open network namespace {name:?}"),
            capability: "CAP_SYS_PTRACE and CAP_SYS_ADMIN",
        },
        _ => ShowError::io(format!("open network namespace {}", path.display()))(error),
    }
}

/// Runs `job` in a thread that has entered the namespace.
fn inside<T: Send>(path: &Path, name: &str, job: &(impl Fn() -> Result<T> + Sync)) -> Result<T> {
    let file = File::open(path).map_err(|error| opening(error, path, name))?;
    let work = || {
        setns(file, CloneFlags::CLONE_NEWNET).map_err(|error| match error {
            Errno::EPERM => ShowError::NotPermitted {
                what: format!("enter network namespace {name:?}"),
                capability: "CAP_SYS_ADMIN",
            },
            Errno::EINVAL => ShowError::NoNamespace(name.to_owned()),
            other => ShowError::io(format!("enter network namespace {name:?}"))(other.into()),
        })?;
        job()
    };
    thread::scope(|scope| scope.spawn(work).join())
        .map_err(|_| ShowError::io("look into a network namespace")(io::Error::other("a thread panicked")))?
}

/// All namespaces, each once.
fn all() -> Result<Vec<(Namespace, PathBuf)>> {
    let all = crate::netns::all().map_err(ShowError::io("find network namespaces"))?;
    if all.denied > 0 {
        let what = format!("find the network namespaces of {} processes", all.denied);
        return Err(ShowError::NotPermitted { what, capability: "CAP_SYS_PTRACE and CAP_SYS_ADMIN" });
    }
    let found = all.found.into_values();
    Ok(found
        .map(|found| {
            let namespace = Namespace { inode: u64::from(found.inode), name: found.name, pid: found.pid };
            (namespace, found.path)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_namespace_is_visited_in_place() {
        let thread = thread::current().id();
        let found = visit(&Scope::Current, || Ok(thread::current().id())).unwrap();
        assert_eq!((found.len(), found[0].1), (1, thread));
        let missing = visit(&Scope::Named("no such".to_owned()), || Ok(())).unwrap_err();
        assert!(missing.to_string().contains("no network namespace \"no such\""), "{missing}");
    }
}
