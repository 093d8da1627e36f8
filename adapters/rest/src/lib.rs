//! HTTP: sends messages to partners' APIs, takes them at `POST /in/{partner}/{source}`, and lets
//! partners fetch them at `GET /in/{partner}/{destination}/pull`, which is the adapter [`PullAdapter`].
//!
//! # Sending, `[destination.x.rest]`
//!
//! | key | default | meaning |
//! |---|---|---|
//! | `url` | needed | http or https; `{key}` `{id}` `{type}` `{version}` `{correlation}` `{origin_id}` in path and query |
//! | `method` | `"POST"` | also `"PUT"`, `"PATCH"`, `"DELETE"` |
//! | `headers`, `query` | none | name to value, with the same placeholders |
//! | `mode` | `"binary"` | CloudEvents in headers; `"structured"`: in one JSON document; `"raw"`: body and content type only |
//! | `auth` | none | `{ bearer = … }`, `{ basic = { user, password } }` or `{ header = { name, value } }` |
//! | `sign` | none | `{ standard_webhooks = [new, old] }`: one signature a secret |
//! | `tls` | the machine's authorities | `{ ca, cert, key }`; changed files are used without a restart |
//! | `timeout` | `"30s"` | the whole exchange, the answer's last byte included |
//! | `connect_timeout` | `"5s"` | at most half of `timeout` |
//! | `idle` | `"4s"` | how long an unused connection is kept |
//! | `answer_max` | `"2KiB"` | what is kept of an answer |
//! | `status` | none | single codes: `{ "409" = "duplicate", "404" = "retry" }` |
//!
//! What an answer means, unless `status` or the destination's answer rule says otherwise:
//!
//! | answer | verdict |
//! |---|---|
//! | 2xx | receipt |
//! | 301 302 303 307 308 | unreachable, with the target shown; never followed |
//! | 401 403 407 429 | unreachable; no rule is asked |
//! | 408 425 5xx, 1xx, other 3xx | transient |
//! | 400 422 | permanent: invalid |
//! | 409 · 410 · 415 | permanent: conflict · expired · unreadable |
//! | 413 414 431 | permanent: too large |
//! | other 4xx | permanent: refused |
//! | no connection, no name, TLS failed, our certificate refused | unreachable |
//! | broken off, too late | transient |
//!
//! `Retry-After` is passed on in both its forms.
//!
//! # Receiving, `[source.x.rest]`
//!
//! | key | default | meaning |
//! |---|---|---|
//! | `auth` | needed | `"none"`, `{ bearer }`, `{ basic }`, `{ header }`, `{ standard_webhooks = […] }`, `{ client_certificate = "name" }` |
//! | `allow` | all | networks that may call |
//! | `trusted_proxies` | none | networks whose `X-Forwarded-For` is believed |
//! | `body_max` | the source's limit | the largest body |
//! | `concurrent` | 256 | hand-overs at the same time; more get 503 |
//! | `type` | none | the message type of plain bodies |
//! | `timeout` | `"30s"` | the limit of reading a body |
//! | `keep_headers` | none | further request headers to keep and pass on |
//!
//! 202 `{"id": …}` means stored, 200 with `"duplicate": true` was here already; refusals are problem
//! documents (RFC 9457). A Standard Webhooks signature covers id and body only: of the envelope in
//! headers the id is compared with the signed one, the rest is as trustworthy as the connection.
//!
//! # In a process
//!
//! Before a sender is built the process must have a TLS provider:
//! `rustls::crypto::ring::default_provider().install_default()`.

mod auth;
mod classify;
mod client;
mod cloudevents;
mod door;
mod incoming;
mod ingress;
mod peer;
mod probe;
mod problem;
mod pull;
mod receiver;
mod request;
mod routes;
mod sender;
mod settings;
mod structured;
mod template;
mod webhook;

use pabal_core::{Adapter, ConfigError, Context, Receiver, Schema, Sender};

pub use ingress::{Ingress, PeerCertificate};
pub use pull::PullAdapter;
pub use request::passes_on;

/// The adapter `rest`.
#[derive(Debug, Clone)]
pub struct RestAdapter {
    ingress: Ingress,
}

impl RestAdapter {
    /// One whose sources are reached through `ingress`.
    #[must_use]
    pub fn new(ingress: Ingress) -> Self {
        Self { ingress }
    }
}

impl Adapter for RestAdapter {
    fn name(&self) -> &'static str {
        "rest"
    }

    fn sender_schema(&self) -> Schema {
        schemars::schema_for!(settings::SenderSettings)
    }

    fn receiver_schema(&self) -> Schema {
        schemars::schema_for!(settings::ReceiverSettings)
    }

    fn sender(&self, context: Context) -> Result<Box<dyn Sender>, Vec<ConfigError>> {
        Ok(Box::new(sender::RestSender::new(context)?))
    }

    fn receiver(&self, context: Context) -> Result<Box<dyn Receiver>, Vec<ConfigError>> {
        Ok(Box::new(receiver::RestReceiver::new(self.ingress.clone(), context)?))
    }
}
