//! The life of conversion: put into force, exchanged, taken out. Everything goes through the pins and the record, under a lock
//! of its own, so that the agent and commands beside it do the same, and none of them has to run for it to last.
//!
//! A new object is loaded, filled and attached beside the old one, which goes after it: for a moment both decide, and a socket
//! is converted if either says so. What dies half way leaves the old one; its pins are removed by the next change.

use std::{
    fs::{self, File},
    io,
    path::PathBuf,
};

use nix::fcntl::{Flock, FlockArg};
use thiserror::Error;
use tracing::debug;

use super::{
    record::{ConvertRecord, Mechanism, Switch, SwitchRecord},
    resolve::{Host, System as _, own_identity},
    sysctl::{self, SysctlError},
    table::{compile, present_groups},
};
use crate::{
    enforce::{Places, at},
    files::{remove_file, remove_folder},
    kernel::{
        btf::{Btf, BtfError},
        convert::{self, ConvertBpfError, ConvertMaps, Prepared},
        loader::LoaderError,
        maps::MapsError,
        object,
    },
};

/// Why conversion is not as it should be.
#[derive(Debug, Error)]
pub enum ConvertError {
    /// No mechanism works on this kernel.
    #[error("this kernel cannot convert sockets: {0}")]
    NoMechanism(String),
    /// Rules name cgroups, and there are none.
    #[error(
        "rule {0:?} names a cgroup: this host has no cgroup v2 hierarchy in sight (mount -t cgroup2; rules by uid, \
         comm, exe and netns work without)"
    )]
    NoGroups(String),
    /// A step with BPF failed.
    #[error(transparent)]
    Bpf(#[from] ConvertBpfError),
    /// A map could not be used.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// A step with sysctls failed.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// The kernel does not describe its types.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// A file or folder could not be used.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Held while conversion is changed, or looked at as a whole.
pub struct Lock(#[expect(dead_code, reason = "held, not used")] Flock<File>);

impl Lock {
    /// Waits for it.
    pub fn take(places: &Places) -> io::Result<Self> {
        let path = places.convert_lock();
        let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = open.map_err(at("open", &path))?;
        Flock::lock(file, FlockArg::LockExclusive)
            .map(Self)
            .map_err(|(_, error)| at("lock", &path)(error.into()))
    }
}

/// What works on this kernel, or why nothing does.
pub fn mechanism(places: &Places) -> Result<Mechanism, String> {
    if convert::is_attached(&finished(places)) {
        return Ok(Mechanism::Bpf);
    }
    let Some(missing) = bpf_missing() else { return Ok(Mechanism::Bpf) };
    if sysctl::exists() {
        return Ok(Mechanism::Sysctl);
    }
    Err(format!(
        "bpf: {missing}; sysctl: there is no net.smc.tcp2smc (kernels of Alibaba Cloud Linux 3 and Anolis 5.10 \
         have it); `smc-agent exec --mech preload` works where AF_SMC does"
    ))
}

/// What this kernel lacks for conversion by BPF, as far as it can be told without loading anything.
fn bpf_missing() -> Option<String> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType};
    // SAFETY: plain numbers; a descriptor that comes back is ours alone and closed by OwnedFd.
    let socket = unsafe {
        libc::socket(
            AddressFamily::Inet as libc::c_int,
            SockType::Stream as libc::c_int | SockFlag::SOCK_CLOEXEC.bits(),
            smc_agent_common::convert::IPPROTO_SMC,
        )
    };
    if socket < 0 {
        let error = io::Error::last_os_error();
        return Some(format!("no SMC sockets by IPPROTO_SMC (6.11 and later, with module smc): {error}"));
    }
    // SAFETY: see above.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(socket) });
    let btf = match Btf::of_kernel() {
        Ok(btf) => btf,
        Err(error) => return Some(error.to_string()),
    };
    convert::missing_function(&btf).map(|error| error.to_string())
}

/// Changes what is converted and puts it into force; nothing has changed if this fails.
pub fn change(
    places: &Places,
    change: impl FnOnce(&mut ConvertRecord) -> Result<(), ConvertError>,
) -> Result<ConvertRecord, ConvertError> {
    places.prepare()?;
    let lock = Lock::take(places)?;
    let before = ConvertRecord::read(places)?;
    let mut record = before.clone();
    record.drop_expired();
    change(&mut record)?;
    apply(&lock, places, &before, record, false)
}

/// Has the kernel side ready also where nothing is converted yet, for the cgroups of `smc-agent exec`, and gives its maps.
pub fn prepare_exec(places: &Places) -> Result<ConvertMaps, ConvertError> {
    places.prepare()?;
    let lock = Lock::take(places)?;
    let pins = finished(places);
    if !convert::is_attached(&pins) {
        if let Some(missing) = bpf_missing() {
            return Err(ConvertError::NoMechanism(format!("bpf: {missing}")));
        }
        let before = ConvertRecord::read(places)?;
        apply(&lock, places, &before, before.clone(), true)?;
    }
    Ok(ConvertMaps::open(&pins)?)
}

fn finished(places: &Places) -> PathBuf {
    places.convert_pins().join(convert::id())
}

/// Where the pins of the object in force are; `None` if there is none.
pub fn pins_in_force(places: &Places) -> Option<PathBuf> {
    let mine = finished(places);
    if convert::is_attached(&mine) {
        return Some(mine);
    }
    let others = objects(places).ok()?;
    others.into_iter().find(|folder| !folder.ends_with(object::UNFINISHED) && convert::is_attached(folder))
}

fn objects(places: &Places) -> io::Result<Vec<PathBuf>> {
    let folder = places.convert_pins();
    match fs::read_dir(&folder) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(at("read", &folder)(error)),
    }
}

fn apply(
    _lock: &Lock,
    places: &Places,
    before: &ConvertRecord,
    mut record: ConvertRecord,
    for_exec: bool,
) -> Result<ConvertRecord, ConvertError> {
    let exec = pins_in_force(places)
        .and_then(|pins| ConvertMaps::open(&pins).ok())
        .is_some_and(|maps| !maps.exec_groups().is_empty());
    let idle = !record.converts() && !exec && !for_exec;
    // A namespace may have had its sysctl on before: there a rule that says no does something.
    let only_off = || !record.entries().is_empty() && mechanism(places) == Ok(Mechanism::Sysctl);
    if idle && !only_off() {
        // Kept for as long as something is left: rules that only say no change nothing.
        record.mechanism = None;
        sysctl::restore(&mut record.sysctls)?;
        remove_pins(places)?;
        record.write(places)?;
        return Ok(record);
    }
    let mechanism = if exec || for_exec {
        Mechanism::Bpf
    } else {
        mechanism(places).map_err(ConvertError::NoMechanism)?
    };
    record.mechanism = Some(mechanism);
    record.generation = before.generation + 1;
    let result = match mechanism {
        Mechanism::Bpf => {
            record.write(places)?;
            apply_bpf(places, &record)
        }
        // What was before is known only on the way.
        Mechanism::Sysctl => sysctl::apply(&mut record).map_err(ConvertError::from),
    };
    if let Err(error) = result {
        if before.generation == 0 {
            let _ = fs::remove_file(places.convert_record());
        } else {
            before.write(places)?;
        }
        return Err(error);
    }
    record.write(places)?;
    Ok(record)
}

fn apply_bpf(places: &Places, record: &ConvertRecord) -> Result<(), ConvertError> {
    let host = Host::new();
    if host.groups().is_none()
        && let Some(name) = first_with_group(record)
    {
        return Err(ConvertError::NoGroups(name));
    }
    let mut compiled = compile(&record.entries(), record.default == Switch::On, own_identity(), &host)?;
    let groups = compiled.clone();
    let find = || Ok(present_groups(&groups, &host));
    let finished = finished(places);
    if convert::is_attached(&finished) {
        ConvertMaps::open(&finished)?.install(&mut compiled, find)?;
    } else {
        let unfinished = places.convert_pins().join(object::UNFINISHED);
        remove_folder(&unfinished)?;
        let prepared = Prepared::new(&unfinished, &Btf::of_kernel()?).inspect_err(|error| {
            if let ConvertBpfError::Program(LoaderError::Program { log, .. }) = error {
                debug!("verifier log:\n{log}");
            }
            let _ = remove_folder(&unfinished);
            // Empty if nothing else is there.
            let _ = fs::remove_dir(places.convert_pins());
        })?;
        prepared.follow_groups(&unfinished)?;
        let mut maps = ConvertMaps::open(&unfinished)?;
        if let Some(former) = pins_in_force(places) {
            maps.take_exec_groups(&ConvertMaps::open(&former)?)?;
        }
        maps.install(&mut compiled, find)?;
        prepared.attach(&unfinished)?;
        remove_folder(&finished)?;
        fs::rename(&unfinished, &finished).map_err(at("rename", &unfinished))?;
    }
    for other in objects(places)?.into_iter().filter(|folder| *folder != finished) {
        remove_folder(&other)?;
    }
    Ok(())
}

fn first_with_group(record: &ConvertRecord) -> Option<String> {
    let of_switch = record.switches.iter().map(|switch| match &switch.target {
        super::record::Target::Cgroup(path) => Some(path.clone()),
        super::record::Target::Netns(_) => None,
    });
    let of_rule = record.rules.iter().map(|rule| rule.selectors.cgroup.as_ref().map(|_| rule.name.clone()));
    of_switch.chain(of_rule).flatten().next()
}

/// Takes all programs of conversion out. Says whether there were any.
fn remove_pins(places: &Places) -> io::Result<bool> {
    let folder = places.convert_pins();
    let there = folder.exists();
    remove_folder(&folder)?;
    Ok(there)
}

/// Takes everything of conversion out, for `detach`: what was there, and what could not be removed.
pub fn detach(places: &Places) -> (Vec<String>, Vec<String>) {
    let (mut removed, mut problems) = (Vec::new(), Vec::new());
    // Without a state folder there is no lock to take, and nobody who holds it.
    let _lock = Lock::take(places).ok();
    match ConvertRecord::read(places) {
        Ok(mut record) => {
            let count = record.sysctls.len();
            match sysctl::restore(&mut record.sysctls) {
                Ok(()) if count > 0 => removed.push(format!("net.smc.tcp2smc of {count} namespaces")),
                Ok(()) => {}
                Err(error) => problems.push(error.to_string()),
            }
        }
        Err(error) => problems.push(error.to_string()),
    }
    match remove_pins(places) {
        Ok(true) => removed.push(format!("conversion, pinned in {}", places.convert_pins().display())),
        Ok(false) => {}
        Err(error) => problems.push(error.to_string()),
    }
    for path in [places.convert_record(), places.convert_lock()] {
        problems.extend(remove_file(&path).err().map(|error| error.to_string()));
    }
    (removed, problems)
}

/// Sets a switch in the place of the one for the same target, if there is one.
pub fn set_switch(record: &mut ConvertRecord, switch: SwitchRecord) -> Result<(), ConvertError> {
    record.switches.retain(|present| present.target != switch.target);
    if record.switches.len() >= smc_agent_common::convert::MAX_TIMED {
        return Err(ConvertError::Io(io::Error::other(format!(
            "there are {} switches, which is the most: write rules into the policy instead, and take switches away \
             by `smc-agent convert reset`",
            record.switches.len()
        ))));
    }
    record.switches.push(switch);
    Ok(())
}

/// What names lead to at present: where it is another than before, rules have to be put into force anew.
pub fn resolution(record: &ConvertRecord) -> Vec<Option<(u64, u64)>> {
    let host = Host::new();
    let mut found = Vec::new();
    for entry in record.entries() {
        found.extend(entry.selectors.exe.iter().flatten().map(|path| host.exe(path)));
        let names = entry.selectors.netns.iter().flatten();
        found.extend(names.map(|name| host.netns(name).map(|cookie| (cookie, 0))));
    }
    found
}

/// The files whose changes can change what names lead to.
pub fn followed(record: &ConvertRecord) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in record.entries() {
        files.extend(entry.selectors.exe.iter().flatten().cloned());
        let names = entry.selectors.netns.iter().flatten();
        files.extend(names.map(|name| crate::netns::path_of(name)));
    }
    files
}
