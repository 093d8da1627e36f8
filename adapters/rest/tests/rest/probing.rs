//! Looking at a destination without a request.

use pabal_core::{Finding, SystemClock};
use serde_json::json;
use tokio::net::TcpListener;

use crate::{
    server::{Server, answer},
    support::*,
    tls::{Authority, mutual},
};

/// Each as `severity: what`.
fn told(found: &[Finding]) -> Vec<String> {
    found.iter().map(|it| format!("{:?}: {}", it.severity, it.what)).collect()
}

#[tokio::test]
async fn a_look_makes_no_request_and_finds_nothing_where_all_is_well() {
    let server = Server::start(|_, _| answer(200, "")).await;
    let sender = sender(json!({ "url": server.url("/{key}") }));
    assert_eq!(told(&sender.probe().await), Vec::<String>::new());
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn a_name_without_an_address_and_a_port_without_a_listener_are_faults() {
    let nowhere = sender(json!({ "url": "http://nobody.invalid/x" })).probe().await;
    assert!(told(&nowhere)[0].starts_with("Fault: the name nobody.invalid has no address"));
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let refused = sender(json!({ "url": format!("http://{address}/x") })).probe().await;
    assert!(told(&refused)[0].starts_with(&format!("Fault: cannot connect to {address}")));
    assert!(refused[0].help.is_some());
}

#[tokio::test]
async fn tls_is_looked_at_with_the_same_trust_and_certificate_as_messages_use() {
    let (authority, stranger) = (Authority::new("ours"), Authority::new("stranger"));
    let server = Server::start_tls(authority.acceptor_for(&[b"h2"]), |_, _| answer(200, "")).await;
    let look = async |tls| {
        let mut context = authority.context(server.address.port(), tls, &Default::default());
        context.clock = std::sync::Arc::new(SystemClock);
        told(&build(context).probe().await)
    };
    authority.write_pair(&authority.pair("hub", 2090, 1));
    assert_eq!(look(mutual()).await, Vec::<String>::new());

    let bare = look(json!({ "ca": "ca.pem" })).await;
    assert!(bare[0].contains("our certificate was refused"), "{bare:?}");

    authority.write_pair(&stranger.pair("hub", 2090, 1));
    let unknown = look(mutual()).await;
    assert!(unknown[0].contains("our certificate was refused"), "{unknown:?}");

    authority.write_pair(&authority.pair("hub", 2020, 1));
    let old = look(mutual()).await;
    assert!(old[0].starts_with("Fault: our certificate has expired (2020-01-01"), "{old:?}");
    assert!(old[1].starts_with("Fault: TLS with localhost"), "{old:?}");

    let distrusted = look(json!({})).await;
    assert!(distrusted[0].starts_with("Fault: TLS with localhost"), "{distrusted:?}");
    assert!(server.seen().is_empty());
}
