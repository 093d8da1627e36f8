//! Writing into an application's own tables, on each kind of database and without a hub.

#![expect(
    clippy::unwrap_used,
    reason = "all of this is tests; clippy knows only of the functions marked as such"
)]

#[macro_use]
mod cases;
mod mysql;
mod postgres;
mod sqlite;

use std::fs;

use pabal_outbox::{Event, Message, MessageBuilder, Schema};

#[derive(serde::Serialize)]
struct Submitted {
    number: String,
    applicant: String,
}

impl Event for Submitted {
    const TYPE: &'static str = "application.submitted";
    const SCHEMA: Schema = Schema::new("application", 1, 0);
}

/// About this application, with nothing but the necessary.
fn about(number: &str) -> MessageBuilder {
    let event = Submitted { number: number.into(), applicant: "김파발".into() };
    Message::of(&event).aggregate("application", number)
}

/// With all that a message can have; its payload is not text.
fn complete() -> MessageBuilder {
    Message::bytes("scan.added", "image/tiff", [0, b'\\', 0xff, b'\''])
        .aggregate("application", "가'나\\1")
        .schema("scan@2.1".parse().unwrap())
        .version(i64::MAX)
        .correlation("case \"7\"")
        .causation("cause")
        .traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .destination("welfare/scans")
        .header("Region", "서울")
}

/// The documented table of a kind of database.
fn table(kind: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/app-side");
    fs::read_to_string(format!("{root}/{kind}/outbox.sql")).unwrap()
}
