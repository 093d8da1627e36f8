//! What a play partner answers, and when.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tokio::sync::Semaphore;

/// Holds answers back until the test lets them through.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Semaphore>);

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }
}

impl Gate {
    /// A closed one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets this many answers through.
    pub fn let_through(&self, answers: usize) {
        self.0.add_permits(answers);
    }

    /// Lets all through, from now on.
    pub fn open(&self) {
        self.0.close();
    }

    async fn pass(&self) {
        // An error means that it is open.
        if let Ok(permit) = self.0.acquire().await {
            permit.forget();
        }
    }
}

/// One answer of a play partner.
#[derive(Debug, Clone)]
pub struct Answer {
    pub(crate) end: End,
    taken: Option<bool>,
    headers: HeaderMap,
    body: Content,
    gate: Option<Gate>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Status(StatusCode),
    Close,
}

#[derive(Debug, Clone)]
enum Content {
    Whole(Bytes),
    /// A byte at a time.
    Dripped(Bytes, Duration),
    /// The same piece, so often.
    Repeated(Bytes, u64),
}

impl Answer {
    fn new(end: End, taken: Option<bool>) -> Self {
        Self {
            end,
            taken,
            headers: HeaderMap::new(),
            body: Content::Whole(Bytes::new()),
            gate: None,
        }
    }

    /// An answer with this status and no body. With 2xx the message counts as taken.
    ///
    /// # Panics
    /// If there is no such status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        let status = StatusCode::from_u16(status).expect("a status has three digits");
        Self::new(End::Status(status), None)
    }

    /// Closes the connection without an answer; the message is not taken.
    #[must_use]
    pub fn close_before() -> Self {
        Self::new(End::Close, Some(false))
    }

    /// Takes the message, then closes the connection without an answer.
    #[must_use]
    pub fn close_after() -> Self {
        Self::new(End::Close, Some(true))
    }

    /// With this header, too.
    ///
    /// # Panics
    /// If it is none that HTTP allows.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().expect("a header's name");
        let value: HeaderValue = value.parse().expect("a header's value");
        self.headers.append(name, value);
        self
    }

    /// With this body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Content::Whole(body.into());
        self
    }

    /// With this JSON as its body.
    #[must_use]
    pub fn json(self, body: &serde_json::Value) -> Self {
        self.header("content-type", "application/json").body(body.to_string())
    }

    /// With this body, a byte at a time.
    #[must_use]
    pub fn dripping(mut self, body: impl Into<Bytes>, every: Duration) -> Self {
        self.body = Content::Dripped(body.into(), every);
        self
    }

    /// With a body of `piece`, so many times: as large as it takes, in no memory.
    #[must_use]
    pub fn repeating(mut self, piece: impl Into<Bytes>, times: u64) -> Self {
        self.body = Content::Repeated(piece.into(), times);
        self
    }

    /// Whether the partner took the message, where that is not what the status says.
    #[must_use]
    pub fn taken(mut self, taken: bool) -> Self {
        self.taken = Some(taken);
        self
    }

    /// Only once the gate lets it through.
    #[must_use]
    pub fn behind(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }

    pub(crate) async fn wait(&self) {
        if let Some(gate) = &self.gate {
            gate.pass().await;
        }
    }

    pub(crate) fn takes(&self) -> bool {
        match (self.taken, self.end) {
            (Some(taken), _) => taken,
            (None, End::Status(status)) => status.is_success(),
            (None, End::Close) => false,
        }
    }

    /// `None`: the connection is to be closed.
    pub(crate) fn into_response(self) -> Option<Response<Body>> {
        let End::Status(status) = self.end else {
            return None;
        };
        let body = match self.body {
            Content::Whole(bytes) => Body::from(bytes),
            Content::Dripped(bytes, every) => {
                let ticks = tokio::time::interval(every);
                let bytes = (0..bytes.len()).map(move |at| bytes.slice(at..=at));
                Body::from_stream(stream::unfold((ticks, bytes), |(mut ticks, mut bytes)| async {
                    ticks.tick().await;
                    let piece = Ok::<_, Infallible>(bytes.next()?);
                    Some((piece, (ticks, bytes)))
                }))
            }
            Content::Repeated(piece, times) => Body::from_stream(stream::iter(
                (0..times).map(move |_| Ok::<_, Infallible>(piece.clone())),
            )),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = self.headers;
        Some(response)
    }
}
