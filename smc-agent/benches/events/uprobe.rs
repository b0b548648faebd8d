//! Programs for functions of the kernel, run by a function of this program.

use std::{
    fs, io,
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result};
use aya::programs::ProgramFd;

/// `PERF_EVENT_IOC_SET_BPF` (`uapi/linux/perf_event.h`).
const SET_BPF: libc::c_ulong = 0x4004_2408;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// The beginning of `struct perf_event_attr` (`uapi/linux/perf_event.h`), `PERF_ATTR_SIZE_VER1`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    /// Of a probe: the path of the file.
    config1: u64,
    /// Of a probe: the place in the file.
    config2: u64,
}

/// A program that runs when it is called.
pub(crate) struct Probe {
    _event: OwnedFd,
    place: Place,
}

/// A function that a program is put at.
pub(crate) type Place = extern "C" fn(u64, u64, u64) -> u64;

/// What is called: the arguments are in the registers that a function of the kernel has them in. Each number makes a function
/// of its own, since all programs at one place would run.
#[inline(never)]
pub(crate) extern "C" fn place<const NUMBER: u64>(first: u64, second: u64, third: u64) -> u64 {
    std::hint::black_box(first ^ second ^ third ^ NUMBER)
}

impl Probe {
    /// Puts a program of functions of the kernel at a place.
    pub(crate) fn prepare(program: &ProgramFd, place: Place) -> Result<Self> {
        let folder = "/sys/bus/event_source/devices/uprobe/type";
        let kind = fs::read_to_string(folder).context("this kernel has no uprobes")?.trim().parse()?;
        let path = std::ffi::CString::new("/proc/self/exe")?;
        let mut attributes = Attributes {
            kind,
            size: u32::try_from(size_of::<Attributes>())?,
            config1: path.as_ptr() as u64,
            config2: offset_in_file(place as usize as u64)?,
            ..Attributes::default()
        };
        // SAFETY: attributes and path live until the call is over.
        let event = unsafe {
            let (this, any) = (0, -1);
            libc::syscall(libc::SYS_perf_event_open, &raw mut attributes, this, any, -1, PERF_FLAG_FD_CLOEXEC)
        };
        if event < 0 {
            return Err(io::Error::last_os_error()).context("make a probe of a function");
        }
        // SAFETY: the kernel just made this descriptor for us alone.
        let event = unsafe { OwnedFd::from_raw_fd(i32::try_from(event)?) };
        // SAFETY: the command takes a descriptor.
        if unsafe { libc::ioctl(event.as_raw_fd(), SET_BPF, program.as_fd().as_raw_fd()) } != 0 {
            return Err(io::Error::last_os_error()).context("put a program at a probe");
        }
        Ok(Self { _event: event, place })
    }

    /// Runs the program with these arguments.
    pub(crate) fn call(&self, [first, second, third]: [u64; 3]) {
        (self.place)(first, second, third);
    }
}

/// Where in its file the code at an address of this program is.
fn offset_in_file(address: u64) -> Result<u64> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let number = |text: &str| u64::from_str_radix(text, 16);
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(offset)) = (words.next(), words.nth(1)) else { continue };
        let (start, end) = range.split_once('-').context("a line without a range")?;
        let (start, end) = (number(start)?, number(end)?);
        if (start..end).contains(&address) {
            return Ok(number(offset)? + (address - start));
        }
    }
    anyhow::bail!("{address:#x} is not mapped")
}
