//! Writes the archive that the kernel unpacks into its first root file system ("newc" cpio).

use std::collections::BTreeSet;
use std::io::{self, Write};

/// Writes an archive entry by entry; missing parent folders are added on the way.
pub(crate) struct Archive<W: Write> {
    out: W,
    seen: BTreeSet<String>,
    inode: u32,
    offset: usize,
}

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

impl<W: Write> Archive<W> {
    /// Starts an archive.
    pub(crate) fn new(out: W) -> Self {
        Self { out, seen: BTreeSet::new(), inode: 0, offset: 0 }
    }

    /// Adds a folder.
    pub(crate) fn folder(&mut self, path: &str) -> io::Result<()> {
        let path = path.trim_matches('/');
        if path.is_empty() || self.seen.contains(path) {
            return Ok(());
        }
        self.entry(path, FOLDER | 0o755, (0, 0), b"")
    }

    /// Adds a file; the first one under a path stays.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, FILE | mode, (0, 0), content)
    }

    /// Adds a symbolic link; what is already there under that path stays.
    pub(crate) fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, LINK | 0o777, (0, 0), target.as_bytes())
    }

    /// Adds a character device.
    pub(crate) fn device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(path, CHARACTER_DEVICE | 0o600, (major, minor), b"")
    }

    /// Ends the archive and gives back what it was written to.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.header("TRAILER!!!", 0, (0, 0), 0)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> io::Result<()> {
        let path = path.trim_matches('/');
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent)?;
        }
        if !self.seen.insert(path.to_owned()) {
            return Ok(());
        }
        self.header(path, mode, device, content.len())?;
        self.write(content)?;
        self.pad()
    }

    fn header(&mut self, name: &str, mode: u32, device: (u32, u32), size: usize) -> io::Result<()> {
        self.inode += 1;
        let links = 1 + u32::from(mode & FOLDER == FOLDER);
        let size = u32::try_from(size).map_err(|_| io::Error::other(format!("{name} is over 4 GiB")))?;
        let name_size = u32::try_from(name.len() + 1).map_err(io::Error::other)?;
        let fields = [self.inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0]
            .map(|n| format!("{n:08x}"));
        self.write(format!("070701{}{name}\0", fields.concat()).as_bytes())?;
        self.pad()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.offset += bytes.len();
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        self.write([0; 3].get(..self.offset.wrapping_neg() & 3).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an archive back: name, mode, content.
    fn read(mut data: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut found = Vec::new();
        let whole = data.len();
        loop {
            assert_eq!((whole - data.len()) % 4, 0, "headers are aligned");
            assert_eq!(&data[..6], b"070701");
            let field = |i: usize| {
                u32::from_str_radix(std::str::from_utf8(&data[6 + 8 * i..14 + 8 * i]).unwrap(), 16).unwrap()
            };
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name = String::from_utf8(data[110..110 + name_size - 1].to_vec()).unwrap();
            if name == "TRAILER!!!" {
                return found;
            }
            let start = (110 + name_size).next_multiple_of(4);
            found.push((name, mode, data[start..start + size].to_vec()));
            data = &data[(start + size).next_multiple_of(4)..];
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let mut archive = Archive::new(Vec::new());
        archive.file("/bin/tool", 0o755, b"12345").unwrap();
        archive.link("/bin/other", "tool").unwrap();
        archive.file("/bin/other", 0o755, b"not taken").unwrap();
        archive.device("/dev/console", 5, 1).unwrap();
        archive.folder("/a/b/c").unwrap();
        let found = read(&archive.finish().unwrap());
        let names: Vec<_> = found.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["bin", "bin/tool", "bin/other", "dev", "dev/console", "a", "a/b", "a/b/c"]);
        assert_eq!(found[1].1, 0o100_755);
        assert_eq!(found[1].2, b"12345");
        assert_eq!(found[2].2, b"tool");
        assert_eq!(found[4].1, 0o020_600);
    }
}
