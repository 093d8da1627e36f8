//! Partners that fetch: what a call may be, and what it is answered.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use pabal_adapter_rest::{Ingress, PullAdapter};
use pabal_core::{Adapter, Handout, Mailbox, Message, PullError, Pulled, Refusal, Settled, Stop};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    receiving::{client, said},
    support::*,
};

/// A mailbox that gives what the test put in, and keeps what it was told.
#[derive(Debug, Default)]
struct Letters {
    messages: Mutex<Vec<Message>>,
    error: Mutex<Option<PullError>>,
    asked: Mutex<Vec<(usize, Duration)>>,
    acked: Mutex<Vec<Handout>>,
    nacked: Mutex<Vec<(Vec<Handout>, Refusal)>>,
    /// Pulls that wait for ever, and how many do.
    silent: bool,
    waiting: tokio::sync::watch::Sender<usize>,
}

#[async_trait]
impl Mailbox for Letters {
    async fn pull(&self, max: usize, wait: Duration) -> Result<Vec<Pulled>, PullError> {
        self.asked.lock().unwrap().push((max, wait));
        if let Some(error) = self.error.lock().unwrap().clone() {
            return Err(error);
        }
        if self.silent {
            self.waiting.send_modify(|count| *count += 1);
            std::future::pending::<()>().await;
        }
        let mut messages = self.messages.lock().unwrap();
        let taken = messages.len().min(max);
        let pulled = (1..).zip(messages.drain(..taken)).map(|(number, message)| Pulled {
            handout: Handout { number, message: message.id, round: 0, attempt: 3 },
            message,
            room: Box::new(()),
        });
        Ok(pulled.collect())
    }

    async fn ack(&self, which: &[Handout]) -> Result<Vec<Settled>, PullError> {
        self.acked.lock().unwrap().extend(which);
        Ok(which
            .iter()
            .map(|it| if it.number == 1 { Settled::Done } else { Settled::NotThere })
            .collect())
    }

    async fn nack(&self, which: &[Handout], why: &Refusal) -> Result<Vec<Settled>, PullError> {
        self.nacked.lock().unwrap().push((which.to_vec(), why.clone()));
        Ok(vec![Settled::Done; which.len()])
    }
}

/// A listener with one destination that is fetched from.
struct Out {
    address: SocketAddr,
    stop: Stop,
    run: JoinHandle<()>,
    server: JoinHandle<()>,
}

impl Drop for Out {
    fn drop(&mut self) {
        self.run.abort();
        self.server.abort();
    }
}

impl Out {
    async fn open(settings: Value, mailbox: &Arc<Letters>) -> Self {
        let ingress = Ingress::new();
        let pickup = PullAdapter::new(ingress.clone()).pickup(&context(settings)).unwrap().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = ingress.router().into_make_service_with_connect_info::<SocketAddr>();
        let server = tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
        let stop = Stop::new();
        let (mailbox, end) = (Arc::clone(mailbox) as Arc<dyn Mailbox>, stop.clone());
        let run = tokio::spawn(async move { pickup.run(mailbox, end).await.unwrap() });
        // One turn, and it is open.
        tokio::task::yield_now().await;
        Self { address, stop, run, server }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/in/welfare/applications/{path}", self.address)
    }

    fn get(&self, path: &str) -> reqwest::RequestBuilder {
        client().get(self.url(path))
    }

    fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> reqwest::RequestBuilder {
        client().post(self.url(path)).body(body)
    }
}

fn with(messages: impl IntoIterator<Item = Message>) -> Arc<Letters> {
    Arc::new(Letters { messages: Mutex::new(messages.into_iter().collect()), ..Letters::default() })
}

#[tokio::test]
async fn a_batch_is_cloudevents_with_a_token_each_and_no_digit_changes() {
    let mut other = message(&b"\0\xff"[..]);
    other.content_type = Some("application/octet-stream".into());
    other.key = None;
    // An origin cannot bring a token.
    other.headers.push("ce-pulltoken", "mine");
    other.headers.push("ce-tenant", "x");
    let mailbox = with([message(r#"{"amount":1.10,"n":12345678901234567890}"#), other]);
    let out = Out::open(json!({ "auth": "none" }), &mailbox).await;
    let answer = out.get("pull?max=5&wait=7").send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/cloudevents-batch+json");
    assert_eq!(answer.headers()["cache-control"], "no-store");
    let text = answer.text().await.unwrap();
    assert!(text.contains(r#""data":{"amount":1.10,"n":12345678901234567890}"#), "{text}");
    let events: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(text.matches("pulltoken").count(), 2, "{text}");
    assert_eq!((&events[1]["data_base64"], &events[1]["tenant"]), (&json!("AP8="), &json!("x")));
    assert_eq!((&events[0]["pullattempt"], &events[0]["specversion"]), (&json!(3), &json!("1.0")));
    assert_eq!(events[0]["id"], message("").id.to_string());
    let tokens: Vec<_> = events.iter().map(|event| &event["pulltoken"]).collect();
    let (status, said) = said(out.post("ack", json!({ "tokens": tokens }).to_string())).await;
    assert_eq!(status, 200);
    let results: Vec<_> =
        said["results"].as_array().unwrap().iter().map(|it| &it["result"]).collect();
    assert_eq!(results, ["done", "gone"]);
    let acked = mailbox.acked.lock().unwrap().clone();
    assert_eq!((acked[0].number, acked[0].message, acked[0].attempt), (1, message("").id, 3));
    let empty = out.get("pull").send().await.unwrap();
    assert_eq!((empty.status().as_u16(), empty.bytes().await.unwrap().len()), (204, 0));
    let asked = mailbox.asked.lock().unwrap().clone();
    assert_eq!(asked, [(5, Duration::from_secs(7)), (100, Duration::ZERO)]);
}

#[tokio::test]
async fn wishes_are_bounded_and_what_is_no_wish_is_refused() {
    let mailbox = with([]);
    let out = Out::open(json!({ "auth": "none", "batch_max": 7 }), &mailbox).await;
    for query in ["?max=0", "?max=-1", "?max=x", "?wait=1.5", "?limit=3", "?max=1&max=2", "?wait"] {
        let (status, document) = said(out.get(&format!("pull{query}"))).await;
        assert_eq!(
            (status, &document["type"]),
            (400, &json!("urn:pabal:problem:unreadable")),
            "{query}"
        );
    }
    assert!(mailbox.asked.lock().unwrap().is_empty());
    out.get("pull?max=4000000000&wait=4000000000").send().await.unwrap();
    assert_eq!(*mailbox.asked.lock().unwrap(), [(7, Duration::from_secs(60))]);
}

#[tokio::test]
async fn a_refusal_is_read_strictly() {
    let mailbox = with([message("{}")]);
    let out = Out::open(json!({ "auth": "none" }), &mailbox).await;
    let events: Value = out.get("pull").send().await.unwrap().json().await.unwrap();
    let tokens = json!([events[0]["pulltoken"]]);
    let many = vec!["x"; 1001];
    for (body, status) in [
        (json!({ "tokens": tokens, "delay": "30s", "permanent": true }), 422),
        (json!({ "tokens": tokens, "delay": "31days" }), 422),
        (json!({ "tokens": tokens, "reason": "a\0b" }), 422),
        (json!({ "tokens": many }), 422),
        (json!({ "tokens": tokens, "dealy": "30s" }), 400),
        (json!({ "tokens": "x" }), 400),
        (json!({}), 400),
        (json!([]), 400),
        (json!({ "tokens": [], "reason": "x".repeat(300_000) }), 413),
    ] {
        let (got, document) = said(out.post("nack", body.to_string())).await;
        assert_eq!(got, status, "{document}");
    }
    assert!(mailbox.nacked.lock().unwrap().is_empty());
    let body = json!({ "tokens": tokens, "delay": "1m 30s", "reason": "later" });
    assert_eq!(said(out.post("nack", body.to_string())).await.0, 200);
    let (which, why) = mailbox.nacked.lock().unwrap().remove(0);
    let delay = Some(Duration::from_secs(90));
    assert_eq!(which.len(), 1);
    assert_eq!(why, Refusal { delay, reason: Some("later".into()), permanent: false });
}

#[tokio::test]
async fn a_message_that_cannot_stand_in_headers_is_refused_and_in_nobodys_way() {
    let mut huge = message("1");
    huge.headers.push("ce-note", "x".repeat(9_000));
    let mailbox = with([huge, message("2")]);
    let out = Out::open(json!({ "auth": "none", "mode": "binary" }), &mailbox).await;
    let answer = out.get("pull?wait=20").send().await.unwrap();
    assert_eq!(answer.headers()["ce-partitionkey"], "case-7");
    assert_eq!(answer.text().await.unwrap(), "2");
    let nacked = mailbox.nacked.lock().unwrap();
    assert!(nacked.len() == 1 && nacked[0].1.permanent, "{nacked:?}");
}

#[tokio::test]
async fn who_comes_too_often_or_too_early_or_to_a_pause_is_asked_to_come_back() {
    let mailbox = Arc::new(Letters { silent: true, ..Letters::default() });
    let out = Out::open(json!({ "auth": "none", "concurrent": 2 }), &mailbox).await;
    let waiting: Vec<_> = (0..2).map(|_| tokio::spawn(out.get("pull?wait=60").send())).collect();
    mailbox.waiting.subscribe().wait_for(|count| *count == 2).await.unwrap();
    let third = out.get("pull?wait=60").send().await.unwrap();
    assert_eq!(
        (third.status().as_u16(), &third.headers()["retry-after"].to_str().unwrap()),
        (503, &"1")
    );
    assert_eq!(third.json::<Value>().await.unwrap()["type"], "urn:pabal:problem:busy");
    // Acks have room all the same.
    assert_eq!(said(out.post("ack", "{\"tokens\": []}")).await.0, 200);
    waiting.iter().for_each(JoinHandle::abort);

    *mailbox.error.lock().unwrap() = Some(PullError::Paused);
    let paused = async {
        loop {
            let answer = out.get("pull").send().await.unwrap();
            let retry = answer.headers()["retry-after"].to_str().unwrap().to_owned();
            // The two that went away may not have been noticed yet.
            if answer.json::<Value>().await.unwrap()["type"] == "urn:pabal:problem:paused" {
                return retry;
            }
        }
    };
    assert_eq!(paused.await, "30");
    *mailbox.error.lock().unwrap() = Some(PullError::Unavailable("the disk of /dev/sda".into()));
    let (status, document) = said(out.get("pull")).await;
    assert_eq!(
        (status, document.get("detail")),
        (503, None),
        "what the hub stumbled over is its own"
    );
    out.stop.fire();
    while !out.run.is_finished() {
        tokio::task::yield_now().await;
    }
    assert_eq!(said(out.post("ack", "{\"tokens\": []}")).await.0, 404, "and gone");
}

#[tokio::test]
async fn paths_methods_and_strangers_lead_nowhere() {
    let mailbox = with([message("{}")]);
    let settings = json!({ "auth": { "bearer": { "env": "TOKEN" } }, "allow": ["127.0.0.1/32"] });
    let out = Out::open(settings, &mailbox).await;
    for (request, status) in [
        (out.get("pull"), 401),
        (out.post("ack", "{\"tokens\": []}"), 401),
        (out.post("nack", "{\"tokens\": []}"), 401),
        (out.get("pull").bearer_auth("wrong"), 401),
        (out.post("pull", "").bearer_auth(TOKEN), 405),
        (out.get("ack").bearer_auth(TOKEN), 405),
        (client().head(out.url("pull")).bearer_auth(TOKEN), 405),
        (out.get("other").bearer_auth(TOKEN), 404),
        (client().post(out.url("").trim_end_matches('/')).bearer_auth(TOKEN), 404),
        (client().get(out.url("pull").replace("welfare", "tax")).bearer_auth(TOKEN), 404),
    ] {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), status, "{}", answer.url());
        assert_secret_free(&answer.text().await.unwrap());
    }
    assert!(mailbox.asked.lock().unwrap().is_empty());
    assert_eq!(out.get("pull").bearer_auth(TOKEN).send().await.unwrap().status(), 200);
    let far = json!({ "auth": "none", "allow": ["10.0.0.0/8"] });
    let out = Out::open(far, &mailbox).await;
    assert_eq!(said(out.get("pull")).await.0, 403);
}
