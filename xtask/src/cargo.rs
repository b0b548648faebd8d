//! This workspace and the cargo that builds it.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::sys;

/// The folder that holds the workspace.
pub(crate) fn workspace() -> Result<PathBuf> {
    // The variable is set by `cargo run`, and right even when the executable was built in another checkout.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    Ok(manifest.parent().context("xtask lies in no workspace")?.to_path_buf())
}

/// The checkout that this one is a further work tree of, if it is one.
pub(crate) fn main_checkout() -> Result<Option<PathBuf>> {
    // A work tree has a file `.git`: `gitdir: MAIN/.git/worktrees/NAME`.
    let text = std::fs::read_to_string(workspace()?.join(".git")).unwrap_or_default();
    let folder = text.trim().strip_prefix("gitdir: ").map(Path::new);
    Ok(folder.and_then(|folder| folder.ancestors().nth(3)).map(Path::to_path_buf))
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let root = workspace()?;
    Ok(match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root.join(folder),
        None => root.join("target"),
    })
}

/// A cargo command in the workspace.
pub(crate) fn cargo() -> Result<Command> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(workspace()?);
    // These describe xtask itself; a build script of another crate must not see them.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION", "CARGO_BIN_NAME"] {
        command.env_remove(name);
    }
    Ok(command)
}

/// One line of `rustc -vV`, such as `host` or `release`.
pub(crate) fn rustc_fact(key: &str) -> Result<String> {
    let text = sys::output(Command::new("rustc").arg("-vV").current_dir(workspace()?))?;
    text.lines()
        .find_map(|line| Some(line.strip_prefix(key)?.strip_prefix(": ")?.to_owned()))
        .with_context(|| format!("rustc -vV names no {key}"))
}

/// The compiler's own folder.
pub(crate) fn sysroot() -> Result<PathBuf> {
    let text = sys::output(Command::new("rustc").args(["--print", "sysroot"]).current_dir(workspace()?))?;
    Ok(PathBuf::from(text.trim()))
}

/// What a build left behind, read from cargo's messages.
#[derive(Default)]
pub(crate) struct Built {
    /// Executables: the name of the target and the file.
    pub(crate) executables: Vec<(String, PathBuf)>,
    /// The output folders of build scripts: the package id and the folder.
    pub(crate) out_dirs: Vec<(String, PathBuf)>,
}

impl Built {
    /// The executable of a target.
    pub(crate) fn executable(&self, target: &str) -> Option<&Path> {
        self.executables.iter().find(|(name, _)| name == target).map(|(_, file)| file.as_path())
    }
}

/// Runs a cargo build whose diagnostics go to standard error, and collects what it built.
pub(crate) fn build(command: &mut Command) -> Result<Built> {
    command.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let line = sys::line(command);
    let mut child = command.spawn().with_context(|| format!("cannot start `{line}`"))?;
    let mut built = Built::default();
    if let Some(stdout) = child.stdout.take() {
        for message in BufReader::new(stdout).lines() {
            read_message(&message?, &mut built);
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(built)
}

fn read_message(message: &str, built: &mut Built) {
    match string_field(message, "reason").as_deref() {
        Some("compiler-artifact") => {
            // The first "name" of an artifact is that of its target.
            if let (Some(file), Some(name)) =
                (string_field(message, "executable"), string_field(message, "name"))
            {
                built.executables.push((name, file.into()));
            }
        }
        Some("build-script-executed") => {
            if let (Some(id), Some(folder)) =
                (string_field(message, "package_id"), string_field(message, "out_dir"))
            {
                built.out_dirs.push((id, folder.into()));
            }
        }
        _ => {}
    }
}

/// The first string value of a key in one line of JSON.
///
/// Enough for cargo's messages, whose strings here are names and paths: `\"`, `\\` and `\/` are undone.
fn string_field(json: &str, key: &str) -> Option<String> {
    let start = json.find(&format!("\"{key}\":\""))? + key.len() + 4;
    let mut value = String::new();
    let mut chars = json.get(start..)?.chars();
    loop {
        match chars.next()? {
            '"' => return Some(value),
            '\\' => value.push(chars.next()?),
            other => value.push(other),
        }
    }
}

/// Whether a package of the workspace has a program (`bin`) or a test target (`test`) of this name.
pub(crate) fn has_target(folder: &str, kind: &str, name: &str) -> Result<bool> {
    let base = workspace()?.join(folder);
    let places = match kind {
        "bin" => [format!("src/bin/{name}.rs"), format!("src/bin/{name}/main.rs")],
        _ => [format!("tests/{name}.rs"), format!("tests/{name}/main.rs")],
    };
    let manifest = std::fs::read_to_string(base.join("Cargo.toml")).unwrap_or_default();
    Ok(places.iter().any(|place| base.join(place).exists()) || declares(&manifest, kind, name))
}

/// Whether a manifest has a `[[bin]]` or `[[test]]` table with this name.
fn declares(manifest: &str, kind: &str, name: &str) -> bool {
    let wanted = format!("[[{kind}]]");
    let mut inside = false;
    manifest.lines().map(str::trim).any(|line| {
        if line.starts_with('[') {
            inside = line == wanted;
        }
        inside
            && line
                .strip_prefix("name")
                .and_then(|rest| rest.trim_start().strip_prefix('='))
                .is_some_and(|value| value.trim().trim_matches('"') == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_cargo_are_read() {
        let mut built = Built::default();
        read_message(
            r#"{"reason":"compiler-artifact","package_id":"p","target":{"kind":["test"],"name":"vm"},"executable":"/t/deps/vm-1"}"#,
            &mut built,
        );
        read_message(
            r#"{"reason":"compiler-artifact","target":{"name":"lib"},"executable":null}"#,
            &mut built,
        );
        read_message(
            r#"{"reason":"build-script-executed","package_id":"path+file:///w/smc-agent#0.1.0","env":[],"out_dir":"/t/a \"b\"/out"}"#,
            &mut built,
        );
        assert_eq!(built.executable("vm"), Some(Path::new("/t/deps/vm-1")));
        assert_eq!(built.executables.len(), 1);
        assert_eq!(built.out_dirs[0].1, Path::new("/t/a \"b\"/out"));
    }

    #[test]
    fn declared_targets_are_found_in_a_manifest() {
        let manifest =
            "[package]\nname = \"x\"\n[[test]]\nname = \"vm\"\nharness = false\n[[bin]]\nname=\"smctest\"\n";
        assert!(declares(manifest, "test", "vm"));
        assert!(declares(manifest, "bin", "smctest"));
        assert!(!declares(manifest, "bin", "vm"));
        assert!(!declares(manifest, "bin", "x"));
    }
}
