//! A TCP proxy that breaks connections: in front of any partner, whatever it speaks.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use crate::free_port;

/// What goes wrong at the moment; nothing at the start.
#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    refuse: bool,
    blackhole: bool,
    reset_after_sent: Option<u64>,
    reset_after_answered: Option<u64>,
    /// Connections made before this many kills are over.
    kills: u64,
}

/// A proxy on a free loopback port; gone, with all its connections, when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    faults: watch::Sender<Faults>,
    connections: Arc<AtomicUsize>,
    server: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Proxy {
    /// Starts one that passes everything on to `upstream`.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn start(upstream: SocketAddr) -> Self {
        let address = (Ipv4Addr::LOCALHOST, free_port()).into();
        let listener =
            TcpListener::bind(address).await.unwrap_or_else(|error| panic!("{address}: {error}"));
        let faults = watch::Sender::new(Faults::default());
        let connections = Arc::new(AtomicUsize::new(0));
        let server = tokio::spawn(serve(listener, upstream, faults.clone(), connections.clone()));
        Self { address, faults, connections, server }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a path behind it.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// How many connections were made, refused ones included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Resets new connections at once.
    pub fn refuse(&self) {
        self.faults.send_modify(|faults| faults.refuse = true);
    }

    /// Takes everything in and passes nothing on, in either direction.
    pub fn blackhole(&self) {
        self.faults.send_modify(|faults| faults.blackhole = true);
    }

    /// Resets a connection once so many bytes of the client were passed on.
    pub fn reset_after_sent(&self, bytes: u64) {
        self.faults.send_modify(|faults| faults.reset_after_sent = Some(bytes));
    }

    /// Resets a connection once so many bytes of the answer were passed on: the request is done,
    /// its answer is lost.
    pub fn reset_after_answered(&self, bytes: u64) {
        self.faults.send_modify(|faults| faults.reset_after_answered = Some(bytes));
    }

    /// Resets all open connections now.
    pub fn kill_all(&self) {
        self.faults.send_modify(|faults| faults.kills += 1);
    }

    /// No more faults; what a black hole held goes on its way.
    pub fn heal(&self) {
        self.faults.send_modify(|faults| {
            *faults = Faults { kills: faults.kills, ..Faults::default() };
        });
    }
}

async fn serve(
    listener: TcpListener,
    upstream: SocketAddr,
    faults: watch::Sender<Faults>,
    count: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        count.fetch_add(1, Ordering::Relaxed);
        connections.spawn(connection(client, upstream, faults.subscribe()));
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(
    mut client: TcpStream,
    upstream: SocketAddr,
    mut faults: watch::Receiver<Faults>,
) {
    let now = *faults.borrow();
    let server = match TcpStream::connect(upstream).await {
        Ok(server) if !now.refuse => server,
        _ => return reset(&client),
    };
    let mut server = server;
    let clean = {
        let (client_in, client_out) = client.split();
        let (server_in, server_out) = server.split();
        let there = pump(client_in, server_out, faults.clone(), |f| f.reset_after_sent);
        let back = pump(server_in, client_out, faults.clone(), |f| f.reset_after_answered);
        tokio::select! {
            _ = faults.wait_for(|f| f.kills > now.kills) => false,
            ends = async { tokio::try_join!(there, back) } => ends.is_ok(),
        }
    };
    if !clean {
        reset(&client);
        reset(&server);
    }
}

/// The connection is to be reset, not closed.
struct Reset;

async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut faults: watch::Receiver<Faults>,
    reset_after: fn(&Faults) -> Option<u64>,
) -> Result<(), Reset> {
    let mut buffer = vec![0; 16 * 1024];
    let mut passed: u64 = 0;
    loop {
        let read = from.read(&mut buffer).await.map_err(|_| Reset)?;
        if read == 0 {
            let _ = to.shutdown().await;
            return Ok(());
        }
        let limit = match faults.wait_for(|f| !f.blackhole).await {
            Ok(faults) => reset_after(&faults),
            Err(_) => return Err(Reset),
        };
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(passed));
        let pass = read.min(usize::try_from(left).unwrap_or(usize::MAX));
        to.write_all(&buffer[..pass]).await.map_err(|_| Reset)?;
        passed += pass as u64;
        if limit.is_some_and(|limit| passed >= limit) {
            return Err(Reset);
        }
    }
}

/// Makes the coming close a reset, as of a process that was killed or a link that was cut.
fn reset(stream: &TcpStream) {
    // It fails only on a socket that is gone already.
    let _ = stream.set_zero_linger();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Gate, Partner, Reply, client};

    async fn post(proxy: &Proxy, body: impl Into<reqwest::Body>) -> reqwest::Result<Reply> {
        Reply::try_of("an answer", client().post(proxy.url("/")).body(body)).await
    }

    async fn partner_and_proxy() -> (Partner, Proxy) {
        let partner = Partner::start().await;
        let proxy = Proxy::start(partner.address()).await;
        (partner, proxy)
    }

    #[tokio::test]
    async fn without_a_fault_everything_passes() {
        let (partner, proxy) = partner_and_proxy().await;
        let large = vec![b'x'; 300_000];
        partner.next([Answer::status(200).body(large.clone())]);
        let reply = post(&proxy, large.clone()).await.unwrap();
        assert!(reply.body == large && partner.requests()[0].body == large);
    }

    #[tokio::test]
    async fn refused_connections_reach_nobody() {
        let (partner, proxy) = partner_and_proxy().await;
        proxy.refuse();
        assert!(post(&proxy, "a").await.is_err());
        proxy.heal();
        assert_eq!(post(&proxy, "b").await.unwrap().status, 200);
        assert_eq!((partner.requests().len(), proxy.connections()), (1, 2));
    }

    #[tokio::test]
    async fn a_request_that_is_cut_half_way_is_not_read() {
        let (partner, proxy) = partner_and_proxy().await;
        proxy.reset_after_sent(1_000);
        assert!(post(&proxy, vec![b'x'; 5_000]).await.is_err());
        assert!(partner.requests().is_empty());
    }

    #[tokio::test]
    async fn a_request_whose_answer_is_cut_was_taken() {
        let (partner, proxy) = partner_and_proxy().await;
        proxy.reset_after_answered(10);
        assert!(post(&proxy, "a").await.is_err());
        assert_eq!(partner.taken().len(), 1);
    }

    #[tokio::test]
    async fn a_black_hole_holds_everything_until_it_is_healed() {
        let (partner, proxy) = partner_and_proxy().await;
        proxy.blackhole();
        let held = async {
            crate::until("a connection", async || (proxy.connections() > 0).then_some(())).await;
            assert!(partner.requests().is_empty());
            proxy.heal();
        };
        let (reply, ()) = tokio::join!(post(&proxy, "a"), held);
        assert_eq!(reply.unwrap().status, 200);
    }

    #[tokio::test]
    async fn open_connections_can_be_killed_at_once() {
        let (partner, proxy) = partner_and_proxy().await;
        let gate = Gate::new();
        partner.next([Answer::status(200).behind(&gate)]);
        let kill = async {
            partner.wait_for(1).await;
            proxy.kill_all();
        };
        let (reply, ()) = tokio::join!(post(&proxy, "a"), kill);
        assert!(reply.is_err());
        assert_eq!(post(&proxy, "b").await.unwrap().status, 200);
    }
}
