//! How the server is reached: passwords and TLS, from the same URL as the ordinary connections.

use std::{path::Path, process::Command, sync::Arc};

use pabal_conformance::postgres::{OWNER, Server};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;

use crate::{
    hub::Hub,
    log::Log,
    support::{Application, faults},
};

const PASSWORD: &str = "p%40ss-w0rd";

/// A server that lets nobody but its superuser in without TLS and a password. Its certificate is for
/// `localhost` alone; the authority's lies in `folder`.
fn strict_server(folder: &Path) -> Server {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &authority).unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    write("authority.pem", &authority.pem());
    let access = "host all postgres 127.0.0.1/32 trust\n\
                  hostssl all all 127.0.0.1/32 scram-sha-256\n\
                  hostssl all all ::1/128 scram-sha-256\n";
    let lines = [
        "ssl=on".to_owned(),
        format!("ssl_cert_file='{}'", write("server.pem", &certificate.pem())),
        format!("ssl_key_file='{}'", write("server.key", &key.serialize_pem())),
        format!("hba_file='{}'", write("access", access)),
    ];
    // The server runs as another user if we are root, and wants its key to be nobody else's.
    let prepare =
        "chmod 755 . && chmod 600 server.key && { [ $(id -u) != 0 ] || chown postgres *; }";
    assert!(
        Command::new("sh").args(["-c", prepare]).current_dir(folder).status().unwrap().success()
    );
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    Server::start(&lines)
}

#[tokio::test]
async fn tls_is_checked_as_the_url_says_and_the_password_is_proven() {
    let folder = tempfile::tempdir().unwrap();
    let server = strict_server(folder.path());
    let application = Application::new(&server);
    application.database.ask(&format!("ALTER ROLE {OWNER} PASSWORD 'p@ss-w0rd'"));
    let plain = application.database.url(OWNER);
    let root = folder.path().join("authority.pem").display().to_string();
    let url = |host: &str, rest: &str| {
        let url = plain.replace("owner@", &format!("owner:{PASSWORD}@"));
        format!("{}?{rest}", url.replace("127.0.0.1", host))
    };
    let hub = Arc::new(Hub::default());
    let mut application = application;
    let good = [
        url("localhost", &format!("sslmode=verify-full&sslrootcert={root}")),
        // Another name than the certificate's.
        url("127.0.0.1", &format!("sslmode=verify-ca&sslrootcert={root}")),
        url("127.0.0.1", "sslmode=require"),
        url("127.0.0.1", "sslmode=prefer"),
    ];
    for (n, url) in good.into_iter().enumerate() {
        application = application.at(url);
        let relay = application.relay(&hub);
        application.commit(&n.to_string());
        hub.has(n + 1).await;
        relay.stop().await;
    }
    let taken = hub.ids().len();
    let bad = [
        url("127.0.0.1", &format!("sslmode=verify-full&sslrootcert={root}")),
        url("localhost", "sslmode=verify-full"),
        url("localhost", "sslmode=disable"),
        url("localhost", "sslmode=require").replace(PASSWORD, "wrong"),
    ];
    application.commit("not yet");
    for url in bad {
        let (log, _guard) = Log::keep();
        application = application.at(url.clone());
        let relay = application.relay(&hub);
        log.alerts("there is no stream").await;
        assert!(!log.text().contains("p@ss-w0rd") && !log.text().contains(PASSWORD));
        relay.stop().await;
    }
    assert_eq!(hub.ids().len(), taken);
}

#[tokio::test]
async fn what_a_log_cannot_do_is_a_fault_of_the_settings() {
    let url = "postgres://nobody@127.0.0.1:1/none";
    let settings = json!({
        "url": { "env": "URL" },
        "relay": "cdc",
        "on_failed": "hold",
        "one_transaction": true,
        "cdc": { "slot": "Not-A-Slot", "publication": "a\"b", "heartbeat": "1ms" },
    });
    let expected = ["cdc.slot", "cdc.heartbeat", "cdc.publication", "on_failed", "one_transaction"];
    assert_eq!(faults(url, settings), expected);
    let elsewhere = json!({ "url": { "env": "URL" }, "relay": "cdc" });
    assert_eq!(faults("sqlite:x.db", elsewhere), ["relay"]);
}
