//! A command whose sockets are converted: by a cgroup of its own, or by a library that it is started with.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use super::{life, resolve::Host, table};
use crate::enforce::{Places, at};

/// Names of the cgroups begin so; the id of the process that made it follows.
const GROUP: &str = "smc-agent-exec-";
/// The library's file.
pub const LIBRARY: &str = "libsmc_agent_preload.so";
/// Where it is looked for, besides next to this program.
const FOLDERS: [&str; 2] = ["/usr/lib/smc-agent", "/usr/local/lib/smc-agent"];
/// `PT_INTERP` (elf.h): a program that has it is linked dynamically.
const PT_INTERP: u32 = 3;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;

/// Moves this process into a cgroup of its own below the one that it is in, whose sockets are converted.
///
/// It is made below, and not elsewhere, so that limits and whoever watches the present group go on to count.
pub fn enter_group(places: &Places) -> Result<(), life::ConvertError> {
    let host = Host::new();
    let Some(root) = host.groups() else {
        let what =
            "a cgroup v2 hierarchy is needed to run a command in (mount -t cgroup2), or --mech preload";
        return Err(life::ConvertError::NoMechanism(what.to_owned()));
    };
    let own = fs::read_to_string("/proc/self/cgroup").map_err(at("read", Path::new("/proc/self/cgroup")))?;
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::")) else {
        return Err(life::ConvertError::NoMechanism("this process is in no cgroup v2".to_owned()));
    };
    // Programs first: the group is of use only with them.
    let mut maps = life::prepare_exec(places)?;
    let parent = root.join(path.trim_start_matches('/'));
    sweep(&parent);
    let name = format!("{GROUP}{}", std::process::id());
    let folder = parent.join(&name);
    match fs::create_dir(&folder) {
        // Left by one that had the same id.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        result => result.map_err(at("make the cgroup", &folder))?,
    }
    let mut enter = || -> Result<(), life::ConvertError> {
        let id = fs::metadata(&folder).map_err(at("look at", &folder))?.ino();
        maps.add_exec_group(id, table::level(path) + 1)?;
        let procs = folder.join("cgroup.procs");
        fs::write(&procs, "0").map_err(at("enter", &procs))?;
        Ok(())
    };
    enter().inspect_err(|_| {
        // The kernel side forgets the group with it.
        let _ = fs::remove_dir(&folder);
    })
}

/// Removes the groups of commands that have ended: who runs in one cannot remove it.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(GROUP) {
            // One that is in use is not empty, and stays.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Where the library is; `None` if it is not installed.
pub fn library() -> Option<PathBuf> {
    let program = fs::read_link("/proc/self/exe").ok()?;
    let near = program
        .parent()
        .into_iter()
        .flat_map(|folder| [folder.join(LIBRARY), folder.join("../lib/smc-agent").join(LIBRARY)]);
    near.chain(FOLDERS.iter().map(|folder| Path::new(folder).join(LIBRARY))).find(|path| path.is_file())
}

/// The value of `LD_PRELOAD` with the library before what is there.
pub fn preload(library: &Path, present: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(present) = present.filter(|present| !present.is_empty()) {
        value.push(":");
        value.push(present);
    }
    value
}

/// Where a command is, as execvp(3) looks for it.
pub fn find(command: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if command.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(command));
    }
    let path = path.unwrap_or_else(|| OsStr::new("/bin:/usr/bin"));
    std::env::split_paths(path).map(|folder| folder.join(command)).find(|file| {
        fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

/// Why the library will not do for a program; `None` if nothing speaks against it.
pub fn unfit_for_preload(program: &Path) -> Option<&'static str> {
    let metadata = fs::metadata(program).ok()?;
    if metadata.permissions().mode() & (SETUID | SETGID) != 0 {
        return Some("is setuid or setgid, for which the dynamic linker loads no such library");
    }
    let mut bytes = Vec::new();
    // Program headers are at the beginning.
    File::open(program).ok()?.take(1 << 16).read_to_end(&mut bytes).ok()?;
    is_static(&bytes).then_some("is linked statically, and loads no library")
}

/// Whether the beginning of a file is that of a 64-bit ELF program without a dynamic linker.
fn is_static(bytes: &[u8]) -> bool {
    let number = |at: usize, length: usize| -> Option<usize> {
        let bytes = bytes.get(at..at.checked_add(length)?)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    // ELFCLASS64, ELFDATA2LSB.
    if bytes.get(..6) != Some(b"\x7fELF\x02\x01") {
        return false;
    }
    let headers = || Some((number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?));
    let Some((start, size, count)) = headers() else { return false };
    (0..count).all(|index| {
        let kind = index.checked_mul(size).and_then(|offset| number(start.checked_add(offset)?, 4));
        kind != Some(PT_INTERP as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_programs_are_told() {
        let mut elf = vec![0_u8; 0x40 + 2 * 0x38];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[0x20] = 0x40;
        elf[0x36] = 0x38;
        elf[0x38] = 2;
        elf[0x40] = 1;
        elf[0x78] = 2;
        assert!(is_static(&elf));
        elf[0x78] = 3;
        assert!(!is_static(&elf));
        // Scripts, and what ends early.
        assert!(!is_static(b"#!/bin/sh\n"));
        for end in 0..elf.len() {
            is_static(&elf[..end]);
        }
        assert_eq!(unfit_for_preload(Path::new("/bin/sh")), None);
    }

    #[test]
    fn commands_are_found_as_the_system_does() {
        assert_eq!(find(OsStr::new("./x"), None), Some(PathBuf::from("./x")));
        assert_eq!(find(OsStr::new("sh"), Some(OsStr::new("/none:/bin"))), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find(OsStr::new("no-such-command"), None), None);
        assert_eq!(preload(Path::new("/a.so"), Some(OsStr::new("/b.so"))), "/a.so:/b.so");
        assert_eq!(preload(Path::new("/a.so"), Some(OsStr::new(""))), "/a.so");
    }
}
