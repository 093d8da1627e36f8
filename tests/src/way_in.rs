//! The partners' side of a hub, for senders that go on while the hub is killed and started again.

use bytes::Bytes;

use crate::{Reply, client, wait::POLL, within};

/// Hands over to one hub, whether it runs at the moment or not.
#[derive(Debug, Clone)]
pub struct WayIn {
    base: String,
    client: reqwest::Client,
}

impl WayIn {
    pub(crate) fn new(port: u16) -> Self {
        Self { base: format!("http://127.0.0.1:{port}"), client: client() }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Asks for a path, e.g. `/readyz`.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn try_get(&self, path: &str) -> reqwest::Result<Reply> {
        Reply::try_of(path, self.client.get(self.url(path))).await
    }

    /// Posts exactly this.
    ///
    /// # Errors
    /// If there is no answer: nothing is known then.
    pub async fn try_post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> reqwest::Result<Reply> {
        let mut request = self.client.post(self.url(path)).body(body.into());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Reply::try_of(path, request).await
    }

    /// Hands a message over to `partner/source` as a CloudEvent in binary mode, of type
    /// `test.message` and JSON unless `headers` say otherwise.
    ///
    /// # Errors
    /// If there is no answer: nothing is known then.
    pub async fn try_hand_over(
        &self,
        source: &str,
        id: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> reqwest::Result<Reply> {
        let origin = format!("/{source}");
        let mut all = vec![
            ("ce-specversion", "1.0"),
            ("ce-id", id),
            ("ce-source", &origin),
            ("ce-type", "test.message"),
            ("content-type", "application/json"),
        ];
        all.retain(|(name, _)| !headers.iter().any(|(other, _)| other == name));
        all.extend(headers);
        self.try_post(&format!("/in/{source}"), &all, body).await
    }

    /// Hands over again and again, with the same id and bytes, until it is acknowledged.
    ///
    /// # Panics
    /// If it is not within [`crate::LIMIT`], or is refused.
    pub async fn hand_over_until_taken(
        &self,
        source: &str,
        id: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        let body = body.into();
        within(&format!("a receipt for {id}"), async {
            let mut ticks = tokio::time::interval(POLL);
            loop {
                ticks.tick().await;
                match self.try_hand_over(source, id, headers, body.clone()).await {
                    Ok(reply) if matches!(reply.status, 200 | 202) => return reply,
                    Ok(reply) if reply.status != 503 => {
                        panic!("{id}: {} {}", reply.status, reply.text())
                    }
                    Ok(_) | Err(_) => {}
                }
            }
        })
        .await
    }
}
