//! HTTP/2, and what the tables say of themselves.

use std::sync::{Arc, Mutex};

use axum::{Router, extract::Request, http::Version};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use pabal_adapter_rest::{Ingress, RestAdapter};
use pabal_core::{Adapter, ManualClock, Schema, by_key};

use crate::{support::*, tls};

#[tokio::test]
async fn messages_go_side_by_side_over_one_connection_where_the_partner_speaks_http_2() {
    let authority = tls::Authority::new("ours");
    authority.write_pair(&authority.pair("hub", 2090, 1));
    let acceptor = authority.acceptor_for(&[b"h2"]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let router = Router::new().fallback(async move |request: Request| {
        assert_eq!(request.version(), Version::HTTP_2);
        noted.lock().unwrap().push(request.headers()["ce-partitionkey"].clone());
        "ok"
    });
    let connections = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&connections);
    let server = tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            *counted.lock().unwrap() += 1;
            let (acceptor, service) = (acceptor.clone(), TowerToHyperService::new(router.clone()));
            tokio::spawn(async move {
                match acceptor.accept(socket).into_fallible().await {
                    Ok(socket) => {
                        let builder = auto::Builder::new(TokioExecutor::new());
                        builder.serve_connection(TokioIo::new(socket), service).await.ok();
                    }
                    Err((_, mut socket)) => {
                        tokio::io::copy(&mut socket, &mut tokio::io::sink()).await.ok();
                    }
                }
            });
        }
    });
    let sender = build(authority.context(port, tls::mutual(), &ManualClock::default()));
    assert_eq!(fate(&send(&*sender, message("{}")).await), "taken");
    let batch: Vec<_> = (0..50)
        .map(|number| {
            let mut message = message("{}");
            message.key = Some(format!("key-{number}"));
            message
        })
        .collect();
    let verdicts = by_key(&batch, async |message| send(&*sender, message.clone()).await).await;
    assert!(verdicts.iter().all(|verdict| fate(verdict) == "taken"), "{verdicts:?}");
    assert_eq!(seen.lock().unwrap().len(), 51);
    assert_eq!(*connections.lock().unwrap(), 1);
    // Over HTTP/2, too, a certificate nobody knows is about us and not about the message.
    let stranger = tls::Authority::new("stranger");
    authority.write_pair(&stranger.pair("hub", 2090, 1));
    let sender = build(authority.context(port, tls::mutual(), &ManualClock::default()));
    let verdict = send(&*sender, message("{}")).await;
    assert_eq!(fate(&verdict), "unreachable", "{verdict:?}");
    server.abort();
}

#[test]
fn every_key_of_both_tables_is_described() {
    let adapter = RestAdapter::new(Ingress::new());
    assert_eq!(adapter.name(), "rest");
    let keys = |schema: Schema| {
        let schema = schema.to_value();
        assert_eq!(schema["additionalProperties"], false);
        let properties = schema["properties"].as_object().unwrap().clone();
        for (key, property) in &properties {
            assert!(property["description"].is_string(), "{key}: {property}");
        }
        properties.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(
        keys(adapter.sender_schema()),
        [
            "url",
            "method",
            "headers",
            "query",
            "mode",
            "auth",
            "sign",
            "tls",
            "timeout",
            "connect_timeout",
            "idle",
            "answer_max",
            "status",
        ]
    );
    assert_eq!(
        keys(adapter.receiver_schema()),
        [
            "auth",
            "allow",
            "trusted_proxies",
            "body_max",
            "concurrent",
            "type",
            "timeout",
            "keep_headers",
        ]
    );
}
