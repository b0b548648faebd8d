//! Reading files that users name: regular ones only, and not more than can be meant.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

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
