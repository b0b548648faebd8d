//! One file per kind of hook.

mod fallback;
mod handshake;
mod hs_ctrl;
mod link;
mod options;
mod owner;
mod setup;
mod socket;
mod syn;
