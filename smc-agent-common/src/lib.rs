//! Types and the decision algorithm that the kernel side and the user side of smc-agent share.
#![no_std]
