//! Marks: the statistics at a moment that a user chose to count from, kept in a file of that user.
//!
//! smcr resets by a file with a name that anybody can foretell in a folder that all share. This file lies in the user's
//! own state folder, is not followed if it is a link, and is believed only if it belongs to the user and to this boot.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::{Result, ShowError};
use super::netns::Namespace;
use super::stats::Stats;

/// The file within the state folder.
const FILE: &str = "smc-agent/stats-mark.json";
/// Identifies the boot: the counters of another one say nothing.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// No mark file is larger; whoever makes it larger is not this program.
const LARGEST: u64 = 16 << 20;

/// The marks of a user, by the inode of the network namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Marks {
    boot_id: String,
    namespaces: BTreeMap<u64, Stats>,
}

/// Where the marks of this user lie: in `$XDG_STATE_HOME`, or in `.local/state` under the home folder.
pub fn path() -> Result<PathBuf> {
    path_from(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME")).ok_or_else(|| {
        ShowError::io("find a folder for the mark")(io::Error::other(
            "neither XDG_STATE_HOME nor HOME is set",
        ))
    })
}

fn path_from(state: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    // A relative path has to be ignored (XDG base directory specification).
    let absolute = |value: Option<OsString>| value.map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute(state).or_else(|| Some(absolute(home)?.join(".local/state")));
    Some(state?.join(FILE))
}

/// Keeps the statistics of these namespaces as the mark to count from, and forgets those of earlier boots.
pub fn set<'a>(path: &Path, found: impl Iterator<Item = (&'a Namespace, &'a Stats)>) -> Result<()> {
    let boot_id = boot_id()?;
    let mut marks = read(path)?.filter(|marks| marks.boot_id == boot_id).unwrap_or_default();
    marks.boot_id = boot_id;
    let now = Timestamp::now().to_string();
    for (namespace, stats) in found {
        marks.namespaces.insert(namespace.inode, Stats { since: Some(now.clone()), ..stats.clone() });
    }
    write(path, &marks).map_err(ShowError::io(format!("write {}", path.display())))
}

/// What was counted in a namespace since the mark.
pub fn since(path: &Path, namespace: &Namespace, stats: &Stats) -> Result<Stats> {
    let boot_id = boot_id()?;
    let marks = read(path)?.ok_or_else(|| ShowError::NoMark("there is no mark".to_owned()))?;
    if marks.boot_id != boot_id {
        return Err(ShowError::NoMark("the mark is of an earlier boot".to_owned()));
    }
    let mark = marks.namespaces.get(&namespace.inode);
    let mark =
        mark.ok_or_else(|| ShowError::NoMark("there is no mark of this network namespace".to_owned()))?;
    Ok(Stats { since: mark.since.clone(), ..stats.since(mark) })
}

fn boot_id() -> Result<String> {
    let text = fs::read_to_string(BOOT_ID).map_err(ShowError::io(format!("read {BOOT_ID}")))?;
    Ok(text.trim_end().to_owned())
}

fn read(path: &Path) -> Result<Option<Marks>> {
    let failed = || format!("read {}", path.display());
    let mut options = OpenOptions::new();
    // Not blocking: somebody may have put a FIFO there.
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(ShowError::io(failed())(error)),
    };
    let metadata = file.metadata().map_err(ShowError::io(failed()))?;
    if !metadata.is_file() || metadata.uid() != nix::unistd::geteuid().as_raw() {
        return Err(ShowError::io(failed())(io::Error::other("it is not a file of this user")));
    }
    let mut text = String::new();
    file.take(LARGEST).read_to_string(&mut text).map_err(ShowError::io(failed()))?;
    // A file of another version is as good as none.
    Ok(serde_json::from_str(&text).ok())
}

/// Replaces the file whole: a link in its place is replaced, not followed.
fn write(path: &Path, marks: &Marks) -> io::Result<()> {
    let folder = path.parent().ok_or_else(|| io::Error::other("no folder"))?;
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let temporary = folder.join(format!(".stats-mark.{}", std::process::id()));
    let written = create(&temporary).and_then(|mut file| {
        file.write_all(&serde_json::to_vec(marks)?)?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    match options.open(path) {
        // Left behind by a process that had the same id; create_new follows no link.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            options.open(path)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::smc::Statistics;
    use crate::show::FallbackTotals;

    fn stats(bytes: u64) -> Stats {
        let mut statistics = Statistics::default();
        statistics.smcr.rx.bytes = bytes;
        Stats { since: None, reset: false, statistics, fallbacks: FallbackTotals::default() }
    }

    fn namespace(inode: u64) -> Namespace {
        Namespace { inode, name: None, pid: None }
    }

    #[test]
    fn counting_begins_at_the_mark() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/mark.json");
        let none = since(&path, &namespace(1), &stats(5)).unwrap_err().to_string();
        assert_eq!(none, "there is no mark: set one with `smc-agent show stats --mark`");
        set(&path, [(&namespace(1), &stats(40))].into_iter()).unwrap();
        let found = since(&path, &namespace(1), &stats(100)).unwrap();
        assert_eq!(found.statistics.smcr.rx.bytes, 60);
        assert!(found.since.is_some());
        assert!(since(&path, &namespace(2), &stats(100)).is_err());
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.mode() & 0o7777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn links_are_replaced_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, path) = (folder.path().join("victim"), folder.path().join("mark.json"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert!(since(&path, &namespace(1), &stats(1)).is_err());
        assert!(set(&path, [(&namespace(1), &stats(1))].into_iter()).is_err());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }

    #[test]
    fn marks_of_another_boot_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark.json");
        let namespaces = BTreeMap::from([(1, stats(7))]);
        write(&path, &Marks { boot_id: "another".to_owned(), namespaces }).unwrap();
        let error = since(&path, &namespace(1), &stats(9)).unwrap_err().to_string();
        assert!(error.starts_with("the mark is of an earlier boot"), "{error}");
        set(&path, [(&namespace(2), &stats(1))].into_iter()).unwrap();
        assert_eq!(read(&path).unwrap().unwrap().namespaces.len(), 1);
    }

    #[test]
    fn the_state_folder_is_the_users() {
        let path =
            |state: Option<&str>, home: Option<&str>| path_from(state.map(Into::into), home.map(Into::into));
        assert_eq!(path(Some("/s"), Some("/h")), Some("/s/smc-agent/stats-mark.json".into()));
        assert_eq!(path(Some("s"), Some("/h")), Some("/h/.local/state/smc-agent/stats-mark.json".into()));
        assert_eq!(path(None, None), None);
    }
}
