//! Which processes hold a socket: by the descriptors in /proc.

use std::collections::{HashMap, HashSet};
use std::{fs, io};

use schemars::JsonSchema;
use serde::Serialize;

/// A process that holds a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Owner {
    /// Its process id.
    pub pid: u32,
    /// Its name, as it says itself.
    pub command: String,
    /// Its control group: the path in version 2, or that of systemd in version 1.
    pub cgroup: Option<String>,
}

/// The owners of sockets, by inode.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    by_inode: HashMap<u64, Vec<Owner>>,
    /// How many processes could not be looked into for want of `CAP_SYS_PTRACE`.
    pub hidden: usize,
}

impl Owners {
    /// Looks for the holders of these sockets among all processes that the caller can see.
    pub fn find(inodes: &HashSet<u64>) -> Self {
        let mut owners = Self::default();
        if inodes.is_empty() {
            return owners;
        }
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                owners.look_into(pid, inodes);
            }
        }
        owners.by_inode.values_mut().for_each(|list| list.sort_by_key(|owner| owner.pid));
        owners
    }

    /// The holders of a socket.
    pub fn of(&self, inode: u64) -> &[Owner] {
        self.by_inode.get(&inode).map_or(&[], Vec::as_slice)
    }

    fn look_into(&mut self, pid: u32, inodes: &HashSet<u64>) {
        let descriptors = match fs::read_dir(format!("/proc/{pid}/fd")) {
            Ok(descriptors) => descriptors,
            Err(error) => {
                self.hidden += usize::from(error.kind() == io::ErrorKind::PermissionDenied);
                return;
            }
        };
        let mut owner = None;
        for descriptor in descriptors.flatten() {
            let target = fs::read_link(descriptor.path());
            let inode = target.ok().and_then(|target| socket_inode(target.to_str()?));
            let Some(inode) = inode.filter(|inode| inodes.contains(inode)) else { continue };
            let owner = owner.get_or_insert_with(|| describe(pid));
            let list = self.by_inode.entry(inode).or_default();
            // A process may hold a socket by several descriptors.
            if list.last().is_none_or(|last| last.pid != pid) {
                list.push(owner.clone());
            }
        }
    }
}

/// The inode in `socket:[12345]`.
fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn describe(pid: u32) -> Owner {
    let command = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).trim_end_matches('\n').to_owned();
    let cgroup = fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    Owner { pid, command, cgroup: cgroup_of(&String::from_utf8_lossy(&cgroup)) }
}

/// `0::/path`, else `N:name=systemd:/path`.
fn cgroup_of(text: &str) -> Option<String> {
    let of = |controllers: &str| {
        text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (found, path) = rest.split_once(':')?;
            (found == controllers).then(|| path.to_owned())
        })
    };
    of("").or_else(|| of("name=systemd"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn this_process_holds_its_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = fs::metadata(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap().ino();
        let owners = Owners::find(&HashSet::from([inode]));
        assert_eq!(owners.of(inode)[0].pid, std::process::id());
        assert!(owners.of(0).is_empty());
    }

    #[test]
    fn control_groups_of_both_versions_are_read() {
        assert_eq!(cgroup_of("0::/a/b:c\n").as_deref(), Some("/a/b:c"));
        let v1 = "12:cpu,cpuacct:/x\n1:name=systemd:/system.slice/y.service\n";
        assert_eq!(cgroup_of(v1).as_deref(), Some("/system.slice/y.service"));
        assert_eq!(cgroup_of("12:cpu:/x\n"), None);
        assert_eq!(socket_inode("socket:[42]"), Some(42));
        assert_eq!(socket_inode("pipe:[42]"), None);
    }
}
