//! Small helpers around processes, files and what is said to the person who waits.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// Says on standard error what is done now; standard output belongs to results.
pub(crate) fn say(text: impl std::fmt::Display) {
    eprintln!("xtask: {text}");
}

/// Renders a command as a person would type it, for messages.
pub(crate) fn line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a command with the streams of this process and fails when it does.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", line(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", line(command));
    }
    Ok(())
}

/// Runs a command and gives back what it wrote to standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("cannot start `{}`", line(command)))?;
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        bail!("`{}` failed: {}\n{}", line(command), out.status, why.trim_end());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Runs a command that may hang, and kills it after `limit`.
pub(crate) fn run_within(command: &mut Command, limit: Duration) -> Result<()> {
    let mut child = command.spawn().with_context(|| format!("cannot start `{}`", line(command)))?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            if status.success() {
                return Ok(());
            }
            bail!("`{}` failed: {status}", line(command));
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            bail!("`{}` was still running after {} s", line(command), limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Finds a program on PATH, or in the system folders that a user's PATH often lacks.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Whether this process may install packages.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid takes no arguments, touches no memory and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// The lower-case hexadecimal SHA-256 of some bytes.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// The lower-case hexadecimal SHA-256 of a file.
pub(crate) fn sha256_file(file: &Path) -> Result<String> {
    let mut reader = BufReader::new(fs::File::open(file).with_context(|| file.display().to_string())?);
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let n = reader.read(&mut buffer)?;
        if n == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(buffer.get(..n).unwrap_or_default());
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Every regular file below a folder, in a stable order.
pub(crate) fn walk(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut queue = vec![folder.to_path_buf()];
    while let Some(next) = queue.pop() {
        for entry in fs::read_dir(&next).with_context(|| next.display().to_string())? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                queue.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Quotes a word for a POSIX shell.
pub(crate) fn shell_quote(word: &OsStr) -> String {
    format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))
}

/// A duration as people read it.
pub(crate) fn human(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 100.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {} s", duration.as_secs() / 60, duration.as_secs() % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_survives_a_shell() {
        let word = "it's \"$HOME\" `x`\n\\";
        let out = Command::new("sh")
            .args(["-c", &format!("printf %s {}", shell_quote(OsStr::new(word)))])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(out.stdout).unwrap(), word);
    }

    #[test]
    fn sha256_is_the_known_one() {
        assert!(sha256(b"").starts_with("e3b0c44298fc1c14"));
    }

    #[test]
    fn a_command_that_hangs_is_killed() {
        let error = run_within(Command::new("sleep").arg("60"), Duration::from_millis(200)).unwrap_err();
        assert!(error.to_string().contains("still running"));
    }
}
