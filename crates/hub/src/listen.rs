//! The listeners: plain or with TLS, each request with who is at the other end.
//!
//! Every wait for a caller has a limit: the handshake, the head of a request, an idle connection.
//! The limits of a body are the source's own.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::{Router, body::Body, extract::ConnectInfo, http::Request};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use pabal_adapter_rest::PeerCertificate;
use pabal_core::{Clock, Stop};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::tls;

/// A handshake that takes longer is cut off.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Likewise a connection that brings no whole head of a request for so long.
const HEAD_LIMIT: Duration = Duration::from_secs(60);
/// Connections at a time; further callers wait in the system's queue.
const CONNECTIONS_MAX: usize = 1024;

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
) {
    let connections = TaskTracker::new();
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let server = Server { tls, router, clock, stop };
    loop {
        let next = async {
            let permit = room.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = server.stop.wait() => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, address)) => {
                let server = server.clone();
                connections.spawn(async move {
                    server.connection(stream, address).await;
                    drop(permit);
                });
            }
            Err(error) => {
                // Mostly too many open files: give those in hand time to end.
                tracing::warn!(%error, "cannot take a connection");
                server.clock.sleep(Duration::from_millis(200)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

#[derive(Clone)]
struct Server {
    tls: Option<TlsAcceptor>,
    router: Router,
    clock: Arc<dyn Clock>,
    stop: Stop,
}

impl Server {
    async fn connection(self, stream: TcpStream, address: SocketAddr) {
        // Answers are small and waited for.
        let _ = stream.set_nodelay(true);
        let Some(acceptor) = &self.tls else {
            return self.converse(stream, address, None).await;
        };
        match self.clock.timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
            Some(Ok(stream)) => {
                let shown = stream.get_ref().1.peer_certificates();
                let certificate =
                    shown.and_then(|chain| chain.first()).map(|leaf| tls::names(leaf));
                self.converse(stream, address, certificate).await;
            }
            Some(Err(error)) => tracing::info!(%address, %error, "TLS handshake failed"),
            None => tracing::info!(%address, "TLS handshake took too long"),
        }
    }

    async fn converse(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        address: SocketAddr,
        certificate: Option<PeerCertificate>,
    ) {
        let service = service_fn(|mut request: Request<Incoming>| {
            let extensions = request.extensions_mut();
            extensions.insert(ConnectInfo(address));
            if let Some(certificate) = &certificate {
                extensions.insert(certificate.clone());
            }
            self.router.clone().oneshot(request.map(Body::new))
        });
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT);
        let mut http2 = builder.http2();
        http2
            .timer(TokioTimer::new())
            .keep_alive_interval(HEAD_LIMIT)
            .keep_alive_timeout(HANDSHAKE_LIMIT);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.stop.wait() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%address, %error, "a connection broke off");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use axum::{Extension, routing::get};
    use pabal_core::SystemClock;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use tokio::sync::Notify;

    use super::*;

    async fn start(
        tls: Option<TlsAcceptor>,
        router: Router,
        stop: &Stop,
    ) -> (SocketAddr, tokio::task::JoinHandle<()>) {
        let listener = bind("127.0.0.1:0".parse().unwrap(), "http").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = serve(listener, tls, router, Arc::new(SystemClock), stop.clone());
        (address, tokio::spawn(served))
    }

    #[tokio::test]
    async fn on_stop_a_request_in_hand_is_answered_and_a_new_one_is_not_taken() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (arrived, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (told, waits) = (arrived.clone(), go.clone());
        let router = Router::new().route(
            "/",
            get(async move || {
                told.notify_one();
                waits.notified().await;
                "done"
            }),
        );
        let stop = Stop::new();
        let (address, served) = start(None, router, &stop).await;
        let url = format!("http://{address}/");
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let request = tokio::spawn(client.get(&url).send());
        arrived.notified().await;
        stop.fire();
        // The listener is closed before it waits for those in hand.
        while client.get(&url).send().await.is_ok() {}
        go.notify_one();
        assert_eq!(request.await.unwrap().unwrap().text().await.unwrap(), "done");
        served.await.unwrap();
    }

    fn write(path: &Path, pem: &str) {
        std::fs::write(path, pem).unwrap();
    }

    #[tokio::test]
    async fn the_names_in_a_client_certificate_reach_the_request() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut authority = CertificateParams::new(vec![]).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority =
            CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let signed = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
        };
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (certificate, key) = signed("localhost");
        write(&path("cert"), &certificate);
        write(&path("key"), &key);
        write(&path("ca"), &authority.pem());
        let acceptor = tls::acceptor(&path("cert"), &path("key"), Some(&path("ca"))).unwrap();
        let who = get(
            async |shown: Option<Extension<PeerCertificate>>,
                   ConnectInfo(_): ConnectInfo<SocketAddr>| {
                shown.map_or_else(|| "nobody".to_owned(), |shown| shown.names.join(","))
            },
        );
        let stop = Stop::new();
        let (address, served) = start(Some(acceptor), Router::new().route("/", who), &stop).await;
        let url = format!("https://localhost:{}/", address.port());
        let ask = async |identity: Option<String>| {
            let root = reqwest::Certificate::from_pem(authority.pem().as_bytes()).unwrap();
            let mut client = reqwest::Client::builder().no_proxy().tls_certs_only([root]);
            if let Some(pem) = identity {
                client = client.identity(reqwest::Identity::from_pem(pem.as_bytes()).unwrap());
            }
            client.build().unwrap().get(&url).send().await.unwrap().text().await.unwrap()
        };
        assert_eq!(ask(None).await, "nobody");
        let (certificate, key) = signed("tax.example");
        assert_eq!(ask(Some(certificate + &key)).await, "rcgen self signed cert,tax.example");
        stop.fire();
        served.await.unwrap();
    }
}
