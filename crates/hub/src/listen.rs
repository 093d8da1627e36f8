//! The listeners: plain or with TLS, each with who is at the other end.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::{
    Router,
    extract::{ConnectInfo, Request, connect_info::Connected},
    middleware::{self, Next},
    response::Response,
    serve::{IncomingStream, Listener},
};
use pabal_adapter_rest::PeerCertificate;
use pabal_core::{Clock, Stop};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_rustls::TlsAcceptor;

use crate::tls;

/// A handshake that takes longer is cut off.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Handshakes under way at a time; further callers wait in the system's queue.
const HANDSHAKES_MAX: usize = 256;

/// Who is at the other end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// The names in the client certificate it showed, which the configured authority has signed.
    pub(crate) certificate: Option<PeerCertificate>,
}

/// Takes the address.
///
/// # Errors
/// If it is taken or not ours, with what to change.
pub(crate) async fn bind(address: SocketAddr, key: &str) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!(
            "cannot listen on {address}: another program may have it, or this machine may not; \
             change `{key}.listen` in hub.toml, or stop the other program"
        )
    })
}

/// Serves until `stop` fires, then takes no new connection and no further request on old ones, and
/// returns once those in hand are answered.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    clock: Arc<dyn Clock>,
    stop: Stop,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    let (sender, ready) = mpsc::channel(1);
    let accepting = tokio::spawn(accept(listener, tls, clock, sender, stop.clone()));
    let router = router.layer(middleware::from_fn(name_peer));
    let service = router.into_make_service_with_connect_info::<Peer>();
    let served = axum::serve(Ready { ready, address }, service)
        .with_graceful_shutdown(async move { stop.wait().await })
        .await;
    accepting.abort();
    served
}

/// Puts the address where axum's own listener would have put it, and the certificate beside it.
async fn name_peer(
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    request.extensions_mut().insert(ConnectInfo(peer.address));
    if let Some(certificate) = peer.certificate {
        request.extensions_mut().insert(certificate);
    }
    next.run(request).await
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

type Connection = (Box<dyn Stream>, Peer);

/// Connections that are ready for a request. Handshakes are behind it, so that a slow one keeps
/// nobody else waiting.
struct Ready {
    ready: mpsc::Receiver<Connection>,
    address: SocketAddr,
}

impl Listener for Ready {
    type Io = Box<dyn Stream>;
    type Addr = Peer;

    async fn accept(&mut self) -> Connection {
        match self.ready.recv().await {
            Some(connection) => connection,
            // The other side is only gone once the hub stops.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer { address: self.address, certificate: None })
    }
}

impl Connected<IncomingStream<'_, Ready>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Ready>) -> Self {
        stream.remote_addr().clone()
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    clock: Arc<dyn Clock>,
    ready: mpsc::Sender<Connection>,
    stop: Stop,
) {
    let handshakes = Arc::new(tokio::sync::Semaphore::new(HANDSHAKES_MAX));
    loop {
        let accepted = tokio::select! {
            () = stop.wait() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Mostly too many open files: give those in hand time to end.
                tracing::warn!(%error, "cannot take a connection");
                clock.sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        // Answers are small and waited for.
        let _ = stream.set_nodelay(true);
        let Some(acceptor) = tls.clone() else {
            let peer = Peer { address, certificate: None };
            if ready.send((Box::new(stream), peer)).await.is_err() {
                return;
            }
            continue;
        };
        let Ok(permit) = handshakes.clone().acquire_owned().await else {
            return;
        };
        let (ready, clock) = (ready.clone(), clock.clone());
        tokio::spawn(async move {
            let shaken = clock.timeout(HANDSHAKE_LIMIT, shake_hands(acceptor, stream, address));
            match shaken.await {
                Some(Ok(connection)) => drop(ready.send(connection).await),
                Some(Err(error)) => tracing::info!(%address, %error, "TLS handshake failed"),
                None => tracing::info!(%address, "TLS handshake took too long"),
            }
            drop(permit);
        });
    }
}

async fn shake_hands(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
) -> io::Result<Connection> {
    let stream = acceptor.accept(stream).await?;
    let shown = stream.get_ref().1.peer_certificates();
    let certificate = shown.and_then(|chain| chain.first()).map(|leaf| tls::names(leaf));
    Ok((Box::new(stream), Peer { address, certificate }))
}
