//! A hub with an adapter from out of tree, `abort`: a destination that appends what it is sent to a
//! file, and ends the process on some of it.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use async_trait::async_trait;
use pabal_core::{
    Adapter, ConfigError, Context, Limits, Message, Receipt, Receiver, Schema, SendError, Sender,
    Verdict, by_key,
};
use schemars::JsonSchema;
use serde::Deserialize;

fn main() -> ExitCode {
    pabal::Hub::standard().with(AbortAdapter).main()
}

/// The adapter `abort`.
#[derive(Debug)]
struct AbortAdapter;

/// `[destination.x.abort]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// A body with this in it ends the process.
    on: String,
    /// All others go here, a JSON line each.
    book: PathBuf,
}

impl Adapter for AbortAdapter {
    fn name(&self) -> &'static str {
        "abort"
    }
    fn sender_schema(&self) -> Schema {
        schemars::schema_for!(Settings)
    }
    fn receiver_schema(&self) -> Schema {
        schemars::schema_for!(())
    }
    fn sender(&self, context: Context) -> Result<Box<dyn Sender>, Vec<ConfigError>> {
        Ok(Box::new(AbortSender(context.settings.parse()?)))
    }
    fn receiver(&self, _context: Context) -> Result<Box<dyn Receiver>, Vec<ConfigError>> {
        Err(vec![ConfigError::new("", "`abort` only sends")])
    }
}

#[derive(Debug)]
struct AbortSender(Settings);

impl AbortSender {
    async fn send_one(&self, message: &Message) -> Verdict {
        let body = message.body.inline().map(|bytes| String::from_utf8_lossy(bytes));
        let body = body.unwrap_or_default();
        if body.contains(&self.0.on) {
            std::process::abort();
        }
        let line = serde_json::json!({ "id": message.id, "key": message.key, "body": body });
        match self.append(&format!("{line}\n")) {
            Ok(()) => Ok(Receipt::default()),
            Err(error) => Err(SendError::transient(error.to_string())),
        }
    }

    fn append(&self, line: &str) -> io::Result<()> {
        let mut book = OpenOptions::new().append(true).create(true).open(&self.0.book)?;
        book.write_all(line.as_bytes())
    }
}

#[async_trait]
impl Sender for AbortSender {
    fn limits(&self) -> Limits {
        let bytes_max = 1024 * 1024;
        Limits { batch_max: 4, batch_bytes_max: bytes_max, message_bytes_max: bytes_max }
    }
    fn wire_size(&self, message: &Message) -> usize {
        usize::try_from(message.body.size()).unwrap_or(usize::MAX)
    }
    async fn send(&self, batch: &[Message]) -> Vec<Verdict> {
        by_key(batch, |message| self.send_one(message)).await
    }
}
