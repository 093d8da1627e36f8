//! A body arrives as it was written, whatever the type of its column.

use pabal_core::Bytes;
use serde_json::json;

use crate::support::{Application, Hub, Kind, Relay, on_each, until};

on_each!(numbers_and_zero_characters_arrive_digit_for_digit);

/// What is lost by whoever reads it as a number or as text.
const NUMBERS: &str =
    r#"{"id":9007199254740993,"ref":8202522731445525542,  "n":12345678901234567890123,"d":0.10}"#;
const ZERO: &str = r#"{"memo":"a\u0000b"}"#;

/// Sends these bodies through a column of this type.
async fn through(kind: Kind, column: &str, bodies: &[&[u8]]) -> Vec<Bytes> {
    let (application, hub) = (Application::new(kind).await, Hub::new());
    application
        .run(&format!(
            "ALTER TABLE outbox DROP COLUMN payload; ALTER TABLE outbox ADD COLUMN payload {column};"
        ))
        .await;
    let holds_bytes = ["bytea", "longblob", "BLOB"].contains(&column);
    for (number, body) in bodies.iter().enumerate() {
        let body = match kind {
            _ if holds_bytes => application.bytes(body),
            Kind::Postgres => format!("'{}'", std::str::from_utf8(body).unwrap()),
            Kind::MariaDb => format!("CONVERT({} USING utf8mb4)", application.bytes(body)),
            Kind::Sqlite => format!("CAST({} AS TEXT)", application.bytes(body)),
        };
        application
            .run(&format!(
                "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('{}', 'a', 'a', 't', {body})",
                application.id(&number.to_string())
            ))
            .await;
    }
    let relay = Relay::start(&application, &hub, json!({}));
    let count = bodies.len() as u64;
    until("all to be sent", async || application.count("status = 'SENT'").await == count).await;
    relay.stop().await;
    hub.taken().iter().map(|message| message.body.inline().unwrap().clone()).collect()
}

async fn numbers_and_zero_characters_arrive_digit_for_digit(kind: Kind) {
    let every: Vec<u8> = (0..=255).collect();
    let (bytes, texts): (_, &[&str]) = match kind {
        Kind::Postgres => ("bytea", &["text", "varchar", "json"]),
        Kind::MariaDb => ("longblob", &["longtext CHARACTER SET utf8mb4", "json"]),
        Kind::Sqlite => ("BLOB", &["TEXT", ""]),
    };
    let bodies: [&[u8]; 4] = [NUMBERS.as_bytes(), ZERO.as_bytes(), &every, b""];
    assert_eq!(through(kind, bytes, &bodies).await, bodies);
    for text in texts {
        let bodies = [NUMBERS.as_bytes(), ZERO.as_bytes(), "\"서울\"".as_bytes()];
        assert_eq!(through(kind, text, &bodies).await, bodies, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_numbers_survive_even_a_column_that_writes_json_anew() {
    let came = through(Kind::Postgres, "jsonb", &[NUMBERS.as_bytes()]).await;
    let expected = r#"{"d": 0.10, "n": 12345678901234567890123, "id": 9007199254740993, "ref": 8202522731445525542}"#;
    assert_eq!(came, [expected]);
}
