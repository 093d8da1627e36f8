//! The partner all relays send to: it answers at once, and remembers what came and when.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Bytes, extract::State, http::StatusCode, routing::post};
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

/// What every row's payload says.
pub(crate) struct Row {
    pub(crate) number: u64,
    pub(crate) key: String,
}

/// A row that came.
pub(crate) struct Arrival {
    pub(crate) row: Row,
    pub(crate) at: Duration,
}

/// A server of this process.
pub(crate) struct Partner {
    book: Arc<Book>,
    pub(crate) port: u16,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Book {
    arrivals: Mutex<Vec<Arrival>>,
    count: watch::Sender<usize>,
}

impl Partner {
    pub(crate) async fn start() -> Self {
        let book = Arc::new(Book::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let app = Router::new().route("/", post(take)).with_state(Arc::clone(&book));
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { book, port, serving }
    }

    /// Waits until so many came, repeats included; false if they do not come in time.
    pub(crate) async fn wait_for(&self, count: usize, limit: Duration) -> bool {
        let mut now = self.book.count.subscribe();
        let coming = now.wait_for(|now| *now >= count);
        tokio::time::timeout(limit, coming).await.is_ok()
    }

    /// What came, and forgets it.
    pub(crate) fn take(&self) -> Vec<Arrival> {
        self.book.count.send_replace(0);
        std::mem::take(&mut self.book.arrivals.lock().unwrap())
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn take(State(book): State<Arc<Book>>, body: Bytes) -> StatusCode {
    let at = crate::now();
    let Some(row) = row(&body) else {
        return StatusCode::BAD_REQUEST;
    };
    let mut arrivals = book.arrivals.lock().unwrap();
    arrivals.push(Arrival { row, at });
    book.count.send_replace(arrivals.len());
    StatusCode::OK
}

/// From the payload as it stands, or as a text inside JSON, which is how some hand it over.
fn row(body: &[u8]) -> Option<Row> {
    let mut value: Value = serde_json::from_slice(body).ok()?;
    if let Some(text) = value.as_str().or_else(|| value.get("payload")?.as_str()) {
        value = serde_json::from_str(text).ok()?;
    }
    let key = value.get("key")?.as_str()?.to_owned();
    Some(Row { number: value.get("n")?.as_u64()?, key })
}

/// Panics unless all of these came, each key in order of first arrivals.
pub(crate) fn verify(arrivals: &[Arrival], rows: usize) {
    let mut seen = HashSet::new();
    let mut last: HashMap<&str, u64> = HashMap::new();
    for Arrival { row, .. } in arrivals {
        if seen.insert(row.number) {
            let before = last.insert(&row.key, row.number);
            assert!(before < Some(row.number), "{} came after {before:?}", row.number);
        }
    }
    assert_eq!(seen.len(), rows, "rows that came");
}
