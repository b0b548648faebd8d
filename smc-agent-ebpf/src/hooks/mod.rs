//! One file per kind of hook.

mod fallback;
mod hs_ctrl;
mod options;
mod syn;
