//! Stopped with work in hand.

use std::collections::BTreeMap;

use pabal_tests::{Answer, Gate, HubSetup, Partner, Request, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{dead_letters, drained, town_to};

const SENDS: usize = 20;
const UPLOAD_BYTES: usize = 8 * 1024 * 1024;

fn hub(welfare: &Partner, grace: &str) -> HubSetup {
    // All twenty at once.
    let more = "concurrency = 32";
    let file = crate::support::takes_all(welfare, more, "");
    town_to(welfare).partner("welfare", &file).hub_toml(&format!("grace = \"{grace}\""))
}

/// Hands over twenty messages, one a key, whose answers the partner holds back.
async fn twenty_in_hand(hub: &pabal_tests::Hub, partner: &Partner) {
    for number in 0..SENDS {
        let (id, key) = (format!("m-{number}"), format!("k-{number}"));
        let headers = [("ce-partitionkey", key.as_str())];
        let reply = hub.hand_over("town/orders", &id, &headers, format!("{{\"n\": {number}}}"));
        assert_eq!(reply.await.status, 202);
    }
    partner.wait_for(SENDS).await;
}

/// An upload of which only the first half is sent.
struct Upload {
    connection: TcpStream,
}

impl Upload {
    async fn begin(hub: &pabal_tests::Hub, id: &str) -> Self {
        let address = hub.url("").replace("http://", "");
        let mut connection = TcpStream::connect(&address).await.unwrap();
        let head = format!(
            "POST /in/town/orders HTTP/1.1\r\nhost: {address}\r\nce-specversion: 1.0\r\n\
             ce-id: {id}\r\nce-source: /town/orders\r\nce-type: large\r\n\
             content-type: text/plain\r\ncontent-length: {UPLOAD_BYTES}\r\n\
             expect: 100-continue\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        // Said when the body is first read: from here on the hub has it in hand.
        let mut go_on = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
        within("the hub to read the upload", connection.read_exact(&mut go_on)).await.unwrap();
        assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
        connection.write_all(&vec![b'x'; UPLOAD_BYTES / 2]).await.unwrap();
        Self { connection }
    }

    /// Sends the rest; the status, or `None` if the connection was cut.
    async fn end(mut self) -> Option<u16> {
        within("the end of an upload", async {
            self.connection.write_all(&vec![b'x'; UPLOAD_BYTES / 2]).await.ok()?;
            self.answer().await
        })
        .await
    }

    async fn answer(&mut self) -> Option<u16> {
        let mut answer = [0; 12];
        self.connection.read_exact(&mut answer).await.ok()?;
        String::from_utf8_lossy(&answer).rsplit(' ').next()?.parse().ok()
    }
}

/// How often each body came, and that all repeats had the same id.
fn counts(requests: &[Request]) -> BTreeMap<String, usize> {
    let mut ids = BTreeMap::new();
    let mut counts = BTreeMap::new();
    for request in requests {
        let id = request.message_id().unwrap();
        let known = ids.entry(request.text()).or_insert_with(|| id.to_owned());
        assert_eq!(known, id, "a repeat has the same id");
        *counts.entry(request.text()).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn a_stop_lets_work_in_hand_end_and_hands_the_rest_back_within_the_grace() {
    let partner = Partner::start().await;
    let (now, later) = (Gate::new(), Gate::new());
    partner.next(
        (0..SENDS).map(|n| Answer::status(200).behind(if n % 2 == 0 { &now } else { &later })),
    );
    let mut hub = hub(&partner, "4s").start().await;
    twenty_in_hand(&hub, &partner).await;
    let ends = Upload::begin(&hub, "ends").await;
    let never_ends = Upload::begin(&hub, "never-ends").await;

    hub.signal();
    hub.wait_for_log("stopping").await;
    // Nothing new is taken.
    let refused = hub.try_hand_over("town/orders", "late", &[], "{}").await;
    assert!(refused.as_ref().is_ok_and(|reply| reply.status == 503) || refused.is_err());
    // Half of the sends end, and one of the uploads.
    now.open();
    let taken = ends.end().await;
    assert_eq!(taken, Some(202), "an upload in hand is taken");
    let status = hub.ended().await;
    assert!(status.success(), "it ended by itself: {status}");
    let finished: Vec<String> = partner.taken().iter().map(Request::text).collect();
    assert_eq!(finished.len(), SENDS / 2);
    let mut never_ends = never_ends;
    assert_eq!(never_ends.answer().await, None, "what did not end was not acknowledged");

    // The sender hands over again what nobody acknowledged.
    later.open();
    hub.start().await;
    let body = vec![b'x'; UPLOAD_BYTES];
    let kinds = [("ce-type", "large"), ("content-type", "text/plain")];
    for (id, status) in [("ends", 200), ("never-ends", 202)] {
        let reply = hub.hand_over("town/orders", id, &kinds, body.clone()).await;
        assert_eq!(reply.status, status, "{id}");
    }
    drained(&hub, &["welfare/orders"]).await;
    assert_eq!(dead_letters(&hub).await.len(), 0);
    let all: Vec<Request> = partner.requests();
    let (large, small): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|request| request.header("ce-type") == Some("large"));
    assert_eq!(large.len(), 2);
    assert!(large.iter().all(|request| request.body == body));
    for (body, count) in counts(&small) {
        let expected = if finished.contains(&body) { 1 } else { 2 };
        assert_eq!(count, expected, "{body}: once if it ended, again if it was handed back");
    }
    assert_eq!(small.len(), SENDS + SENDS / 2);
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once_and_the_next_start_is_careful_and_loses_nothing() {
    let partner = Partner::start().await;
    let gate = Gate::new();
    partner.next((0..SENDS).map(|_| Answer::status(200).behind(&gate)));
    // So long that only the second signal can be what ends it.
    let mut hub = hub(&partner, "1h").start().await;
    twenty_in_hand(&hub, &partner).await;
    hub.signal();
    hub.wait_for_log("stopping").await;
    hub.signal();
    let status = hub.ended().await;
    assert_eq!(status.code(), Some(1), "with work in hand it is no good end");
    assert!(hub.log().contains("ended at once"));

    // Careful: what could have been in flight is noted, so that a second unclean end makes each a
    // suspect, which is sent with nothing else beside it.
    let again = Gate::new();
    partner.next((0..SENDS).map(|_| Answer::status(200).behind(&again)));
    hub.start().await;
    partner.wait_for(2 * SENDS).await;
    hub.kill9().await;
    let alone = Gate::new();
    partner.next([Answer::status(200).behind(&alone)]);
    hub.start().await;
    let requests = partner.wait_for(2 * SENDS + 1).await;
    assert_eq!(requests.len(), 2 * SENDS + 1);
    let status = hub.api_get("/api/v1/status").await;
    assert_eq!(status["destinations"][0]["waiting"], SENDS);
    assert_eq!(partner.requests().len(), 2 * SENDS + 1, "one suspect at a time");
    alone.open();
    drained(&hub, &["welfare/orders"]).await;
    assert_eq!(dead_letters(&hub).await.len(), 0);
    let counts = counts(&partner.requests());
    assert_eq!(counts.len(), SENDS);
    assert!(counts.values().all(|count| *count == 3), "{counts:?}");
    assert_eq!(hub.terminate().await.code(), Some(0));
}
