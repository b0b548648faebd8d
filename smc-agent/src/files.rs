//! Files: reading those that users name (regular ones only, and not more than can be meant), writing and removing our own.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use crate::enforce::at;

/// The most that is read of a file, in bytes: 4,194,304 prefixes of IPv6 at their longest, with room for comments.
const LARGEST: u64 = 512 << 20;

/// Reads a whole file. A pipe, a device or a folder is refused, where reading could wait for ever or never end.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > LARGEST {
        return Err(io::Error::other(format!("larger than {} MiB", LARGEST >> 20)));
    }
    Ok(bytes)
}

/// Reads a whole file of UTF-8 text.
pub(crate) fn read_to_string(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn open(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    if !kind.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(file)
}

/// Writes a value as JSON to its place; nothing is there half written.
pub(crate) fn write_json(path: &Path, value: &impl serde::Serialize) -> io::Result<()> {
    let write = || -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new("/")))?;
        serde_json::to_writer(&mut file, value)?;
        file.flush()?;
        file.as_file().sync_all()?;
        file.persist(path).map(drop).map_err(|error| error.error)
    };
    write().map_err(at("write", path))
}

/// Removes a file; it is no error if there is none.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    gone(fs::remove_file(path)).map_err(at("remove", path))
}

/// Removes a folder with all that is in it; it is no error if there is none.
pub(crate) fn remove_folder(path: &Path) -> io::Result<()> {
    gone(fs::remove_dir_all(path)).map_err(at("remove", path))
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_devices_and_folders_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        for path in [pipe.as_path(), Path::new("/dev/zero")] {
            assert_eq!(read(path).unwrap_err().to_string(), "not a regular file");
        }
        assert_eq!(read(folder.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        let file = folder.path().join("file");
        std::fs::write(&file, b"\xff").unwrap();
        assert_eq!(read(&file).unwrap(), b"\xff");
        assert_eq!(read_to_string(&file).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
