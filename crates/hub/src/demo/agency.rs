//! A play agency: an HTTP server with a book, and with faults of its own.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use axum::http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use pabal_core::{Bytes, Clock, MessageId, Stop};
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};

use super::book::{Arrived, Book};

const BODY_BYTES_MAX: usize = 64 * 1024;
/// Of this many requests …
const OUT_OF: u32 = 1000;
/// … so many meet each kind of fault.
const EACH: u32 = 10;

/// What an agency does with a request instead of simply taking it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Answers 503 and keeps nothing.
    Busy,
    /// Closes the connection and keeps nothing.
    LostBefore,
    /// Keeps it and closes the connection: the hub cannot know.
    LostAfter,
    /// Takes it, late.
    Slow,
}

/// How often each fault happened.
#[derive(Debug, Default)]
struct Faults {
    busy: AtomicU64,
    lost_before: AtomicU64,
    lost_after: AtomicU64,
    slow: AtomicU64,
}

/// The same as numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct FaultCounts {
    /// Answered 503.
    pub(super) busy: u64,
    /// Connections closed before the message was taken.
    pub(super) lost_before: u64,
    /// Connections closed after it was taken.
    pub(super) lost_after: u64,
    /// Answered late.
    pub(super) slow: u64,
}

/// One agency; it serves until `stop` fires.
#[derive(Debug)]
pub(super) struct Agency {
    pub(super) book: Book,
    pub(super) address: SocketAddr,
    /// Decides which request meets which fault; none: no faults.
    seed: Option<u64>,
    /// How often each message that met a fault was tried.
    tries: Mutex<HashMap<MessageId, u32>>,
    faults: Faults,
    clock: Arc<dyn Clock>,
}

impl Agency {
    /// Opens its doors on a free port of this machine.
    pub(super) async fn open(
        book: Book,
        seed: Option<u64>,
        clock: Arc<dyn Clock>,
        stop: Stop,
    ) -> Result<Arc<Self>> {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .context("cannot open a port for a play agency")?;
        let agency = Arc::new(Self {
            book,
            address: listener.local_addr()?,
            seed,
            tries: Mutex::default(),
            faults: Faults::default(),
            clock,
        });
        tokio::spawn(agency.clone().serve(listener, stop));
        Ok(agency)
    }

    pub(super) fn faults(&self) -> FaultCounts {
        FaultCounts {
            busy: self.faults.busy.load(Relaxed),
            lost_before: self.faults.lost_before.load(Relaxed),
            lost_after: self.faults.lost_after.load(Relaxed),
            slow: self.faults.slow.load(Relaxed),
        }
    }

    async fn serve(self: Arc<Self>, listener: TcpListener, stop: Stop) {
        loop {
            let accepted = tokio::select! {
                () = stop.wait() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (agency, stop) = (self.clone(), stop.clone());
                    tokio::spawn(async move {
                        tokio::select! {
                            () = stop.wait() => {}
                            () = agency.converse(stream) => {}
                        }
                    });
                }
                Err(_) => self.clock.sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn converse(self: Arc<Self>, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let service = service_fn(|request| self.answer(request));
        // It ends with an error whenever a fault closes it.
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }

    /// `Err` makes the server close the connection without a word.
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Closed> {
        let (parts, body) = request.into_parts();
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await;
        let arrived = body.ok().and_then(|body| read(&parts.headers, body.to_bytes()));
        let Some(arrived) = arrived else {
            self.book.unreadable();
            return Ok(status(StatusCode::BAD_REQUEST));
        };
        match self.fault(arrived.id) {
            Some(Fault::Busy) => {
                self.faults.busy.fetch_add(1, Relaxed);
                return Ok(status(StatusCode::SERVICE_UNAVAILABLE));
            }
            Some(Fault::LostBefore) => {
                self.faults.lost_before.fetch_add(1, Relaxed);
                return Err(Closed);
            }
            Some(Fault::LostAfter) => {
                self.faults.lost_after.fetch_add(1, Relaxed);
                self.book.enter(&arrived);
                return Err(Closed);
            }
            Some(Fault::Slow) => {
                self.faults.slow.fetch_add(1, Relaxed);
                self.clock.sleep(Duration::from_millis(200)).await;
            }
            None => {}
        }
        self.book.enter(&arrived);
        Ok(status(StatusCode::NO_CONTENT))
    }

    /// The same for the same seed, message and try, whatever else goes on.
    fn fault(&self, id: MessageId) -> Option<Fault> {
        let seed = self.seed?;
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        let before = tries.get(&id).copied().unwrap_or(0);
        let fault = draw(seed, id, before);
        if fault.is_some() {
            tries.insert(id, before + 1);
        }
        fault
    }
}

fn draw(seed: u64, id: MessageId, before: u32) -> Option<Fault> {
    let (high, low) = id.0.as_u64_pair();
    let mixed = seed ^ high.rotate_left(17) ^ low ^ u64::from(before).wrapping_mul(0x9e37_79b9);
    match fastrand::Rng::with_seed(mixed).u32(..OUT_OF) / EACH {
        0 => Some(Fault::Busy),
        1 => Some(Fault::LostBefore),
        2 => Some(Fault::LostAfter),
        3 => Some(Fault::Slow),
        _ => None,
    }
}

/// Makes the server close the connection.
#[derive(Debug, thiserror::Error)]
#[error("closed on purpose")]
struct Closed;

fn status(status: StatusCode) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    *response.status_mut() = status;
    response
}

fn read(headers: &HeaderMap, body: Bytes) -> Option<Arrived> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    Some(Arrived {
        id: text("ce-id")?.parse().ok()?,
        key: text("ce-partitionkey")?.to_owned(),
        version: text("ce-keyversion")?.parse().ok()?,
        body,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_few_and_the_same_for_the_same_seed() {
        let id = |n: u128| MessageId(uuid::Uuid::from_u128(n * 0x1234_5678_9abc_def1_1234_5678));
        let all: Vec<_> = (0..10_000).map(|n| draw(7, id(n), 0)).collect();
        assert_eq!(all, (0..10_000).map(|n| draw(7, id(n), 0)).collect::<Vec<_>>());
        for fault in [Fault::Busy, Fault::LostBefore, Fault::LostAfter, Fault::Slow] {
            let count = all.iter().filter(|found| **found == Some(fault)).count();
            assert!((50..200).contains(&count), "{fault:?}: {count}");
        }
        // A message that met a fault is not met by it for ever.
        assert!((0..10_000).all(|n| (0..20).any(|before| draw(7, id(n), before).is_none())));
    }
}
