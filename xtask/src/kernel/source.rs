//! Kernel 7.3 with SMC: taken where it was built before, else built from the distribution's source package.
//!
//! Debian's own 7.x kernels leave DIBS out, and SMC with it. pahole is that of the suite that is young enough for this
//! kernel's BTF, run with its own loader and libraries.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Image, config, verify_sums};
use crate::apt::Suites;
use crate::cache::{self, Lock};
use crate::debver::{self, Package};
use crate::{cargo, setup, sys};

const FRAGMENT: &str = include_str!("../../kernel/kernel-7.3.fragment");
const FRAGMENT_NAME: &str = "kernel-7.3.fragment";
const SOURCE_SUITE: &str = "trixie-backports";
const PAHOLE_SUITE: &str = "trixie";
/// pahole and the libraries it loads.
const PAHOLE: [&str; 9] =
    ["pahole", "libdw1t64", "libelf1t64", "libc6", "zlib1g", "libbz2-1.0", "liblzma5", "libzstd1", "libbpf1"];
/// What a build compiles, counted once (make's lines that name an object), for the progress shown.
const STEPS: usize = 2_700;

/// The key of an image: what it was configured by and built from.
fn key(fragment: &str, source: &Package) -> String {
    let text = format!("{fragment}\n{} {}\n", source.name, source.version);
    sys::sha256(text.as_bytes()).chars().take(20).collect()
}

/// An image of ours that was built before: in `$SMC_AGENT_KERNELS`, next to the checkout, or in the cache.
pub(super) fn at_hand() -> Result<Option<Image>> {
    let named = std::env::var_os("SMC_AGENT_KERNELS").filter(|value| !value.is_empty()).map(PathBuf::from);
    let checkouts = [Some(cargo::workspace()?), cargo::main_checkout()?];
    let beside =
        checkouts.into_iter().flatten().filter_map(|root| Some(root.parent()?.join("shared/kernels")));
    let cached = cache::root()?.join("kernels/7.3");
    let mut places: Vec<PathBuf> = named.into_iter().chain(beside).collect();
    if let Ok(entries) = fs::read_dir(&cached) {
        let built = entries.filter_map(|entry| Some(entry.ok()?.path()));
        places.extend(
            built.filter(|path| {
                !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
            }),
        );
    }
    for place in places {
        if let Some(image) = built_in(&place)? {
            return Ok(Some(image));
        }
    }
    Ok(None)
}

/// The image in a folder, if it was built from our fragment.
fn built_in(place: &Path) -> Result<Option<Image>> {
    let Ok(fragment) = fs::read(place.join(FRAGMENT_NAME)) else { return Ok(None) };
    if fragment != FRAGMENT.as_bytes() {
        sys::say(format_args!("{}: built from another {FRAGMENT_NAME}, not used", place.display()));
        return Ok(None);
    }
    for entry in fs::read_dir(place)? {
        let folder = entry?.path();
        if folder.join("bzImage").is_file() {
            verify_sums(&folder)?;
            let release = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Ok(Some(Image {
                bzimage: folder.join("bzImage"),
                modules: folder.clone(),
                origin: format!("{release}, built before, in {}", place.display()),
            }));
        }
    }
    Ok(None)
}

/// A configured source tree, in the cache.
struct Tree {
    source: PathBuf,
    pahole: PathBuf,
    package: Package,
}

impl Tree {
    fn make(&self) -> Command {
        let mut command = Command::new("make");
        command.current_dir(&self.source).arg("ARCH=x86_64").arg(format!("PAHOLE={}", self.pahole.display()));
        // The same name and time for everybody; nothing of this machine ends up in the image.
        command.env("KBUILD_BUILD_USER", "smc-agent").env("KBUILD_BUILD_HOST", "xtask");
        for name in ["MAKEFLAGS", "MFLAGS", "CARGO_MAKEFLAGS", "CFLAGS", "LD_LIBRARY_PATH"] {
            command.env_remove(name);
        }
        command
    }
}

fn prepare(lock: &Lock) -> Result<Tree> {
    setup::ensure_kernel_tools()?;
    let suites = Suites::open(&[SOURCE_SUITE])?;
    let found = suites.find(r"^linux-source-7\.", is_source)?;
    let package =
        debver::newest(found).with_context(|| format!("no package linux-source-7.* in {SOURCE_SUITE}"))?;
    sys::say(format_args!("the kernel is built from {} {}", package.name, package.version));
    let pahole = pahole(lock)?;

    let work = cache::root()?.join("kernel-build").join(key(FRAGMENT, &package));
    if !work.exists() {
        cache::publish(lock, &work, |aside| {
            suites.unpack(&package, aside)?;
            let archive = aside.join("usr/src").join(format!("{}.tar.xz", package.name));
            sys::say("unpacking the source (1.5 GB, about a minute)");
            let mut tar = Command::new("tar");
            fs::create_dir(aside.join("source"))?;
            sys::run(
                tar.args(["--strip-components=1", "-xf"]).arg(&archive).arg("-C").arg(aside.join("source")),
            )?;
            fs::remove_dir_all(aside.join("usr"))?;
            Ok(())
        })?;
    }
    let tree = Tree { source: work.join("source"), pahole, package };
    let fragment = work.join(FRAGMENT_NAME);
    fs::write(&fragment, FRAGMENT)?;
    sys::say("configuring: allnoconfig with the fragment");
    let mut merge = tree.make();
    merge.env("KCONFIG_ALLCONFIG", &fragment).args(["-s", "allnoconfig"]);
    sys::output(&mut merge)?;
    sys::output(tree.make().args(["-s", "olddefconfig"]))?;
    let unmet = config::unmet(FRAGMENT, &fs::read_to_string(tree.source.join(".config"))?);
    if !unmet.is_empty() {
        bail!("this source does not take these options of the fragment: {}", unmet.join(", "));
    }
    Ok(tree)
}

fn is_source(name: &str) -> bool {
    name.strip_prefix("linux-source-7.").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A script that runs pahole with its own loader and libraries, whatever this machine's are.
fn pahole(lock: &Lock) -> Result<PathBuf> {
    let suites = Suites::open(&[PAHOLE_SUITE])?;
    let all = suites.find("^(pahole|lib.*|zlib1g)$", |name| PAHOLE.contains(&name))?;
    let newest =
        |name: &str| debver::newest(all.iter().filter(|package| package.name == name).cloned().collect());
    let tool = newest("pahole").with_context(|| format!("no package pahole in {PAHOLE_SUITE}"))?;
    let target = cache::root()?.join("tools").join(format!("pahole-{}", tool.version));
    if !target.exists() {
        cache::publish(lock, &target, |aside| {
            for name in PAHOLE {
                match newest(name) {
                    Some(package) => suites.unpack(&package, aside)?,
                    None => bail!("no package {name} in {PAHOLE_SUITE}"),
                }
            }
            let script = "#!/bin/sh\nhere=${0%/*}\nlib=usr/lib/x86_64-linux-gnu\n\
                exec \"$here/$lib/ld-linux-x86-64.so.2\" --library-path \"$here/$lib\" \"$here/usr/bin/pahole\" \"$@\"\n";
            let path = aside.join("run");
            fs::write(&path, script)?;
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
            Ok(())
        })?;
    }
    let script = target.join("run");
    let version = sys::output(Command::new(&script).arg("--version"))?;
    sys::say(format_args!("pahole {} of {PAHOLE_SUITE}", version.trim()));
    Ok(script)
}

/// Unpacks and configures, and says what a build would do.
pub(super) fn prepare_only() -> Result<()> {
    let lock = cache::lock("kernel-7.3")?;
    let tree = prepare(&lock)?;
    println!("{} {}: configured in {}", tree.package.name, tree.package.version, tree.source.display());
    Ok(())
}

/// Builds the image and puts it into the cache.
pub(super) fn build() -> Result<Image> {
    let lock = cache::lock("kernel-7.3")?;
    if let Some(image) = at_hand()? {
        return Ok(image);
    }
    let tree = prepare(&lock)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    sys::say(format_args!(
        "building it: 36 CPU-minutes were measured, so about {} minutes on {cores} free cores; once, then cached",
        36 / cores + 2
    ));
    make_with_progress(tree.make().arg(format!("-j{cores}")).args(["bzImage", "modules"]))?;

    let target = cache::root()?.join("kernels/7.3").join(key(FRAGMENT, &tree.package));
    cache::publish(&lock, &target, |aside| {
        let staging = aside.join("staging");
        let mut install = tree.make();
        install.arg("-s").arg(format!("INSTALL_MOD_PATH={}", staging.display())).arg("INSTALL_MOD_STRIP=1");
        sys::output(install.arg("modules_install"))?;
        let release = sys::output(tree.make().args(["-s", "kernelrelease"]))?;
        let folder = aside.join(release.trim());
        fs::create_dir(&folder)?;
        fs::copy(tree.source.join("arch/x86/boot/bzImage"), folder.join("bzImage"))?;
        for file in sys::walk(&staging)? {
            if file.extension().is_some_and(|end| end == "ko") {
                fs::copy(&file, folder.join(file.file_name().unwrap_or_default()))?;
            }
        }
        fs::remove_dir_all(&staging)?;
        write_sums(&folder)?;
        fs::write(aside.join("source"), format!("{} {}\n", tree.package.name, tree.package.version))?;
        fs::write(aside.join(FRAGMENT_NAME), FRAGMENT)?;
        Ok(())
    })?;
    fs::remove_dir_all(tree.source.parent().context("the source lies in no folder")?)?;
    built_in(&target)?.context("the build left no image")
}

fn write_sums(folder: &Path) -> Result<()> {
    let mut list = String::new();
    for file in sys::walk(folder)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        list.extend([sys::sha256_file(&file)?.as_str(), "  ", name.as_str(), "\n"]);
    }
    Ok(fs::write(folder.join("SHA256SUMS"), list)?)
}

/// Runs make, showing how far it is; its own output is shown only when it fails.
fn make_with_progress(command: &mut Command) -> Result<()> {
    let line = sys::line(command);
    let log = cache::root()?.join("kernel-build/make.log");
    let errors = fs::File::create(&log)?;
    let mut output = errors.try_clone()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))?;
    let start = Instant::now();
    let (mut steps, mut shown) = (0usize, Duration::ZERO);
    if let Some(stdout) = child.stdout.take() {
        for text in BufReader::new(stdout).lines() {
            let text = text?;
            writeln!(output, "{text}")?;
            steps += usize::from(text.starts_with("  "));
            if start.elapsed().saturating_sub(shown) >= Duration::from_secs(20) {
                shown = start.elapsed();
                let percent = (steps * 100 / STEPS).min(99);
                sys::say(format_args!(
                    "kernel: {percent} % after {}, at{}",
                    sys::human(shown),
                    text.trim_start_matches(' ').split_once(' ').map_or("", |(_, file)| file)
                ));
            }
        }
    }
    let status = child.wait()?;
    if !status.success() {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let tail: Vec<&str> = text.lines().rev().take(30).collect();
        for text in tail.iter().rev() {
            eprintln!("{text}");
        }
        bail!("`{line}` failed: {status}; its output is in {}", log.display());
    }
    sys::say(format_args!("the kernel is built: {} steps in {}", steps, sys::human(start.elapsed())));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_depends_on_the_fragment_and_the_source() {
        let package = |version: &str| Package { name: "linux-source-7.3".into(), version: version.into() };
        let one = key("CONFIG_SMC=m\n", &package("7.3.4-1"));
        assert_eq!(one, key("CONFIG_SMC=m\n", &package("7.3.4-1")));
        assert_ne!(one, key("CONFIG_SMC=y\n", &package("7.3.4-1")));
        assert_ne!(one, key("CONFIG_SMC=m\n", &package("7.3.5-1")));
        assert_eq!(one.len(), 20);
    }

    #[test]
    fn source_packages_are_told_from_others() {
        assert!(is_source("linux-source-7.3"));
        assert!(!is_source("linux-source-7.3-rt"));
    }
}
