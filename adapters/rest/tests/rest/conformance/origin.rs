//! A partner's client: it repeats what was neither taken nor refused, with the same id and bytes.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use pabal_adapter_rest::{Ingress, RestAdapter};
use pabal_conformance::adapter::{Belief, Origin, PLAIN_HEADER};
use pabal_core::{Adapter, Bytes, Message, Receiver};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{json, value::RawValue};

use super::{Form, small};
use crate::receiving::client;

/// The client, and the listener that it calls.
#[derive(Debug)]
pub(super) struct Caller {
    form: Form,
    client: reqwest::Client,
    outgoing: Arc<Mutex<Vec<Outgoing>>>,
    listener: Mutex<Option<Listener>>,
}

#[derive(Debug)]
struct Outgoing {
    message: Message,
    belief: Belief,
    /// On its way at the moment.
    asking: bool,
}

/// In a runtime of its own, whose end is for every connection like the end of a process.
#[derive(Debug)]
struct Listener {
    address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Listener {
    fn start(ingress: &Ingress) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let router = ingress.router();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
        Self { address, runtime: Some(runtime) }
    }
}

impl Caller {
    pub(super) fn new(form: Form) -> Self {
        // Only the first one in this process wins.
        rustls::crypto::ring::default_provider().install_default().ok();
        Self { form, client: client(), outgoing: Arc::default(), listener: Mutex::default() }
    }

    fn request(&self, address: SocketAddr, message: &Message) -> reqwest::RequestBuilder {
        let mut request = self.client.post(format!("http://{address}/in/welfare/applications"));
        for (name, value) in message.headers.iter().filter(|(name, _)| *name == PLAIN_HEADER) {
            request = request.header(name, value);
        }
        match self.form {
            Form::Binary => {
                for (name, value) in attributes(message) {
                    let value = utf8_percent_encode(&value, NON_ALPHANUMERIC).to_string();
                    request = request.header(format!("ce-{name}"), value);
                }
                if let Some(trace) = &message.trace {
                    request = request.header("traceparent", trace);
                }
                let content_type = message.content_type.as_deref().unwrap();
                request.header("content-type", content_type).body(body(message))
            }
            Form::Structured => request
                .header("content-type", "application/cloudevents+json")
                .body(document(message)),
        }
    }
}

fn body(message: &Message) -> Bytes {
    message.body.inline().unwrap().clone()
}

fn attributes(message: &Message) -> Vec<(String, String)> {
    let own = [
        ("specversion", Some("1.0".to_owned())),
        ("id", message.origin.id.clone()),
        ("source", Some(message.origin.source.clone())),
        ("type", Some(message.message_type.clone())),
        ("partitionkey", message.key.clone()),
        ("keyversion", message.version.map(|version| version.to_string())),
        ("dataschema", message.schema.clone()),
        ("time", message.time.clone()),
        ("subject", message.subject.clone()),
        ("correlationid", message.correlation.clone()),
        ("causationid", message.causation.clone()),
    ];
    let own = own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let extensions = message
        .headers
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("ce-")?.to_owned(), value.to_owned())));
    own.chain(extensions).collect()
}

fn document(message: &Message) -> String {
    let mut members: Vec<_> = attributes(message)
        .into_iter()
        .chain(message.trace.clone().map(|trace| ("traceparent".to_owned(), trace)))
        .chain(message.content_type.clone().map(|it| ("datacontenttype".to_owned(), it)))
        .map(|(name, value)| format!("{}:{}", json!(name), json!(value)))
        .collect();
    let bytes = body(message);
    let is_json = message.content_type.as_deref() == Some("application/json");
    match serde_json::from_slice::<&RawValue>(&bytes) {
        Ok(raw) if is_json => members.push(format!("\"data\":{}", raw.get())),
        _ => members.push(format!("\"data_base64\":\"{}\"", BASE64_STANDARD.encode(&bytes))),
    }
    format!("{{{}}}", members.join(","))
}

#[async_trait]
impl Origin for Caller {
    async fn put(&self, messages: &[Message]) {
        let new = messages.iter().cloned();
        let waiting = |message| Outgoing { message, belief: Belief::Waiting, asking: false };
        self.outgoing.lock().unwrap().extend(new.map(waiting));
    }

    async fn receiver(&self) -> Arc<dyn Receiver> {
        let ingress = Ingress::new();
        let settings = json!({ "auth": "none", "keep_headers": [PLAIN_HEADER] });
        let receiver = RestAdapter::new(ingress.clone()).receiver(small(settings)).unwrap();
        *self.listener.lock().unwrap() = Some(Listener::start(&ingress));
        receiver.into()
    }

    async fn offer(&self) {
        let address = self.listener.lock().unwrap().as_ref().map(|listener| listener.address);
        let Some(address) = address else { return };
        let mut outgoing = self.outgoing.lock().unwrap();
        for (index, it) in outgoing.iter_mut().enumerate() {
            if it.asking || it.belief != Belief::Waiting {
                continue;
            }
            it.asking = true;
            let (request, all) = (self.request(address, &it.message), Arc::clone(&self.outgoing));
            tokio::spawn(async move {
                let answer = request.send().await.map(|answer| answer.status().as_u16());
                let it = &mut all.lock().unwrap()[index];
                it.asking = false;
                it.belief = match answer {
                    Ok(200..=299) => Belief::Acknowledged,
                    Ok(408 | 425 | 429) => Belief::Waiting,
                    Ok(400..=499) => Belief::Refused,
                    _ => Belief::Waiting,
                };
            });
        }
    }

    async fn believes(&self, message: &Message) -> Belief {
        let outgoing = self.outgoing.lock().unwrap();
        let it = outgoing.iter().find(|it| it.message.origin.id == message.origin.id);
        it.expect("it was put there").belief
    }

    async fn kill(&self) {
        let listener = self.listener.lock().unwrap().take();
        if let Some(runtime) = listener.and_then(|mut it| it.runtime.take()) {
            // Waits until nothing of it runs any more.
            let limit = std::time::Duration::from_secs(10);
            let end = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(limit));
            end.await.unwrap();
        }
    }
}
