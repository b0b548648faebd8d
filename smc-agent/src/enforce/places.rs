//! Where the agent keeps things: pins in a bpf file system, state in a folder that lasts until the next boot.

use crate::{files, kernel::object};
use std::{
    ffi::CString,
    fs, io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// Where systems have their bpf file system.
const BPF_FS: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC` (include/uapi/linux/magic.h).
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// The folders of one agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Folder of the pins, in a bpf file system.
    pub pins: PathBuf,
    /// Folder of the state: lock, control socket, names of the rules of each generation.
    pub state: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        Self { pins: PathBuf::from("/sys/fs/bpf/smc-agent"), state: PathBuf::from("/run/smc-agent") }
    }
}

impl Places {
    /// Taken by the agent that runs.
    pub fn lock(&self) -> PathBuf {
        self.state.join("agent.lock")
    }

    /// Where the running agent listens.
    pub fn control_socket(&self) -> PathBuf {
        self.state.join("control.sock")
    }

    /// Where the qdiscs are marked that the agent made.
    pub fn clsact_marks(&self) -> PathBuf {
        self.state.join("clsact")
    }

    /// Held while conversion is changed.
    pub fn convert_lock(&self) -> PathBuf {
        self.state.join("convert.lock")
    }

    /// What is converted, in words.
    pub fn convert_record(&self) -> PathBuf {
        self.state.join("convert.json")
    }

    /// The pins of conversion, a folder for each object.
    pub fn convert_pins(&self) -> PathBuf {
        self.pins.join("convert")
    }

    /// The rules of a generation.
    pub fn policy(&self, generation: u64) -> PathBuf {
        self.state.join(format!("policy-{generation}.json"))
    }

    /// The pins of one object.
    pub fn of_object(&self, id: &str) -> ObjectPlaces {
        ObjectPlaces { root: self.pins.join(id) }
    }

    /// The pins of all objects except `id`: what earlier versions left, and what was not finished.
    pub fn of_other_objects(&self, id: &str) -> io::Result<Vec<ObjectPlaces>> {
        let mut others = Vec::new();
        let entries = match fs::read_dir(&self.pins) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(others),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            // Somebody else's pins in the same folder are left alone.
            if name != id && name.to_str().is_some_and(object::is_id) {
                others.push(ObjectPlaces { root: entry.path() });
            }
        }
        others.sort_by(|a, b| a.root.cmp(&b.root));
        Ok(others)
    }

    /// Makes the folders, and mounts a bpf file system where the pins are to be if there is none.
    pub fn prepare(&self) -> io::Result<()> {
        fs::create_dir_all(&self.state).map_err(at("make", &self.state))?;
        let parent = self.pins.parent().unwrap_or(Path::new("/"));
        if !is_bpf_fs(parent)? {
            // A mount would cover what is there.
            let is_empty = || fs::read_dir(parent).is_ok_and(|mut entries| entries.next().is_none());
            if parent != Path::new(BPF_FS) && !is_empty() {
                let message = format!(
                    "{} is not in a bpf file system: mount one there first (mount -t bpf bpf FOLDER)",
                    self.pins.display()
                );
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
            // systemd mounts it at boot; containers and small systems often have none.
            nix::mount::mount(
                Some("bpf"),
                parent,
                Some("bpf"),
                nix::mount::MsFlags::MS_NOSUID
                    | nix::mount::MsFlags::MS_NODEV
                    | nix::mount::MsFlags::MS_NOEXEC,
                Some("mode=700"),
            )
            .map_err(|error| at("mount a bpf file system on", parent)(error.into()))?;
        }
        fs::create_dir_all(&self.pins).map_err(at("make", &self.pins))
    }
}

/// The pins of one object. Maps and programs are complete whenever the folder has its final name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPlaces {
    /// The folder.
    pub root: PathBuf,
}

impl ObjectPlaces {
    /// The maps.
    pub fn maps(&self) -> PathBuf {
        self.root.join("maps")
    }

    /// The traffic control programs.
    pub fn programs(&self) -> PathBuf {
        self.root.join("programs")
    }

    /// The traffic control links.
    pub fn links(&self) -> PathBuf {
        self.root.join("links")
    }

    /// The registered `smc_hs_ctrl`.
    pub fn hs_ctrl(&self) -> PathBuf {
        self.root.join("hs_ctrl")
    }

    /// Removes the folder with all pins. What is left of it by whoever is killed meanwhile has not its name: a folder that has
    /// it is complete, and may be gone on with.
    pub fn remove(&self) -> io::Result<()> {
        let unfinished = self.root.with_file_name(object::UNFINISHED);
        if self.root != unfinished && self.root.exists() {
            files::remove_folder(&unfinished)?;
            fs::rename(&self.root, &unfinished).map_err(at("rename", &self.root))?;
        }
        files::remove_folder(&unfinished)
    }
}

fn is_bpf_fs(folder: &Path) -> io::Result<bool> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: statfs is plain data that the call fills in; the path is a valid C string.
    let magic = unsafe {
        let mut info: libc::statfs = std::mem::zeroed();
        if libc::statfs(path.as_ptr(), &raw mut info) != 0 {
            return Err(at("look at", folder)(io::Error::last_os_error()));
        }
        info.f_type
    };
    Ok(magic == BPF_FS_MAGIC)
}

/// Puts what was tried, and where, before what the system said.
pub(crate) fn at(what: &'static str, path: &Path) -> impl Fn(io::Error) -> io::Error {
    let path = path.display().to_string();
    move |error| io::Error::new(error.kind(), format!("{what} {path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_objects_are_all_but_the_one_named() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places { pins: folder.path().to_owned(), state: folder.path().to_owned() };
        for name in ["0123456789ab", "0123456789cd-log4", "unfinished", "foreign", "0123456789AB"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let others = places.of_other_objects("0123456789ab").unwrap();
        let names: Vec<_> = others.iter().filter_map(|other| other.root.file_name()).collect();
        assert_eq!(names, ["0123456789cd-log4", "unfinished"]);
        let nowhere = Places { pins: folder.path().join("none"), ..places };
        assert!(nowhere.of_other_objects("0123456789ab").unwrap().is_empty());
    }
}
