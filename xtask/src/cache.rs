//! The cache: outside of the checkout, filled by writing aside and renaming, guarded by file locks.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::sys;

/// The folder that outlives checkouts: `$SMC_AGENT_CACHE`, `$XDG_CACHE_HOME/smc-agent` or `~/.cache/smc-agent`.
pub(crate) fn root() -> Result<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = var("SMC_AGENT_CACHE")
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("smc-agent")))
        .or_else(|| Some(var("HOME")?.join(".cache/smc-agent")))
        .context("no place for the cache: set SMC_AGENT_CACHE")?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot make the cache {}", folder.display()))?;
    Ok(folder.canonicalize()?)
}

/// Holds one lock of the cache until it is dropped.
pub(crate) struct Lock {
    _file: File,
}

/// Takes the lock of one job, saying so if another xtask has to finish first.
pub(crate) fn lock(job: &str) -> Result<Lock> {
    let folder = root()?.join("locks");
    fs::create_dir_all(&folder)?;
    let path = folder.join(job);
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            sys::say(format_args!("waiting for another xtask that is busy with {job}"));
            file.lock()?;
        }
        Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the cache"),
    }
    Ok(Lock { _file: file })
}

/// Fills `target` by letting `fill` write to a folder next to it that is renamed when all went well.
///
/// The caller holds the lock, so a leftover of the same name is one of a run that was killed.
pub(crate) fn publish(_lock: &Lock, target: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let name = target.file_name().context("a cache entry needs a name")?.to_string_lossy().into_owned();
    let parent = target.parent().context("a cache entry needs a parent")?;
    fs::create_dir_all(parent)?;
    let aside = parent.join(format!(".{name}.partial"));
    if aside.exists() {
        fs::remove_dir_all(&aside)?;
    }
    fs::create_dir(&aside)?;
    fill(&aside)?;
    if target.exists() {
        fs::remove_dir_all(target)?;
    }
    fs::rename(&aside, target).with_context(|| format!("cannot put {} in place", target.display()))
}

/// Replaces a small file in one step.
pub(crate) fn write_file(target: &Path, content: &[u8]) -> Result<()> {
    let aside = target.with_extension(format!("partial-{}", std::process::id()));
    fs::write(&aside, content).with_context(|| aside.display().to_string())?;
    fs::rename(&aside, target).with_context(|| target.display().to_string())
}
