//! What compiles the BPF side: the compiler's own library sources and bpf-linker.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::apt::Suites;
use crate::cache::{self, Lock};
use crate::{apt, cargo, debver, sys};

/// The last release that links with the compiler's own LLVM.
const BPF_LINKER: &str = "0.10.4";
/// The suite that keeps `rust-src` of several releases.
const RUST_SRC_SUITE: &str = "trixie-backports";

/// Where the library sources of this very compiler are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RustSrc {
    /// In the compiler's own folder: cargo finds them there.
    Sysroot,
    /// Elsewhere: the folder `library`.
    At(PathBuf),
}

/// The library sources, if they are at hand.
pub(crate) fn rust_src() -> Result<Option<RustSrc>> {
    if cargo::sysroot()?.join("lib/rustlib/src/rust/library/Cargo.lock").exists() {
        return Ok(Some(RustSrc::Sysroot));
    }
    let folder = rust_src_folder()?.join("library");
    Ok(folder.join("Cargo.lock").exists().then_some(RustSrc::At(folder)))
}

fn rust_src_folder() -> Result<PathBuf> {
    Ok(cache::root()?.join("rust-src").join(cargo::rustc_fact("release")?))
}

/// Gets the library sources: the distribution's package of exactly this release, else rustup's component.
pub(crate) fn fetch_rust_src(lock: &Lock) -> Result<RustSrc> {
    let release = cargo::rustc_fact("release")?;
    let tried = if apt::available() {
        rust_src_package(lock, &release)
    } else {
        Err(anyhow::anyhow!("no apt on this machine"))
    };
    if let Err(error) = tried {
        sys::say(format_args!("rust-src {release}: {error:#}; asking rustup for it"));
        let mut rustup = Command::new("rustup");
        rustup.current_dir(cargo::workspace()?).args(["component", "add", "rust-src"]);
        sys::run_within(&mut rustup, Duration::from_mins(2))?;
    }
    rust_src()?.with_context(|| format!("rust-src {release} is still missing"))
}

fn rust_src_package(lock: &Lock, release: &str) -> Result<()> {
    let suites = Suites::open(&[RUST_SRC_SUITE])?;
    let versions = suites.find("^rust-src$", |name| name == "rust-src")?;
    let exact =
        versions.into_iter().filter(|package| debver::is_release(&package.version, release)).collect();
    let package =
        debver::newest(exact).with_context(|| format!("{RUST_SRC_SUITE} has no rust-src {release}"))?;
    cache::publish(lock, &rust_src_folder()?, |aside| {
        let unpacked = aside.join("package");
        suites.unpack(&package, &unpacked)?;
        let library = find_library(&unpacked.join("usr")).context("the package has no library/Cargo.lock")?;
        fs::rename(&library, aside.join("library"))?;
        Ok(fs::remove_dir_all(unpacked)?)
    })
}

/// The folder `library` with a lock file, somewhere below.
fn find_library(folder: &Path) -> Option<PathBuf> {
    if folder.ends_with("library") && folder.join("Cargo.lock").exists() {
        return Some(folder.to_path_buf());
    }
    let entries = fs::read_dir(folder).ok()?;
    // Links are passed over: the package has one that points back into its own tree.
    entries
        .filter_map(|entry| entry.ok().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())))
        .find_map(|entry| find_library(&entry.path()))
}

fn linker_root() -> Result<PathBuf> {
    // It is bound to the compiler's LLVM, so to the compiler.
    Ok(cache::root()?
        .join("tools")
        .join(format!("bpf-linker-{BPF_LINKER}-rustc-{}", cargo::rustc_fact("release")?)))
}

/// bpf-linker of the right version, if it is at hand.
pub(crate) fn bpf_linker() -> Result<Option<PathBuf>> {
    let file = linker_root()?.join("bin/bpf-linker");
    Ok(file.is_file().then_some(file))
}

/// Builds bpf-linker into the cache: 3 minutes on two cores.
pub(crate) fn install_bpf_linker(lock: &Lock) -> Result<PathBuf> {
    sys::say(format_args!("building bpf-linker {BPF_LINKER} (3-4 minutes on 2 cores, once per compiler)"));
    cache::publish(lock, &linker_root()?, |aside| {
        let build = cache::root()?.join("bpf-linker-build");
        let mut install = cargo::cargo()?;
        install.args(["install", "bpf-linker", "--version", BPF_LINKER, "--locked", "--root"]).arg(aside);
        install.env("CARGO_TARGET_DIR", &build).env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        // It runs for seconds a day: what counts is how soon it is there.
        for (name, value) in [("DEBUG", "0"), ("OPT_LEVEL", "1"), ("LTO", "off"), ("CODEGEN_UNITS", "16")] {
            install.env(format!("CARGO_PROFILE_RELEASE_{name}"), value);
        }
        sys::run(&mut install)?;
        if build.exists() {
            fs::remove_dir_all(&build)?;
        }
        Ok(())
    })?;
    bpf_linker()?.context("cargo install left no bpf-linker")
}

/// The environment with which `smc-agent/build.rs` compiles the BPF side from source; `None` where tools are missing.
pub(crate) fn bpf_env() -> Result<Option<Vec<(&'static str, OsString)>>> {
    let (Some(source), Some(linker)) = (rust_src()?, bpf_linker()?) else { return Ok(None) };
    let mut env = vec![("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker.into_os_string())];
    if let RustSrc::At(library) = source {
        env.push(("__CARGO_TESTS_ONLY_SRC_ROOT", library.into_os_string()));
    }
    Ok(Some(env))
}
