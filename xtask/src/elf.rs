//! Just enough of ELF64 (little endian) to read sections: BPF objects are compared by them, modules name their
//! dependencies in one.

use anyhow::{Context, Result, bail};

/// One section of an object file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// `sh_type`.
    pub(crate) kind: u32,
    /// `sh_flags`.
    pub(crate) flags: u64,
    /// Its content; empty where the file holds none (`SHT_NOBITS`).
    pub(crate) data: &'a [u8],
}

/// `sh_flags`: the section takes memory at run time.
pub(crate) const SHF_ALLOC: u64 = 2;
/// `sh_flags`: the section holds instructions.
pub(crate) const SHF_EXECINSTR: u64 = 4;
/// `sh_type`: the section has content of its own.
pub(crate) const SHT_PROGBITS: u32 = 1;
const SHT_NOBITS: u32 = 8;
const HEADER: usize = 64;

fn bytes<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N]> {
    let end = at.checked_add(N).context("an offset overflows")?;
    let slice = data.get(at..end).context("the file ends too early")?;
    Ok(slice.try_into()?)
}

fn u16_at(data: &[u8], at: usize) -> Result<usize> {
    Ok(usize::from(u16::from_le_bytes(bytes(data, at)?)))
}

fn u32_at(data: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(bytes(data, at)?))
}

fn u64_at(data: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(bytes(data, at)?))
}

fn size_at(data: &[u8], at: usize) -> Result<usize> {
    Ok(usize::try_from(u64_at(data, at)?)?)
}

/// Reads the sections of an ELF64 little-endian file, in file order.
pub(crate) fn sections(file: &[u8]) -> Result<Vec<Section<'_>>> {
    if file.get(..6) != Some(b"\x7fELF\x02\x01") {
        bail!("not a 64-bit little-endian ELF file");
    }
    let (table, entry) = (size_at(file, 0x28)?, u16_at(file, 0x3a)?);
    let (count, names) = (u16_at(file, 0x3c)?, u16_at(file, 0x3e)?);
    if entry < HEADER {
        bail!("section headers of {entry} bytes are too short");
    }
    let header = |index: usize| {
        let at =
            index.checked_mul(entry).and_then(|n| n.checked_add(table)).context("an offset overflows")?;
        let end = at.checked_add(HEADER).context("an offset overflows")?;
        file.get(at..end).context("the section table ends too early")
    };
    let content = |header: &[u8]| -> Result<&[u8]> {
        if u32_at(header, 4)? == SHT_NOBITS {
            return Ok(&[]);
        }
        let (offset, size) = (size_at(header, 0x18)?, size_at(header, 0x20)?);
        let end = offset.checked_add(size).context("an offset overflows")?;
        file.get(offset..end).context("a section lies outside of the file")
    };
    let strings = if count == 0 { &[][..] } else { content(header(names)?)? };
    (0..count)
        .map(|index| {
            let head = header(index)?;
            let name = strings.get(usize::try_from(u32_at(head, 0)?)?..).context("a name lies outside")?;
            let end = name.iter().position(|byte| *byte == 0).context("a name has no end")?;
            Ok(Section {
                name: std::str::from_utf8(name.get(..end).unwrap_or_default())?,
                kind: u32_at(head, 4)?,
                flags: u64_at(head, 8)?,
                data: content(head)?,
            })
        })
        .collect()
}

/// The `key=value` strings of a module's `.modinfo`.
pub(crate) fn modinfo(file: &[u8]) -> Result<Vec<(String, String)>> {
    let sections = sections(file)?;
    let info = sections.iter().find(|section| section.name == ".modinfo").context("no section .modinfo")?;
    Ok(info
        .data
        .split(|byte| *byte == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok()?.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect())
}

/// Builds small files for the tests of this crate.
#[cfg(test)]
pub(crate) mod testing {
    /// An ELF64 file with these sections (name, type, flags, content).
    pub(crate) fn elf(parts: &[(&str, u32, u64, &[u8])]) -> Vec<u8> {
        let mut file = vec![0u8; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let mut strings = vec![0u8];
        let mut headers = vec![0u8; 64];
        let mut push = |file: &mut Vec<u8>, name: u32, kind: u32, flags: u64, data: &[u8]| {
            let mut head = [0u8; 64];
            head[..4].copy_from_slice(&name.to_le_bytes());
            head[4..8].copy_from_slice(&kind.to_le_bytes());
            head[8..16].copy_from_slice(&flags.to_le_bytes());
            head[0x18..0x20].copy_from_slice(&(file.len() as u64).to_le_bytes());
            head[0x20..0x28].copy_from_slice(&(data.len() as u64).to_le_bytes());
            file.extend_from_slice(data);
            headers.extend_from_slice(&head);
        };
        for (name, kind, flags, data) in parts {
            let at = u32::try_from(strings.len()).unwrap();
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
            push(&mut file, at, *kind, *flags, data);
        }
        push(&mut file, 0, 3, 0, &strings.clone());
        let table = file.len() as u64;
        file.extend_from_slice(&headers);
        file[0x28..0x30].copy_from_slice(&table.to_le_bytes());
        file[0x3a..0x3c].copy_from_slice(&64u16.to_le_bytes());
        let count = u16::try_from(parts.len() + 2).unwrap();
        file[0x3c..0x3e].copy_from_slice(&count.to_le_bytes());
        file[0x3e..0x40].copy_from_slice(&(count - 1).to_le_bytes());
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_found_by_name() {
        let file = testing::elf(&[("classifier", 1, 6, b"code"), (".bss", SHT_NOBITS, 3, b"")]);
        let found = sections(&file).unwrap();
        let code = found.iter().find(|section| section.name == "classifier").unwrap();
        assert_eq!((code.data, code.flags), (&b"code"[..], 6));
        assert!(found.iter().any(|section| section.name == ".bss" && section.data.is_empty()));
    }

    #[test]
    fn modinfo_is_split() {
        let file =
            testing::elf(&[(".modinfo", 1, 2, b"name=smc\0depends=ib_core,dibs\0\0alias=net-pf-43\0")]);
        let info = modinfo(&file).unwrap();
        assert!(info.contains(&("depends".into(), "ib_core,dibs".into())));
        assert_eq!(info.len(), 3);
    }

    #[test]
    fn damaged_files_are_errors_not_panics() {
        let file = testing::elf(&[("a", 1, 2, b"x")]);
        for end in 0..file.len() {
            assert!(sections(&file[..end]).is_err(), "cut at {end}");
        }
        for at in 0x28..64 {
            let mut broken = file.clone();
            broken[at] ^= 0xff;
            let _ = sections(&broken);
        }
    }
}
