//! `cargo xtask setup`: makes a machine able to build the BPF side and to run VMs.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use lexopt::prelude::*;

use crate::kernel::Kernel;
use crate::{cache, kernel, sys, toolchain};

/// A program that is needed, and the package that has it.
struct Tool {
    package: &'static str,
    /// Any of these does.
    programs: &'static [&'static str],
    /// What it is for.
    purpose: &'static str,
}

const fn tool(package: &'static str, programs: &'static [&'static str], purpose: &'static str) -> Tool {
    Tool { package, programs, purpose }
}

const VM_TOOLS: [Tool; 10] = [
    tool("qemu-system-x86", &["qemu-system-x86_64"], "runs the VMs"),
    tool("busybox-static", &["busybox"], "the guests' user space"),
    tool("iproute2", &["ip"], "the guests' network, host tests"),
    tool("iproute2", &["rdma"], "Soft-RoCE in the guests"),
    tool("nftables", &["nft"], "address translation in the guests"),
    tool("ethtool", &["ethtool"], "checksum offload in the guests"),
    tool("kmod", &["modprobe"], "module tools"),
    tool("xz-utils", &["xz"], "unpacks modules and sources"),
    tool("zstd", &["zstd"], "unpacks modules"),
    tool("llvm", &LLVM_STRIP, "strips the checked-in BPF object"),
];

/// The names under which distributions ship llvm-strip.
pub(crate) const LLVM_STRIP: [&str; 10] = [
    "llvm-strip",
    "llvm-strip-14",
    "llvm-strip-15",
    "llvm-strip-16",
    "llvm-strip-17",
    "llvm-strip-18",
    "llvm-strip-19",
    "llvm-strip-20",
    "llvm-strip-21",
    "llvm-strip-22",
];

const KERNEL_TOOLS: [Tool; 9] = [
    tool("make", &["make"], "builds the kernel"),
    tool("gcc", &["gcc"], "builds the kernel"),
    tool("flex", &["flex"], "builds the kernel"),
    tool("bison", &["bison"], "builds the kernel"),
    tool("bc", &["bc"], "builds the kernel"),
    tool("python3", &["python3"], "builds the kernel"),
    tool("perl", &["perl"], "builds the kernel"),
    tool("rsync", &["rsync", "cp"], "builds the kernel"),
    tool("tar", &["tar"], "unpacks the kernel's source"),
];

/// Libraries that a kernel build links with: a header, and the package that has it.
const KERNEL_LIBRARIES: [(&str, &str); 2] =
    [("libelf-dev", "libelf.h"), ("libssl-dev", "openssl/opensslv.h")];

const BENCH_TOOLS: [Tool; 3] = [
    tool("iptables", &["iptables"], "takes the option out of SYNs, to compare"),
    tool("ipset", &["ipset"], "loads the same list, to compare"),
    tool("nftables", &["nft"], "loads the same list, to compare"),
];

fn missing(tools: &'static [Tool]) -> Vec<&'static Tool> {
    tools.iter().filter(|tool| !present(tool)).collect()
}

fn present(tool: &Tool) -> bool {
    let Some(path) = tool.programs.iter().find_map(|program| sys::which(program)) else { return false };
    // A busybox with libraries would not run in a guest that has none.
    tool.package != "busybox-static" || is_static(&path)
}

/// Whether a program needs no loader.
pub(crate) fn is_static(path: &Path) -> bool {
    let out = Command::new("ldd").arg(path).env("LC_ALL", "C").output();
    out.is_ok_and(|out| {
        let text = [out.stdout, out.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        text.contains("not a dynamic executable") || text.contains("statically linked")
    })
}

fn missing_libraries() -> Vec<&'static str> {
    let folders = ["/usr/include", "/usr/include/x86_64-linux-gnu"].map(Path::new);
    KERNEL_LIBRARIES
        .into_iter()
        .filter(|(_, header)| !folders.iter().any(|folder| folder.join(header).exists()))
        .map(|(package, _)| package)
        .collect()
}

/// Installs packages, or says how to.
fn install(packages: &[&str]) -> Result<()> {
    let mut list = packages.to_vec();
    list.sort_unstable();
    list.dedup();
    let line = list.join(" ");
    if sys::which("apt-get").is_none() {
        bail!("no apt-get here: install what Debian calls {line} with this system's own package manager");
    }
    if !sys::is_root() {
        bail!("not root: run `sudo apt-get install --no-install-recommends {line}`, then this again");
    }
    sys::say(format_args!("installing packages: {line}"));
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-y"]).args(arguments);
        command
    };
    let arguments = [&["install", "--no-install-recommends"], list.as_slice()].concat();
    sys::run(apt(&["update"]).stdout(std::io::stderr()))?;
    sys::run(apt(&arguments).stdout(std::io::stderr()))
}

/// Makes sure that VMs can run.
pub(crate) fn ensure_vm_tools() -> Result<()> {
    ensure(&VM_TOOLS)
}

/// Makes sure that benchmarks have what they compare with.
pub(crate) fn ensure_bench_tools() -> Result<()> {
    ensure(&BENCH_TOOLS)
}

fn ensure(tools: &'static [Tool]) -> Result<()> {
    let absent = missing(tools);
    if absent.is_empty() {
        return Ok(());
    }
    for tool in &absent {
        sys::say(format_args!(
            "missing: {} ({}), {}",
            tool.programs.first().unwrap_or(&""),
            tool.package,
            tool.purpose
        ));
    }
    install(&absent.iter().map(|tool| tool.package).collect::<Vec<_>>())
}

/// Makes sure that a kernel can be built.
pub(crate) fn ensure_kernel_tools() -> Result<()> {
    let mut packages: Vec<&str> = missing(&KERNEL_TOOLS).iter().map(|tool| tool.package).collect();
    packages.extend(missing_libraries());
    if packages.is_empty() { Ok(()) } else { install(&packages) }
}

/// Makes sure that the BPF side can be built from source.
pub(crate) fn ensure_toolchain() -> Result<()> {
    if toolchain::rust_src()?.is_some() && toolchain::bpf_linker()?.is_some() {
        return Ok(());
    }
    let lock = cache::lock("toolchain")?;
    if toolchain::rust_src()?.is_none() {
        toolchain::fetch_rust_src(&lock)?;
    }
    if toolchain::bpf_linker()?.is_none() {
        toolchain::install_bpf_linker(&lock)?;
    }
    Ok(())
}

/// Everything that `test` and `demo` need.
pub(crate) fn ensure_all(kernels: &[Kernel]) -> Result<()> {
    ensure_vm_tools()?;
    ensure_toolchain()?;
    for kernel in kernels {
        if kernel::must_compile(*kernel)? {
            ensure_kernel_tools()?;
        }
    }
    Ok(())
}

/// Prints what is there and what is not; false when something is missing.
fn report() -> Result<bool> {
    let mut complete = true;
    let mut line = |name: &str, found: bool, note: &str| {
        complete &= found;
        println!("{:8} {name:20} {note}", if found { "ok" } else { "missing" });
    };
    for tool in &VM_TOOLS {
        line(
            tool.programs.first().unwrap_or(&""),
            present(tool),
            &format!("{} ({})", tool.purpose, tool.package),
        );
    }
    let source = match toolchain::rust_src()? {
        Some(toolchain::RustSrc::Sysroot) => Some("in the compiler's own folder".to_owned()),
        Some(toolchain::RustSrc::At(folder)) => Some(folder.display().to_string()),
        None => None,
    };
    line("rust-src", source.is_some(), source.as_deref().unwrap_or("setup fetches it (8 s)"));
    let linker = toolchain::bpf_linker()?.map(|file| file.display().to_string());
    line("bpf-linker", linker.is_some(), linker.as_deref().unwrap_or("setup builds it (3-4 minutes)"));
    for kernel in Kernel::ALL {
        match kernel::at_hand(kernel)? {
            Some(image) => println!("{:8} {:20} {}", "ok", format!("kernel {kernel}"), image.origin),
            None => {
                println!("{:8} {:20} `cargo xtask kernel {kernel}` gets it", "-", format!("kernel {kernel}"));
            }
        }
    }
    Ok(complete)
}

const HELP: &str = "\
Makes this machine able to build the BPF side from source and to run VMs. A second run finds nothing to do.

Usage: cargo xtask setup [--check]

What it gets:
  apt packages  qemu-system-x86 busybox-static iproute2 nftables ethtool kmod xz-utils zstd llvm (only those that are
                missing; root)
  rust-src      of exactly this compiler: from the compiler's own folder, else from the distribution's package (unpacked
                into the cache, not installed), else by `rustup component add rust-src`
  bpf-linker    built into the cache: 3-4 minutes on 2 cores, once per compiler
Kernels are fetched when they are first booted, or by `cargo xtask kernel`.

Options:
  --check    only say what is there and what is missing; exit code 1 when something is missing
  -h, --help this text

The cache is $SMC_AGENT_CACHE, $XDG_CACHE_HOME/smc-agent or ~/.cache/smc-agent.";

/// Runs `cargo xtask setup`.
pub(crate) fn main(mut args: lexopt::Parser) -> Result<bool> {
    let mut check = false;
    while let Some(arg) = args.next()? {
        match arg {
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(true);
            }
            Long("check") => check = true,
            other => return Err(other.unexpected().into()),
        }
    }
    if check {
        return report();
    }
    // A failure of one part does not keep the other from being tried.
    let (tools, chain) = (ensure_vm_tools(), ensure_toolchain());
    for error in [&tools, &chain].into_iter().filter_map(|part| part.as_ref().err()) {
        sys::say(format_args!("{error:#}"));
    }
    Ok(report()? && tools.is_ok() && chain.is_ok())
}
