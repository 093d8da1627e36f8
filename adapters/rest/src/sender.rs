//! The sending side: one exchange a message.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use http::HeaderMap;
use pabal_core::{
    Answer, AnswerRule, Bytes, Cause, Clock, ConfigError, Context, Finding, Headers, Limits,
    Message, SendError, Sender, Verdict, by_key,
};

use crate::{
    classify::{Fault, Judge, chain, text},
    client::{Client, Plan},
    request::Builder,
    settings::{SenderSettings, StatusMeaning, Tls},
};

/// What a rule may see of an answer's body; what comes behind it is not read.
const ANSWER_BYTES_READ: usize = 64 * 1024;
/// What is kept of an answer's headers, names and values together.
const ANSWER_HEADER_BYTES: usize = 8 * 1024;
/// Envelope and headers come on top of the body.
const ENVELOPE_BYTES_MAX: usize = 64 * 1024;
/// Connecting takes no longer than this, unless the settings say so.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends to one destination.
#[derive(Debug)]
pub(crate) struct RestSender {
    clock: Arc<dyn Clock>,
    rule: Arc<dyn AnswerRule>,
    body_bytes_max: usize,
    builder: Builder,
    client: Client,
    timeout: Duration,
    answer_max: usize,
    status: BTreeMap<u16, StatusMeaning>,
}

impl RestSender {
    /// Checks the settings, reads secrets and certificates, opens no connection.
    pub(crate) fn new(context: Context) -> Result<Self, Vec<ConfigError>> {
        let settings: SenderSettings = context.settings.parse()?;
        let mut faults = Vec::new();
        let builder =
            Builder::new(&settings, &*context.secrets).map_err(|found| faults.extend(found)).ok();
        let mut fault = |key: &str, text: &str| faults.push(ConfigError::new(key, text));
        if settings.timeout.is_zero() {
            fault("timeout", "must be more than nothing");
        }
        let half = settings.timeout / 2;
        let connect_timeout = settings.connect_timeout.unwrap_or(CONNECT_TIMEOUT.min(half));
        // Else a limit that passes while connecting could not be told from one that passes later.
        if connect_timeout > half || settings.connect_timeout.is_some_and(|time| time.is_zero()) {
            fault("connect_timeout", "must be more than nothing and at most half of `timeout`");
        }
        let answer_max = usize::try_from(settings.answer_max.as_u64()).unwrap_or(usize::MAX);
        if answer_max > ANSWER_BYTES_READ {
            fault("answer_max", "at most 64 KiB of an answer are kept");
        }
        let https = settings.url.to_ascii_lowercase().starts_with("https:");
        if !https && settings.tls != Tls::default() {
            fault("tls", "the URL is not https, so no certificate is used");
        }
        if settings.tls.cert.is_some() != settings.tls.key.is_some() {
            fault("tls", "`cert` and `key` are given together or not at all");
        }
        let mut status = BTreeMap::new();
        for (code, meaning) in &settings.status {
            match code.parse() {
                Ok(number @ 200..=599) => {
                    status.insert(number, *meaning);
                }
                _ => fault(&format!("status.{code}"), "not a status code from 200 to 599"),
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let plan = Plan {
            name: context.name.clone(),
            connect_timeout,
            idle: settings.idle,
            https,
            ca: settings.tls.ca,
            cert: settings.tls.cert,
            key: settings.tls.key,
            secrets: Arc::clone(&context.secrets),
        };
        let client = Client::new(plan, Arc::clone(&context.clock)).map_err(|fault| vec![fault])?;
        let Some(builder) = builder else {
            return Err(faults);
        };
        Ok(Self {
            clock: context.clock,
            rule: context.answer,
            body_bytes_max: context.body_bytes_max,
            builder,
            client,
            timeout: settings.timeout,
            answer_max,
            status,
        })
    }

    async fn one(&self, message: &Message) -> Verdict {
        let request = self.builder.build(message, self.clock.now())?;
        let url = request.url.clone();
        let exchange = self
            .client
            .get()
            .request(request.method, request.url)
            .headers(request.headers)
            .body(request.body);
        let mut seen = Seen::default();
        let ended = self.clock.timeout(self.timeout, seen.fill(exchange)).await;
        let broken = match ended {
            Some(Ok(())) => None,
            // Without its URL, which may hold what is nobody's business.
            Some(Err(error)) => Some((Fault::of(&error), chain(&error))),
            None => return Err(SendError::transient(self.too_late(seen))),
        };
        if let Some((fault, detail)) = broken {
            let detail = match seen.status {
                Some(_) => format!("{}; {detail}", self.so_far(seen)),
                None => detail,
            };
            return Err(fault.error(&detail));
        }
        let headers = std::mem::take(&mut seen.headers);
        let judged =
            Answer { status: seen.status, headers: kept_headers(&headers), body: seen.body.into() };
        let judge =
            Judge { status: &self.status, rule: &*self.rule, url: &url, now: self.clock.now() };
        let verdict = judge.verdict(&headers, &judged, self.kept(&judged));
        verdict.map_err(|error| self.without_secret(error))
    }

    /// What is kept of an answer: its start, without our own secret.
    fn kept(&self, answer: &Answer) -> Answer {
        // Cut after the secrets are gone, so that half of one cannot remain at the end.
        let clean = self.builder.redact(answer.body.clone());
        let headers = answer.headers.iter().map(|(name, value)| {
            let value = self.builder.redact(value.to_owned().into());
            (name.to_owned(), String::from_utf8_lossy(&value).into_owned())
        });
        Answer {
            status: answer.status,
            headers: headers.collect(),
            body: start(&clean, self.answer_max),
        }
    }

    /// A rule may have quoted the answer as it came.
    fn without_secret(&self, mut error: SendError) -> SendError {
        match &mut error {
            SendError::Unreachable { cause, .. }
            | SendError::Transient { cause, .. }
            | SendError::Permanent { cause, .. } => {
                if let Some(detail) = cause.detail.take() {
                    let clean = self.builder.redact(detail.into());
                    cause.detail = Some(String::from_utf8_lossy(&clean).into_owned());
                }
            }
            SendError::NotSent => {}
        }
        error
    }

    fn too_late(&self, seen: Seen) -> Cause {
        match seen.status {
            Some(_) => Cause::with("the answer did not end in time", self.so_far(seen)),
            None => Cause::from("no answer in time"),
        }
    }

    fn so_far(&self, seen: Seen) -> String {
        let answer = Answer { status: seen.status, body: seen.body.into(), ..Answer::default() };
        let status = answer.status.unwrap_or_default();
        format!("HTTP {status} {}", text(&self.kept(&answer)))
    }
}

/// The first bytes, cut between two characters where they are UTF-8.
fn start(bytes: &Bytes, max: usize) -> Bytes {
    let cut = bytes.slice(..bytes.len().min(max));
    match std::str::from_utf8(&cut) {
        // Nothing is wrong but that the last character is not whole.
        Err(error) if error.error_len().is_none() => cut.slice(..error.valid_up_to()),
        _ => cut,
    }
}

/// What has come of an answer so far.
#[derive(Default)]
struct Seen {
    status: Option<u16>,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Seen {
    /// Sends, and reads the answer up to the cap; what comes behind it is dropped together with the
    /// connection.
    async fn fill(&mut self, exchange: reqwest::RequestBuilder) -> Result<(), reqwest::Error> {
        let mut answer = exchange.send().await?;
        self.status = Some(answer.status().as_u16());
        self.headers = std::mem::take(answer.headers_mut());
        while let Some(chunk) = answer.chunk().await? {
            let room = ANSWER_BYTES_READ - self.body.len();
            self.body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() >= room {
                break;
            }
        }
        Ok(())
    }
}

/// An answer's headers as text, without those that hold a session.
fn kept_headers(headers: &HeaderMap) -> Headers {
    let mut kept = Headers::default();
    for (name, value) in headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        if *name == http::header::SET_COOKIE
            || kept.size() + name.as_str().len() + value.len() > ANSWER_HEADER_BYTES
        {
            continue;
        }
        kept.push(name.as_str(), value);
    }
    kept
}

#[async_trait]
impl Sender for RestSender {
    fn limits(&self) -> Limits {
        Limits::one_by_one(self.body_bytes_max.saturating_add(ENVELOPE_BYTES_MAX))
    }

    fn wire_size(&self, message: &Message) -> usize {
        self.builder.wire_size(message)
    }

    async fn send(&self, batch: &[Message]) -> Vec<Verdict> {
        by_key(batch, |message| self.one(message)).await
    }

    async fn probe(&self) -> Vec<Finding> {
        match self.builder.place() {
            Some(place) => self.client.probe(&place, &*self.clock).await,
            None => vec![Finding::fault("the URL cannot be read")],
        }
    }
}
