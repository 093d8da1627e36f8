//! What a hot cache saves where messages come again, and what it costs where they do not.

use std::sync::Arc;

use pabal_conformance::postgres::{OWNER, Server};
use pabal_core::{Clock, EndpointName, HotCache, Message, Secret, Sender, Store, SystemClock};
use pabal_engine::{Engine, InProcess, NoObserver, Setup, Source};

use crate::table::print;

/// Hand-overs at a time, each of one message, as callers of an HTTP interface are.
const CALLERS: usize = 64;
const MESSAGES: usize = 20_000;
/// How many of a hundred messages are repeats.
const REPEATS: [usize; 3] = [0, 50, 95];

/// Both stores, with and without, for each share of repeats.
pub(crate) async fn run() {
    let mut rows = Vec::new();
    for kind in ["sqlite", "postgres"] {
        for repeats in REPEATS {
            let without = measure(kind, repeats, false).await;
            let with = measure(kind, repeats, true).await;
            rows.push(vec![
                kind.to_owned(),
                format!("{repeats} %"),
                format!("{without:.0}"),
                format!("{with:.0}"),
                format!("{:.2} ×", with / without),
            ]);
        }
    }
    print(&["store", "repeats", "messages/s without", "with", "ratio"], &rows);
}

/// Messages a second.
async fn measure(kind: &str, repeats: usize, cached: bool) -> f64 {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let folder = tempfile::tempdir().unwrap();
    // On PostgreSQL with its syncs, as in production.
    let server = (kind == "postgres").then(|| Server::start(&[]));
    let store: Arc<dyn Store> = match &server {
        None => {
            let path = folder.path().join("hub.db");
            let options = pabal_store_sqlite::Options { path, hub_name: "bench".to_owned() };
            let opened = pabal_store_sqlite::SqliteStore::open(options, Arc::clone(&clock));
            Arc::new(opened.await.unwrap())
        }
        Some(server) => {
            let options = pabal_store_postgres::Options {
                url: Secret::new(server.database().url(OWNER)),
                listen_url: None,
                hub_name: "bench".to_owned(),
                connections: 8,
                may_migrate: true,
            };
            let opened = pabal_store_postgres::PostgresStore::open(options, Arc::clone(&clock));
            Arc::new(opened.await.unwrap())
        }
    };
    let source: EndpointName = "town/forms".parse().unwrap();
    let cache: Arc<dyn HotCache> = Arc::new(InProcess::holding(MESSAGES.try_into().unwrap()));
    let sources =
        vec![Source { hot_cache: cached.then_some(cache), ..Source::new(source.clone(), None) }];
    let engine = Engine::start(Setup {
        hub: "bench".to_owned(),
        node: "one".to_owned(),
        plan: "plan".to_owned(),
        lease: std::time::Duration::from_secs(15),
        store,
        clock,
        observer: Arc::new(NoObserver),
        sources,
        destinations: Vec::new(),
        grace: std::time::Duration::from_secs(10),
        idle: false,
    })
    .await
    .unwrap();
    let inbox = engine.inbox(&source).unwrap();
    // Every repeat is of one that was taken well before.
    let fresh = (MESSAGES * (100 - repeats) / 100).max(1);
    hand_over(&inbox, &source, 0..fresh).await;
    let begun = crate::now();
    let again = (0..MESSAGES).map(|n| if n % 100 < repeats { n % fresh } else { fresh + n });
    hand_over(&inbox, &source, again.collect::<Vec<_>>()).await;
    let took = crate::now() - begun;
    engine.stop().await;
    MESSAGES as f64 / took.as_secs_f64()
}

async fn hand_over(
    inbox: &Arc<dyn Sender>,
    source: &EndpointName,
    numbers: impl IntoIterator<Item = usize>,
) {
    let numbers: Vec<_> = numbers.into_iter().collect();
    let share = numbers.len().div_ceil(CALLERS);
    let callers = numbers.chunks(share).map(|numbers| {
        let (inbox, source, numbers) = (Arc::clone(inbox), source.clone(), numbers.to_vec());
        tokio::spawn(async move {
            for number in numbers {
                let mut message = Message::new(source.clone(), "form.submitted", vec![b'x'; 1024]);
                message.origin.id = Some(number.to_string());
                inbox.send(&[message]).await.remove(0).unwrap();
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
}
