//! Looks at a destination: its name, a connection, TLS and both sides' certificates. No request is
//! made.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use pabal_core::{Clock, Finding, Timestamp};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::{io::AsyncReadExt as _, net::TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};
use url::Url;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::client::{Client, Files, Plan, WARN_BEFORE};

/// With TLS 1.3 a server says only after the handshake that it does not want our certificate; one
/// that is content says nothing, and is waited for no longer than this.
const REFUSAL: Duration = Duration::from_millis(500);

impl Client {
    /// What is found on the way to `url`, within the limit of connecting for each step.
    pub(crate) async fn probe(&self, url: &Url, clock: &dyn Clock) -> Vec<Finding> {
        let mut found = Vec::new();
        if let Some(expires) = self.expires() {
            found.extend(ends("our certificate", expires, clock.now()));
        }
        if let Err(fault) = look(self.plan(), url, clock).await.map(|more| found.extend(more)) {
            found.push(fault);
        }
        found.sort_by_key(|finding| finding.severity);
        found
    }
}

async fn look(plan: &Plan, url: &Url, clock: &dyn Clock) -> Result<Vec<Finding>, Finding> {
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
        return Err(Finding::fault("the URL names no host"));
    };
    let limit = plan.connect_timeout;
    // Of an IPv6 address the URL has the brackets.
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<SocketAddr> = match clock
        .timeout(limit, tokio::net::lookup_host((bare, port)))
        .await
    {
        Some(Ok(found)) => found.collect(),
        Some(Err(error)) => {
            return Err(Finding::fault(format!("the name {host} has no address: {error}"))
                .help("is it written as the partner gave it, and can this machine resolve it?"));
        }
        None => return Err(Finding::fault(format!("nobody says in {limit:?} where {host} is"))),
    };
    let stream = connect(&addresses, limit, clock).await.map_err(|why| {
        Finding::fault(format!("cannot connect to {host}:{port}: {why}"))
            .help("does the partner listen there, and does a firewall let this machine through?")
    })?;
    if !plan.https {
        return Ok(Vec::new());
    }
    let failed = |why: String| {
        Finding::fault(format!("TLS with {host}:{port} failed: {why}"))
            .help("`tls.ca` names the authorities to trust, `tls.cert` and `tls.key` what we show")
    };
    let files = plan.read().map_err(|error| failed(error.to_string()))?;
    let config = config(&files).map_err(failed)?;
    let name = ServerName::try_from(bare.to_owned()).map_err(|error| failed(error.to_string()))?;
    let connector = TlsConnector::from(Arc::new(config));
    let mut tls = match clock.timeout(limit, connector.connect(name, stream)).await {
        Some(Ok(tls)) => tls,
        Some(Err(error)) => return Err(failed(error.to_string())),
        None => return Err(failed(format!("no handshake in {limit:?}"))),
    };
    if let Some(why) = refusal(&mut tls, clock).await {
        return Err(failed(format!("our certificate was refused: {why}")));
    }
    let leaf = tls.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let expires = leaf.and_then(|leaf| {
        let (_, leaf) = X509Certificate::from_der(leaf).ok()?;
        Timestamp::from_second(leaf.validity().not_after.timestamp()).ok()
    });
    let theirs = expires
        .and_then(|expires| ends(&format!("the certificate of {host}"), expires, clock.now()));
    Ok(theirs.into_iter().collect())
}

/// A connection to the first address that gives one.
async fn connect(
    addresses: &[SocketAddr],
    limit: Duration,
    clock: &dyn Clock,
) -> Result<TcpStream, String> {
    let mut last = "it has no address".to_owned();
    for address in addresses {
        match clock.timeout(limit, TcpStream::connect(address)).await {
            Some(Ok(stream)) => return Ok(stream),
            Some(Err(error)) => last = format!("{error} ({address})"),
            None => last = format!("no answer in {limit:?} ({address})"),
        }
    }
    Err(last)
}

/// The same trust, and the same certificate, as messages go out with.
fn config(files: &Files) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder();
    let builder = match &files.ca {
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|_| "`tls.ca` is no PEM".to_owned())?;
                roots.add(certificate).map_err(|error| error.to_string())?;
            }
            builder.with_root_certificates(roots)
        }
        None => {
            use rustls_platform_verifier::BuilderVerifierExt as _;
            builder.with_platform_verifier().map_err(|error| error.to_string())?
        }
    };
    let mut config = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cert).collect();
            let chain = chain.map_err(|_| "`tls.cert` is no PEM".to_owned())?;
            let key = PrivateKeyDer::from_pem_slice(key.expose().as_bytes())
                .map_err(|_| "`tls.key` is no private key in PEM".to_owned())?;
            builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Why the other side ended what the handshake had begun.
async fn refusal(tls: &mut TlsStream<TcpStream>, clock: &dyn Clock) -> Option<String> {
    let mut byte = [0];
    match clock.timeout(REFUSAL, tls.read(&mut byte)).await {
        Some(Err(error)) => Some(error.to_string()),
        // Over HTTP/2 the server speaks first.
        Some(Ok(_)) | None => None,
    }
}

/// A certificate that ends soon, or has ended.
fn ends(whose: &str, expires: Timestamp, now: Timestamp) -> Option<Finding> {
    let left = expires.duration_since(now);
    if left.is_negative() {
        return Some(Finding::fault(format!("{whose} has expired ({expires})")));
    }
    (left < WARN_BEFORE.try_into().unwrap_or_default()).then(|| {
        let days = left.as_secs().div_euclid(24 * 3600);
        Finding::warning(format!("{whose} expires in {days} days ({expires})"))
            .help("a renewed one is used without a restart")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pabal_core::Severity;

    #[test]
    fn a_certificate_is_told_of_thirty_days_before_it_ends() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let severity = |expires: &str| {
            ends("a certificate", expires.parse().unwrap(), now).map(|finding| finding.severity)
        };
        assert_eq!(severity("2025-12-31T23:59:59Z"), Some(Severity::Fault));
        assert_eq!(severity("2026-01-30T00:00:00Z"), Some(Severity::Warning));
        assert_eq!(severity("2026-02-01T00:00:00Z"), None);
    }
}
