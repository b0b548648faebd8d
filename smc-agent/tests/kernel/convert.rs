//! The program that converts sockets, in the running kernel: it is asked for this process' sockets without being attached.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use smc_agent::{
    convert::{
        resolve::{Host, own_identity},
        table::{Entry, compile, present_groups},
    },
    kernel::{
        btf::Btf,
        convert::{ConvertMaps, Probe},
    },
    policy::Selectors,
};
use smc_agent_common::convert::{ConvertCounter, IPPROTO_SMC};

const AF_INET: i32 = 2;
const STREAM: i32 = 1;
const SMC: u32 = IPPROTO_SMC.unsigned_abs();
const SOON: Duration = Duration::from_secs(30);

/// The program, and the maps that its rules are in.
pub(crate) struct Kernel {
    probe: Probe,
    maps: ConvertMaps,
    host: Host,
    _folder: tempfile::TempDir,
}

impl Kernel {
    pub(crate) fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let none = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("bpf"), folder.path(), Some("bpf"), none, None::<&str>)
            .context("mount a bpf file system")?;
        let probe = Probe::new(folder.path(), &Btf::of_kernel()?)?;
        let maps = ConvertMaps::open(folder.path())?;
        Ok(Self { probe, maps, host: Host::new(), _folder: folder })
    }

    pub(crate) fn install(&mut self, rules: Vec<(bool, Selectors, u64)>, default_on: bool) -> Result<()> {
        let entries: Vec<Entry> =
            rules.into_iter().map(|(on, selectors, deadline)| Entry { on, selectors, deadline }).collect();
        let mut compiled = compile(&entries, default_on, None, &self.host)?;
        let groups = compiled.clone();
        self.maps.install(&mut compiled, || Ok(present_groups(&groups, &self.host)))?;
        Ok(())
    }

    fn converts(&self) -> Result<bool> {
        let answer = self.probe.ask(AF_INET, STREAM, 0)?;
        ensure!(answer == SMC || answer == 0, "the program answered {answer}");
        Ok(answer == SMC)
    }
}

/// A cgroup, removed when dropped; this process goes back to the root first.
struct Group {
    root: PathBuf,
    path: String,
}

impl Group {
    fn new(root: &Path, path: &str) -> Result<Self> {
        let group = Self { root: root.to_owned(), path: path.to_owned() };
        fs::create_dir(group.folder()).with_context(|| format!("make {}", group.folder().display()))?;
        Ok(group)
    }

    fn folder(&self) -> PathBuf {
        self.root.join(self.path.trim_start_matches('/'))
    }

    fn enter(&self) -> Result<()> {
        Ok(fs::write(self.folder().join("cgroup.procs"), "0")?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The process is to be elsewhere before.
        let _ = fs::write(self.root.join("cgroup.procs"), "0");
        let _ = fs::remove_dir(self.folder());
    }
}

fn group_name(what: &str) -> String {
    format!("/smc-agent-test-{}-{what}", std::process::id())
}

fn in_thread<T: Send>(job: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| scope.spawn(job).join()).map_err(|_| anyhow!("a thread panicked"))?
}

fn cgroup(path: &str) -> Selectors {
    Selectors { cgroup: Some(vec![path.to_owned()]), ..Selectors::default() }
}

/// Each selector by itself: one that matches, and one that does not.
pub(crate) fn selectors() -> Result<()> {
    let mut kernel = Kernel::new()?;
    ensure!(!kernel.converts()?, "converted without rules");
    let me = fs::metadata("/proc/self")?;
    let exe = std::env::current_exe()?;
    let other = PathBuf::from("/bin/true");
    let comm = fs::read_to_string(format!("/proc/self/task/{}/comm", std::process::id()))?.trim().to_owned();
    let none = Selectors::default;
    let cases = [
        ("uid", Selectors { uid: Some(vec![77, me.uid()]), ..none() }, true),
        ("uid", Selectors { uid: Some(vec![me.uid() + 1]), ..none() }, false),
        ("gid", Selectors { gid: Some(vec![me.gid()]), ..none() }, true),
        ("gid", Selectors { gid: Some(vec![me.gid() + 1]), ..none() }, false),
        ("comm", Selectors { comm: Some(vec![comm.clone()]), ..none() }, true),
        ("comm", Selectors { comm: Some(vec![comm[1..].to_owned()]), ..none() }, false),
        ("exe", Selectors { exe: Some(vec![other.clone(), exe]), ..none() }, true),
        ("exe", Selectors { exe: Some(vec![other]), ..none() }, false),
        ("all", none(), true),
        (
            "both",
            Selectors { uid: Some(vec![me.uid()]), comm: Some(vec!["other".to_owned()]), ..none() },
            false,
        ),
    ];
    for (name, selectors, expected) in cases {
        kernel.install(vec![(true, selectors.clone(), 0)], false)?;
        ensure!(kernel.converts()? == expected, "{name}: {selectors} is not {expected}");
        // The other way round: what is on by default is off for those that match.
        kernel.install(vec![(false, selectors, 0)], true)?;
        ensure!(kernel.converts()? != expected, "{name}, turned round");
    }
    let everything = || vec![(true, Selectors::default(), 0)];
    kernel.install(everything(), false)?;
    for (family, kind, protocol) in
        [(1, 1, 0), (AF_INET, 2, 0), (AF_INET, 1, 262), (16, 3, 0), (AF_INET, 3, 6)]
    {
        let answer = kernel.probe.ask(family, kind, protocol)?;
        ensure!(answer == 0, "({family}, {kind}, {protocol}): {answer}");
    }
    ensure!(kernel.probe.ask(10, STREAM | 0o200_0000, 6)? == SMC, "IPv6 with a flag and the protocol");

    // Another real user and group, of one thread.
    kernel.install(
        vec![(true, Selectors { uid: Some(vec![4711]), gid: Some(vec![42]), ..none() }, 0)],
        false,
    )?;
    ensure!(!kernel.converts()?, "before the change of user");
    let kernel = &kernel;
    in_thread(|| {
        // SAFETY: plain numbers; the raw calls change this thread alone, which keeps its effective ids.
        let results = unsafe {
            (libc::syscall(libc::SYS_setresgid, 42, -1, -1), libc::syscall(libc::SYS_setresuid, 4711, -1, -1))
        };
        ensure!(results == (0, 0), "{}", std::io::Error::last_os_error());
        ensure!(kernel.converts()?, "after the change of user");
        Ok(())
    })
}

/// Namespaces are told by what is theirs alone, and never come again.
pub(crate) fn namespaces() -> Result<()> {
    let mut kernel = Kernel::new()?;
    let rule = |path: &str| {
        vec![(true, Selectors { netns: Some(vec![path.to_owned()]), ..Selectors::default() }, 0)]
    };
    kernel.install(rule("/proc/self/ns/net"), false)?;
    ensure!(kernel.converts()?, "own namespace");
    in_thread(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
        // SAFETY: takes nothing.
        let path = format!("/proc/self/task/{}/ns/net", unsafe { libc::syscall(libc::SYS_gettid) });
        ensure!(!kernel.converts()?, "another namespace");
        kernel.install(rule(&path), false)?;
        ensure!(kernel.converts()?, "the new namespace");
        Ok(())
    })?;
    ensure!(!kernel.converts()?, "own namespace, by the rule of another");
    // Inodes of namespaces are used again at once, their cookies are not.
    for _ in 0..20 {
        in_thread(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
            ensure!(!kernel.converts()?, "a namespace that came after the one that the rule was made for");
            Ok(())
        })?;
    }
    Ok(())
}

/// A rule's end comes without anybody's doing.
pub(crate) fn deadlines() -> Result<()> {
    let mut kernel = Kernel::new()?;
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
    let now = u64::try_from(Duration::from(now).as_nanos())?;
    kernel.install(
        vec![
            (true, Selectors::default(), now - 1),
            (true, Selectors::default(), now + 300_000_000),
            (false, Selectors::default(), 0),
        ],
        true,
    )?;
    ensure!(kernel.converts()?, "before the end");
    let start = Instant::now();
    while kernel.converts()? {
        ensure!(start.elapsed() < SOON, "it does not end");
        thread::sleep(Duration::from_millis(10));
    }
    let (hits, by_default) = kernel.maps.hits(3)?;
    ensure!(hits[0] == 0 && hits[1] > 0 && hits[2] == 1 && by_default == 0, "{hits:?} {by_default}");
    Ok(())
}

/// Cgroups are followed by their paths, also when they are made after the rules, and those below them are meant too.
pub(crate) fn groups() -> Result<()> {
    let mut kernel = Kernel::new()?;
    let root = kernel.host.groups().context("no cgroup v2 hierarchy")?.to_owned();
    let (named, inner) = (group_name("named"), format!("{}/inner", group_name("named")));
    kernel.install(vec![(false, cgroup(&inner), 0), (true, cgroup(&named), 0)], false)?;
    let before = kernel.maps.selectors()?;
    for round in 0..3 {
        let outer = Group::new(&root, &named)?;
        ensure!(!kernel.converts()?, "round {round}: outside");
        outer.enter()?;
        ensure!(kernel.converts()?, "round {round}: in a group made after the rules");
        {
            let deeper = Group::new(&root, &format!("{named}/other"))?;
            deeper.enter()?;
            ensure!(kernel.converts()?, "round {round}: below it");
        }
        let excepted = Group::new(&root, &inner)?;
        excepted.enter()?;
        ensure!(!kernel.converts()?, "round {round}: in a group that is excepted");
        // The rules again, with the groups there.
        kernel.install(vec![(false, cgroup(&inner), 0), (true, cgroup(&named), 0)], false)?;
        ensure!(!kernel.converts()?, "round {round}: in a group that was there before the rules");
        outer.enter()?;
        ensure!(kernel.converts()?, "round {round}: in another that was there before");
    }
    ensure!(!kernel.converts()?, "outside, at the end");
    let after = kernel.maps.selectors()?;
    ensure!(after == before, "{before} selectors before the groups came and went, {after} after");
    Ok(())
}

/// Groups and namespaces come and go while the rules are exchanged: no decision is wrong meanwhile, and nothing is left.
pub(crate) fn race() -> Result<()> {
    const RELOADS: usize = 300;
    let mut kernel = Kernel::new()?;
    let root = kernel.host.groups().context("no cgroup v2 hierarchy")?.to_owned();
    let (mine, churned) = (group_name("mine"), group_name("churn"));
    let rules = |extra: u32| {
        // Differs from one time to the next, and never in what becomes of these groups.
        let uid = Selectors { uid: Some(vec![100_000 + extra]), ..Selectors::default() };
        vec![(true, uid, 0), (true, cgroup(&mine), 0), (true, cgroup(&churned), 0)]
    };
    kernel.install(rules(0), false)?;
    let before = kernel.maps.selectors()?;
    let group = Group::new(&root, &mine)?;
    group.enter()?;
    let over = AtomicBool::new(false);
    let Kernel { probe, maps, host, _folder } = &mut kernel;
    let mut made = 0_usize;
    let mut asked = 0_usize;
    let asking = || -> Result<usize> {
        let mut asked = 0;
        while !over.load(Ordering::Relaxed) {
            ensure!(probe.ask(AF_INET, STREAM, 0)? == SMC, "not converted, after {asked} times");
            asked += 1;
        }
        Ok(asked)
    };
    let churning = || -> Result<usize> {
        let mut made = 0;
        let folder = root.join(churned.trim_start_matches('/'));
        while !over.load(Ordering::Relaxed) {
            fs::create_dir(&folder)?;
            let deeper = folder.join("deeper");
            fs::create_dir(&deeper)?;
            fs::remove_dir(&deeper)?;
            fs::remove_dir(&folder)?;
            in_thread(|| Ok(nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?))?;
            made += 1;
        }
        Ok(made)
    };
    thread::scope(|scope| -> Result<()> {
        let (asking, churning) = (scope.spawn(asking), scope.spawn(churning));
        let mut reload = || -> Result<()> {
            for number in 0..RELOADS {
                let entries: Vec<Entry> = rules(u32::try_from(number)?)
                    .into_iter()
                    .map(|(on, selectors, deadline)| Entry { on, selectors, deadline })
                    .collect();
                let mut compiled = compile(&entries, false, None, &*host)?;
                let groups = compiled.clone();
                maps.install(&mut compiled, || Ok(present_groups(&groups, &*host)))?;
            }
            Ok(())
        };
        let reloaded = reload();
        over.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow!("a thread panicked");
        asked = asking.join().map_err(panicked)??;
        made = churning.join().map_err(panicked)??;
        reloaded
    })?;
    drop(group);
    kernel.install(rules(0), false)?;
    let after = kernel.maps.selectors()?;
    ensure!(after == before, "{before} selectors before, {after} after");
    let entered = kernel.maps.counter(ConvertCounter::GroupsMissed)?;
    ensure!(entered == 0, "{entered} groups found no room");
    eprintln!("{RELOADS} reloads beside {made} groups and {asked} sockets");
    ensure!(made > 0 && asked > 0, "nothing went on beside the reloads");
    Ok(())
}

/// The agent's own sockets are not converted, whatever rules say; here this program stands for it.
pub(crate) fn own_sockets() -> Result<()> {
    let mut kernel = Kernel::new()?;
    let own = own_identity().context("the executable cannot be told")?;
    let everything = [Entry { on: true, selectors: Selectors::default(), deadline: 0 }];
    for (own, expected) in [(None, true), (Some((own.0, own.1 + 1)), true), (Some(own), false)] {
        let mut compiled = compile(&everything, true, own, &kernel.host)?;
        kernel.maps.install(&mut compiled, || Ok(Vec::new()))?;
        ensure!(kernel.converts()? == expected, "{own:?}");
    }
    let counted = kernel.maps.counter(ConvertCounter::Own)?;
    ensure!(counted == 1, "{counted} were counted");
    Ok(())
}

/// Programs that operators depend on are not converted unless they are named.
pub(crate) fn life_lines() -> Result<()> {
    let mut kernel = Kernel::new()?;
    let comm = format!("/proc/self/task/{}/comm", std::process::id());
    let before = fs::read_to_string(&comm)?;
    let mut check = || -> Result<()> {
        for (name, is_one) in
            [("sshd", true), ("systemd-resolve", true), ("containerd-shim", true), ("nginx", false)]
        {
            fs::write(&comm, name)?;
            kernel.install(Vec::new(), true)?;
            ensure!(kernel.converts()? != is_one, "{name}, by default");
            kernel.install(vec![(true, Selectors::default(), 0)], false)?;
            ensure!(kernel.converts()? != is_one, "{name}, by a rule that does not name it");
            let named = Selectors { comm: Some(vec![name.to_owned()]), ..Selectors::default() };
            kernel.install(vec![(true, named, 0)], false)?;
            ensure!(kernel.converts()?, "{name}, by name");
        }
        Ok(())
    };
    let result = check();
    fs::write(&comm, before.trim())?;
    result
}
