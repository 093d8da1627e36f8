//! A wall clock of a hub's own, through libfaketime: the test steps it while the hub runs, as an operator
//! or a time server does. What measures time (`CLOCK_MONOTONIC`, `CLOCK_BOOTTIME`) stays the machine's.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tokio::process::Command;

/// `$LIB` is for the dynamic linker, which knows the folder of this machine.
const LIBRARY: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";

/// The file that says how wrong the clock is.
#[derive(Debug)]
pub(crate) struct WallClock(PathBuf);

impl WallClock {
    /// One that is right.
    pub(crate) fn new(folder: &Path) -> Self {
        let clock = Self(folder.join("wall-clock"));
        clock.set(0);
        clock
    }

    /// So many seconds ahead of the machine's; negative: behind it. It counts from the next reading.
    pub(crate) fn set(&self, seconds: i64) {
        // In one piece: it may be read at any moment.
        let whole = self.0.with_extension("new");
        fs::write(&whole, format!("{seconds:+}\n"))
            .and_then(|()| fs::rename(&whole, &self.0))
            .unwrap_or_else(|error| panic!("{}: {error}", self.0.display()));
    }

    /// What makes a process live by it.
    pub(crate) fn rule(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", LIBRARY)
            .env("FAKETIME_TIMESTAMP_FILE", &self.0)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("FAKETIME_DISABLE_SHM", "1")
            .env("NO_FAKE_STAT", "1");
    }

    /// Removes what the library left outside the test's folder; the process does not need it any more
    /// once it runs. Newer versions leave nothing.
    pub(crate) fn tidy(&self, pid: u32) {
        for file in ["faketime_shm", "sem.faketime_sem"] {
            let _ = fs::remove_file(format!("/dev/shm/{file}_{pid}"));
        }
    }
}
