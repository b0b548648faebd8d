//! A kernel module for tests, compiled for a kernel of the distribution with its packages of headers; nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::apt::Suites;
use crate::kernel::{self, Kernel};
use crate::{cache, cargo, debver, sys};

/// Where guests have it.
pub(crate) const GUEST: &str = "/root/tcp2smc.ko";
/// The kernel that it is for: the newest of those at hand that cannot convert by itself.
pub(crate) const KERNEL: Kernel = Kernel::V6_1;

const SUITES: [&str; 2] = ["bookworm", "bookworm-security"];

/// Compiles `tests/module/tcp2smc.c` for [`KERNEL`].
pub(crate) fn tcp2smc() -> Result<PathBuf> {
    let image = kernel::ensure(KERNEL)?;
    let release = image.modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let headers = headers(&release)?;
    let folder = cargo::target_dir()?.join("modules").join(&release);
    fs::create_dir_all(&folder)?;
    fs::copy(cargo::workspace()?.join("tests/module/tcp2smc.c"), folder.join("tcp2smc.c"))?;
    fs::write(folder.join("Makefile"), "obj-m := tcp2smc.o\n")?;
    let mut make = Command::new("make");
    make.arg("-s").arg("-C").arg(headers.join("usr/src").join(format!("linux-headers-{release}")));
    sys::run(make.arg(format!("M={}", folder.display())).arg("modules"))?;
    let module = folder.join("tcp2smc.ko");
    ensure!(module.is_file(), "{} was not made", module.display());
    Ok(module)
}

/// The headers of a kernel of the distribution, unpacked in the cache.
fn headers(release: &str) -> Result<PathBuf> {
    let target = cache::root()?.join("headers").join(release);
    if target.is_dir() {
        return Ok(target);
    }
    let lock = cache::lock(&format!("headers-{release}"))?;
    let suites = Suites::open(&SUITES)?;
    let version = release.split('.').take(2).collect::<Vec<_>>().join(".");
    let common = format!("linux-headers-{}-common", release.trim_end_matches("-amd64"));
    let names = [format!("linux-headers-{release}"), common, format!("linux-kbuild-{version}")];
    cache::publish(&lock, &target, |aside| {
        for name in &names {
            let found = suites.find(&format!("^{}$", name.replace('.', r"\.")), |found| found == name)?;
            let package =
                debver::newest(found).with_context(|| format!("no package {name} in these suites"))?;
            suites.unpack(&package, aside)?;
        }
        relocate(&aside.join("usr/src").join(&names[0]).join("Makefile"), &target)
    })?;
    Ok(target)
}

/// The makefile names the common part where it would be if it were installed.
fn relocate(makefile: &Path, root: &Path) -> Result<()> {
    let text = fs::read_to_string(makefile).with_context(|| makefile.display().to_string())?;
    let there = format!("{}/usr/src/", root.display());
    fs::write(makefile, text.replace("/usr/src/", &there))?;
    Ok(())
}
