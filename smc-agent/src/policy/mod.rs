//! Policies: text in, a table or errors with their places out. Knows nothing of kernels.

mod addresses;
mod check;
mod compile;
mod convert;
mod diagnostic;
mod diff;
mod explain;
mod flow;
pub mod flow_tests;
mod literal;
mod load;
#[cfg(test)]
mod messages;
mod model;
#[cfg(test)]
mod naive;
mod outline;
mod parse;
mod schema;
mod table;
mod unreachable;
mod yaml;

pub use addresses::{AddressSet, AddressSetBuilder, Prefix};
pub use check::{Check, Summary, check};
pub use compile::{CompileError, compile};
pub(crate) use convert::parse::{cgroup as read_cgroup, netns as read_netns};
pub use convert::{
    Convert, ConvertExplanation, ConvertRule, LIFE_LINES, MAX_RULES as MAX_CONVERT_RULES, PassedOver,
    Selectors, SocketOwner, explain_socket,
};
pub use diagnostic::{Diagnostic, Severity};
pub use diff::{Change, Diff, Outcome, Space, diff};
pub use explain::{Explanation, Passed, Reason, explain};
pub use flow::{FlowError, format_flow, parse_flow};
pub use load::{LoadError, Loaded, load, load_text};
pub use model::{Action, Addresses, Limits, Mode, NamedSet, Place, Policy, Rule};
pub use outline::{Outline, RuleOutline, SetOutline, outline};
pub use schema::schema;
pub use table::PolicyTable;
