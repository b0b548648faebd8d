//! Embeds the BPF objects: compiled from source where rust-src and bpf-linker are at hand, else the stripped objects
//! that are checked in. `SMC_AGENT_BPF=source` insists on the first, `SMC_AGENT_BPF=prebuilt` on the second.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

const OBJECTS: [&str; 2] = ["smc-agent-bpf", "smc-agent-convert"];
/// Programs for tests and measurements. They are told where it is; nothing embeds it.
const PROBE: &str = "decide-probe";
const LIBRARY_SOURCE: &str = "__CARGO_TESTS_ONLY_SRC_ROOT";
const LINKER: &str = "CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER";
const CHOICE: &str = "SMC_AGENT_BPF";

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={message}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let workspace = here.parent().ok_or("the manifest has no parent folder")?;
    let out = PathBuf::from(variable("OUT_DIR")?);
    let prebuilt = here.join("bpf");
    for source in ["smc-agent-ebpf", "smc-agent-common", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    println!("cargo::rerun-if-changed={}", prebuilt.display());
    for name in [CHOICE, LIBRARY_SOURCE, LINKER] {
        println!("cargo::rerun-if-env-changed={name}");
    }

    // Where nothing is compiled there is no probe.
    println!("cargo::rustc-env=SMC_AGENT_PROBE=");
    let missing = missing_tools()?;
    match (env::var(CHOICE).unwrap_or_default().as_str(), missing.is_empty()) {
        ("" | "source", true) => compile(workspace, &out),
        ("source", false) => Err(format!("cannot build the BPF side from source: {}", missing.join(", "))),
        ("", false) | ("prebuilt", _) => {
            OBJECTS.iter().try_for_each(|object| copy(&prebuilt.join(format!("{object}.o")), &out, object))
        }
        (other, _) => Err(format!("{CHOICE}={other}: expected source or prebuilt")),
    }
}

/// What a build from source lacks here.
fn missing_tools() -> Result<Vec<String>, String> {
    let mut missing = Vec::new();
    let library = library_source()?;
    if !library.join("core/Cargo.toml").exists() {
        missing.push(format!("no rust-src at {} (cargo xtask setup gets it)", library.display()));
    }
    let linker = env::var_os(LINKER).unwrap_or_else(|| "bpf-linker".into());
    if !Command::new(&linker).arg("--version").output().is_ok_and(|output| output.status.success()) {
        missing
            .push(format!("{} does not run (cargo xtask setup installs it)", Path::new(&linker).display()));
    }
    Ok(missing)
}

/// Where the source of the standard library is to be.
fn library_source() -> Result<PathBuf, String> {
    match env::var_os(LIBRARY_SOURCE) {
        Some(folder) => Ok(PathBuf::from(folder)),
        None => Ok(sysroot()?.join("lib/rustlib/src/rust/library")),
    }
}

/// The folders that cargo unpacks crates in, one for each registry.
fn crate_sources() -> Vec<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let entries = home.and_then(|home| fs::read_dir(home.join("registry/src")).ok());
    entries.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn compile(workspace: &Path, out: &Path) -> Result<(), String> {
    let arch = variable("CARGO_CFG_TARGET_ARCH")?;
    let folder = out.join("bpf");
    let mut cargo = Command::new(variable("CARGO")?);
    // Settings of the host's build must not leak into the BPF one.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let leaks =
            ["CARGO_FEATURE_", "CARGO_CFG_", "CARGO_PROFILE_"].iter().any(|prefix| text.starts_with(prefix))
                || [
                    "RUSTFLAGS",
                    "CARGO_ENCODED_RUSTFLAGS",
                    "RUSTC",
                    "RUSTC_WRAPPER",
                    "RUSTC_WORKSPACE_WRAPPER",
                    "TARGET",
                ]
                .contains(&text.as_ref());
        if leaks {
            cargo.env_remove(&name);
        }
    }
    let mut flags = vec![
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
    ];
    // So that the object does not depend on where it was built, nor tell.
    let renamed =
        |(folder, name): (PathBuf, &str)| format!("--remap-path-prefix={}={name}", folder.display());
    flags.push(renamed((workspace.to_owned(), "/smc-agent")));
    flags.extend(library_source()?.parent().map(|folder| renamed((folder.to_owned(), "/rust"))));
    flags.extend(crate_sources().into_iter().map(|folder| renamed((folder, "/crates"))));
    cargo
        .current_dir(workspace)
        .args(["build", "--locked", "--package", "smc-agent-ebpf", "--bins", "--release"])
        .args(["--target", "bpfel-unknown-none", "-Zbuild-std=core", "--target-dir"])
        .arg(&folder)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("LD_LIBRARY_PATH", sysroot()?.join("lib"));
    let output = cargo.output().map_err(|error| format!("run cargo for the BPF side: {error}"))?;
    if !output.status.success() {
        for line in String::from_utf8_lossy(&output.stderr).lines() {
            println!("cargo::warning={line}");
        }
        return Err("compiling smc-agent-ebpf failed (its messages are above)".to_owned());
    }
    let built = folder.join("bpfel-unknown-none/release");
    println!("cargo::rustc-env=SMC_AGENT_PROBE={}", built.join(PROBE).display());
    OBJECTS.iter().try_for_each(|object| copy(&built.join(object), out, object))
}

fn copy(from: &Path, out: &Path, object: &str) -> Result<(), String> {
    let to = out.join(format!("{object}.o"));
    fs::copy(from, to).map(drop).map_err(|error| format!("copy {}: {error}", from.display()))
}

fn sysroot() -> Result<PathBuf, String> {
    let output = Command::new(variable("RUSTC")?)
        .args(["--print", "sysroot"])
        .output()
        .map_err(|error| format!("run rustc: {error}"))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("{name} is not set: build.rs is run by cargo"))
}
