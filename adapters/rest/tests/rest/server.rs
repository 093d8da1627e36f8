//! A partner's server, played by script over real sockets.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use pabal_core::{Clock, SystemClock};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    sync::watch,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

/// What the server does with one request.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Answers, and keeps the connection.
    Answer(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Answers, and closes the connection without having said so.
    AnswerAndClose(u16),
    /// Closes without an answer.
    Close,
    /// Says 200 and announces ten bytes, sends three and closes.
    BreakOff,
    /// Says 200 and then one byte after each such time, without an end.
    Drip(Duration),
    /// Says 200 and then sends as fast as it can, without an end.
    Endless,
    /// Never answers.
    Silent,
    /// Answers 200 once this is true.
    Wait(watch::Receiver<bool>),
}

/// A plain answer.
pub(crate) fn answer(status: u16, body: impl Into<Vec<u8>>) -> Step {
    Step::Answer(status, vec![], body.into())
}

/// An answer with a header.
pub(crate) fn answer_with(status: u16, name: &'static str, value: impl Into<String>) -> Step {
    Step::Answer(status, vec![(name, value.into())], vec![])
}

/// One request as it was on the wire.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) connection: usize,
}

impl Seen {
    /// What it was on the wire, in bytes.
    pub(crate) fn wire_bytes(&self) -> usize {
        let headers: usize =
            self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.line.len() + headers + 4 * (self.headers.len() + 1) + self.body.len()
    }

    /// The value of a header that must be there once at most.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(key, _)| key == name);
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} was sent twice");
        value
    }
}

type Script = Arc<dyn Fn(usize, &Seen) -> Step + Send + Sync>;

/// A running server; stops when dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    script: Script,
    seen: Mutex<Vec<Seen>>,
    /// Bytes of endless answers.
    written: AtomicUsize,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Answers request number n as the script says.
    pub(crate) async fn start(
        script: impl Fn(usize, &Seen) -> Step + Send + Sync + 'static,
    ) -> Self {
        Self::start_at(bound().await, None, script)
    }

    /// The same on a listener that is there.
    pub(crate) fn start_on(
        listener: TcpListener,
        script: impl Fn(usize, &Seen) -> Step + Send + Sync + 'static,
    ) -> Self {
        Self::start_at(listener, None, script)
    }

    /// The same, behind TLS.
    pub(crate) async fn start_tls(
        acceptor: TlsAcceptor,
        script: impl Fn(usize, &Seen) -> Step + Send + Sync + 'static,
    ) -> Self {
        Self::start_at(bound().await, Some(acceptor), script)
    }

    fn start_at(
        listener: TcpListener,
        acceptor: Option<TlsAcceptor>,
        script: impl Fn(usize, &Seen) -> Step + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            script: Arc::new(script),
            seen: Mutex::default(),
            written: AtomicUsize::new(0),
        });
        let server = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            for connection in 0.. {
                let (socket, _) = listener.accept().await.unwrap();
                let (server, acceptor) = (Arc::clone(&server), acceptor.clone());
                connections.spawn(async move {
                    match acceptor {
                        None => server.serve(socket, connection).await,
                        Some(acceptor) => match acceptor.accept(socket).into_fallible().await {
                            Ok(socket) => server.serve(socket, connection).await,
                            Err((_, mut socket)) => {
                                // Closing with something unread would take back the alert.
                                tokio::io::copy(&mut socket, &mut tokio::io::sink()).await.ok();
                                None
                            }
                        },
                    }
                });
            }
        });
        Self { address, shared, task }
    }

    /// Closes the listener and all connections; returns once nobody can connect any more.
    pub(crate) async fn end(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// Its URL with this path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// All requests that came whole.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Bytes of endless answers that went out.
    pub(crate) fn written(&self) -> usize {
        self.shared.written.load(Ordering::SeqCst)
    }
}

async fn bound() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

impl Shared {
    /// `None`: the connection is over.
    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        mut socket: S,
        connection: usize,
    ) -> Option<()> {
        let mut buffer = Vec::new();
        loop {
            let seen = request(&mut socket, &mut buffer, connection).await?;
            let number = {
                let mut all = self.seen.lock().unwrap();
                all.push(seen.clone());
                all.len() - 1
            };
            match (self.script)(number, &seen) {
                Step::Answer(status, headers, body) => {
                    let mut head =
                        format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
                    for (name, value) in headers {
                        head.push_str(&format!("{name}: {value}\r\n"));
                    }
                    head.push_str("\r\n");
                    socket.write_all(head.as_bytes()).await.ok()?;
                    socket.write_all(&body).await.ok()?;
                    socket.flush().await.ok()?;
                }
                Step::AnswerAndClose(status) => {
                    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
                    socket.write_all(head.as_bytes()).await.ok()?;
                    socket.shutdown().await.ok();
                    return None;
                }
                Step::Close => return None,
                Step::BreakOff => {
                    let start = b"HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nabc";
                    socket.write_all(start).await.ok()?;
                    socket.shutdown().await.ok();
                    return None;
                }
                Step::Drip(every) => {
                    let clock: &dyn Clock = &SystemClock;
                    socket
                        .write_all(b"HTTP/1.1 200 X\r\ncontent-length: 999999\r\n\r\n")
                        .await
                        .ok()?;
                    loop {
                        socket.write_all(b".").await.ok()?;
                        socket.flush().await.ok()?;
                        clock.sleep(every).await;
                    }
                }
                Step::Endless => {
                    let head = "HTTP/1.1 200 X\r\ncontent-length: 5368709120\r\n\r\n";
                    socket.write_all(head.as_bytes()).await.ok()?;
                    let block = vec![b'x'; 16 * 1024];
                    loop {
                        socket.write_all(&block).await.ok()?;
                        self.written.fetch_add(block.len(), Ordering::SeqCst);
                    }
                }
                Step::Silent => std::future::pending().await,
                Step::Wait(mut over) => {
                    over.wait_for(|over| *over).await.ok()?;
                    socket.write_all(b"HTTP/1.1 200 X\r\ncontent-length: 0\r\n\r\n").await.ok()?;
                }
            }
        }
    }
}

/// Reads one request with a content length or none.
async fn request<S: AsyncRead + Unpin>(
    socket: &mut S,
    buffer: &mut Vec<u8>,
    connection: usize,
) -> Option<Seen> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head: Vec<u8> = buffer.drain(..end).collect();
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.trim_end().split("\r\n");
    let line = lines.next().unwrap().to_owned();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length.map_or(0, |(_, value)| value.parse().unwrap());
    while buffer.len() < length {
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = buffer.drain(..length).collect();
    Some(Seen { line, headers, body, connection })
}
