//! Putting a policy into force: which backend does it, and the life of what is in the kernel.

mod active;
mod backend;
mod coverage;
mod detach;
mod enforcer;
mod lock;
mod places;
mod record;
mod scope;

pub use backend::{Backend, BackendChoice, Candidate};
pub use coverage::Where;
pub use detach::{Detached, detach, remove_state};
pub use enforcer::{EnforceError, Enforcer, Options};
pub use lock::{AgentLock, LockError};
pub(crate) use places::at;
pub use places::{ObjectPlaces, Places};
pub use record::{PolicyRecord, RuleRecord};
pub use scope::{Scope, ScopeError};
