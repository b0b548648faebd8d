//! Watches the files of a policy.
//!
//! What is watched are folders, of the policy files, of the set files and of every link on the way to them: editors put a
//! new file in the place of the old one, and Kubernetes turns a link (`..data`) to a new folder.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _, event::AccessKind};
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    time::Instant,
};
use tracing::{debug, warn};

/// A change counts once nothing has changed for this long: files are written piece by piece and one after another.
const QUIET: Duration = Duration::from_millis(200);
/// A change counts after this at the latest, however busy the folder is.
const LONGEST: Duration = Duration::from_secs(2);
/// Links that are followed on the way to a file (as many as the kernel does).
const MAX_LINKS: usize = 40;

/// Tells of changes that may concern a policy.
pub(super) struct Watch {
    /// Keeps the folders watched.
    watcher: RecommendedWatcher,
    sender: Sender<()>,
    changes: Receiver<()>,
    /// When the first and the last change came that have not been told of.
    pending: Option<(Instant, Instant)>,
}

impl Watch {
    /// Watches for changes to `files`; a folder among them stands for all that is in it.
    pub(super) fn new<'a>(files: impl IntoIterator<Item = &'a Path>) -> notify::Result<Self> {
        // One place is enough: a change that finds it taken comes to the same.
        let (sender, changes) = mpsc::channel(1);
        let watcher = watch(files, &sender)?;
        Ok(Self { watcher, sender, changes, pending: None })
    }

    /// Watches for changes to these files from now on: links may lead elsewhere, and the policy name other files.
    pub(super) fn renew<'a>(&mut self, files: impl IntoIterator<Item = &'a Path>) -> notify::Result<()> {
        // The new one is there before the old one goes, so that nothing is missed in between.
        self.watcher = watch(files, &self.sender)?;
        Ok(())
    }

    /// Waits until something has changed and been quiet since. Nothing is lost if this is dropped and called again.
    pub(super) async fn changed(&mut self) {
        loop {
            let Some((first, last)) = self.pending else {
                if self.changes.recv().await.is_some() {
                    let now = Instant::now();
                    self.pending = Some((now, now));
                }
                continue;
            };
            let until = (last + QUIET).min(first + LONGEST);
            if tokio::time::timeout_at(until, self.changes.recv()).await.is_err() {
                self.pending = None;
                return;
            }
            self.pending = Some((first, Instant::now()));
        }
    }
}

fn watch<'a>(
    files: impl IntoIterator<Item = &'a Path>,
    sender: &Sender<()>,
) -> notify::Result<RecommendedWatcher> {
    let sender = sender.clone();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !is_change(event.kind)) {
            return;
        }
        // An error, such as a queue that ran over, may hide a change. A full channel holds one already.
        let _ = sender.try_send(());
    })?;
    let mut folders = BTreeSet::new();
    for file in files {
        folders_of(file, &mut folders, MAX_LINKS);
    }
    let mut count = 0;
    for folder in &folders {
        match watcher.watch(folder, RecursiveMode::NonRecursive) {
            Ok(()) => count += 1,
            Err(error) => debug!("{} is not watched: {error}", folder.display()),
        }
    }
    if count < folders.len() {
        warn!("of {} folders of the policy {count} are watched", folders.len());
    }
    Ok(watcher)
}

/// Whether an event says that something is different, rather than that it was read.
fn is_change(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(access) => matches!(access, AccessKind::Close(notify::event::AccessMode::Write)),
        _ => true,
    }
}

/// Finds the folders in which a change may make `path` lead to something else: that of each link on the way, that of
/// the file, and `path` itself if it is a folder.
fn folders_of(path: &Path, folders: &mut BTreeSet<PathBuf>, links: usize) {
    let Ok(path) = std::path::absolute(path) else { return };
    let mut at = PathBuf::new();
    let mut components = path.components();
    while let Some(component) = components.next() {
        if component == Component::ParentDir {
            at.pop();
            continue;
        }
        let parent = at.clone();
        at.push(component);
        match fs::read_link(&at) {
            Ok(target) if links > 0 => {
                folders.insert(parent.clone());
                folders_of(&parent.join(target).join(components.as_path()), folders, links - 1);
                return;
            }
            // Not there yet: it appears in the last folder that is.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                folders.insert(parent);
                return;
            }
            _ => {}
        }
    }
    if let Some(parent) = at.parent() {
        folders.insert(parent.to_path_buf());
    }
    if at.is_dir() {
        folders.insert(at);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folders(path: &Path) -> Vec<PathBuf> {
        let mut folders = BTreeSet::new();
        folders_of(path, &mut folders, MAX_LINKS);
        folders.into_iter().collect()
    }

    /// A folder as Kubernetes makes it of a `ConfigMap`.
    fn config_map(root: &Path) -> PathBuf {
        let mount = root.join("mount");
        fs::create_dir_all(mount.join("..1")).unwrap();
        fs::write(mount.join("..1/p.yaml"), "old").unwrap();
        symlink("..1", mount.join("..data")).unwrap();
        symlink("..data/p.yaml", mount.join("p.yaml")).unwrap();
        mount
    }

    fn root() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        (folder, path)
    }

    #[test]
    fn folders_are_those_of_every_link_and_of_the_file() {
        let (_keep, root) = root();
        let mount = config_map(&root);
        assert_eq!(folders(&mount.join("p.yaml")), [mount.as_path(), &mount.join("..1")]);
        assert_eq!(folders(&mount.join("..data/p.yaml")), [mount.as_path(), &mount.join("..1")]);
        assert_eq!(folders(&mount), [&*root, &*mount]);
        assert_eq!(folders(&mount.join("none/p.yaml")), [&*mount]);
        symlink("loop", root.join("loop")).unwrap();
        assert_eq!(folders(&root.join("loop")), [root]);
    }

    /// How many changes `act` makes: they are told of one by one, until nothing comes for a while.
    async fn told(watch: &mut Watch, act: impl FnOnce()) -> usize {
        act();
        let mut count = 0;
        while tokio::time::timeout(QUIET * 4, watch.changed()).await.is_ok() {
            count += 1;
        }
        count
    }

    #[tokio::test]
    async fn each_way_to_change_a_file_is_told_of_once() {
        let (_keep, root) = root();
        let file = root.join("p.yaml");
        fs::write(&file, "old").unwrap();
        let mut watch = Watch::new([file.as_path()]).unwrap();
        assert_eq!(told(&mut watch, || drop(fs::read(&file).unwrap())).await, 0, "reading");
        let write = || (0..50).for_each(|n| fs::write(&file, format!("{n}")).unwrap());
        assert_eq!(told(&mut watch, write).await, 1, "writing");
        let rename = || {
            fs::write(root.join(".p.yaml.swp"), "new").unwrap();
            fs::rename(root.join(".p.yaml.swp"), &file).unwrap();
        };
        assert_eq!(told(&mut watch, rename).await, 1, "an editor");
        // The watch is on the folder: it holds after the file was another for a while.
        assert_eq!(told(&mut watch, rename).await, 1, "an editor again");
        assert_eq!(told(&mut watch, || fs::remove_file(&file).unwrap()).await, 1, "removing");
    }

    #[tokio::test]
    async fn a_config_map_that_is_swapped_is_told_of() {
        let (_keep, root) = root();
        let mount = config_map(&root);
        let file = mount.join("p.yaml");
        let mut watch = Watch::new([mount.as_path()]).unwrap();
        for number in 2..4 {
            let swap = || {
                let data = mount.join(format!("..{number}"));
                fs::create_dir(&data).unwrap();
                fs::write(data.join("p.yaml"), "new").unwrap();
                symlink(format!("..{number}"), mount.join("..data_tmp")).unwrap();
                fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
                fs::remove_dir_all(mount.join(format!("..{}", number - 1))).unwrap();
            };
            assert_eq!(told(&mut watch, swap).await, 1);
            assert_eq!(fs::read_to_string(&file).unwrap(), "new");
            watch.renew([mount.as_path(), &file]).unwrap();
        }
    }

    #[tokio::test]
    async fn a_change_that_goes_on_is_told_of_in_the_end() {
        let (_keep, root) = root();
        let file = root.join("p.yaml");
        let mut watch = Watch::new([file.as_path()]).unwrap();
        let busy = tokio::spawn(async move {
            loop {
                fs::write(&file, "x").unwrap();
                tokio::time::sleep(QUIET / 4).await;
            }
        });
        tokio::time::timeout(LONGEST * 2, watch.changed()).await.unwrap();
        busy.abort();
    }
}
