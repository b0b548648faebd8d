//! The first root file system of a guest: busybox, the network tools with their libraries, modules, our programs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::cpio::Archive;
use super::{Program, Request};
use crate::kernel::modules::{self, Tree};
use crate::kernel::{Image, Kernel};
use crate::{setup, sys};

const INIT: &str = include_str!("init.sh");

/// Taken from the host: the first list has to be there.
const TOOLS: [&str; 2] = ["ip", "rdma"];
/// Taken from the host where it has them. dash rather than busybox as `sh`: busybox' own shell runs its own `ip`.
const EXTRA_TOOLS: [&str; 9] =
    ["tc", "ss", "bridge", "dash", "ethtool", "tcpdump", "nft", "bpftool", "strace"];

/// Loaded before the command starts, in this order, as far as the kernel has them as modules.
const LOAD: [&str; 6] = ["crc32_generic", "dibs", "ib_core", "rdma_rxe", "smc", "smc_diag"];
/// Loaded by the kernel when something asks for them.
const ON_DEMAND: [&str; 57] = [
    "8021q",
    "act_bpf",
    "act_gact",
    "act_mirred",
    "af_packet",
    "ah4",
    "bonding",
    "bridge",
    "cls_bpf",
    "cls_flower",
    "cls_matchall",
    "cls_u32",
    "crc32c_generic",
    "dummy",
    "esp4",
    "esp6",
    "geneve",
    "ifb",
    "inet_diag",
    "ip6_gre",
    "ip6_tables",
    "ip6_tunnel",
    "ip6table_filter",
    "ip_gre",
    "ip_tables",
    "ipip",
    "iptable_filter",
    "iptable_nat",
    "ipvlan",
    "macvlan",
    "nf_conntrack",
    "nf_nat",
    "nf_tables",
    "nft_chain_nat",
    "nft_compat",
    "nft_ct",
    "nft_masq",
    "nft_nat",
    "nft_redir",
    "sch_fq",
    "sch_fq_codel",
    "sch_htb",
    "sch_ingress",
    "sch_netem",
    "sch_prio",
    "sit",
    "tcp_diag",
    "tls",
    "tun",
    "udp_diag",
    "veth",
    "vrf",
    "vxlan",
    "wireguard",
    "xfrm_user",
    "xt_TCPMSS",
    "xt_nat",
];

/// Writes the file system for a request; gives its size.
pub(super) fn write(
    to: &Path,
    kernel: Kernel,
    image: &Image,
    request: &Request,
    programs: &[Program],
) -> Result<u64> {
    let file = File::create(to).with_context(|| to.display().to_string())?;
    let mut archive = Archive::new(BufWriter::with_capacity(1 << 20, file));
    skeleton(&mut archive)?;
    for program in programs {
        archive.file(&format!("bin/{}", program.name), 0o755, &read(&program.file)?)?;
    }
    tools(&mut archive)?;
    kernel_modules(&mut archive, image)?;
    for (source, target) in &request.add {
        add(&mut archive, source, target)?;
    }
    busybox(&mut archive)?;

    let mut env = vec![("SMC_AGENT_VM".to_owned(), kernel.name().to_owned())];
    env.extend(request.env.iter().cloned());
    let lines: Vec<String> = env
        .iter()
        .map(|(name, value)| format!("export {name}={}", sys::shell_quote(OsStr::new(value))))
        .collect();
    archive.file(
        "etc/smc-vm/env",
        0o644,
        lines
            .join(
                "
",
            )
            .as_bytes(),
    )?;
    if request.shell {
        archive.file("etc/smc-vm/shell", 0o644, terminal_size().as_bytes())?;
    }
    let words: Vec<String> = request.command.iter().map(|word| sys::shell_quote(word)).collect();
    archive.file("etc/smc-vm/command", 0o644, format!("exec {}\n", words.join(" ")).as_bytes())?;
    if request.smc && programs.iter().any(|program| program.name == "smctest") {
        archive.file("etc/smc-vm/setup", 0o644, b"exec smctest setup\n")?;
    }
    archive.finish()?;
    Ok(fs::metadata(to)?.len())
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| file.display().to_string())
}

/// `rows R cols C` of this terminal, as stty takes it.
fn terminal_size() -> String {
    let size = Command::new("stty").arg("size").stdin(std::process::Stdio::inherit()).output();
    let text = size.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    text.trim()
        .split_once(' ')
        .map(|(rows, columns)| format!("rows {rows} cols {columns}"))
        .unwrap_or_default()
}

fn skeleton<W: Write>(archive: &mut Archive<W>) -> Result<()> {
    for folder in [
        "bin", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sys", "tmp", "usr/lib", "var/lib",
        "var/log",
    ] {
        archive.folder(folder)?;
    }
    for (link, target) in [
        ("sbin", "bin"),
        ("usr/bin", "../bin"),
        ("usr/sbin", "../bin"),
        ("var/run", "../run"),
        ("var/tmp", "../tmp"),
        ("etc/mtab", "../proc/mounts"),
    ] {
        archive.link(link, target)?;
    }
    archive.device("dev/console", 5, 1)?;
    archive.device("dev/null", 1, 3)?;
    archive.file("init", 0o755, INIT.as_bytes())?;
    archive.file(
        "etc/passwd",
        0o644,
        b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    )?;
    archive.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n")?;
    archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost smc-vm\n::1 localhost\n")?;
    Ok(())
}

/// busybox and a link for each of its applets that nothing else provides.
fn busybox<W: Write>(archive: &mut Archive<W>) -> Result<()> {
    let path = sys::which("busybox").context("no busybox: run `cargo xtask setup`")?;
    ensure!(setup::is_static(&path), "{} needs libraries: install busybox-static", path.display());
    archive.file("bin/busybox", 0o755, &read(&path)?)?;
    for applet in sys::output(Command::new(&path).arg("--list"))?.lines() {
        archive.link(&format!("bin/{}", applet.trim()), "busybox")?;
    }
    Ok(())
}

fn tools<W: Write>(archive: &mut Archive<W>) -> Result<()> {
    let needed = TOOLS.iter().map(|name| (*name, true)).chain(EXTRA_TOOLS.iter().map(|name| (*name, false)));
    for (name, must) in needed {
        let Some(path) = sys::which(name) else {
            ensure!(!must, "no {name} on this machine: run `cargo xtask setup`");
            continue;
        };
        archive.file(&format!("bin/{name}"), 0o755, &read(&path)?)?;
        libraries(archive, &path)?;
        if name == "dash" {
            archive.link("bin/sh", "dash")?;
        }
    }
    Ok(())
}

/// The loader and the libraries of a program, under the paths where it looks for them.
fn libraries<W: Write>(archive: &mut Archive<W>, program: &Path) -> Result<()> {
    let out = Command::new("ldd").arg(program).env("LC_ALL", "C").output().context("cannot start ldd")?;
    for path in parse_ldd(&String::from_utf8_lossy(&out.stdout)) {
        archive.file(&path.to_string_lossy(), 0o755, &read(&path)?)?;
    }
    Ok(())
}

/// The files that ldd names.
fn parse_ldd(text: &str) -> BTreeSet<PathBuf> {
    let word = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    text.lines().filter(|line| line.starts_with('\t')).filter_map(word).collect()
}

fn kernel_modules<W: Write>(archive: &mut Archive<W>, image: &Image) -> Result<()> {
    let tree = Tree::open(&image.modules)?;
    let load = tree.closure(&LOAD)?;
    ensure!(load.iter().any(|module| module.name == "smc"), "{} has no module smc", image.modules.display());
    let names: Vec<&str> = load.iter().map(|module| module.name.as_str()).collect();
    archive.file("etc/smc-vm/load", 0o644, names.join("\n").as_bytes())?;
    let all = tree.closure(&[&LOAD[..], &ON_DEMAND[..]].concat())?;
    for module in &all {
        archive.file(&format!("lib/modules/all/{}.ko", module.name), 0o644, &module.content)?;
    }
    archive.file("lib/modules/all/modules.dep", 0o644, modules::modules_dep(&all).as_bytes())?;
    archive.file("lib/modules/all/modules.alias", 0o644, modules::modules_alias(&all).as_bytes())?;
    Ok(())
}

/// Adds a file, or a folder with all that is in it; a program that is linked dynamically brings its libraries.
fn add<W: Write>(archive: &mut Archive<W>, source: &Path, target: &str) -> Result<()> {
    if source.is_dir() {
        archive.folder(target)?;
        for file in sys::walk(source)? {
            let inside = file.strip_prefix(source)?.to_string_lossy().into_owned();
            add(archive, &file, &format!("{target}/{inside}"))?;
        }
        return Ok(());
    }
    let content = read(source)?;
    let mode = fs::metadata(source)?.permissions().mode() & 0o777;
    archive.file(target, mode, &content)?;
    if (mode & 0o111 != 0 || target.contains(".so")) && content.starts_with(b"\x7fELF") {
        libraries(archive, source)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_s_answers_are_read() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibmnl.so.0 => /lib/x86_64-linux-gnu/libmnl.so.0 (0x00007f)\n\
                    \tlibx.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found: Vec<_> = parse_ldd(text).into_iter().collect();
        assert_eq!(
            found,
            [Path::new("/lib/x86_64-linux-gnu/libmnl.so.0"), Path::new("/lib64/ld-linux-x86-64.so.2")]
        );
        assert!(parse_ldd("\tstatically linked\n").is_empty());
    }
}
