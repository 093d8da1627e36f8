//! placeholder

/// placeholder
fn main() {}
