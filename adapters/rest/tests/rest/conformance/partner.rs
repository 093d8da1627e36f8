//! A partner's HTTP server that can be broken in every way the cases ask for.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use pabal_conformance::adapter::{Arrived, Fault, Partner};
use pabal_core::{Bytes, Headers, Sender};
use percent_encoding::percent_decode_str;
use serde_json::{json, value::RawValue};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
};

use super::{Form, small};
use crate::{
    server::{self, Seen, Step, answer, answer_with},
    support,
};

/// A server, and what is wrong with it.
pub(super) struct Server {
    form: Form,
    address: SocketAddr,
    /// Bound and not listening: keeps the port while nobody can connect to it.
    _port: TcpSocket,
    shared: Arc<Shared>,
    running: tokio::sync::Mutex<Option<server::Server>>,
}

#[derive(Default)]
struct Shared {
    fault: Mutex<Option<Fault>>,
    arrived: Mutex<Vec<Arrived>>,
    mended: watch::Sender<bool>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    pub(super) async fn start(form: Form) -> Self {
        let port = bound("127.0.0.1:0".parse().unwrap());
        let address = port.local_addr().unwrap();
        let server = Self {
            form,
            address,
            _port: port,
            shared: Arc::default(),
            running: tokio::sync::Mutex::default(),
        };
        server.listen().await;
        server
    }

    async fn listen(&self) {
        let mut running = self.running.lock().await;
        if running.is_none() {
            let (shared, form) = (Arc::clone(&self.shared), self.form);
            let listener: TcpListener = bound(self.address).listen(64).unwrap();
            let server =
                server::Server::start_on(listener, move |_, seen| shared.answer(form, seen));
            *running = Some(server);
        }
    }
}

/// A socket that shares its port with those that say the same.
fn bound(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseport(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

impl Shared {
    fn answer(&self, form: Form, seen: &Seen) -> Step {
        let arrived = match form {
            Form::Binary => binary(seen),
            Form::Structured => structured(seen),
        };
        let mut fault = self.fault.lock().unwrap();
        let is = |id: pabal_core::MessageId| id.to_string() == arrived.id;
        let step = match *fault {
            Some(Fault::Refuse(id)) if is(id) => return answer(422, "not like this"),
            Some(Fault::Fail(id)) if is(id) => return answer(500, "a table is locked"),
            Some(Fault::Pause(time)) => {
                return answer_with(503, "retry-after", time.as_secs().to_string());
            }
            Some(Fault::Hold(id)) if is(id) => Step::Wait(self.mended.subscribe()),
            Some(Fault::Cut) => {
                *fault = None;
                Step::Close
            }
            _ => answer(200, ""),
        };
        self.arrived.lock().unwrap().push(arrived);
        step
    }
}

/// As a reader of CloudEvents in binary mode has it.
fn binary(seen: &Seen) -> Arrived {
    let headers = seen.headers.iter().map(|(name, value)| {
        let value = match name.starts_with("ce-") {
            true => percent_decode_str(value).decode_utf8().unwrap().into_owned(),
            false => value.clone(),
        };
        (name.clone(), value)
    });
    let headers: Headers = headers.collect();
    Arrived {
        id: headers.get("ce-id").unwrap().to_owned(),
        headers,
        body: seen.body.clone().into(),
        wire_bytes: Some(seen.wire_bytes()),
    }
}

/// As a reader of CloudEvents in structured mode has it.
fn structured(seen: &Seen) -> Arrived {
    assert_eq!(seen.header("content-type"), Some("application/cloudevents+json"));
    let others = seen.headers.iter().filter(|(name, _)| name != "content-type");
    let mut headers: Headers = others.cloned().collect();
    let mut body = Bytes::new();
    let document: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&seen.body).unwrap();
    for (name, raw) in document {
        let text = serde_json::from_str(raw.get()).unwrap_or_else(|_| raw.get().to_owned());
        match name.as_str() {
            "data" => body = raw.get().to_owned().into(),
            "data_base64" => body = BASE64_STANDARD.decode(text).unwrap().into(),
            "datacontenttype" => headers.push("content-type", text),
            "traceparent" => headers.push("traceparent", text),
            _ => headers.push(format!("ce-{name}"), text),
        }
    }
    Arrived {
        id: headers.get("ce-id").unwrap().to_owned(),
        headers,
        body,
        wire_bytes: Some(seen.wire_bytes()),
    }
}

#[async_trait]
impl Partner for Server {
    async fn sender(&self) -> Arc<dyn Sender> {
        let settings = json!({
            "url": format!("http://{}/v1/{{type}}/{{key}}", self.address),
            "query": { "version": "{version}" },
            "headers": { "x-case": "{correlation}" },
            "mode": self.form.mode(),
            "auth": { "bearer": { "env": "TOKEN" } },
            "sign": { "standard_webhooks": [{ "env": "FIRST" }, { "env": "SECOND" }] },
        });
        support::build(small(settings)).into()
    }

    async fn arrived(&self) -> Vec<Arrived> {
        self.shared.arrived.lock().unwrap().clone()
    }

    async fn fail(&self, fault: Fault) {
        self.shared.mended.send_replace(false);
        *self.shared.fault.lock().unwrap() = Some(fault);
        if fault == Fault::OutOfReach
            && let Some(server) = self.running.lock().await.take()
        {
            server.end().await;
        }
    }

    async fn mend(&self) {
        *self.shared.fault.lock().unwrap() = None;
        self.shared.mended.send_replace(true);
        self.listen().await;
    }
}
