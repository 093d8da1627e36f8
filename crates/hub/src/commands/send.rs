//! `pabal send`

use std::io::Read;

use anyhow::{Context, Result};

use crate::{
    api::{
        to_base64,
        types::{HandOver, Taken},
    },
    cli::Send,
    client::Client,
    out,
};

pub(super) async fn send(client: &Client, send: Send, json: bool) -> Result<()> {
    let body = if send.file.as_os_str() == "-" {
        let mut body = Vec::new();
        std::io::stdin().read_to_end(&mut body).context("cannot read standard input")?;
        body
    } else {
        std::fs::read(&send.file).with_context(|| format!("cannot read {}", send.file.display()))?
    };
    let content_type = send.content_type.unwrap_or_else(|| media_type(&body).to_owned());
    let given = HandOver {
        message_type: send.message_type,
        to: send.to,
        id: send.id,
        key: send.key,
        correlation: send.correlation,
        causation: send.causation,
        headers: send.headers,
        content_type: Some(content_type),
        body: to_base64(&body),
    };
    let taken: Taken = client.post("/messages", &given).await?;
    if json {
        return out::json(&taken);
    }
    if taken.duplicate {
        out::line(format_args!("{} (the hub had it already)", taken.id));
    } else {
        out::line(&taken.id);
    }
    Ok(())
}

fn media_type(body: &[u8]) -> &'static str {
    match serde_json::from_slice::<serde::de::IgnoredAny>(body) {
        Ok(_) => "application/json",
        Err(_) => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_recognised_and_nothing_else_is_guessed() {
        assert_eq!(media_type(br#"{"a": 1}"#), "application/json");
        assert_eq!(media_type(b"a,b\n"), "application/octet-stream");
        assert_eq!(media_type(b""), "application/octet-stream");
    }
}
