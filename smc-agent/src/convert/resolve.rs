//! From the names that rules have to what the kernel compares: ids of cgroups, inodes of programs, cookies of namespaces.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use crate::netns;

/// Inode of the root of the cgroup hierarchy: its id (kernfs gives it to the first node).
const ROOT_GROUP: u64 = 1;
/// What the running system says of names.
pub trait System {
    /// Id of a cgroup; `None` if there is none with this path.
    fn cgroup(&self, path: &str) -> Option<u64>;
    /// Device and inode of a program, as the kernel keeps them; `None` if it is not there.
    fn exe(&self, path: &Path) -> Option<(u64, u64)>;
    /// Cookie of a network namespace; `None` if it is not there.
    fn netns(&self, name: &str) -> Option<u64>;
}

/// The system that this program runs on.
#[derive(Clone, Debug)]
pub struct Host {
    groups: Option<PathBuf>,
}

impl Host {
    /// Looks where the cgroup hierarchy is.
    pub fn new() -> Self {
        Self { groups: cgroup_root(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()) }
    }

    /// Where the unified cgroup hierarchy is mounted, with all of it in sight; `None` if it is not.
    pub fn groups(&self) -> Option<&Path> {
        self.groups.as_deref().filter(|root| fs::metadata(root).is_ok_and(|root| root.ino() == ROOT_GROUP))
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl System for Host {
    fn cgroup(&self, path: &str) -> Option<u64> {
        let folder = self.groups()?.join(path.trim_start_matches('/'));
        fs::metadata(folder).ok().filter(fs::Metadata::is_dir).map(|folder| folder.ino())
    }

    fn exe(&self, path: &Path) -> Option<(u64, u64)> {
        file_identity(&File::open(path).ok()?).ok()?
    }

    fn netns(&self, name: &str) -> Option<u64> {
        netns::inside(&netns::path_of(name), netns::own_cookie).ok()
    }
}

/// Where a mount of the unified hierarchy is: `ID PARENT MAJOR:MINOR ROOT PLACE … - cgroup2 …`.
fn cgroup_root(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let place = before.split(' ').nth(4)?;
        (after.split(' ').next() == Some("cgroup2")).then(|| PathBuf::from(place))
    })
}

/// The device of a file's file system and its inode, as the kernel keeps them: what stat(2) shows is another device on btrfs,
/// for instance. `None` where it cannot be told.
pub fn file_identity(file: &File) -> io::Result<Option<(u64, u64)>> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(identity(&info, &mounts))
}

/// As [`file_identity`], of this program. Where it was started in another mount namespace the file that it runs has a mount that
/// is not to be seen here; the one at its path has the same device and inode.
pub fn own_identity() -> Option<(u64, u64)> {
    let link = Path::new("/proc/self/exe");
    let of = |path: &Path| file_identity(&File::open(path).ok()?).ok()?;
    of(link).or_else(|| of(&fs::read_link(link).ok()?))
}

fn identity(info: &str, mounts: &str) -> Option<(u64, u64)> {
    let number = |key: &str| info.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
    let (mount, inode) = (number("mnt_id:")?, number("ino:")?);
    let device = mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        if words.next()?.parse::<u64>().ok()? != mount {
            return None;
        }
        let (major, minor) = words.nth(1)?.split_once(':')?;
        // MKDEV() of include/linux/kdev_t.h.
        Some(major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?)
    })?;
    Some((device, inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_hierarchy_is_found_among_others() {
        let hybrid = "30 23 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(cgroup_root(hybrid), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(cgroup_root("31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"), None);
    }

    #[test]
    fn files_are_told_by_their_mount_and_inode() {
        let info = "pos:\t0\nflags:\t02100000\nmnt_id:\t29\nino:\t1234\n";
        let mounts = "28 1 8:1 / / rw - ext4 /dev/sda1 rw\n29 28 259:3 / /usr rw - btrfs /dev/x rw\n";
        assert_eq!(identity(info, mounts), Some((259 << 20 | 3, 1234)));
        assert_eq!(identity("mnt_id:\t7\nino:\t1\n", mounts), None);
        assert_eq!(identity("mnt_id:\t29\n", mounts), None);
        let file = File::open("/proc/self/exe").unwrap();
        let (_, inode) = file_identity(&file).unwrap().unwrap();
        assert_eq!(inode, file.metadata().unwrap().ino());
    }

    #[test]
    fn missing_things_are_none() {
        let host = Host::new();
        assert_eq!(host.exe(Path::new("/no/such/program")), None);
        assert_eq!(host.netns("no such namespace"), None);
        assert_eq!(host.cgroup("/no/such/group"), None);
    }
}
