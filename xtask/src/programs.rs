//! Programs of the distribution for guests: stock servers and clients, downloaded and unpacked into the cache, never
//! installed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::apt::Suites;
use crate::{cache, debver};

/// Where guests have them.
pub(crate) const GUEST: &str = "/opt/programs";

const SUITES: [&str; 2] = ["bookworm", "bookworm-security"];
/// The programs, and libraries that a small system lacks.
const PACKAGES: [&str; 24] = [
    "redis-server",
    "redis-tools",
    "libjemalloc2",
    "liblzf1",
    "libatomic1",
    "libsystemd0",
    "libcap2",
    "libgcrypt20",
    "libgpg-error0",
    "liblzma5",
    "libzstd1",
    "liblz4-1",
    "libssl3",
    "nginx",
    "libpcre2-8-0",
    "libcrypt1",
    "zlib1g",
    "iperf3",
    "libiperf0",
    "libsctp1",
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libexpat1",
];
/// Folders that no test needs.
const UNWANTED: [&str; 6] =
    ["usr/share", "etc", "var", "lib/systemd", "usr/lib/python3.11/pydoc_data", "usr/lib/python3.11/lib2to3"];

/// The folder with all of them, fetched when it is not in the cache.
pub(crate) fn ensure() -> Result<PathBuf> {
    let target = cache::root()?.join("programs").join(SUITES[0]);
    if target.join("complete").is_file() {
        return Ok(target);
    }
    let lock = cache::lock("programs")?;
    // Another xtask may have fetched them while this one waited.
    if target.join("complete").is_file() {
        return Ok(target);
    }
    let suites = Suites::open(&SUITES)?;
    cache::publish(&lock, &target, |aside| {
        let mut list = Vec::new();
        for name in PACKAGES {
            let found = suites.find(&format!("^{}$", name.replace('.', r"\.")), |found| found == name)?;
            let package =
                debver::newest(found).with_context(|| format!("no package {name} in these suites"))?;
            suites.unpack(&package, aside)?;
            list.push(format!("{} {}", package.name, package.version));
        }
        for folder in UNWANTED.map(|folder| aside.join(folder)) {
            if folder.is_dir() {
                fs::remove_dir_all(&folder)?;
            }
        }
        replace_links(aside, aside)?;
        fs::write(aside.join("complete"), list.join("\n"))?;
        Ok(())
    })?;
    Ok(target)
}

/// Puts a copy in the place of each link to a file of the same tree: an initramfs is filled with files only.
fn replace_links(folder: &Path, root: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_symlink() {
            // One that leads out of the tree or to a folder is of no use.
            let content =
                fs::canonicalize(&path).ok().filter(|file| file.starts_with(root) && file.is_file());
            fs::remove_file(&path)?;
            if let Some(file) = content {
                fs::copy(file, &path)?;
            }
        } else if entry.file_type()?.is_dir() {
            replace_links(&path, root)?;
        }
    }
    Ok(())
}
