//! The binary `pabal`: the hub with the adapters it is shipped with.

use std::process::ExitCode;

fn main() -> ExitCode {
    pabal::Hub::standard().main()
}
