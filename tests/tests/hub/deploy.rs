//! What is shipped to run the hub.

use std::{fs, path::Path};

use pabal_tests::{Ran, repository, run};

/// `systemd-analyze verify` wants the program to exist, so it gets one that does.
async fn verify(unit: &str) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pabal.service");
    fs::write(&path, unit.replace("/usr/bin/pabal", "/bin/true")).unwrap();
    let path = path.to_str().unwrap();
    run("systemd-analyze", &["verify", "--man=no", path], b"").await
}

fn unit() -> String {
    fs::read_to_string(repository("deploy/systemd/pabal.service")).unwrap()
}

#[tokio::test]
async fn systemd_accepts_the_unit_without_a_word() {
    let ran = verify(&unit()).await;
    assert_eq!((ran.ok(), &*ran.stderr), ("", ""));
}

#[tokio::test]
async fn systemd_would_name_a_mistake_in_the_unit() {
    let broken = unit().replace("ProtectSystem=strict", "ProtectSistem=strict");
    let ran = verify(&broken).await;
    assert!(ran.stderr.contains("ProtectSistem"), "{}", ran.stderr);
}

#[test]
fn the_unit_waits_longer_than_the_grace_before_it_kills() {
    let unit = unit();
    let seconds: u32 = unit
        .lines()
        .find_map(|line| line.strip_prefix("TimeoutStopSec="))
        .and_then(|value| value.parse().ok())
        .unwrap();
    assert!(seconds > 10, "{seconds}");
}

/// The sources of every `COPY` that does not come from an earlier stage.
fn copied(dockerfile: &str) -> Vec<String> {
    dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|rest| !rest.starts_with("--from="))
        .flat_map(|rest| {
            let words: Vec<&str> = rest.split_whitespace().collect();
            words[..words.len() - 1].iter().map(ToString::to_string).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn everything_the_dockerfile_copies_is_there() {
    let dockerfile = fs::read_to_string(repository("deploy/Dockerfile")).unwrap();
    let sources = copied(&dockerfile);
    assert!(sources.len() > 5, "{sources:?}");
    for source in &sources {
        assert!(repository(source).exists(), "COPY {source}");
    }
    // Every member of the workspace, or cargo refuses the manifest.
    let manifest = fs::read_to_string(repository("Cargo.toml")).unwrap();
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = ")).unwrap();
    for member in members.trim_matches(['[', ']']).split(", ") {
        let folder = member.trim_matches('"').trim_end_matches("/*");
        assert!(
            sources.iter().any(|source| Path::new(source) == Path::new(folder)),
            "{folder} is not copied"
        );
    }
}

#[test]
fn the_image_does_not_run_as_root() {
    let dockerfile = fs::read_to_string(repository("deploy/Dockerfile")).unwrap();
    let (_, last_stage) = dockerfile.rsplit_once("\nFROM ").unwrap();
    assert!(last_stage.contains("\nUSER pabal\n"));
}
