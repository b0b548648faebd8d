//! One agent per host: whoever holds the lock may change what is in the kernel.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    path::Path,
};

use nix::fcntl::{Flock, FlockArg};
use thiserror::Error;

use super::places::{Places, at};

/// Why the lock was not had.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another agent runs.
    #[error("another agent runs already (pid {pid}): stop it first, or use its control socket")]
    Held {
        /// Its process id as it wrote it down; `?` if it has not yet.
        pid: String,
    },
    /// The lock file cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The lock, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct AgentLock {
    _file: Flock<File>,
}

impl AgentLock {
    /// Takes the lock and writes down this process's id.
    pub fn take(places: &Places) -> Result<Self, LockError> {
        let path = places.lock();
        let file = open(&path).map_err(at("open", &path))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut file) => {
                let write = |file: &mut File| -> io::Result<()> {
                    file.set_len(0)?;
                    file.rewind()?;
                    writeln!(file, "{}", std::process::id())
                };
                write(&mut file).map_err(at("write", &path))?;
                Ok(Self { _file: file })
            }
            Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                let pid = pid.trim();
                Err(LockError::Held { pid: if pid.is_empty() { "?" } else { pid }.to_owned() })
            }
            Err((_, error)) => Err(at("lock", &path)(error.into()).into()),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_one_is_told_the_pid_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places { pins: folder.path().to_owned(), state: folder.path().to_owned() };
        let first = AgentLock::take(&places).unwrap();
        let error = AgentLock::take(&places).unwrap_err().to_string();
        assert!(error.contains(&format!("(pid {})", std::process::id())), "{error}");
        drop(first);
        AgentLock::take(&places).unwrap();
    }
}
