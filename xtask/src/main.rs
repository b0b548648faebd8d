//! The task runner of this repository.
fn main() {}
