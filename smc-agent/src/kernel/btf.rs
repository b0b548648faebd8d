//! Reads BTF (Documentation/bpf/btf.rst): the kernel's own description of its types, and that of a module, which
//! continues the kernel's numbering of types and strings.
//!
//! Linux 7.x widened the format: `kind` takes 7 bits and `vlen` 24, and the header may be longer than 24 bytes.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use thiserror::Error;

/// Where the kernel shows its BTF and that of its modules.
pub const BTF_FOLDER: &str = "/sys/kernel/btf";

const MAGIC: u16 = 0xeb9f;
const HEADER: usize = 24;
const BITS_OF_BYTE: u32 = 8;

/// `BTF_KIND_*` of uapi/linux/btf.h, as far as something is asked of them here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kind {
    /// `BTF_KIND_STRUCT`
    Struct = 4,
    /// `BTF_KIND_UNION`
    Union = 5,
    /// `BTF_KIND_TYPEDEF`
    Typedef = 8,
    /// `BTF_KIND_FUNC`
    Func = 12,
}

const KIND_INT: u32 = 1;
const KIND_ARRAY: u32 = 3;
const KIND_ENUM: u32 = 6;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;
const KIND_LAST: u32 = KIND_ENUM64;

/// Why a description of types could not be read.
#[derive(Debug, Error)]
pub enum BtfError {
    /// The file cannot be read: the kernel has no BTF, or the module is not there.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The bytes are not BTF as this program knows it.
    #[error("{path}: not understood as BTF: {what}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// A field that is needed is not there.
    #[error("this kernel's BTF has no {structure}.{field}")]
    NoField {
        /// The structure.
        structure: String,
        /// The path of the field in it.
        field: String,
    },
}

#[derive(Debug)]
struct Member {
    name: u32,
    id: u32,
    bits: u32,
}

#[derive(Debug)]
struct Type {
    name: u32,
    kind: u32,
    /// A size in bytes, or the id of another type: which of them depends on the kind.
    size_or_id: u32,
    members: Vec<Member>,
}

/// A direct member of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberPlace {
    /// Its number among the members.
    pub index: u32,
    /// Its offset in bytes.
    pub offset: u32,
}

/// The types of the kernel, or of a module together with those of the kernel.
#[derive(Debug)]
pub struct Btf {
    first_id: u32,
    first_string: u32,
    strings: Vec<u8>,
    types: Vec<Type>,
    names: HashMap<Vec<u8>, Vec<(u32, u32)>>,
    base: Option<Arc<Btf>>,
}

impl Btf {
    /// The running kernel's types.
    pub fn of_kernel() -> Result<Self, BtfError> {
        Self::load(&Path::new(BTF_FOLDER).join("vmlinux"), None)
    }

    /// The types of a loaded module.
    pub fn of_module(name: &str, kernel: &Arc<Self>) -> Result<Self, BtfError> {
        Self::load(&Path::new(BTF_FOLDER).join(name), Some(Arc::clone(kernel)))
    }

    fn load(path: &Path, base: Option<Arc<Self>>) -> Result<Self, BtfError> {
        let bytes =
            fs::read(path).map_err(|source| BtfError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&bytes, base).map_err(|what| BtfError::Malformed { path: path.to_owned(), what })
    }

    /// Reads the bytes of a BTF file. `base` is the kernel's BTF for a module's.
    pub fn parse(bytes: &[u8], base: Option<Arc<Self>>) -> Result<Self, &'static str> {
        let mut head = Reader { bytes };
        if head.u16()? != MAGIC {
            return Err("wrong magic number, or another byte order");
        }
        head.skip(2)?;
        let header_length = head.usize()?;
        let (type_start, type_length) = (head.usize()?, head.usize()?);
        let (string_start, string_length) = (head.usize()?, head.usize()?);
        if header_length < HEADER {
            return Err("header too short");
        }
        let part = |start: usize, length: usize| {
            let start = header_length.checked_add(start)?;
            bytes.get(start..start.checked_add(length)?)
        };
        let mut reader = Reader { bytes: part(type_start, type_length).ok_or("types beyond the end")? };
        let strings = part(string_start, string_length).ok_or("strings beyond the end")?.to_vec();
        let (first_id, first_string) = match &base {
            None => (1, 0),
            Some(base) => (base.end_id(), base.end_string()),
        };
        let mut btf =
            Self { first_id, first_string, strings, types: Vec::new(), names: HashMap::new(), base };
        while !reader.bytes.is_empty() {
            let id = btf.end_id();
            let read = reader.read_type()?;
            if [Kind::Struct as u32, Kind::Union as u32, Kind::Typedef as u32, Kind::Func as u32]
                .contains(&read.kind)
                && read.name != 0
            {
                let name = btf.string(read.name).ok_or("a name beyond the end")?.to_vec();
                btf.names.entry(name).or_default().push((read.kind, id));
            }
            btf.types.push(read);
        }
        Ok(btf)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a BTF section is shorter than 4 GiB: its header says so"
    )]
    fn end_id(&self) -> u32 {
        self.first_id + self.types.len() as u32
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a BTF section is shorter than 4 GiB: its header says so"
    )]
    fn end_string(&self) -> u32 {
        self.first_string + self.strings.len() as u32
    }

    fn string(&self, offset: u32) -> Option<&[u8]> {
        if offset < self.first_string {
            return self.base.as_ref()?.string(offset);
        }
        let rest = self.strings.get((offset - self.first_string) as usize..)?;
        rest.iter().position(|byte| *byte == 0).map(|end| &rest[..end])
    }

    fn get(&self, id: u32) -> Option<&Type> {
        if id < self.first_id {
            return self.base.as_ref()?.get(id);
        }
        self.types.get((id - self.first_id) as usize)
    }

    /// The id of a named type.
    pub fn find(&self, name: &str, kind: Kind) -> Option<u32> {
        self.names
            .get(name.as_bytes())
            .and_then(|found| found.iter().find(|(k, _)| *k == kind as u32).map(|(_, id)| *id))
            .or_else(|| self.base.as_ref()?.find(name, kind))
    }

    /// Size in bytes of a structure or union.
    pub fn size_of(&self, id: u32) -> Option<u32> {
        let found = self.get(id)?;
        (found.kind == Kind::Struct as u32 || found.kind == Kind::Union as u32).then_some(found.size_or_id)
    }

    /// A direct member of the structure `id`.
    pub fn member(&self, id: u32, name: &str) -> Option<MemberPlace> {
        let members = &self.get(id)?.members;
        let position = members.iter().position(|member| self.string(member.name) == Some(name.as_bytes()))?;
        Some(MemberPlace {
            index: u32::try_from(position).ok()?,
            offset: members[position].bits / BITS_OF_BYTE,
        })
    }

    /// Offset in bytes of `field` ("a.b.c") in `structure`. Members without a name are looked through.
    pub fn offset(&self, structure: &str, field: &str) -> Result<u32, BtfError> {
        let find = || {
            let mut id = self.find(structure, Kind::Struct)?;
            let mut bits = 0_u32;
            for part in field.split('.') {
                let (distance, of) = self.field(id, part, 0)?;
                bits = bits.checked_add(distance)?;
                id = of;
            }
            bits.is_multiple_of(BITS_OF_BYTE).then_some(bits / BITS_OF_BYTE)
        };
        find().ok_or_else(|| BtfError::NoField { structure: structure.to_owned(), field: field.to_owned() })
    }

    /// Distance in bits and type of a field, also inside members without a name.
    fn field(&self, id: u32, name: &str, depth: u32) -> Option<(u32, u32)> {
        const DEEPEST: u32 = 16;
        if depth > DEEPEST {
            return None;
        }
        for member in &self.get(self.without_modifiers(id)?)?.members {
            if member.name == 0 {
                if let Some((bits, of)) = self.field(member.id, name, depth + 1) {
                    return Some((member.bits.checked_add(bits)?, of));
                }
            } else if self.string(member.name) == Some(name.as_bytes()) {
                return Some((member.bits, member.id));
            }
        }
        None
    }

    fn without_modifiers(&self, mut id: u32) -> Option<u32> {
        const LONGEST: u32 = 32;
        for _ in 0..LONGEST {
            let found = self.get(id)?;
            match found.kind {
                KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => id = found.size_or_id,
                kind if kind == Kind::Typedef as u32 => id = found.size_or_id,
                _ => return Some(id),
            }
        }
        None
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (first, rest) = self.bytes.split_first_chunk::<N>().ok_or("ends in the middle")?;
        self.bytes = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, &'static str> {
        Ok(u16::from_ne_bytes(self.take()?))
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        Ok(u32::from_ne_bytes(self.take()?))
    }

    fn usize(&mut self) -> Result<usize, &'static str> {
        self.u32().map(|value| value as usize)
    }

    fn skip(&mut self, count: usize) -> Result<(), &'static str> {
        self.bytes = self.bytes.get(count..).ok_or("ends in the middle")?;
        Ok(())
    }

    fn read_type(&mut self) -> Result<Type, &'static str> {
        let (name, info, size_or_id) = (self.u32()?, self.u32()?, self.u32()?);
        let (kind, count, with_bitfields) = (info >> 24 & 0x7f, (info & 0xff_ffff) as usize, info >> 31 != 0);
        let mut members = Vec::new();
        match kind {
            KIND_INT | KIND_VAR | KIND_DECL_TAG => self.skip(4)?,
            KIND_ARRAY => self.skip(12)?,
            KIND_ENUM | KIND_FUNC_PROTO => self.skip(count.checked_mul(8).ok_or("too many entries")?)?,
            KIND_DATASEC | KIND_ENUM64 => self.skip(count.checked_mul(12).ok_or("too many entries")?)?,
            kind if kind == Kind::Struct as u32 || kind == Kind::Union as u32 => {
                for _ in 0..count {
                    let (name, id, offset) = (self.u32()?, self.u32()?, self.u32()?);
                    // With kind_flag the upper 8 bits are the size of a bitfield.
                    let bits = if with_bitfields { offset & 0xff_ffff } else { offset };
                    members.push(Member { name, id, bits });
                }
            }
            kind if kind > KIND_LAST => return Err("a kind of type that is newer than this program"),
            _ => {}
        }
        Ok(Type { name, kind, size_or_id, members })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(bytes: &mut Vec<u8>, words: &[u32]) {
        for word in words {
            bytes.extend(word.to_ne_bytes());
        }
    }

    /// BTF of `struct outer { int a; struct { int b; }; const struct outer *...}` in the 7.x form of the header.
    fn sample(extra_header: usize) -> Vec<u8> {
        let strings = b"\0int\0outer\0a\0b\0";
        let mut types = Vec::new();
        put(&mut types, &[1, 1 << 24, 4, 32]); // 1: int
        put(&mut types, &[0, 4 << 24 | 1, 4, 13, 1, 0]); // 2: struct { int b; }
        put(&mut types, &[5, 4 << 24 | 2, 8, 11, 1, 0, 0, 2, 32]); // 3: struct outer
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_ne_bytes());
        bytes.extend([1, 0]);
        let length = |value: usize| u32::try_from(value).unwrap();
        put(
            &mut bytes,
            &[
                length(HEADER + extra_header),
                0,
                length(types.len()),
                length(types.len()),
                length(strings.len()),
            ],
        );
        bytes.extend(vec![0; extra_header]);
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn finds_fields_also_inside_members_without_a_name() {
        for extra in [0, 8] {
            let btf = Btf::parse(&sample(extra), None).unwrap();
            assert_eq!(btf.offset("outer", "a").unwrap(), 0);
            assert_eq!(btf.offset("outer", "b").unwrap(), 4);
            assert_eq!(btf.size_of(btf.find("outer", Kind::Struct).unwrap()), Some(8));
            let error = btf.offset("outer", "c").unwrap_err();
            assert_eq!(error.to_string(), "this kernel's BTF has no outer.c");
        }
    }

    #[test]
    fn a_module_continues_the_numbering_of_the_kernel() {
        let kernel = Arc::new(Btf::parse(&sample(0), None).unwrap());
        let strings = b"\0inner\0x\0";
        let base = kernel.end_string();
        let mut types = Vec::new();
        put(&mut types, &[base + 1, 4 << 24 | 1, 8, base + 7, 3, 0]); // struct inner { struct outer x; }
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_ne_bytes());
        bytes.extend([1, 0]);
        put(&mut bytes, &[24, 0, 24, 24, u32::try_from(strings.len()).unwrap()]);
        bytes.extend(types);
        bytes.extend(strings);
        let module = Btf::parse(&bytes, Some(kernel)).unwrap();
        assert_eq!(module.offset("inner", "x.b").unwrap(), 4);
        assert_eq!(module.find("outer", Kind::Struct), Some(3));
    }

    #[test]
    fn every_truncation_is_an_error_or_less_data_never_a_panic() {
        let whole = sample(0);
        for end in 0..whole.len() {
            let _ = Btf::parse(&whole[..end], None);
        }
        assert!(Btf::parse(&whole[..10], None).is_err());
    }
}
