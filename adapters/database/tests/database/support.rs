//! Contexts and messages.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use pabal_adapter_database::DatabaseAdapter;
use pabal_core::{
    Adapter, Answer, AnswerRule, Bytes, ConfigError, Context, Judgement, Message, MessageId,
    Secret, SecretReference, Secrets, SendError, Sender, Settings, State, StateConflict,
    StateValue, StoreError, SystemClock, Verdict,
};
use serde_json::Value;

/// `{ env = "URL" }` is this URL.
#[derive(Debug)]
struct Url(String);

impl Secrets for Url {
    fn get(&self, key: &str, reference: &SecretReference) -> Result<Secret, ConfigError> {
        match reference {
            SecretReference::Env(name) if name == "URL" => Ok(Secret::new(self.0.clone())),
            _ => Err(ConfigError::new(key, format!("{reference} is not there"))),
        }
    }

    fn path(&self, path: &std::path::Path) -> PathBuf {
        path.to_owned()
    }
}

#[derive(Debug)]
struct Nothing;

#[async_trait]
impl State for Nothing {
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

impl AnswerRule for Nothing {
    fn judge(&self, _: &Answer) -> Option<Judgement> {
        None
    }
}

/// A context with these settings and `url`.
fn context(url: &str, mut settings: Value, body_bytes_max: usize) -> Context {
    settings["url"] = serde_json::json!({ "env": "URL" });
    Context {
        name: "city/application".parse().unwrap(),
        settings: Settings(settings),
        secrets: Arc::new(Url(url.to_owned())),
        clock: Arc::new(SystemClock),
        state: Arc::new(Nothing),
        answer: Arc::new(Nothing),
        alongside: false,
        body_bytes_max,
    }
}

/// A sender as the hub makes one.
pub(crate) fn sender(url: &str, settings: Value) -> Arc<dyn Sender> {
    sender_up_to(url, settings, 1024 * 1024)
}

/// The same, with a limit on bodies.
pub(crate) fn sender_up_to(url: &str, settings: Value, body_bytes_max: usize) -> Arc<dyn Sender> {
    let context = context(url, settings, body_bytes_max);
    DatabaseAdapter.sender(context).unwrap().into()
}

/// What is wrong with settings.
pub(crate) fn faults(url: &str, settings: Value) -> Vec<String> {
    let faults = DatabaseAdapter.sender(context(url, settings, 1024)).err().unwrap_or_default();
    faults.iter().map(ToString::to_string).collect()
}

/// A message of a source and with an id there; the body is `{}`.
pub(crate) fn message(source: &str, origin_id: &str) -> Message {
    let mut message = Message::new(source.parse().unwrap(), "application.submitted", "{}");
    message.id = MessageId::of("hub", &message.source, &message.origin.source, origin_id);
    message.origin.id = Some(origin_id.to_owned());
    message.content_type = Some("application/json".to_owned());
    message
}

/// With a key and a body.
pub(crate) fn of(origin_id: &str, key: &str, body: &str) -> Message {
    let mut message = message("welfare/decisions", origin_id);
    message.key = Some(key.to_owned());
    message.body = pabal_core::Body::Inline(body.to_owned().into());
    message
}

/// Each verdict in a word.
pub(crate) fn words(verdicts: &[Verdict]) -> Vec<&'static str> {
    let word = |verdict: &Verdict| match verdict {
        Ok(receipt) if receipt.stale => "stale",
        Ok(receipt) if receipt.duplicate => "duplicate",
        Ok(_) => "taken",
        Err(SendError::Unreachable { .. }) => "unreachable",
        Err(SendError::Transient { .. }) => "transient",
        Err(SendError::Permanent { .. }) => "permanent",
        Err(SendError::NotSent) => "not sent",
    };
    verdicts.iter().map(word).collect()
}

/// Sends one.
pub(crate) async fn send(sender: &dyn Sender, message: &Message) -> Verdict {
    sender.send(std::slice::from_ref(message)).await.remove(0)
}
