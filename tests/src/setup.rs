//! Makes real SMC possible on the running kernel, as far as that kernel can do it on one host.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use smc_agent::netlink::pnet::{PnetDevice, PnetTable};
use smc_agent::netlink::smc::Smc;
use smc_agent::netlink::{Protocol, Request, Socket};

use crate::netns::loopback_up;
use crate::pair::{Kind, Mode, Pair, run};
use crate::wait::wait_until;

/// The user EID that tests use.
pub const USER_EID: &str = "SMCTEST-EID-1";
/// The name of the Soft-RoCE device over loopback.
pub const RXE_DEVICE: &str = "rxelo";
/// Before this version, a user EID together with Soft-RoCE wedges connections in the kernel (seen on 6.1), and without
/// them there is no SMC-R on one host.
const FIRST_USABLE: (u32, u32) = (6, 12);
/// How long a fresh RDMA device may take until connections use it.
const DEVICE_READY: Duration = Duration::from_secs(15);

/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK)` (`include/uapi/rdma/rdma_netlink.h`).
const RDMA_NEW_LINK: u16 = (5 << 10) + 3;
/// `RDMA_NLDEV_ATTR_DEV_NAME`, text.
const RDMA_DEVICE_NAME: u16 = 2;
/// `RDMA_NLDEV_ATTR_NDEV_NAME`, text.
const RDMA_INTERFACE_NAME: u16 = 51;
/// `RDMA_NLDEV_ATTR_LINK_TYPE`, text.
const RDMA_LINK_TYPE: u16 = 65;

/// Prepares SMC, proves it with one connection over 127.0.0.1, and tells in one line what was done.
///
/// `smc_r` asks for SMC-R also where SMC-D would be taken: the dibs loopback device gets a PNET id that nothing else has.
pub fn prepare(smc_r: bool) -> Result<String> {
    let release = kernel_release()?;
    if version_of(&release)? < FIRST_USABLE {
        return Ok(format!(
            "kernel {release}: nothing done: a user EID and Soft-RoCE wedge kernels before 6.12"
        ));
    }
    loopback_up()?;
    let mut done = Vec::new();
    let mut smc = Smc::open()?;
    if smc.user_eids()?.is_empty() {
        smc.add_user_eid(&USER_EID.parse()?)?;
        done.push(format!("user EID {USER_EID} added"));
    }
    if smc_r {
        let dibs = PnetDevice::Rdma { name: "lo".to_owned(), port: 1 };
        match PnetTable::open()?.add(&"NODNET".parse()?, &dibs) {
            Err(error) if error.errno() != Some(Errno::EEXIST) => return Err(error.into()),
            _ => done.push("dibs device lo kept out of the way".to_owned()),
        }
    }
    let mut mode = probe()?;
    if !mode.is_smc() {
        add_soft_roce("lo", RXE_DEVICE)?;
        done.push(format!("Soft-RoCE device {RXE_DEVICE} on lo"));
        mode = wait_until("SMC over the Soft-RoCE device", DEVICE_READY, || {
            Ok(Some(probe()?).filter(|mode| mode.is_smc()))
        })?;
    }
    if smc_r && mode != Mode::SmcR {
        bail!("kernel {release}: asked for SMC-R, but connections are {mode}");
    }
    let done = if done.is_empty() { "nothing to do".to_owned() } else { done.join(", ") };
    Ok(format!("kernel {release}: {done}; AF_SMC over 127.0.0.1 is {mode}"))
}

/// Makes a Soft-RoCE device over a network interface of the calling thread's namespace. It is no error if it exists.
pub fn add_soft_roce(interface: &str, device: &str) -> Result<()> {
    let request = Request::new(RDMA_NEW_LINK, "add a Soft-RoCE device (is module rdma_rxe there?)")
        .text(RDMA_DEVICE_NAME, device)
        .text(RDMA_LINK_TYPE, "rxe")
        .text(RDMA_INTERFACE_NAME, interface);
    match Socket::open(Protocol::Rdma)?.request(&request, |_| Ok(())) {
        Err(error) if error.errno() != Some(Errno::EEXIST) => Err(error.into()),
        _ => Ok(()),
    }
}

/// The mode of one connection over loopback.
fn probe() -> Result<Mode> {
    let ends = run(&Pair::new(Kind::Smc, Kind::Smc, ([127, 0, 0, 1], 0).into()))?;
    if !ends.intact {
        bail!("a connection over 127.0.0.1 lost data: {}", ends.problems.join("; "));
    }
    Ok(ends.client.mode)
}

/// The release of the running kernel, such as `6.12.48+deb12-amd64`.
pub fn kernel_release() -> Result<String> {
    let path = "/proc/sys/kernel/osrelease";
    Ok(fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?.trim().to_owned())
}

/// The first two numbers of a kernel release.
pub fn version_of(release: &str) -> Result<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => bail!("cannot tell the version of kernel {release:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(version_of("6.12.48+deb12-amd64").unwrap(), (6, 12));
        assert!(version_of("6.1.0-42-amd64").unwrap() < FIRST_USABLE);
        assert!(version_of("5.10.0").unwrap() < FIRST_USABLE);
        assert!(version_of("7.3.4-smc-test").unwrap() > FIRST_USABLE);
        assert!(version_of("next").is_err());
    }
}
