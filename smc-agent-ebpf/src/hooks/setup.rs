//! What was being set up when a handshake failed: the connection has let go of its link group by the time of the fallback, so
//! version and device are looked at where it does.

use aya_ebpf::{helpers::bpf_probe_read_kernel_str_bytes, macros::kprobe, programs::ProbeContext};
use smc_agent_common::Event;

use super::socket::{SMC_INIT, Socket};
use crate::{
    kernel::read,
    maps::{SETUPS, Setup},
    offsets::{
        ABSENT, OFF_DIBS_NAME, OFF_LGR_IS_SMCD, OFF_LGR_SMC_VERSION, OFF_LGR_SMCD, OFF_LNK_IBNAME,
        OFF_SKC_STATE, OFF_SMC_CONN, OFF_SMC_CONN_LGR, OFF_SMC_CONN_LNK, OFF_SMC_CONN_TOKEN, OFF_SMCD_DIBS,
    },
};

/// `smc_conn_free(struct smc_connection *conn)`: a connection lets go of its link group. Of those that were set up this is
/// the regular end; others are given up.
#[kprobe]
pub fn smc_given_up(ctx: ProbeContext) -> u32 {
    if let Some(connection) = ctx.arg::<*const u8>(0) {
        let _ = remember(connection.wrapping_sub(OFF_SMC_CONN.load() as usize));
    }
    0
}

#[inline(always)]
fn remember(smc: *const u8) -> Option<()> {
    let group: *const u8 = read(smc, &OFF_SMC_CONN_LGR)?;
    // The group may be another's by now if the connection is not registered with it (`smc_conn_lgr_valid()`).
    if group.is_null()
        || read::<u8>(smc, &OFF_SKC_STATE)? != SMC_INIT
        || read::<u32>(smc, &OFF_SMC_CONN_TOKEN)? == 0
    {
        return None;
    }
    let mut setup =
        Setup { smc_version: read(group, &OFF_LGR_SMC_VERSION)?, reserved: [0; 7], device: [0; _] };
    if let Some(name) = name_of_device(smc, group) {
        // SAFETY: the helper checks the address, and writes at most as many bytes as the field has. A name that cannot be
        // read stays empty.
        let _ = unsafe { bpf_probe_read_kernel_str_bytes(name, &mut setup.device) };
    }
    // A full map evicts the oldest: an event then lacks version and device.
    let _ = SETUPS.insert(smc as u64, setup, 0);
    Some(())
}

/// Where the name of the device is that a connection was to use.
#[inline(always)]
fn name_of_device(smc: *const u8, group: *const u8) -> Option<*const u8> {
    if read::<u8>(group, &OFF_LGR_IS_SMCD)? == 0 {
        let link: *const u8 = read(smc, &OFF_SMC_CONN_LNK)?;
        return (!link.is_null()).then(|| link.wrapping_add(OFF_LNK_IBNAME.load() as usize));
    }
    if OFF_LGR_SMCD.load() == ABSENT || OFF_SMCD_DIBS.load() == ABSENT || OFF_DIBS_NAME.load() == ABSENT {
        return None;
    }
    let device: *const u8 = read(group, &OFF_LGR_SMCD)?;
    let dibs: *const u8 = read(device, &OFF_SMCD_DIBS)?;
    read(dibs, &OFF_DIBS_NAME)
}

/// Tells the event what was being set up at its socket, if anything was.
#[inline(always)]
pub fn take_setup(socket: &Socket, event: &mut Event) {
    let key = socket.smc as u64;
    // SAFETY: the value is copied at once, and only the thread that shakes hands writes it.
    if let Some(setup) = unsafe { SETUPS.get(key) } {
        event.smc_version = setup.smc_version;
        event.device = setup.device;
        let _ = SETUPS.remove(key);
    }
}
