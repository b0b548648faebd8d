//! One file per kind of hook.

mod fallback;
mod handshake;
mod hs_ctrl;
mod link;
mod options;
mod owner;
mod socket;
mod syn;
