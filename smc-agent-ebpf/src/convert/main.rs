//! The programs that turn new TCP sockets into SMC ones. An object of their own: they are loaded without a policy for
//! flows too (`smc-agent exec`), live longer or shorter than it, and are replaced by themselves.
#![no_std]
#![no_main]
#![expect(unreachable_pub, reason = "the crate is one program: nothing is exported but its sections")]
#![expect(
    clippy::inline_always,
    reason = "what is not inlined is a call to the verifier: it is chosen where it pays"
)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "registers have 64 bits: a cast takes the part that is meant"
)]
#![expect(clippy::needless_pass_by_value, reason = "the form that the macros give to a program's entry")]

mod groups;
mod maps;
mod offsets;
mod socket;
mod task;

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: code that could panic does not pass the verifier.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
