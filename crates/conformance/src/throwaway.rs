//! What all throw-away servers share: a port, a folder, a user to run as, and an end.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Does a server's last things once this process is gone, however it ended: its input then ends.
#[derive(Debug)]
pub(crate) struct Undertaker(Child);

impl Undertaker {
    /// One that will run this shell script as this user.
    pub(crate) fn called(user: &str, last: &str) -> Self {
        let script = format!("read -r _; {last}");
        let mut shell = as_user(user, Path::new("sh"));
        shell.args(["-c", &script]).stdin(Stdio::piped());
        Self(shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Undertaker {
    fn drop(&mut self) {
        let _ = self.0.stdin.take();
        let _ = self.0.wait();
    }
}

/// A port that nobody listens on, on loopback.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// A new folder among the temporary ones, of this user.
pub(crate) fn make_folder(name: &str, user: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(name);
    fs::create_dir(&folder).unwrap();
    if is_root() {
        succeed(Command::new("chown").arg(user).arg(&folder));
    }
    folder
}

fn is_root() -> bool {
    // No test of ours changes its user: who owns this process's folder is who runs it.
    std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap()) == 0
}

/// Database servers refuse to run as root.
pub(crate) fn as_user(user: &str, program: &Path) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new("runuser");
        command.args(["-u", user, "--"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir("/").stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub(crate) fn succeed(command: &mut Command) {
    let output = command.stderr(Stdio::piped()).output();
    let output = output.unwrap_or_else(|error| {
        panic!("{command:?}: {error}; what the tests need is installed by `cargo xtask prepare`")
    });
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
}
