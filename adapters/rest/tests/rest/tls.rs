//! TLS: our certificate, its rotation and its end.

use std::{sync::Arc, time::Duration};

use pabal_core::{Clock, Context, ManualClock, Sender};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::PrivateKeyDer;
use serde_json::json;
use tokio_rustls::TlsAcceptor;

use crate::{
    server::{Server, answer},
    support::*,
};

/// An authority, and a folder with its certificate and ours.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        rustls::crypto::ring::default_provider().install_default().ok();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    /// A certificate for a name, and its key, in PEM.
    pub(crate) fn pair(&self, name: &str, year: i32, day: u8) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, day);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        (cert.pem(), key.serialize_pem())
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    pub(crate) fn write_pair(&self, (cert, key): &(String, String)) {
        self.write("cert.pem", cert);
        self.write("key.pem", key);
    }

    /// A server's acceptor that wants certificates of this authority.
    fn acceptor(&self) -> TlsAcceptor {
        self.acceptor_for(&[])
    }

    /// The same, for these protocols.
    pub(crate) fn acceptor_for(&self, protocols: &[&[u8]]) -> TlsAcceptor {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut config = ServerConfig::builder()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }

    pub(crate) fn context(
        &self,
        port: u16,
        tls: serde_json::Value,
        clock: &ManualClock,
    ) -> Context {
        let url = format!("https://localhost:{port}/");
        let mut context = with_clock(context(json!({ "url": url, "tls": tls })), clock);
        context.secrets = Arc::new(TestSecrets(self.folder.path().to_owned()));
        context
    }
}

pub(crate) fn mutual() -> serde_json::Value {
    json!({ "ca": "ca.pem", "cert": "cert.pem", "key": { "file": "key.pem" } })
}

async fn fate_now(sender: &dyn Sender) -> &'static str {
    let verdict = send(sender, message("{}")).await;
    fate(&verdict)
}

#[tokio::test]
async fn a_rotated_pair_is_used_without_a_restart_and_a_bad_one_is_refused() {
    let (log, _guard) = Log::start();
    let authority = Authority::new("ours");
    let stranger = Authority::new("stranger");
    let server = Server::start_tls(authority.acceptor(), |_, _| answer(200, "")).await;
    let clock = ManualClock::default();
    // At first a pair the partner does not know.
    authority.write_pair(&stranger.pair("hub", 2090, 1));
    let sender = build(authority.context(server.address.port(), mutual(), &clock));
    let verdict = send(&*sender, message("{}")).await;
    assert_eq!(fate(&verdict), "unreachable", "{verdict:?}");
    assert!(cause(&verdict).starts_with("our certificate was refused"), "{verdict:?}");

    let good = authority.pair("hub", 2090, 1);
    authority.write_pair(&good);
    clock.advance(Duration::from_secs(3));
    assert_eq!(fate_now(&*sender).await, "taken");
    assert_eq!(log.lines("changed certificates are in use").len(), 1);

    // The moment between two writes: a new certificate beside the old key.
    let next = authority.pair("hub", 2091, 1);
    authority.write("cert.pem", &next.0);
    for _ in 0..5 {
        clock.advance(Duration::from_secs(3));
        assert_eq!(fate_now(&*sender).await, "taken");
    }
    let refused = log.lines("the old ones stay in use");
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].contains("alert=true") && refused[0].contains("welfare/applications"));

    authority.write("key.pem", &next.1);
    clock.advance(Duration::from_secs(3));
    assert_eq!(fate_now(&*sender).await, "taken");
    assert_eq!(log.lines("changed certificates are in use").len(), 2);

    // Gone, and nonsense.
    std::fs::remove_file(authority.folder.path().join("key.pem")).unwrap();
    clock.advance(Duration::from_secs(3));
    assert_eq!(fate_now(&*sender).await, "taken");
    authority.write_pair(&("nonsense".into(), "nonsense".into()));
    clock.advance(Duration::from_secs(3));
    assert_eq!(fate_now(&*sender).await, "taken");
    assert_eq!(log.lines("the old ones stay in use").len(), 3);
    assert!(!log.text().contains("PRIVATE KEY"));
}

#[tokio::test]
async fn the_files_are_not_looked_at_for_every_message() {
    let authority = Authority::new("ours");
    let server = Server::start_tls(authority.acceptor(), |_, _| answer(200, "")).await;
    let clock = ManualClock::default();
    authority.write_pair(&authority.pair("hub", 2090, 1));
    let sender = build(authority.context(server.address.port(), mutual(), &clock));
    authority.write_pair(&("nonsense".into(), "nonsense".into()));
    let (log, _guard) = Log::start();
    assert_eq!(fate_now(&*sender).await, "taken");
    assert!(log.lines("refused").is_empty());
}

#[tokio::test]
async fn the_end_of_a_certificate_is_told_well_ahead_and_once_a_day() {
    let (log, _guard) = Log::start();
    let authority = Authority::new("ours");
    let clock = ManualClock::default();
    // The clock starts at 2026-01-01.
    authority.write_pair(&authority.pair("hub", 2026, 31));
    let sender = build(authority.context(1, mutual(), &clock));
    assert!(log.lines("expires").is_empty(), "30 days are left: {}", log.text());
    let hour = Duration::from_secs(3600);
    for _ in 0..49 {
        clock.advance(hour);
        fate_now(&*sender).await;
    }
    let lines = log.lines("the client certificate expires");
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].contains("WARN") && lines[0].contains("alert=true"), "{lines:?}");
    assert!(lines[0].contains("days_left=29") && lines[2].contains("days_left=27"), "{lines:?}");

    // A restart tells it at once, and a new certificate ends the warnings.
    drop(sender);
    let sender = build(authority.context(1, mutual(), &clock));
    assert_eq!(log.lines("the client certificate expires").len(), 4);
    authority.write_pair(&authority.pair("hub", 2090, 1));
    for _ in 0..49 {
        clock.advance(hour);
        fate_now(&*sender).await;
    }
    assert_eq!(log.lines("the client certificate expires").len(), 4);
    assert!(clock.now().to_string().starts_with("2026-01-05"));
}

#[tokio::test]
async fn a_server_nobody_vouches_for_gets_not_a_byte() {
    let authority = Authority::new("ours");
    let stranger = Authority::new("stranger");
    let server = Server::start_tls(stranger.acceptor(), |_, _| answer(200, "")).await;
    let clock = ManualClock::default();
    let ca = json!({ "ca": "ca.pem" });
    let sender = build(authority.context(server.address.port(), ca, &clock));
    let verdict = send(&*sender, message("{}")).await;
    assert_eq!(fate(&verdict), "unreachable");
    assert!(cause(&verdict).starts_with("TLS failed"), "{verdict:?}");
    assert!(server.seen().is_empty());
}

#[test]
fn a_bad_pair_at_the_start_is_a_fault() {
    let authority = Authority::new("ours");
    let clock = ManualClock::default();
    let (cert, _) = authority.pair("hub", 2090, 1);
    let (_, key) = authority.pair("hub", 2090, 1);
    authority.write_pair(&(cert, key));
    let faults = |tls| {
        let adapter = pabal_adapter_rest::RestAdapter::new(pabal_adapter_rest::Ingress::new());
        let context = authority.context(1, tls, &clock);
        let faults = pabal_core::Adapter::sender(&adapter, context).unwrap_err();
        faults[0].to_string()
    };
    assert!(
        faults(mutual()).starts_with("tls: the certificates cannot be used"),
        "{}",
        faults(mutual())
    );
    assert!(
        faults(json!({ "ca": "missing.pem" })).starts_with("tls.ca: missing.pem cannot be read")
    );
    assert!(faults(json!({ "ca": "key.pem" })).starts_with("tls.ca"));
}
