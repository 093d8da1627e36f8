//! An older version of a key is dropped, and said to be.

use pabal_core::Message;
use serde_json::json;

use super::application::{ALL, Application, Kind};
use crate::support::*;

fn version(origin_id: &str, key: &str, version: i64) -> Message {
    Message { version: Some(version), ..of(origin_id, key, "{}") }
}

#[tokio::test]
async fn a_lower_version_is_dropped_per_source_type_and_key() {
    for kind in ALL {
        let application = Application::new(kind).await;
        let apply = "INSERT INTO application (memo, version) VALUES (:key, :version)";
        let settings = json!({ "apply": apply, "version_table": "inbox_version" });
        let sender = sender(&application.url(), settings);
        let mut elsewhere = version("5", "A", 1);
        elsewhere.source = "tax/decisions".parse().unwrap();
        elsewhere.id = pabal_core::MessageId::of("hub", &elsewhere.source, "", "5");
        let mut otherwise = version("6", "A", 1);
        otherwise.message_type = "application.withdrawn".to_owned();
        let batch = [
            version("1", "A", 9_007_199_254_740_993),
            version("2", "A", 9_007_199_254_740_992),
            // Not lower: the origin says the same state in other words.
            version("3", "A", 9_007_199_254_740_993),
            // Keys that a collation might take for one.
            version("4", "a", 1),
            version("4 ", "A ", 1),
            elsewhere,
            otherwise,
            // What has no version, or no key, is never old.
            of("7", "A", "{}"),
            Message { key: None, ..version("8", "", 0) },
        ];
        let expected =
            ["taken", "stale", "taken", "taken", "taken", "taken", "taken", "taken", "taken"];
        assert_eq!(words(&sender.send(&batch).await), expected, "{kind:?}");
        assert_eq!(application.count("application").await, "8", "{kind:?}");
        let held = "SELECT max(version) FROM inbox_version";
        assert_eq!(application.ask(held).await, "9007199254740993", "{kind:?}");
        // It is known all the same: its repeat is one.
        assert_eq!(words(&sender.send(&batch[1..2]).await), ["duplicate"], "{kind:?}");
        assert_eq!(application.count("inbox").await, "9", "{kind:?}");
    }
}

#[tokio::test]
async fn the_version_held_may_be_the_applications_own() {
    for kind in ALL {
        let application = Application::new(kind).await;
        application
            .run("INSERT INTO application (no, version) VALUES ('A-1', 5), ('A-2', NULL)")
            .await;
        let settings = json!({
            "apply": "UPDATE application SET version = :version WHERE no = :key",
            "version_query": "SELECT version FROM application WHERE no = :key",
        });
        let sender = sender(&application.url(), settings);
        let batch = [
            version("1", "A-1", 4),
            version("2", "A-1", 6),
            version("3", "A-1", 5),
            version("4", "A-2", 1),
            version("5", "A-3", 1),
        ];
        let expected = ["stale", "taken", "stale", "taken", "taken"];
        assert_eq!(words(&sender.send(&batch).await), expected, "{kind:?}");
        let held = "SELECT no, version FROM application ORDER BY no";
        assert_eq!(application.ask(held).await, "A-1|6\nA-2|1", "{kind:?}");
    }
}

#[tokio::test]
async fn versions_that_come_at_once_end_with_the_highest() {
    for kind in [Kind::Postgres, Kind::MySql] {
        let application = Application::new(kind).await;
        application.run("INSERT INTO application (no, version) VALUES ('A', 0)").await;
        let settings = json!({
            "apply": "UPDATE application SET version = :version WHERE no = :key",
            "version_table": "inbox_version",
        });
        let sender = sender(&application.url(), settings);
        let mut sends = tokio::task::JoinSet::new();
        for number in 1..=12 {
            let sender = std::sync::Arc::clone(&sender);
            sends.spawn(async move {
                // A deadlock is for this time.
                let message = version(&number.to_string(), "A", number);
                while send(&*sender, &message).await.is_err() {}
            });
        }
        sends.join_all().await;
        let held = "SELECT version FROM application";
        assert_eq!(application.ask(held).await, "12", "{kind:?}");
    }
}
