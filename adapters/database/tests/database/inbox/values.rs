//! What a parameter carries arrives as it was.

use pabal_core::{Body, Reason, SendError};
use serde_json::json;

use super::application::{ALL, Application, Kind};
use crate::support::*;

#[tokio::test]
async fn large_whole_numbers_and_decimals_keep_every_digit() {
    for kind in ALL {
        let application = Application::new(kind).await;
        let apply = "INSERT INTO application (no, amount, ref, memo) VALUES (:body.id, :body.n, :body.ref, :body)";
        let sender = sender(&application.url(), json!({ "apply": apply }));
        let body =
            r#"{"id":9007199254740993,"ref":8202522731445525542,"n":12345678901234567890123}"#;
        assert_eq!(words(&sender.send(&[of("1", "k", body)]).await), ["taken"], "{kind:?}");
        let body = r#"{"id":"d","ref":-9223372036854775808,"n":-0.1234567890}"#;
        assert_eq!(words(&sender.send(&[of("2", "k", body)]).await), ["taken"], "{kind:?}");
        let rows = application.ask("SELECT no, amount, ref FROM application ORDER BY seq").await;
        // MariaDB shows a decimal with all places of its column.
        let zeros = if kind == Kind::MySql { ".0000000000" } else { "" };
        let expected = format!(
            "9007199254740993|12345678901234567890123{zeros}|8202522731445525542\n\
             d|-0.1234567890|-9223372036854775808"
        );
        assert_eq!(rows, expected, "{kind:?}");
        let whole = "SELECT memo FROM application WHERE no = '9007199254740993'";
        let expected =
            r#"{"id":9007199254740993,"ref":8202522731445525542,"n":12345678901234567890123}"#;
        assert_eq!(application.ask(whole).await, expected, "{kind:?}");
    }
}

#[tokio::test]
async fn a_zero_character_is_kept_in_the_inbox_and_refused_once_where_text_cannot_hold_it() {
    for kind in ALL {
        let application = Application::new(kind).await;
        let plain = sender(&application.url(), json!({}));
        let message = of("1", "k", r#"{"memo":"a\u0000b"}"#);
        assert_eq!(words(&plain.send(std::slice::from_ref(&message)).await), ["taken"], "{kind:?}");
        let hex = match kind {
            Kind::Postgres => "SELECT encode(payload, 'hex') FROM inbox",
            _ => "SELECT lower(hex(payload)) FROM inbox",
        };
        let expected: String =
            r#"{"memo":"a\u0000b"}"#.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(application.ask(hex).await, expected, "{kind:?}");

        let apply = "INSERT INTO application (no, memo) VALUES (:key, :body.memo)";
        let sender = sender(&application.url(), json!({ "apply": apply }));
        let verdict = send(&*sender, &of("2", "k", r#"{"memo":"a\u0000b"}"#)).await;
        if kind != Kind::Postgres {
            assert!(verdict.is_ok(), "{kind:?}: {verdict:?}");
            let length = "SELECT length(CAST(memo AS BINARY)) FROM application";
            let length =
                length.replace("BINARY", if kind == Kind::Sqlite { "BLOB" } else { "BINARY" });
            assert_eq!(application.ask(&length).await, "3");
            continue;
        }
        let Err(SendError::Permanent { reason, cause }) = verdict else { panic!("{verdict:?}") };
        assert_eq!(reason, Reason::Invalid);
        let text = "a zero character, which text of PostgreSQL cannot hold: :body.memo";
        assert_eq!(cause.to_string(), text);
        assert_eq!(application.count("inbox").await, "1");
    }
}

#[tokio::test]
async fn on_postgresql_a_parameter_is_read_as_the_type_of_its_place() {
    let application = Application::new(Kind::Postgres).await;
    application
        .run(
            "CREATE TYPE mood AS ENUM ('calm', 'not so calm'); \
             CREATE TABLE typed (id uuid, at timestamptz, day date, ok boolean, mood mood, \
             doc jsonb, part jsonb, word jsonb, raw bytea, price numeric(10, 2), n smallint, t text); \
             GRANT INSERT ON typed TO runtime",
        )
        .await;
    let apply = "INSERT INTO typed VALUES (:id, :body.at, :body.at, :body.ok, :body.mood, :body, \
                 :body.part, :key, :body, :body.price, :version, coalesce(:subject, :body.n::text))";
    let sender = sender(&application.url(), json!({ "apply": apply }));
    let body = r#"{"at": "2026-11-30T12:00:00+09:00", "ok": true, "mood": "not so calm",
        "part": [1.50, "x"], "price": 12.345, "n": 12345678901234567890}"#;
    let mut message = of("1", "k\"", body);
    message.version = Some(7);
    assert_eq!(words(&sender.send(std::slice::from_ref(&message)).await), ["taken"]);
    let row = "SELECT id, extract(epoch FROM at)::bigint, day, ok, mood, doc->>'n', part, word, \
               length(raw), price, n, t FROM typed";
    let expected = format!(
        "{}|1796007600|2026-11-30|t|not so calm|12345678901234567890|[1.50, \"x\"]|\"k\\\"\"|{}|12.35|7|\
         12345678901234567890",
        message.id,
        body.len()
    );
    assert_eq!(application.ask(row).await, expected);

    // Nothing of what is none of its type, and no float in between.
    for (number, body) in [
        r#"{"at": "yesterday noon"}"#,
        r#"{"ok": "perhaps"}"#,
        r#"{"mood": "glad"}"#,
        r#"{"price": 123456789.5}"#,
        r#"{"part": "a\u0000b"}"#,
        "no JSON",
    ]
    .into_iter()
    .enumerate()
    {
        let verdict = send(&*sender, &of(&format!("bad-{number}"), "k", body)).await;
        assert!(matches!(verdict, Err(SendError::Permanent { .. })), "{body}: {verdict:?}");
    }
    assert_eq!(application.count("typed").await, "1");
}

#[tokio::test]
async fn a_body_that_is_no_text_and_one_that_is_no_json_are_told_apart() {
    for kind in ALL {
        let application = Application::new(kind).await;
        let apply = "INSERT INTO application (no, memo) VALUES (:key, :body.memo)";
        let sender = sender(&application.url(), json!({ "apply": apply }));
        let mut message = of("1", "k", "");
        message.body = Body::Inline(b"\xc1\xd6\xb9\xce".as_slice().into());
        let verdict = send(&*sender, &message).await;
        let Err(SendError::Permanent { reason, cause }) = verdict else { panic!("{verdict:?}") };
        assert_eq!(reason, Reason::Unreadable, "{kind:?}");
        assert!(cause.summary.contains("no JSON"), "{kind:?}: {cause}");
    }
}
