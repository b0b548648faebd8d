//! Policies: text in, a table or errors with their places out. Knows nothing of kernels.

mod addresses;
mod compile;
#[cfg(test)]
mod measure;
mod model;
#[cfg(test)]
mod naive;
mod table;

pub use addresses::{AddressSet, AddressSetBuilder, Prefix};
pub use compile::{CompileError, compile};
pub use model::{Action, Addresses, Limits, Mode, NamedSet, Place, Policy, Rule};
pub use table::PolicyTable;
