//! The only part that loads, attaches and pins BPF: through aya, and through an own loader for what aya has no type
//! for.

pub mod btf;
pub mod clsact;
pub mod convert;
pub mod features;
pub mod hooks;
pub mod hs_ctrl;
mod layouts;
pub mod loader;
pub mod maps;
pub mod object;
pub mod offsets;
mod sys;
pub mod tc;

/// What an error says, and its causes as far as it leaves them out: aya's name the call that failed, not why.
pub(crate) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn causes_are_named_once() {
        let io_error = || io::Error::from_raw_os_error(22);
        let call = aya::sys::SyscallError { call: "bpf_map_update_elem", io_error: io_error() };
        let error = aya::maps::MapError::SyscallError(call);
        assert_eq!(with_causes(&error), "`bpf_map_update_elem` failed: Invalid argument (os error 22)");
        assert_eq!(with_causes(&io_error()), "Invalid argument (os error 22)");
    }
}
