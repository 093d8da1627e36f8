//! What is taken, what is a repeat, and who is spared.

use std::sync::Arc;

use pabal_core::{Message, Reason, SendError, Sender};
use serde_json::json;
use tokio::task::JoinSet;

use super::application::{ALL, Application, Kind};
use crate::support::*;

const APPLY: &str = "INSERT INTO application (no, memo) VALUES (:key, :body.memo)";

async fn application(kind: Kind) -> (Application, Arc<dyn Sender>) {
    let application = Application::new(kind).await;
    let sender = sender(&application.url(), json!({ "apply": APPLY }));
    (application, sender)
}

#[tokio::test]
async fn a_message_and_what_follows_from_it_come_together_and_a_repeat_changes_nothing() {
    for kind in ALL {
        let (application, sender) = application(kind).await;
        let mut message = of("1", "A-1", r#"{"memo": "처음"}"#);
        message.headers.push("x-a", "b");
        message.headers.push("X-A", "c");
        message.correlation = Some("case 7".to_owned());
        assert_eq!(words(&sender.send(std::slice::from_ref(&message)).await), ["taken"]);
        let row = "SELECT id, source, origin_id, event_type, aggregate_id, correlation_id, \
                   content_type, processed_at IS NULL FROM inbox";
        let there = application.ask(row).await;
        let expected = format!(
            "{}|welfare/decisions|1|application.submitted|A-1|case 7|application/json|",
            message.id
        );
        assert!(there.starts_with(&expected), "{kind:?}: {there}");
        assert!(application.ask("SELECT headers FROM inbox").await.contains("b, c"));
        assert_eq!(application.ask("SELECT no, memo FROM application").await, "A-1|처음");
        for _ in 0..2 {
            let again = sender.send(&[message.clone(), of("1", "A-1", "{}")]).await;
            assert_eq!(words(&again), ["duplicate", "duplicate"], "{kind:?}");
        }
        assert_eq!(application.ask("SELECT no, memo FROM application").await, "A-1|처음");
        assert_eq!(application.count("inbox").await, "1");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_copies_at_once_from_two_nodes_are_applied_once() {
    for kind in ALL {
        let (application, first) = application(kind).await;
        let second = sender(&application.url(), json!({ "apply": APPLY }));
        let mut sends = JoinSet::new();
        for copy in 0..20 {
            let sender = Arc::clone(if copy % 2 == 0 { &first } else { &second });
            sends.spawn(async move { send(&*sender, &of("1", "A-1", "{}")).await });
        }
        let verdicts = sends.join_all().await;
        let mut words = words(&verdicts);
        words.sort_unstable();
        words.dedup();
        let taken = verdicts.iter().flatten().filter(|receipt| !receipt.duplicate).count();
        assert_eq!((words, taken), (vec!["duplicate", "taken"], 1), "{kind:?}: {verdicts:?}");
        assert_eq!(application.count("application").await, "1");
    }
}

#[tokio::test]
async fn one_that_cannot_be_applied_leaves_nothing_and_spares_its_neighbours() {
    for kind in ALL {
        let (application, sender) = application(kind).await;
        assert!(send(&*sender, &of("0", "A-0", "{}")).await.is_ok());
        // `no` is taken: about the data.
        let clash = of("9", "A-0", "{}");
        let batch = [
            of("1", "A-1", "{}"),
            clash.clone(),
            of("10", "A-0", "{}"),
            of("2", "A-2", "{}"),
            of("3", "A-3", "{}"),
        ];
        let verdicts = sender.send(&batch).await;
        let expected = ["taken", "permanent", "not sent", "taken", "taken"];
        assert_eq!(words(&verdicts), expected, "{kind:?}");
        let Err(SendError::Permanent { reason, cause }) = &verdicts[1] else {
            panic!("{verdicts:?}")
        };
        assert_eq!(*reason, Reason::Invalid);
        assert!(cause.summary.starts_with("database error"), "{cause:?}");
        // Its id is not taken: once the cause is gone, it is.
        let in_the_way = "DELETE FROM application WHERE no = 'A-0'";
        application.run(in_the_way).await;
        assert_eq!(words(&sender.send(&[clash]).await), ["taken"], "{kind:?}");
        assert_eq!(application.count("inbox").await, "5");
    }
}

#[tokio::test]
async fn the_same_id_of_two_sources_is_two_messages() {
    for kind in ALL {
        let (application, sender) = application(kind).await;
        let mut batch: Vec<Message> =
            ["p/a", "q/a", "p/b"].iter().map(|source| message(source, "1")).collect();
        for (number, message) in batch.iter_mut().enumerate() {
            message.key = Some(format!("A-{number}"));
        }
        assert_eq!(words(&sender.send(&batch).await), ["taken"; 3], "{kind:?}");
        assert_eq!(application.count("application").await, "3");
    }
}

#[tokio::test]
async fn several_statements_are_one_transaction_in_their_order() {
    for kind in ALL {
        let application = Application::new(kind).await;
        let settings = json!({ "apply": [
            "INSERT INTO application (no, memo) VALUES (:key, 'new')",
            "UPDATE application SET memo = :word WHERE no = :key; -- and what is in ':key'",
        ], "parameters": { "word": ".a.\"the word\"[1]" } });
        let sender = sender(&application.url(), settings);
        let good = of("1", "A-1", r#"{"a": {"the word": ["no", "yes"]}}"#);
        let bad = of("2", "A-1", "{}");
        assert_eq!(words(&sender.send(&[good]).await), ["taken"], "{kind:?}");
        assert_eq!(words(&sender.send(&[bad]).await), ["permanent"], "{kind:?}");
        let there = application.ask("SELECT no, memo FROM application").await;
        assert_eq!(there, "A-1|yes", "{kind:?}");
    }
}

#[tokio::test]
async fn a_missing_table_column_or_right_is_about_the_place_and_not_the_message() {
    for kind in ALL {
        let (application, sender) = application(kind).await;
        let batch = [of("1", "A-1", "{}"), of("2", "A-1", "{}"), of("3", "B-1", "{}")];
        application.run("ALTER TABLE application RENAME COLUMN memo TO note").await;
        let verdicts = sender.send(&batch).await;
        assert_eq!(words(&verdicts), ["unreachable", "not sent", "unreachable"], "{kind:?}");
        application.run("ALTER TABLE application RENAME COLUMN note TO memo").await;
        application.run("ALTER TABLE inbox RENAME TO elsewhere").await;
        assert_eq!(words(&sender.send(&batch[..1]).await), ["unreachable"], "{kind:?}");
        application.run("ALTER TABLE elsewhere RENAME TO inbox").await;
        assert_eq!(words(&sender.send(&batch[2..]).await), ["taken"], "{kind:?}");
    }
}

#[tokio::test]
async fn who_waits_on_a_channel_is_told_with_the_commit_and_of_nothing_else() {
    let application = Application::new(Kind::Postgres).await;
    let settings = json!({ "apply": APPLY, "notify": "arrivals" });
    let sender = sender(&application.url(), settings);
    let mut ear = sqlx::postgres::PgListener::connect(&application.url()).await.unwrap();
    ear.listen("arrivals").await.unwrap();
    let (first, second) = (of("1", "A-1", "{}"), of("2", "A-2", "{}"));
    assert!(send(&*sender, &first).await.is_ok());
    // A repeat and a refusal tell nobody.
    assert!(send(&*sender, &first).await.is_ok());
    assert!(send(&*sender, &of("3", "A-1", "{}")).await.is_err());
    assert!(send(&*sender, &second).await.is_ok());
    for message in [first, second] {
        assert_eq!(ear.recv().await.unwrap().payload(), message.id.to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_on_one_row_holds_up_its_own_message_alone() {
    let application = Application::new(Kind::Postgres).await;
    application.run("INSERT INTO application (no) VALUES ('A-1'), ('A-2'), ('A-3')").await;
    let apply = "UPDATE application SET memo = 'done' WHERE no = :key";
    let sender = sender(&application.url(), json!({ "apply": apply, "timeout": "10s" }));
    let mut other = sqlx::PgPool::connect(&application.url()).await.unwrap().begin().await.unwrap();
    sqlx::query("SELECT 1 FROM application WHERE no = 'A-2' FOR UPDATE")
        .execute(&mut *other)
        .await
        .unwrap();
    let batch = ["A-1", "A-2", "A-3"].map(|key| of(key, key, "{}"));
    let sending = {
        let sender = Arc::clone(&sender);
        tokio::spawn(async move { sender.send(&batch).await })
    };
    let others = "SELECT count(*) FROM application WHERE memo = 'done'";
    let mut ticks = tokio::time::interval(std::time::Duration::from_millis(20));
    while application.ask(others).await != "2" {
        assert!(!sending.is_finished());
        ticks.tick().await;
    }
    other.rollback().await.unwrap();
    assert_eq!(words(&sending.await.unwrap()), ["taken"; 3]);
}
