//! The migrations are embedded; cargo does not see that by itself.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations/sqlite");
}
