//! What a message costs here: `cargo run --release -p pabal-store-sqlite --example measure [FOLDER]`.
//! Prints microseconds per message for groups of 500, each committed to disk.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a tool to look at")]

use std::{path::PathBuf, sync::Arc, time::Duration};

use pabal_core::*;
use pabal_store_sqlite::{Options, SqliteStore};

const GROUPS: usize = 20;
const GROUP: usize = 500;

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir_in(
        std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from),
    )
    .unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let options =
        Options { path: folder.path().join("measure.db"), hub_name: "measure".to_owned() };
    let store = SqliteStore::open(options, clock.clone()).await.unwrap();
    let (mut accept, mut tail, mut load, mut settle) = Default::default();
    let mut after = 0;
    for round in 0..GROUPS {
        let group: Vec<_> = (0..GROUP).map(|n| entry(round * GROUP + n)).collect();
        timed(&*clock, &mut accept, async {
            store.accept(&group).await.unwrap();
        })
        .await;
        let mut deliveries = Vec::new();
        timed(&*clock, &mut tail, async {
            let which = Which::Tail { after };
            deliveries = store.deliveries(which, GROUP).await.unwrap();
        })
        .await;
        after = deliveries.last().unwrap().number;
        let which: Vec<_> = deliveries.iter().map(|it| (it.number, it.message)).collect();
        timed(&*clock, &mut load, async {
            store.load(&which).await.unwrap();
        })
        .await;
        let group: Vec<_> = deliveries.into_iter().map(settlement).collect();
        timed(&*clock, &mut settle, async {
            store.settle(Epoch(1), &group).await.unwrap();
        })
        .await;
    }
    for (what, time) in [("accept", accept), ("tail", tail), ("load", load), ("settle", settle)] {
        let messages = (GROUPS * GROUP) as u128;
        println!("{what:8} {:4} µs", time.as_micros() / messages);
    }
}

async fn timed(clock: &dyn Clock, sum: &mut Duration, work: impl Future<Output = ()>) {
    let start = clock.elapsed();
    work.await;
    *sum += clock.elapsed() - start;
}

fn entry(n: usize) -> Entry {
    let source: EndpointName = "p/in".parse().unwrap();
    let mut message = Message::new(source, "application.submitted", vec![b'x'; 1024]);
    let origin_id = format!("2026-{n:09}");
    message.id = MessageId::of("measure", &message.source, &message.origin.source, &origin_id);
    message.origin.id = Some(origin_id);
    message.key = Some(format!("application-{}", n % 1000));
    message.content_type = Some("application/json".to_owned());
    Entry::Message(NewMessage {
        fingerprint: Fingerprint::of(message.body.inline().unwrap()),
        message,
        destinations: vec!["q/out".parse().unwrap()],
        faults: Vec::new(),
        repeats: 0,
    })
}

fn settlement(delivery: Delivery) -> Settlement {
    Settlement {
        number: delivery.number,
        message: delivery.message,
        destination: delivery.destination,
        round: delivery.round,
        handout: None,
        attempt: Some(Attempt {
            outcome: "delivered",
            duration: Duration::from_millis(3),
            cause: None,
            answer: Some(Answer {
                status: Some(200),
                headers: Headers::default(),
                body: Bytes::from_static(b"{\"ok\":true}"),
            }),
            sha256: Some([1; 32]),
            size: 1024,
        }),
        fate: Fate::Delivered,
    }
}
