//! Installs what the tests need and the machine lacks: Debian packages, a Python environment of its
//! own under the target directory, and the modules of the example in JavaScript beside it. Quick when
//! all is there.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::process::{root, run, succeeds, target_directory};

/// A program of the system, how to see that it is there, and the Debian package that has it.
struct Tool {
    program: &'static str,
    check: &'static [&'static str],
    package: &'static str,
    needed_for: &'static str,
}

/// Debian keeps the server's programs out of PATH.
const INITDB: &str =
    "ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || initdb --version >/dev/null 2>&1";

/// So it does with this one.
const MARIADBD: &str = "{ [ -x /usr/sbin/mariadbd ] || command -v mariadbd; } && \
                        mariadb --version && command -v mariadb-install-db";

/// There is no program: the library is there if it makes another one believe it.
const OTHER_YEAR: &str = "LD_PRELOAD='/usr/$LIB/faketime/libfaketimeMT.so.1' \
    FAKETIME='@2000-01-02 00:00:00' date +%Y | grep -qx 2000";

const TOOLS: &[Tool] = &[
    Tool {
        program: "curl",
        check: &["--version"],
        package: "curl",
        needed_for: "a client that no one here wrote",
    },
    Tool {
        program: "python3",
        check: &["-c", "import venv, ensurepip"],
        package: "python3-venv",
        needed_for: "the CloudEvents and Standard Webhooks libraries, and the example in Python",
    },
    Tool {
        program: "node",
        check: &["--version"],
        package: "nodejs",
        needed_for: "the example in JavaScript",
    },
    Tool { program: "npm", check: &["--version"], package: "npm", needed_for: "its modules" },
    Tool {
        program: "sh",
        check: &["-c", INITDB],
        package: "postgresql",
        needed_for: "throw-away servers for the store and for hubs of many nodes",
    },
    Tool {
        program: "psql",
        check: &["--version"],
        package: "postgresql-client",
        needed_for: "asking those servers",
    },
    Tool {
        program: "sh",
        check: &["-c", MARIADBD],
        package: "mariadb-server",
        needed_for: "throw-away servers as databases of applications",
    },
    Tool {
        program: "redis-server",
        check: &["--version"],
        package: "redis-server",
        needed_for: "the hot cache that nodes share",
    },
    Tool {
        program: "systemd-analyze",
        check: &["--version"],
        package: "systemd",
        needed_for: "checking the unit in deploy/systemd",
    },
    Tool {
        program: "sh",
        check: &["-c", OTHER_YEAR],
        package: "libfaketime",
        needed_for: "hubs whose wall clock is stepped",
    },
];

/// Installs what is missing; the Python interpreter of the tests.
pub(crate) fn run_all() -> Result<PathBuf> {
    install_tools()?;
    node_modules()?;
    python()
}

fn install_tools() -> Result<()> {
    let missing: Vec<&Tool> =
        TOOLS.iter().filter(|tool| !succeeds(tool.program, tool.check)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    let by_hand = format!("apt-get install {}", packages.join(" "));
    for tool in &missing {
        eprintln!("missing: {} ({})", tool.program, tool.needed_for);
    }
    if !succeeds("apt-get", &["--version"]) {
        bail!("this machine has no apt-get: install the above by its own means, then run again");
    }
    let rights: &[&str] = if succeeds("sh", &["-c", "[ \"$(id -u)\" = 0 ]"]) {
        &[]
    } else if succeeds("sudo", &["-n", "true"]) {
        &["sudo"]
    } else {
        bail!("installing needs root: run `sudo {by_hand}`, then run again");
    };
    let apt = |arguments: &[&str]| {
        let mut words = rights.to_vec();
        words.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        words.extend(arguments);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        run(command)
    };
    let mut install = vec!["install", "--yes", "--no-install-recommends"];
    install.extend(&packages);
    apt(&["update"]).and_then(|()| apt(&install)).with_context(|| {
        format!("the tests need these packages: run `{by_hand}` by hand and see why it fails")
    })?;
    for tool in missing {
        if !succeeds(tool.program, tool.check) {
            bail!(
                "{} is installed, but `{} {}` still fails: another {} may come first in PATH",
                tool.package,
                tool.program,
                tool.check.join(" "),
                tool.program,
            );
        }
    }
    Ok(())
}

/// What the tests' Python gets: the clients that they use, and what the example in Python pins.
const REQUIREMENTS: [&str; 2] =
    ["tests/python/requirements.txt", "docs/examples/python-sqlalchemy/requirements.txt"];

/// A virtual environment with exactly what [`REQUIREMENTS`] pin.
fn python() -> Result<PathBuf> {
    let environment = target_directory()?.join("python");
    let interpreter = environment.join("bin/python");
    let wanted = REQUIREMENTS.iter().map(|path| read(path)).collect::<Result<String>>()?;
    // Written last, so that an install that was cut off is done again.
    let stamp = environment.join("installed.txt");
    if is_there(&stamp, &wanted) && succeeds(&interpreter, &["--version"]) {
        return Ok(interpreter);
    }
    let mut create = Command::new("python3");
    create.args(["-m", "venv", "--clear"]).arg(&environment).current_dir(root());
    run(create)?;
    let mut install = Command::new(&interpreter);
    install
        .args(["-m", "pip", "install", "--quiet", "--no-input"])
        .arg("--disable-pip-version-check")
        .args(REQUIREMENTS.iter().flat_map(|path| ["--requirement", path]))
        .current_dir(root());
    run(install).context(
        "the tests need these Python packages from PyPI: check the network or set PIP_INDEX_URL",
    )?;
    fs::write(&stamp, wanted).with_context(|| format!("{} cannot be written", stamp.display()))?;
    Ok(interpreter)
}

/// The modules that the lock file of the example in JavaScript pins, in its folder.
fn node_modules() -> Result<()> {
    const FOLDER: &str = "docs/examples/node-pg";
    let wanted = read("docs/examples/node-pg/package-lock.json")?;
    let folder = root().join(FOLDER);
    // Written last, so that an install that was cut off is done again.
    let stamp = folder.join("node_modules/installed.json");
    if is_there(&stamp, &wanted) {
        return Ok(());
    }
    let mut install = Command::new("npm");
    install.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(&folder);
    run(install).context("the tests need these modules from npm: check the network")?;
    fs::write(&stamp, wanted).with_context(|| format!("{} cannot be written", stamp.display()))
}

/// A file of the repository.
fn read(path: &str) -> Result<String> {
    fs::read_to_string(root().join(path)).with_context(|| format!("{path} cannot be read"))
}

fn is_there(stamp: &Path, wanted: &str) -> bool {
    fs::read_to_string(stamp).is_ok_and(|installed| installed == wanted)
}
