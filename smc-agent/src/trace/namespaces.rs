//! Names of network namespaces, by what the kernel knows them by.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::{Duration, Instant},
};

use crate::netns::{FOLDER, OWN, own_cookie, own_inode};

/// For how long what was found is believed: names come and go, and a number is used again.
const BELIEVED: Duration = Duration::from_secs(1);

/// Names by inode number, read anew when they are old and asked for.
#[derive(Debug)]
pub(super) struct Namespaces {
    names: HashMap<u32, String>,
    read: Option<Instant>,
    /// Inode number and cookie (5.14 and later) of the namespace that this program is in.
    own: Option<(u32, Option<u64>)>,
}

impl Namespaces {
    pub(super) fn new() -> Self {
        Self { names: HashMap::new(), read: None, own: own() }
    }

    /// The inode number of the namespace that this program is in.
    pub(super) fn own(&self) -> Option<u32> {
        self.own.map(|(inode, _)| inode)
    }

    /// The cookie of a namespace, as far as it is known without the kernel's word.
    pub(super) fn cookie(&self, inode: u32) -> Option<u64> {
        self.own.filter(|(own, _)| *own == inode)?.1
    }

    /// The name of a namespace below `/run/netns`.
    pub(super) fn name(&mut self, inode: u32) -> Option<&str> {
        if self.read.is_none_or(|read| read.elapsed() > BELIEVED) {
            self.names = names(Path::new(FOLDER));
            self.read = Some(Instant::now());
        }
        self.names.get(&inode).map(String::as_str)
    }
}

/// The names in `folder`. What is no namespace (left over from one, say) has a number of another file system, which no
/// namespace need have: it is left out.
fn names(folder: &Path) -> HashMap<u32, String> {
    let nsfs = fs::metadata(OWN).map(|own| own.dev());
    let mut names = HashMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = fs::metadata(entry.path()) else { continue };
        if nsfs.as_ref().is_ok_and(|nsfs| *nsfs == metadata.dev())
            && let Ok(inode) = u32::try_from(metadata.ino())
        {
            names.insert(inode, entry.file_name().to_string_lossy().into_owned());
        }
    }
    names
}

fn own() -> Option<(u32, Option<u64>)> {
    Some((own_inode().ok()?, own_cookie().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_namespace_has_no_name() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("stale"), "").unwrap();
        assert!(names(folder.path()).is_empty());
        std::os::unix::fs::symlink("/proc/self/ns/net", folder.path().join("here")).unwrap();
        let inode = fs::metadata(OWN).unwrap().ino();
        let found = names(folder.path());
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [(u32::try_from(inode).unwrap(), "here".to_owned())]
        );
        assert!(names(Path::new("/nonexistent")).is_empty());
    }
}
