//! `cargo xtask kernel`: the kernels that the tests boot, fetched or built, in the cache.

mod config;
pub(crate) mod modules;
mod package;
mod source;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use lexopt::prelude::*;

use crate::sys;

/// A kernel of the test matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Debian 11's: the oldest, of the age of the kernels that SMC's users in data centres run.
    V5_10,
    /// Debian 12's.
    V6_1,
    /// Debian 12's security suite: the TC backend with every hook, SMC-R.
    V6_12,
    /// Built here: `hs_ctrl`, SMC-D over the loopback device.
    V7_3,
}

impl Kernel {
    /// All of them, oldest first.
    pub(crate) const ALL: [Self; 4] = [Self::V5_10, Self::V6_1, Self::V6_12, Self::V7_3];

    /// How it is called on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::V5_10 => "5.10",
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V7_3 => "7.3",
        }
    }

    /// Reads a name from the command line.
    pub(crate) fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|kernel| kernel.name() == name);
        found.ok_or_else(|| {
            let all = Self::ALL.map(Self::name).join(", ");
            anyhow::anyhow!("no kernel is called `{name}`: there are {all}")
        })
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A kernel that can be booted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    /// The file that QEMU starts.
    pub(crate) bzimage: PathBuf,
    /// The folder below which the modules are.
    pub(crate) modules: PathBuf,
    /// What it is and where it came from, for messages.
    pub(crate) origin: String,
}

/// A kernel that is at hand without fetching or building anything.
pub(crate) fn at_hand(kernel: Kernel) -> Result<Option<Image>> {
    match kernel {
        Kernel::V7_3 => source::at_hand(),
        packaged => package::at_hand(packaged),
    }
}

/// A kernel, fetched or built when it is not at hand.
pub(crate) fn ensure(kernel: Kernel) -> Result<Image> {
    if let Some(image) = at_hand(kernel)? {
        return Ok(image);
    }
    match kernel {
        Kernel::V7_3 => source::build(),
        packaged => package::fetch(packaged, false),
    }
}

/// Whether [`ensure`] would have to compile a kernel.
pub(crate) fn must_compile(kernel: Kernel) -> Result<bool> {
    Ok(kernel == Kernel::V7_3 && source::at_hand()?.is_none())
}

const HELP: &str = "\
Gets a kernel to boot in a VM; nothing is installed on this machine.

Usage: cargo xtask kernel 5.10|6.1|6.12|7.3 [--path] [--refresh]
       cargo xtask kernel 7.3 --prepare

  5.10, 6.1, 6.12  the distribution's packages, downloaded and unpacked (1-2 minutes, about 100 MB each)
  7.3              built from package linux-source-7.* and xtask/kernel/kernel-7.3.fragment: 20-25 minutes on 2 cores,
                   unless an image built from the same fragment lies in $SMC_AGENT_KERNELS, in ../shared/kernels next
                   to the checkout, or in the cache

Options:
  --path     print only the path of the kernel image
  --refresh  look for a newer version even if one is in the cache
  --prepare  7.3 only: unpack and configure the source, check the configuration, compile nothing
  -h, --help this text

The cache is $SMC_AGENT_CACHE, $XDG_CACHE_HOME/smc-agent or ~/.cache/smc-agent.";

/// Runs `cargo xtask kernel`.
pub(crate) fn main(mut args: lexopt::Parser) -> Result<()> {
    let (mut kernel, mut path, mut refresh, mut prepare) = (None, false, false, false);
    while let Some(arg) = args.next()? {
        match arg {
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(());
            }
            Long("path") => path = true,
            Long("refresh") => refresh = true,
            Long("prepare") => prepare = true,
            Value(name) if kernel.is_none() => kernel = Some(Kernel::parse(&name.string()?)?),
            other => return Err(other.unexpected().into()),
        }
    }
    let Some(kernel) = kernel else { bail!("which kernel?\n\n{HELP}") };
    if prepare {
        return source::prepare_only();
    }
    let image = match (kernel, refresh) {
        (Kernel::V7_3, true) => source::build()?,
        (packaged, true) => package::fetch(packaged, true)?,
        (any, false) => ensure(any)?,
    };
    if path {
        println!("{}", image.bzimage.display());
    } else {
        println!("{kernel}: {}", image.origin);
        println!("image:   {}", image.bzimage.display());
        println!("modules: {}", image.modules.display());
    }
    Ok(())
}

/// Checks every line of a folder's `SHA256SUMS`.
fn verify_sums(folder: &Path) -> Result<()> {
    let list = std::fs::read_to_string(folder.join("SHA256SUMS"))?;
    for line in list.lines() {
        let Some((sum, name)) = line.split_once(char::is_whitespace) else { continue };
        let name = name.trim_start_matches([' ', '*']);
        let found = sys::sha256_file(&folder.join(name))?;
        if found != sum {
            bail!("{}: its SHA-256 is not the one in SHA256SUMS", folder.join(name).display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_wrong_ones_answered_with_the_list() {
        for kernel in Kernel::ALL {
            assert_eq!(Kernel::parse(kernel.name()).unwrap(), kernel);
        }
        assert!(Kernel::parse("6.13").unwrap_err().to_string().contains("5.10, 6.1, 6.12, 7.3"));
    }
}
