//! Kernel modules: which ones a guest needs, what they depend on, and the tables that modprobe reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{elf, sys};

/// One module, as its own `.modinfo` describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Module {
    /// The name that the kernel uses: underscores only.
    pub(crate) name: String,
    /// Its uncompressed content.
    pub(crate) content: Vec<u8>,
    /// What must be loaded before.
    pub(crate) depends: Vec<String>,
    /// Names under which the kernel asks for it.
    pub(crate) aliases: Vec<String>,
}

/// The modules of one kernel, by name.
pub(crate) struct Tree {
    files: BTreeMap<String, PathBuf>,
}

impl Tree {
    /// Indexes the modules below a folder.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let files =
            sys::walk(folder)?.into_iter().filter_map(|path| Some((module_name(&path)?, path))).collect();
        Ok(Self { files })
    }

    /// Reads the wanted modules that this kernel has, and all that they need, each after what it needs.
    pub(crate) fn closure(&self, wanted: &[&str]) -> Result<Vec<Module>> {
        let mut loaded: BTreeMap<String, Module> = BTreeMap::new();
        let mut queue: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        while let Some(name) = queue.pop() {
            let Some(path) = self.files.get(&name).filter(|_| !loaded.contains_key(&name)) else { continue };
            let module = read(path).with_context(|| path.display().to_string())?;
            queue.extend(module.depends.iter().cloned());
            loaded.insert(name, module);
        }
        let graph = loaded.iter().map(|(name, module)| (name.clone(), module.depends.clone())).collect();
        let order = order(&graph, wanted);
        Ok(order.into_iter().filter_map(|name| loaded.remove(&name)).collect())
    }
}

/// `kernel/net/smc/smc-diag.ko.xz` is `smc_diag`.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let stem =
        ["", ".xz", ".zst", ".gz"].iter().find_map(|end| file.strip_suffix(end)?.strip_suffix(".ko"))?;
    Some(stem.replace('-', "_"))
}

fn read(path: &Path) -> Result<Module> {
    let unpack = |program: &str| -> Result<Vec<u8>> {
        let out =
            Command::new(program).args(["-dc"]).arg(path).output().with_context(|| program.to_owned())?;
        anyhow::ensure!(out.status.success(), "{program} cannot unpack it");
        Ok(out.stdout)
    };
    let content = match path.extension().and_then(|end| end.to_str()) {
        Some("xz") => unpack("xz")?,
        Some("zst") => unpack("zstd")?,
        Some("gz") => unpack("gzip")?,
        _ => fs::read(path)?,
    };
    let info = elf::modinfo(&content)?;
    Ok(from_modinfo(module_name(path).unwrap_or_default(), content, &info))
}

fn from_modinfo(name: String, content: Vec<u8>, info: &[(String, String)]) -> Module {
    let all = |wanted: &'static str| {
        info.iter().filter(move |(key, _)| key == wanted).map(|(_, value)| value.as_str())
    };
    let soft = all("softdep").flat_map(|value| {
        // "pre: a b post: c": what is to be there before counts as a dependency.
        let pre = value.split("pre:").nth(1).unwrap_or_default();
        pre.split("post:").next().unwrap_or_default().split_whitespace()
    });
    let depends = all("depends").flat_map(|value| value.split(',')).chain(soft);
    let depends: BTreeSet<String> =
        depends.filter(|entry| !entry.is_empty()).map(|entry| entry.replace('-', "_")).collect();
    let aliases = all("alias").map(str::to_owned).collect();
    Module { name, content, depends: depends.into_iter().collect(), aliases }
}

/// Orders modules so that each comes after those it depends on; unknown names and cycles are passed over.
fn order(graph: &BTreeMap<String, Vec<String>>, wanted: &[&str]) -> Vec<String> {
    fn visit(
        graph: &BTreeMap<String, Vec<String>>,
        name: &str,
        seen: &mut BTreeSet<String>,
        out: &mut Vec<String>,
    ) {
        let Some(depends) = graph.get(name) else { return };
        if !seen.insert(name.to_owned()) {
            return;
        }
        for next in depends {
            visit(graph, next, seen, out);
        }
        out.push(name.to_owned());
    }
    let (mut seen, mut out) = (BTreeSet::new(), Vec::new());
    for name in wanted {
        visit(graph, name, &mut seen, &mut out);
    }
    out
}

/// The text of `modules.dep`: every module with all that it needs, nearest first.
pub(crate) fn modules_dep(modules: &[Module]) -> String {
    let graph: BTreeMap<String, Vec<String>> =
        modules.iter().map(|module| (module.name.clone(), module.depends.clone())).collect();
    modules.iter().fold(String::new(), |mut text, module| {
        let mut needs = order(&graph, &[&module.name]);
        needs.pop();
        let _ = write!(text, "{}.ko:", module.name);
        for name in needs.iter().rev() {
            let _ = write!(text, " {name}.ko");
        }
        text.push('\n');
        text
    })
}

/// The text of `modules.alias`.
pub(crate) fn modules_alias(modules: &[Module]) -> String {
    modules.iter().flat_map(|module| module.aliases.iter().map(move |alias| (alias, &module.name))).fold(
        String::new(),
        |mut text, (alias, name)| {
            let _ = writeln!(text, "alias {alias} {name}");
            text
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
        edges
            .iter()
            .map(|(name, to)| ((*name).to_owned(), to.iter().map(|t| (*t).to_owned()).collect()))
            .collect()
    }

    #[test]
    fn names_are_the_kernel_s_whatever_the_packing() {
        assert_eq!(module_name(Path::new("/m/net/xfrm-user.ko.xz")).as_deref(), Some("xfrm_user"));
        assert_eq!(module_name(Path::new("smc.ko")).as_deref(), Some("smc"));
        assert_eq!(module_name(Path::new("modules.dep")), None);
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let graph = graph(&[
            ("smc_diag", &["smc"]),
            ("smc", &["ib_core", "builtin"]),
            ("rdma_rxe", &["ib_core", "crc32_generic"]),
            ("ib_core", &[]),
            ("crc32_generic", &[]),
        ]);
        let found = order(&graph, &["smc_diag", "rdma_rxe", "absent"]);
        assert_eq!(found, ["ib_core", "smc", "smc_diag", "crc32_generic", "rdma_rxe"]);
    }

    #[test]
    fn a_cycle_does_not_hang() {
        let found = order(&graph(&[("a", &["b"]), ("b", &["a"])]), &["a"]);
        assert_eq!(found, ["b", "a"]);
    }

    #[test]
    fn the_tables_are_those_of_modprobe() {
        let info = [("depends", "ib-core,b"), ("softdep", "pre: crc32c post: z"), ("alias", "net-pf-43")];
        let info: Vec<_> = info.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let smc = from_modinfo("smc".into(), Vec::new(), &info);
        assert_eq!(smc.depends, ["b", "crc32c", "ib_core"]);
        let leaf = |name: &str, depends: &[&str]| Module {
            name: name.into(),
            depends: depends.iter().map(|d| (*d).to_owned()).collect(),
            ..Module::default()
        };
        let all = [leaf("ib_core", &[]), leaf("b", &["ib_core"]), smc];
        assert_eq!(modules_dep(&all), "ib_core.ko:\nb.ko: ib_core.ko\nsmc.ko: b.ko ib_core.ko\n");
        assert_eq!(modules_alias(&all), "alias net-pf-43 smc\n");
    }
}
