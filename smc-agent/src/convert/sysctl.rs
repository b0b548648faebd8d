//! `net.smc.tcp2smc`: kernels of Alibaba Cloud Linux 3 and Anolis 5.10 convert all TCP sockets of a network namespace where it
//! is 1. Whole namespaces only, and no exceptions: not for programs that operators depend on either.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::{
    record::{ConvertRecord, FormerSysctl, Switch},
    table::Entry,
};
use crate::{enforce::at, netns};

/// The sysctl.
pub(crate) const SYSCTL: &str = "/proc/sys/net/smc/tcp2smc";

/// Why sysctls are not as they should be.
#[derive(Debug, Error)]
pub enum SysctlError {
    /// A rule asks for more than this mechanism can.
    #[error(
        "rule {0:?} chooses among the processes of a namespace: this kernel converts by net.smc.tcp2smc, which is for \
         whole namespaces (finer rules need bpf: 6.11 and later with MPTCP)"
    )]
    TooFine(String),
    /// Nothing could be excepted.
    #[error(
        "{0} would convert every namespace with all its programs, sshd too: this kernel converts by net.smc.tcp2smc, \
         which knows no exceptions; name the namespaces by rules with `netns`"
    )]
    All(String),
    /// A namespace that a rule names is not there.
    #[error("there is no network namespace {0:?}")]
    NoNamespace(String),
    /// A sysctl could not be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Whether this kernel has it.
pub(super) fn exists() -> bool {
    Path::new(SYSCTL).exists()
}

/// What of the rules this mechanism cannot do.
pub fn check(record: &ConvertRecord) -> Result<(), SysctlError> {
    if record.default == Switch::On {
        return Err(SysctlError::All("`default: on`".to_owned()));
    }
    for rule in &record.rules {
        if !rule.selectors.only_netns() {
            return Err(SysctlError::TooFine(rule.name.clone()));
        }
        if rule.action == Switch::On && rule.selectors.netns.is_none() {
            return Err(SysctlError::All(format!("rule {:?}", rule.name)));
        }
    }
    for switch in &record.switches {
        if let super::record::Target::Cgroup(path) = &switch.target {
            return Err(SysctlError::TooFine(path.clone()));
        }
    }
    Ok(())
}

/// Sets the sysctl of each namespace that rules name, and restores that of those they name no more. Former values are
/// noted in the record.
pub(super) fn apply(record: &mut ConvertRecord) -> Result<(), SysctlError> {
    check(record)?;
    let entries = record.entries();
    let mut wanted: BTreeMap<u64, PathBuf> = BTreeMap::new();
    for name in entries.iter().flat_map(|entry| entry.selectors.netns.iter().flatten()) {
        let path = netns::path_of(name);
        let inode = fs::metadata(&path).map_err(|_| SysctlError::NoNamespace(name.clone()))?.ino();
        wanted.entry(inode).or_insert(path);
    }
    let (mut kept, mut gone): (Vec<_>, Vec<_>) =
        record.sysctls.drain(..).partition(|former| wanted.contains_key(&former.inode));
    let result = restore(&mut gone);
    kept.extend(gone);
    record.sysctls = kept;
    result?;
    for (inode, path) in wanted {
        let value = if decide(&entries, inode) { "1" } else { "0" };
        let present = read(&path)?;
        if present == value {
            continue;
        }
        write(&path, value)?;
        if !record.sysctls.iter().any(|former| former.inode == inode) {
            record.sysctls.push(FormerSysctl { netns: path, inode, value: present });
        }
    }
    Ok(())
}

/// What the first rule that names a namespace says of it.
fn decide(entries: &[Entry], inode: u64) -> bool {
    let names = |entry: &&Entry| {
        entry.selectors.netns.as_ref().is_none_or(|names| {
            names
                .iter()
                .any(|name| fs::metadata(netns::path_of(name)).is_ok_and(|found| found.ino() == inode))
        })
    };
    entries.iter().find(names).is_some_and(|entry| entry.on)
}

/// Gives sysctls their former values; those that could not be given stay in the list. A namespace that has gone took its
/// value with it.
pub(super) fn restore(sysctls: &mut Vec<FormerSysctl>) -> io::Result<()> {
    let mut first = Ok(());
    sysctls.retain(|former| {
        let same = fs::metadata(&former.netns).is_ok_and(|found| found.ino() == former.inode);
        if !same {
            return false;
        }
        match write(&former.netns, &former.value) {
            Ok(()) => false,
            Err(error) => {
                if first.is_ok() {
                    first = Err(error);
                }
                true
            }
        }
    });
    first
}

fn read(path: &Path) -> io::Result<String> {
    netns::inside(path, || Ok(fs::read_to_string(SYSCTL)?.trim().to_owned()))
        .map_err(|error| at("read net.smc.tcp2smc in", path)(error))
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    netns::inside(path, || fs::write(SYSCTL, value))
        .map_err(|error| at("write net.smc.tcp2smc in", path)(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::record::{ConvertRuleRecord, SwitchRecord, Target};
    use crate::policy::Selectors;

    const OWN: &str = "/proc/self/ns/net";

    fn rule(on: bool, selectors: Selectors) -> ConvertRuleRecord {
        ConvertRuleRecord {
            name: "r".to_owned(),
            action: on.into(),
            selectors,
            file: PathBuf::new(),
            line: 1,
        }
    }

    fn netns(name: &str) -> Selectors {
        Selectors { netns: Some(vec![name.to_owned()]), ..Selectors::default() }
    }

    #[test]
    fn only_whole_namespaces_that_are_named_can_be_had() {
        let check = |rules: Vec<ConvertRuleRecord>, default| {
            check(&ConvertRecord { default, rules, ..ConvertRecord::default() })
                .map_err(|error| error.to_string())
        };
        assert!(
            check(vec![rule(true, netns("blue")), rule(false, Selectors::default())], Switch::Off).is_ok()
        );
        let finer = Selectors { uid: Some(vec![0]), ..netns("blue") };
        assert!(check(vec![rule(true, finer)], Switch::Off).unwrap_err().contains("whole namespaces"));
        assert!(check(vec![rule(true, Selectors::default())], Switch::Off).unwrap_err().contains("sshd"));
        assert!(check(Vec::new(), Switch::On).unwrap_err().contains("sshd"));
        let target = Target::Cgroup("/x".to_owned());
        let switches = vec![SwitchRecord { action: Switch::On, target, until: None, deadline: 0 }];
        let record = ConvertRecord { switches, ..ConvertRecord::default() };
        assert!(super::check(&record).is_err());
    }

    #[test]
    fn the_first_rule_that_names_a_namespace_decides() {
        let own = fs::metadata(OWN).unwrap().ino();
        let entry = |on, selectors| Entry { on, selectors, deadline: 0 };
        assert!(decide(
            &[entry(false, netns("none")), entry(true, netns(OWN)), entry(false, netns(OWN))],
            own
        ));
        assert!(!decide(&[entry(false, Selectors::default()), entry(true, netns(OWN))], own));
        assert!(!decide(&[], own));
    }
}
