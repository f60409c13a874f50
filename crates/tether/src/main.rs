//! tether
fn main() {}
