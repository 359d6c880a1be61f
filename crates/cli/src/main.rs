//! The one binary `cenote`.
fn main() {}
