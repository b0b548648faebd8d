//! The TCP options of a SYN, walked as the kernel walks them (`tcp_parse_options()`, `net/ipv4/tcp_input.c`).

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};

pub const MAX_OPTIONS: usize = 40;
const KIND_END: u64 = 0;
pub const KIND_NOP: u64 = 1;
/// TCP-AO (RFC 5925): its code covers the other options.
const KIND_AO: u64 = 29;
/// RFC 6994: shared by experiments, which are told apart by an identifier.
const KIND_EXPERIMENT: u64 = 254;
/// The identifier of SMC (RFC 7609, appendix A), "SMCR" in EBCDIC; option kind and length come before it.
const SMC_MAGIC: u32 = 0xe2d4_c3d9;
/// `tcp_parse_options()` takes the option at any even length from here on (`net/ipv4/tcp_input.c`).
pub const SMC_OPTION: u64 = 6;

/// In what [`smc_walk_options`] returns: there is a TCP-AO option too, whose code covers the others.
pub const AUTHENTICATED: u64 = 1 << 63;

/// The TCP options as they are and as they shall be; reads with a variable index need a map below 5.12.
#[repr(C)]
pub struct Scratch {
    pub before: [u8; 64],
    pub after: [u8; 64],
    /// Always 0, which the verifier does not know.
    zero: u64,
    /// Address of the socket that the packet is for.
    pub receiver: u64,
}

#[btf_map]
pub static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

/// Walks the `length` bytes of options in [`SCRATCH`] (at most 64). Bit N of the result is set when byte N belongs to an SMC
/// option; [`AUTHENTICATED`] may be set in addition.
///
/// A global function, which the verifier follows once and not once for every way that leads here.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn smc_walk_options(length: u32) -> u64 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: this CPU's element; programs of this kind do not interrupt each other on a CPU.
    let scratch = unsafe { &*scratch };
    let options = &scratch.before;
    // The verifier would follow every value that it knows of a position, one by one: so it is told none, but that the
    // position is below 64.
    let unknown = scratch.zero;
    let mut mask = unknown;
    let mut authenticated = unknown;
    let mut at = 0_u64;
    let length = u64::from(length);
    // Each step moves on by at least one byte, so that 40 see everything.
    for _ in 0..MAX_OPTIONS {
        if at >= length {
            break;
        }
        at = at.wrapping_add(unknown) & 63;
        let kind = u64::from(options[at as usize]);
        if kind == KIND_END {
            break;
        }
        let size = u64::from(options[(at as usize + 1) & 63]);
        // From here on without branches but the one that ends the walk: each would double the ways through the rest.
        let nop = is_zero(kind ^ KIND_NOP);
        let step = size * (1 - nop) + nop;
        let too_short = is_zero(size >> 1) & (1 - nop);
        if too_short | is_negative(length.wrapping_sub(at).wrapping_sub(step)) != 0 {
            break;
        }
        authenticated |= is_zero(kind ^ KIND_AO);
        let magic = u32::from_be_bytes([
            options[(at as usize + 2) & 63],
            options[(at as usize + 3) & 63],
            options[(at as usize + 4) & 63],
            options[(at as usize + 5) & 63],
        ]);
        let smc = is_zero(u64::from(magic ^ SMC_MAGIC) | (kind ^ KIND_EXPERIMENT) | (size & 1))
            & (1 - is_negative(size.wrapping_sub(SMC_OPTION)));
        mask |= (((1 << (step & 63)) - 1) << at) & 0_u64.wrapping_sub(smc);
        at += step;
    }
    mask | authenticated << 63
}

/// 1 for 0, and 0 for any other number below 2^63.
#[inline(always)]
fn is_zero(number: u64) -> u64 {
    is_negative(hidden(number).wrapping_sub(1))
}

/// The topmost bit: 1 where a subtraction went below 0.
#[inline(always)]
fn is_negative(number: u64) -> u64 {
    hidden(number) >> 63
}

/// The same number, of which the compiler knows nothing: it would make a comparison of the arithmetic again, and BPF has
/// comparisons only as branches.
#[inline(always)]
pub fn hidden(mut number: u64) -> u64 {
    // SAFETY: moves a register to itself. (No instruction at all would leave two entries of line info for one place,
    // which the kernel refuses.)
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) number, options(pure, nomem, nostack, preserves_flags));
    };
    number
}
