//! One agent per host: whoever holds the lock may change what is in the kernel.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    path::{Path, PathBuf},
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
    /// Another agent, with another state folder, uses the same pins.
    #[error("another agent runs already: it holds the pins in {pins} with another state folder")]
    PinsHeld {
        /// The folder of pins.
        pins: PathBuf,
    },
    /// The lock file cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The lock, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct AgentLock {
    _file: Flock<File>,
    /// The folder of pins too: it is what two agents must not share, whatever state folders they have.
    _pins: Option<Flock<File>>,
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
                let pins = lock_pins(places)?;
                write(&mut file).map_err(at("write", &path))?;
                Ok(Self { _file: file, _pins: pins })
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

/// `None` where there are no pins.
fn lock_pins(places: &Places) -> Result<Option<Flock<File>>, LockError> {
    let folder = match File::open(&places.pins) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at("open", &places.pins)(error).into()),
    };
    match Flock::lock(folder, FlockArg::LockExclusiveNonblock) {
        Ok(folder) => Ok(Some(folder)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(LockError::PinsHeld { pins: places.pins.clone() }),
        Err((_, error)) => Err(at("lock", &places.pins)(error.into()).into()),
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
        let other = tempfile::tempdir().unwrap();
        let same_pins = Places { state: other.path().to_owned(), ..places.clone() };
        assert!(matches!(AgentLock::take(&same_pins), Err(LockError::PinsHeld { .. })));
        drop(first);
        AgentLock::take(&places).unwrap();
    }
}
