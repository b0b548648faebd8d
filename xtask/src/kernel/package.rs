//! Kernels of the distribution: the package is downloaded and unpacked into the cache, never installed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Image, Kernel};
use crate::apt::Suites;
use crate::cache::{self, Lock};
use crate::debver::{self, Package};

/// Where a kernel's packages are, and how their names start.
fn source_of(kernel: Kernel) -> Result<(&'static [&'static str], &'static str)> {
    Ok(match kernel {
        Kernel::V5_10 => (&["bullseye", "bullseye-security"], "linux-image-5.10."),
        Kernel::V6_1 => (&["bookworm", "bookworm-security"], "linux-image-6.1."),
        Kernel::V6_12 => (&["bookworm-security"], "linux-image-6.12."),
        Kernel::V7_3 => bail!("7.3 is no package with SMC: it is built"),
    })
}

fn folder(kernel: Kernel) -> Result<PathBuf> {
    Ok(cache::root()?.join("kernels").join(kernel.name()))
}

/// The newest of those in the cache.
pub(super) fn at_hand(kernel: Kernel) -> Result<Option<Image>> {
    let Ok(entries) = fs::read_dir(folder(kernel)?) else { return Ok(None) };
    let newest = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .max_by(|a, b| debver::compare(a, b));
    newest.map(|version| image(&folder(kernel)?.join(version))).transpose()
}

/// Fetches the newest version: when none is in the cache, or whatever is there when it shall be `fresh`.
pub(super) fn fetch(kernel: Kernel, fresh: bool) -> Result<Image> {
    let lock = cache::lock(&format!("kernel-{kernel}"))?;
    // Another xtask may have fetched it while this one waited.
    if !fresh && let Some(image) = at_hand(kernel)? {
        return Ok(image);
    }
    let (suites, start) = source_of(kernel)?;
    let suites = Suites::open(suites)?;
    let package = newest(&suites, start)?;
    fetch_version(&lock, kernel, &suites, &package)
}

fn newest(suites: &Suites, start: &str) -> Result<Package> {
    let found = suites.find(&format!("^{}", start.replace('.', r"\.")), |name| is_wanted(name, start))?;
    choose(found).with_context(|| format!("no package {start}*-amd64 in these suites"))
}

/// The plain kernels: not the realtime, cloud and debug ones, not the meta packages.
fn is_wanted(name: &str, start: &str) -> bool {
    let Some(rest) = name.strip_prefix(start) else { return false };
    let Some(version) = rest.strip_suffix("-amd64").or_else(|| rest.strip_suffix("-amd64-unsigned")) else {
        return false;
    };
    version.starts_with(|c: char| c.is_ascii_digit())
        && !version.ends_with("-rt")
        && !version.ends_with("-cloud")
}

/// The newest version; of two packages with it, the signed one.
fn choose(mut found: Vec<Package>) -> Option<Package> {
    found.sort_by_key(|package| !package.name.ends_with("-unsigned"));
    debver::newest(found)
}

fn fetch_version(lock: &Lock, kernel: Kernel, suites: &Suites, package: &Package) -> Result<Image> {
    let target = folder(kernel)?.join(&package.version);
    if !target.exists() {
        cache::publish(lock, &target, |aside| {
            suites.unpack(package, aside)?;
            prune(aside)?;
            fs::write(aside.join("package"), format!("{} {}", package.name, package.version))?;
            Ok(())
        })?;
    }
    image(&target)
}

/// Drops what no test needs: nine tenths of a distribution's modules are drivers for hardware.
fn prune(root: &Path) -> Result<()> {
    let modules = modules_folder(root)?;
    let kernel = modules.join("kernel");
    let keep = ["block", "crypto", "infiniband", "net", "virtio"];
    let drivers = fs::read_dir(kernel.join("drivers"))?.filter_map(Result::ok).map(|entry| entry.path());
    let unwanted = drivers.filter(|path| !keep.iter().any(|name| path.ends_with(name)));
    for path in unwanted.chain([kernel.join("sound"), kernel.join("fs"), root.join("usr/share")]) {
        if path.is_dir() {
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}

fn modules_folder(root: &Path) -> Result<PathBuf> {
    let places = ["lib/modules", "usr/lib/modules"].map(|place| root.join(place));
    let base = places.iter().find(|place| place.is_dir()).context("the package has no modules")?;
    let first = fs::read_dir(base)?.next().context("the package has no modules")??;
    Ok(first.path())
}

fn image(root: &Path) -> Result<Image> {
    let modules = modules_folder(root).with_context(|| root.display().to_string())?;
    let release = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let bzimage = root.join("boot").join(format!("vmlinuz-{release}"));
    if !bzimage.is_file() {
        bail!("{} is missing: delete {} to fetch it again", bzimage.display(), root.display());
    }
    let package = fs::read_to_string(root.join("package")).unwrap_or_default();
    Ok(Image { bzimage, modules, origin: format!("{release}, package {package}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> Package {
        Package { name: name.into(), version: version.into() }
    }

    #[test]
    fn only_plain_kernels_are_wanted() {
        let start = "linux-image-6.12.";
        assert!(is_wanted("linux-image-6.12.117+deb12-amd64", start));
        assert!(is_wanted("linux-image-6.12.117+deb12-amd64-unsigned", start));
        for other in [
            "117+deb12-rt-amd64",
            "117+deb12-cloud-amd64",
            "117+deb12-amd64-dbg",
            "117+deb12-cloud-amd64-unsigned",
        ] {
            assert!(!is_wanted(&format!("{start}{other}"), start), "{other}");
        }
        assert!(!is_wanted("linux-image-6.1.0-57-amd64", start));
    }

    #[test]
    fn the_newest_signed_one_is_chosen() {
        let found = vec![
            package("linux-image-6.12.117+deb12-amd64", "6.12.117-1~deb12u1"),
            package("linux-image-6.12.117+deb12-amd64-unsigned", "6.12.117-1~deb12u1"),
            package("linux-image-6.12.9+deb12-amd64", "6.12.9-1~deb12u1"),
        ];
        assert_eq!(choose(found.clone()).unwrap(), found[0]);
        let newer = package("linux-image-6.12.118+deb12-amd64-unsigned", "6.12.118-1");
        assert_eq!(choose([found, vec![newer.clone()]].concat()).unwrap(), newer);
    }
}
