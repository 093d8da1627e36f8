//! What is compared: ways from an outbox table to an HTTP partner.

use std::{path::PathBuf, process::Stdio, time::Duration};

use pabal_tests::{Hub, Postgres, repository};
use sqlx::{PgPool, postgres::PgPoolOptions};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    task::JoinHandle,
};

/// One way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relay {
    /// What one writes in an afternoon: every second the next hundred rows in order, for each a
    /// request and an update.
    Textbook,
    /// A log-based relay by its embedded engine.
    Embedded,
    /// Ours.
    Hub(&'static str),
}

pub(crate) const ALL: [Relay; 5] =
    [Relay::Textbook, Relay::Embedded, Relay::Hub("poll"), Relay::Hub("notify"), Relay::Hub("cdc")];

impl Relay {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Textbook => "textbook",
            Self::Embedded => "embedded log-based engine",
            Self::Hub("poll") => "pabal, poll",
            Self::Hub("notify") => "pabal, notify",
            Self::Hub(_) => "pabal, cdc",
        }
    }

    /// Whether what it needs is there.
    pub(crate) fn is_there(self) -> bool {
        self != Self::Embedded || python().is_some()
    }

    /// Starts it; it runs until what is returned is dropped.
    pub(crate) async fn start(self, database: &Postgres, partner: u16) -> Running {
        match self {
            Self::Textbook => Running::Task(tokio::spawn(textbook(database.owner(), partner))),
            Self::Embedded => embedded(database, partner).await,
            Self::Hub(relay) => Running::Hub(hub(database, relay, partner).await),
        }
    }
}

/// A relay at work.
pub(crate) enum Running {
    Task(JoinHandle<()>),
    Process(#[expect(dead_code, reason = "killed on drop")] Child, TempDir),
    Hub(#[expect(dead_code, reason = "stopped on drop")] Hub),
}

impl Drop for Running {
    fn drop(&mut self) {
        match self {
            Self::Task(task) => task.abort(),
            // It writes there until its end.
            Self::Process(_, folder) => folder.disable_cleanup(false),
            Self::Hub(_) => {}
        }
    }
}

async fn textbook(url: String, partner: u16) {
    let pool: PgPool = PgPoolOptions::new().max_connections(1).connect(&url).await.unwrap();
    let client = reqwest::Client::new();
    let target = format!("http://127.0.0.1:{partner}/");
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        let rows: Vec<(sqlx::types::Uuid, Vec<u8>)> = sqlx::query_as(
            "SELECT id, convert_to(payload::text, 'UTF8') FROM outbox WHERE status = 'NEW' \
             ORDER BY seq LIMIT 100",
        )
        .fetch_all(&pool)
        .await
        .unwrap();
        if rows.is_empty() {
            tick.tick().await;
        }
        for (id, payload) in rows {
            let answer = client.post(&target).body(payload).send().await.unwrap();
            answer.error_for_status().unwrap();
            sqlx::query("UPDATE outbox SET status = 'SENT', sent_at = now() WHERE id = $1")
                .bind(id)
                .execute(&pool)
                .await
                .unwrap();
        }
    }
}

async fn hub(database: &Postgres, relay: &str, partner: u16) -> Hub {
    let town = format!(
        "name = \"Town\"\n[source.forms.database]\nurl = {{ env = \"TOWN_DATABASE_URL\" }}\n\
         relay = \"{relay}\"\n"
    );
    let bank = format!(
        "name = \"Bank\"\n[destination.forms]\ntakes = [\"*\"]\n[destination.forms.rest]\n\
         url = \"http://127.0.0.1:{partner}/\"\n"
    );
    let setup = Hub::setup().partner("town", &town).partner("bank", &bank);
    setup.variable("TOWN_DATABASE_URL", &database.owner()).start().await
}

/// The Python that has the engine: made by `cargo xtask bench relay`.
fn python() -> Option<PathBuf> {
    std::env::var_os("PABAL_BENCH_PYTHON").map(PathBuf::from)
}

async fn embedded(database: &Postgres, partner: u16) -> Running {
    let url = database.owner();
    let (_, place) = url.split_once("://").unwrap();
    let (user, place) = place.split_once('@').unwrap();
    let (host, rest) = place.split_once(':').unwrap();
    let (port, name) = rest.split_once('/').unwrap();
    let folder = TempDir::with_prefix("pabal-bench-").unwrap();
    let child = Command::new(python().unwrap())
        .arg(repository("tests/benches/bench/embedded.py"))
        .args([host, port, name, user, &partner.to_string()])
        .arg(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    Running::Process(child, folder)
}
