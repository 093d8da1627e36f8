//! The operators' side of a hub under test: its commands, its API, its metrics.

use std::cell::Cell;

use serde_json::Value;

use crate::{Hub, Metrics, Ran, Reply, command::finish, until};

impl Hub {
    /// Runs `pabal --config … <arguments>` to its end.
    ///
    /// # Panics
    /// If it does not end within [`crate::LIMIT`].
    pub async fn cli(&self, arguments: &[&str]) -> Ran {
        self.cli_with_input(arguments, b"").await
    }

    /// [`Hub::cli`] with this standard input.
    ///
    /// # Panics
    /// If it does not end within [`crate::LIMIT`].
    pub async fn cli_with_input(&self, arguments: &[&str], input: &[u8]) -> Ran {
        let mut command = self.command();
        command.args(arguments);
        finish(command, input).await
    }

    /// The URL of a path of the listener for operators.
    #[must_use]
    pub fn admin_url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.admin)
    }

    /// [`Hub::cli`] with these environment variables in place of the hub's own.
    ///
    /// # Panics
    /// If it does not end within [`crate::LIMIT`].
    pub async fn cli_with(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Ran {
        let mut command = self.command();
        command.args(arguments).envs(variables.iter().copied());
        finish(command, b"").await
    }

    /// The token of its configuration, or else the one that the running hub wrote beside its
    /// database, or into `var/` if that is elsewhere.
    ///
    /// # Panics
    /// If it is not there.
    #[must_use]
    pub fn token(&self) -> String {
        if let Some(token) = &self.token {
            return token.clone();
        }
        let mut path = self.files.clone().into_os_string();
        path.push(".token");
        std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            .trim()
            .to_owned()
    }

    /// What the API answers to a `GET`, e.g. of `/api/v1/status`.
    ///
    /// # Panics
    /// If there is no answer, or it is not 200 with JSON.
    pub async fn api_get(&self, path: &str) -> Value {
        let request = self.client.get(self.admin_url(path));
        let reply = Reply::of(path, request.bearer_auth(self.token())).await;
        reply.expect_status(200).json()
    }

    /// What the API answers to a `POST` of JSON.
    ///
    /// # Panics
    /// If there is no answer.
    pub async fn api_post(&self, path: &str, body: &Value) -> Reply {
        let request = self.client.post(self.admin_url(path)).json(body);
        Reply::of(path, request.bearer_auth(self.token())).await
    }

    /// The metrics as they are now.
    ///
    /// # Panics
    /// If there is no answer.
    pub async fn metrics(&self) -> Metrics {
        self.try_metrics().await.unwrap_or_else(|error| panic!("/metrics: no answer: {error:?}"))
    }

    /// [`Hub::metrics`] of a hub that may end meanwhile.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn try_metrics(&self) -> reqwest::Result<Metrics> {
        let request = self.client.get(self.admin_url("/metrics"));
        let reply = Reply::try_of("/metrics", request.bearer_auth(self.token())).await?;
        Ok(Metrics(reply.expect_status(200).text()))
    }

    /// Waits until a metric is as `is` says; its value. A series that is not there counts as 0.
    ///
    /// # Panics
    /// If it is not within [`crate::LIMIT`].
    pub async fn wait_for_metric(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        is: impl Fn(f64) -> bool,
    ) -> f64 {
        let last = ShownOnPanic(Cell::default());
        until(&format!("{name} {labels:?}"), async || {
            let metrics = self.metrics().await;
            last.0.set(metrics.lines(name));
            let value = metrics.value(name, labels).unwrap_or(0.0);
            is(value).then_some(value)
        })
        .await
    }
}

/// What was seen last, for a test that waited for something else.
struct ShownOnPanic(Cell<String>);

impl Drop for ShownOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the last that was seen\n{}", self.0.take());
        }
    }
}
