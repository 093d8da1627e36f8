//! Every case that a receiver must pass.

use std::sync::Arc;

use async_trait::async_trait;
use pabal_conformance::adapter::{Belief, Feature, Origin, Partner, Subject, check};
use pabal_core::{Message, Receiver, SystemClock};
use serde_json::{Map, json};

use crate::support::{Application, Kind, receiver};

const CANNOT: [(Feature, &str); 1] =
    [(Feature::Sends, "the inbox table is another adapter's half, with tests of its own")];

#[async_trait]
impl Subject for Kind {
    async fn partner(&self) -> Box<dyn Partner> {
        unreachable!("it does not send")
    }

    async fn origin(&self) -> Box<dyn Origin> {
        let application = Application::new(*self).await;
        if *self == Kind::Postgres {
            application.run("ALTER TABLE outbox ALTER COLUMN id TYPE text").await;
        }
        for column in ["event_source", "event_subject", "event_time"] {
            application.run(&format!("ALTER TABLE outbox ADD COLUMN {column} varchar(512)")).await;
        }
        Box::new(application)
    }
}

#[async_trait]
impl Origin for Application {
    async fn put(&self, messages: &[Message]) {
        for message in messages {
            let text = |text: Option<&str>| match text {
                Some(text) => format!("'{}'", text.replace('\'', "''").replace('\\', "\\\\")),
                None => "NULL".to_owned(),
            };
            let headers: Map<_, _> = message
                .headers
                .iter()
                .map(|(name, value)| (name.to_owned(), json!(value)))
                .collect();
            let mut headers = serde_json::to_string(&headers).unwrap();
            if self.kind() == Kind::MariaDb {
                // Its strings know escapes.
                headers = headers.replace('\\', "\\\\");
            }
            let id = message.origin.id.as_deref().unwrap();
            let version = message.version.map_or("NULL".to_owned(), |it| it.to_string());
            self.run(&format!(
                "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, content_type, \
                 schema_version, version, correlation_id, causation_id, traceparent, headers, \
                 event_source, event_subject, event_time) VALUES ('{id}', '', {}, {}, {}, {}, {}, {version}, \
                 {}, {}, {}, '{headers}', {}, {}, {})",
                text(message.key.as_deref()),
                text(Some(&message.message_type)),
                self.bytes(message.body.inline().unwrap()),
                text(message.content_type.as_deref()),
                text(message.schema.as_deref()),
                text(message.correlation.as_deref()),
                text(message.causation.as_deref()),
                text(message.trace.as_deref()),
                text(Some(&message.origin.source)),
                text(message.subject.as_deref()),
                text(message.time.as_deref()),
            ))
            .await;
        }
    }

    async fn receiver(&self) -> Arc<dyn Receiver> {
        let columns = json!({
            "source": "event_source", "subject": "event_subject", "time": "event_time",
        });
        receiver(&self.url(), json!({ "columns": columns }), Arc::new(SystemClock))
    }

    async fn offer(&self) {}

    async fn believes(&self, message: &Message) -> Belief {
        let id = message.origin.id.as_deref().unwrap();
        match self.one(&format!("SELECT status FROM outbox WHERE id = '{id}'")).await.as_str() {
            "NEW" => Belief::Waiting,
            "SENT" => Belief::Acknowledged,
            "FAILED" => Belief::Refused,
            other => panic!("status `{other}`"),
        }
    }

    async fn kill(&self) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_on_postgresql_does_all_that_an_origin_must() {
    check(&Kind::Postgres, &CANNOT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_on_mariadb_does_all_that_an_origin_must() {
    check(&Kind::MariaDb, &CANNOT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_on_sqlite_does_all_that_an_origin_must() {
    check(&Kind::Sqlite, &CANNOT).await;
}
