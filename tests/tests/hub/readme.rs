//! What README.md promises.

use std::fs;

use pabal_tests::{Hub, Partner, repository};

fn readme() -> String {
    fs::read_to_string(repository("README.md")).unwrap()
}

/// The block of README.md that begins with this line.
fn block(first_line: &str) -> String {
    let readme = readme();
    let (_, rest) = readme.split_once(&format!("\n{first_line}\n")).unwrap();
    let (block, _) = rest.split_once("\n```").unwrap();
    format!("{block}\n")
}

#[test]
fn the_first_screen_has_exactly_two_commands() {
    let readme = readme();
    let screen: Vec<&str> = readme.lines().take(24).collect();
    let commands: Vec<&str> = screen
        .iter()
        .filter(|line| line.starts_with("cargo "))
        .map(|line| line.split_once('#').map_or(*line, |(command, _)| command).trim())
        .collect();
    assert_eq!(commands, ["cargo run --release -- demo", "cargo xtask test"]);
    let shells = screen.iter().filter(|line| **line == "```sh").count();
    assert_eq!(shells, 1, "nothing else to type on the first screen");
}

#[tokio::test]
async fn the_first_partner_works_as_written() {
    let partner = Partner::start().await;
    let file = block("# my-hub/partners/welfare.toml");
    let url = "http://127.0.0.1:9000/applications";
    assert!(file.contains(url));
    let hub = Hub::setup()
        .whole_hub_toml(
            &block("# my-hub/hub.toml")
                .replace("var/pabal.db", "{database}")
                .replace("127.0.0.1:8080", "{http}")
                .replace("127.0.0.1:8081", "{admin}"),
        )
        .partner("welfare", &file.replace(url, &partner.url("/applications")))
        .variable("WELFARE_TOKEN", "change-me")
        .start()
        .await;
    hub.cli(&["check"]).await.ok();
    let send = ["send", "application.submitted", "--key", "A-1", "-"];
    hub.cli_with_input(&send, br#"{"region": "11"}"#).await.ok();
    let request = &partner.wait_for_taken(1).await[0];
    assert_eq!(request.text(), r#"{"region": "11"}"#);
    assert_eq!(request.header("ce-type"), Some("application.submitted"));
    assert_eq!(request.header("ce-partitionkey"), Some("A-1"));
    let handed_over = hub
        .hand_over("welfare/decisions", "D-1", &[("authorization", "Bearer change-me")], "{}")
        .await;
    assert_eq!(handed_over.status, 202, "{}", handed_over.text());
    hub.cli(&["status"]).await.ok();
}
