//! Contexts, an inbox and a log that tests can look into.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use pabal_adapter_rest::{Ingress, RestAdapter};
use pabal_core::{
    Adapter, Answer, AnswerRule, Bytes, Clock, ConfigError, Context, EndpointName, Judgement,
    Limits, Message, MessageId, Receipt, Secret, SecretReference, Secrets, SendError, Sender,
    Settings, State, StateConflict, StateValue, StoreError, SystemClock, Verdict,
};
use serde_json::Value;

/// Whatever must never be seen.
pub(crate) const TOKEN: &str = "u-n-i-q-u-e-t-o-k-e-n";
/// Secrets of Standard Webhooks.
pub(crate) const FIRST: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub(crate) const SECOND: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// Secrets by variable, and files of one directory.
#[derive(Debug, Clone, Default)]
pub(crate) struct TestSecrets(pub(crate) PathBuf);

impl Secrets for TestSecrets {
    fn get(&self, key: &str, reference: &SecretReference) -> Result<Secret, ConfigError> {
        let missing = || ConfigError::new(key, format!("{reference} is not there"));
        match reference {
            SecretReference::Env(name) => match name.as_str() {
                "TOKEN" => Ok(Secret::new(TOKEN)),
                "FIRST" => Ok(Secret::new(FIRST)),
                "SECOND" => Ok(Secret::new(SECOND)),
                "EMPTY" => Ok(Secret::new("")),
                _ => Err(missing()),
            },
            SecretReference::File(path) => {
                let text = std::fs::read_to_string(self.path(path)).map_err(|_| missing())?;
                Ok(Secret::new(text.trim_end()))
            }
        }
    }

    fn path(&self, path: &Path) -> PathBuf {
        self.0.join(path)
    }
}

#[derive(Debug)]
struct NoState;

#[async_trait]
impl State for NoState {
    async fn get(&self, _: &str) -> Result<Option<StateValue>, StoreError> {
        Ok(None)
    }
    async fn compare_and_set(
        &self,
        _: &str,
        _: i64,
        _: Bytes,
    ) -> Result<Result<(), StateConflict>, StoreError> {
        Ok(Ok(()))
    }
}

/// A rule that is a function.
pub(crate) struct Rule(pub(crate) fn(&Answer) -> Option<Judgement>);

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rule")
    }
}

impl AnswerRule for Rule {
    fn judge(&self, answer: &Answer) -> Option<Judgement> {
        (self.0)(answer)
    }
}

/// A context of `welfare/applications` with these settings.
pub(crate) fn context(settings: Value) -> Context {
    // Every test that makes a client needs it; only the first one wins.
    rustls::crypto::ring::default_provider().install_default().ok();
    Context {
        alongside: false,
        name: name(),
        settings: Settings(settings),
        secrets: Arc::new(TestSecrets::default()),
        clock: Arc::new(SystemClock),
        state: Arc::new(NoState),
        answer: Arc::new(Rule(|_| None)),
        body_bytes_max: 1024 * 1024,
    }
}

pub(crate) fn name() -> EndpointName {
    "welfare/applications".parse().unwrap()
}

/// A sender with these settings.
pub(crate) fn sender(settings: Value) -> Box<dyn Sender> {
    build(context(settings))
}

/// A sender in this context.
pub(crate) fn build(context: Context) -> Box<dyn Sender> {
    RestAdapter::new(Ingress::new()).sender(context).unwrap()
}

/// The faults of a sender's settings.
pub(crate) fn faults(settings: Value) -> Vec<String> {
    let faults = RestAdapter::new(Ingress::new()).sender(context(settings)).unwrap_err();
    faults.iter().map(ToString::to_string).collect()
}

/// A JSON message with id and key.
pub(crate) fn message(body: impl Into<Bytes>) -> Message {
    let mut message = Message::new("city/permits".parse().unwrap(), "application.submitted", body);
    message.id = MessageId::of("hub", &message.source, &message.origin.source, "A-1");
    message.origin.id = Some("A-1".into());
    message.key = Some("case-7".into());
    message.content_type = Some("application/json".into());
    message
}

/// Sends one message.
pub(crate) async fn send(sender: &dyn Sender, message: Message) -> Verdict {
    let mut verdicts = sender.send(&[message]).await;
    assert_eq!(verdicts.len(), 1);
    verdicts.remove(0)
}

/// The verdict in one word.
pub(crate) fn fate(verdict: &Verdict) -> &'static str {
    match verdict {
        Ok(receipt) if receipt.duplicate => "duplicate",
        Ok(_) => "taken",
        Err(SendError::Unreachable { .. }) => "unreachable",
        Err(SendError::Transient { .. }) => "transient",
        Err(SendError::Permanent { .. }) => "permanent",
        Err(SendError::NotSent) => "not sent",
    }
}

/// The whole text of a failure.
pub(crate) fn cause(verdict: &Verdict) -> String {
    verdict.as_ref().unwrap_err().cause().unwrap().to_string()
}

/// An inbox that keeps what it is handed and answers as told, once it is let.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) taken: Mutex<Vec<Message>>,
    /// Hand-overs that have begun.
    pub(crate) begun: tokio::sync::watch::Sender<usize>,
    /// One permit lets one hand-over end.
    pub(crate) gate: tokio::sync::Semaphore,
    verdict: Mutex<Verdict>,
}

impl Inbox {
    /// One that is open.
    pub(crate) fn open() -> Arc<Self> {
        Self::with_permits(tokio::sync::Semaphore::MAX_PERMITS)
    }

    /// One that waits for permits.
    pub(crate) fn closed() -> Arc<Self> {
        Self::with_permits(0)
    }

    fn with_permits(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            taken: Mutex::default(),
            begun: tokio::sync::watch::Sender::new(0),
            gate: tokio::sync::Semaphore::new(permits),
            verdict: Mutex::new(Ok(Receipt {
                remote_id: Some("the-id".into()),
                ..Receipt::default()
            })),
        })
    }

    /// What it says from now on.
    pub(crate) fn says(&self, verdict: Verdict) {
        *self.verdict.lock().unwrap() = verdict;
    }

    /// The last message it was handed.
    pub(crate) fn last(&self) -> Message {
        self.taken.lock().unwrap().last().expect("nothing was handed over").clone()
    }

    /// Returns once so many hand-overs have begun.
    pub(crate) async fn wait_begun(&self, count: usize) {
        self.begun.subscribe().wait_for(|begun| *begun >= count).await.unwrap();
    }
}

#[async_trait]
impl Sender for Inbox {
    fn limits(&self) -> Limits {
        Limits::one_by_one(usize::MAX)
    }
    fn wire_size(&self, _: &Message) -> usize {
        0
    }
    async fn send(&self, batch: &[Message]) -> Vec<Verdict> {
        self.begun.send_modify(|begun| *begun += 1);
        self.gate.acquire().await.unwrap().forget();
        self.taken.lock().unwrap().extend_from_slice(batch);
        vec![self.verdict.lock().unwrap().clone()]
    }
}

/// Everything that is logged by this thread while it lives.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Starts listening, down to the finest level.
    pub(crate) fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let guard = tracing::subscriber::set_default(subscriber);
        (log, guard)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    /// The lines with this in them.
    pub(crate) fn lines(&self, part: &str) -> Vec<String> {
        self.text().lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// No secret may be in a text, not even as base64 has it.
pub(crate) fn assert_secret_free(text: &str) {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    for secret in [
        TOKEN.to_owned(),
        BASE64_STANDARD.encode(TOKEN),
        BASE64_STANDARD.encode(format!("hub:{TOKEN}")),
        FIRST.to_owned(),
        FIRST["whsec_".len()..].to_owned(),
        "query-secret".to_owned(),
    ] {
        assert!(!text.contains(&secret), "{secret} is in: {text}");
    }
}

/// What `Clock` a test needs when it moves time itself.
pub(crate) fn with_clock(mut context: Context, clock: &(impl Clock + Clone + 'static)) -> Context {
    context.clock = Arc::new(clock.clone());
    context
}
