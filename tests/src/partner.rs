//! A play partner: an HTTP server that follows a script and keeps a book of all it was asked.

use std::{
    collections::VecDeque,
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Response};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use crate::{Answer, answer::End, free_port, within};

/// What a partner was asked.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method.
    pub method: String,
    /// Path and query, as they were on the wire.
    pub path: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, byte for byte.
    pub body: Bytes,
    /// What came of it.
    pub outcome: Outcome,
    /// Whether the partner now has the message, whatever it answered.
    pub taken: bool,
}

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Not answered: held by a gate, or given up by the other side.
    Open,
    /// Answered with this status.
    Answered(u16),
    /// The connection was closed without an answer.
    Closed,
}

impl Request {
    /// The value of a header; `None` if it is not there or not text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The message id it came with, `ce-id` or `webhook-id`.
    #[must_use]
    pub fn message_id(&self) -> Option<&str> {
        self.header("ce-id").or_else(|| self.header("webhook-id"))
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("no JSON: {error}\n{}", self.text()))
    }
}

/// An HTTP server on a free loopback port. It answers 200 as long as no one says otherwise, is not
/// limited in how much it serves at once, and is gone when it is dropped.
#[derive(Debug)]
pub struct Partner {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: Option<Server>,
}

type Rule = Box<dyn FnMut(&Request) -> Option<Answer> + Send>;

struct Shared {
    book: watch::Sender<Vec<Request>>,
    rules: Mutex<Vec<Rule>>,
    otherwise: Mutex<Answer>,
    close_unread: AtomicUsize,
    connections: AtomicUsize,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("requests", &self.book.borrow().len())
            .finish_non_exhaustive()
    }
}

/// Ends with all its connections when it is dropped.
#[derive(Debug)]
struct Server(JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Partner {
    /// Starts one.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn start() -> Self {
        let mut partner = Self {
            address: (Ipv4Addr::LOCALHOST, free_port()).into(),
            shared: Arc::new(Shared {
                book: watch::Sender::default(),
                rules: Mutex::default(),
                otherwise: Mutex::new(Answer::status(200)),
                close_unread: AtomicUsize::new(0),
                connections: AtomicUsize::new(0),
            }),
            server: None,
        };
        partner.up().await;
        partner
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a path here.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    // --- the script: the first rule that has an answer counts ---

    /// Answers the next requests like this, whatever they are, one after the other.
    pub fn next(&self, answers: impl IntoIterator<Item = Answer>) {
        self.when(|_| true, answers);
    }

    /// Answers the next requests of this kind like this, one after the other.
    pub fn when(
        &self,
        is: impl Fn(&Request) -> bool + Send + 'static,
        answers: impl IntoIterator<Item = Answer>,
    ) {
        let mut answers: VecDeque<Answer> = answers.into_iter().collect();
        self.decide(move |request| is(request).then(|| answers.pop_front()).flatten());
    }

    /// Answers all requests of this kind like this.
    pub fn always(&self, is: impl Fn(&Request) -> bool + Send + 'static, answer: Answer) {
        self.decide(move |request| is(request).then(|| answer.clone()));
    }

    /// Lets `rule` decide; `None` leaves a request to the rules behind it.
    pub fn decide(&self, rule: impl FnMut(&Request) -> Option<Answer> + Send + 'static) {
        lock(&self.shared.rules).push(Box::new(rule));
    }

    /// Answers what no rule answers; 200 at the start.
    pub fn otherwise(&self, answer: Answer) {
        *lock(&self.shared.otherwise) = answer;
    }

    /// Closes the connection of the next requests once their headers are there, without reading
    /// the body. They do not stand in the book.
    pub fn close_unread(&self, requests: usize) {
        self.shared.close_unread.fetch_add(requests, Ordering::Relaxed);
    }

    /// Forgets all rules.
    pub fn forget_rules(&self) {
        lock(&self.shared.rules).clear();
    }

    /// Refuses connections and cuts those that are open. The book and the script stay.
    pub async fn down(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.0.abort();
            // Only then is the port closed.
            let _ = (&mut server.0).await;
        }
    }

    /// Listens again, on the same port.
    ///
    /// # Panics
    /// If the port was taken meanwhile.
    pub async fn up(&mut self) {
        let listener = TcpListener::bind(self.address)
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", self.address));
        self.server = Some(Server(tokio::spawn(serve(listener, self.shared.clone()))));
    }

    // --- the book ---

    /// How many connections were made.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// All requests, in the order in which they were read whole.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared.book.borrow().clone()
    }

    /// Those whose message the partner has.
    #[must_use]
    pub fn taken(&self) -> Vec<Request> {
        let book = self.shared.book.borrow();
        book.iter().filter(|request| request.taken).cloned().collect()
    }

    /// Waits until there are `count` requests; all of them.
    ///
    /// # Panics
    /// If they do not come within [`crate::LIMIT`].
    pub async fn wait_for(&self, count: usize) -> Vec<Request> {
        self.wait_until(&format!("{count} requests"), |book| book.len() >= count).await
    }

    /// Waits until the partner has taken `count` messages, repeats included; all requests.
    ///
    /// # Panics
    /// If they do not come within [`crate::LIMIT`].
    pub async fn wait_for_taken(&self, count: usize) -> Vec<Request> {
        let what = format!("{count} messages taken");
        self.wait_until(&what, |book| book.iter().filter(|request| request.taken).count() >= count)
            .await
    }

    /// Waits until the book is as `is` says; all requests.
    ///
    /// # Panics
    /// If it is not within [`crate::LIMIT`].
    pub async fn wait_until(&self, what: &str, is: impl Fn(&[Request]) -> bool) -> Vec<Request> {
        let mut book = self.shared.book.subscribe();
        let what = format!("{what} at {}", self.address);
        within(&what, book.wait_for(|book| is(book)))
            .await
            .expect("the book lives as long as the partner")
            .clone()
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        connections.spawn(connection(stream, shared.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let service = tower::service_fn(move |request: http::Request<_>| {
        answer(request.map(Body::new), shared.clone())
    });
    // An error is a connection that ended: the other side's doing, or the script's.
    let _ = Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
        .await;
}

/// An error makes the server close the connection at once.
async fn answer(request: http::Request<Body>, shared: Arc<Shared>) -> io::Result<Response<Body>> {
    let closed = || io::Error::other("the script closes this connection");
    let one_less = |left: usize| left.checked_sub(1);
    let order = Ordering::Relaxed;
    if shared.close_unread.fetch_update(order, order, one_less).is_ok() {
        return Err(closed());
    }
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.map_err(io::Error::other)?;
    let request = Request {
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: parts.headers,
        body,
        outcome: Outcome::Open,
        taken: false,
    };
    // One request is decided and written down at a time, so that the order of the book is the
    // order in which the script saw them.
    let (number, answer) = {
        let mut rules = lock(&shared.rules);
        let answer = rules
            .iter_mut()
            .find_map(|rule| rule(&request))
            .unwrap_or_else(|| lock(&shared.otherwise).clone());
        let mut number = 0;
        shared.book.send_modify(|book| {
            number = book.len();
            book.push(request);
        });
        (number, answer)
    };
    answer.wait().await;
    shared.book.send_modify(|book| {
        book[number].taken = answer.takes();
        book[number].outcome = match answer.end {
            End::Status(status) => Outcome::Answered(status.as_u16()),
            End::Close => Outcome::Closed,
        };
    });
    answer.into_response().ok_or_else(closed)
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no rule has panicked")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Gate, Reply, client};

    async fn post(partner: &Partner, body: &'static str) -> reqwest::Result<Reply> {
        let request = client().post(partner.url("/x?y=1")).body(body);
        Reply::try_of(body, request.header("ce-id", body)).await
    }

    #[tokio::test]
    async fn the_book_keeps_every_request_and_what_came_of_it() {
        let partner = Partner::start().await;
        partner.next([
            Answer::status(503).header("retry-after", "7").body("later"),
            Answer::close_before(),
            Answer::close_after(),
        ]);
        let first = post(&partner, "a").await.unwrap();
        assert_eq!(
            (first.status, first.header("retry-after"), &*first.text()),
            (503, Some("7"), "later")
        );
        assert!(post(&partner, "b").await.is_err());
        assert!(post(&partner, "c").await.is_err());
        assert_eq!(post(&partner, "d").await.unwrap().status, 200);
        let book: Vec<_> = partner
            .wait_for(4)
            .await
            .into_iter()
            .map(|r| (r.message_id().unwrap().to_owned(), r.text(), r.outcome, r.taken))
            .collect();
        let entry = |name: &str, outcome, taken| (name.to_owned(), name.to_owned(), outcome, taken);
        assert_eq!(
            book,
            [
                entry("a", Outcome::Answered(503), false),
                entry("b", Outcome::Closed, false),
                entry("c", Outcome::Closed, true),
                entry("d", Outcome::Answered(200), true),
            ]
        );
        assert_eq!(partner.taken().len(), 2);
        let request = &partner.requests()[0];
        assert_eq!((&*request.method, &*request.path), ("POST", "/x?y=1"));
    }

    #[tokio::test]
    async fn rules_are_asked_in_order_and_see_the_body() {
        let partner = Partner::start().await;
        partner.when(|r| r.body == "a", [Answer::status(500)]);
        partner.always(|r| r.body == "b", Answer::status(404));
        partner.otherwise(Answer::status(202).json(&serde_json::json!({ "ok": true })));
        let mut statuses = Vec::new();
        for body in ["b", "a", "a", "b"] {
            statuses.push(post(&partner, body).await.unwrap().status);
        }
        assert_eq!(statuses, [404, 500, 202, 404]);
        partner.forget_rules();
        let reply = post(&partner, "b").await.unwrap();
        assert_eq!(reply.json(), serde_json::json!({ "ok": true }));
    }

    #[tokio::test]
    async fn a_gate_holds_answers_until_they_are_let_through() {
        let partner = Partner::start().await;
        let gate = Gate::new();
        partner.otherwise(Answer::status(200).behind(&gate));
        let (first, second) = (post(&partner, "a"), post(&partner, "b"));
        let both = async { tokio::join!(first, second) };
        let script = async {
            let held = partner.wait_for(2).await;
            assert!(held.iter().all(|request| request.outcome == Outcome::Open));
            gate.let_through(1);
            partner.wait_for_taken(1).await;
            gate.open();
        };
        let ((first, second), ()) = tokio::join!(both, script);
        assert_eq!((first.unwrap().status, second.unwrap().status), (200, 200));
    }

    #[tokio::test]
    async fn a_partner_that_is_down_refuses_and_comes_back_on_its_port() {
        let mut partner = Partner::start().await;
        partner.close_unread(1);
        assert!(post(&partner, "a").await.is_err());
        assert_eq!(post(&partner, "b").await.unwrap().status, 200);
        partner.down().await;
        assert!(post(&partner, "c").await.unwrap_err().is_connect());
        partner.up().await;
        assert_eq!(post(&partner, "d").await.unwrap().status, 200);
        let bodies: Vec<String> = partner.requests().iter().map(Request::text).collect();
        assert_eq!(bodies, ["b", "d"]);
        assert_eq!(partner.connections(), 3);
    }

    #[tokio::test]
    async fn bodies_can_drip_and_be_as_large_as_it_takes() {
        let partner = Partner::start().await;
        partner.next([
            Answer::status(200).dripping("slow", Duration::from_millis(1)),
            Answer::status(200).repeating(vec![b'x'; 1024], 3 * 1024),
        ]);
        assert_eq!(post(&partner, "a").await.unwrap().text(), "slow");
        assert_eq!(post(&partner, "b").await.unwrap().body.len(), 3 * 1024 * 1024);
    }
}
