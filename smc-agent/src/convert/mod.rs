//! Turns TCP sockets of chosen processes into SMC ones: rules from policies and switches, compiled for the kernel.

pub mod exec;
mod life;
mod record;
pub mod resolve;
mod status;
mod sysctl;
pub mod table;
#[cfg(test)]
mod tests;
mod warnings;

pub use life::{
    ConvertError, Lock, change, detach, followed, mechanism, pins_in_force, prepare_exec, resolution,
    set_switch,
};
pub use record::{ConvertRecord, ConvertRuleRecord, FormerSysctl, Mechanism, Switch, SwitchRecord, Target};
pub use status::{ConvertRuleStatus, ConvertStatus, SwitchStatus};
pub(crate) use sysctl::SYSCTL as TCP2SMC;
pub use sysctl::{SysctlError, check as check_sysctl};
pub use warnings::warnings;
