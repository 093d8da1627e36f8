//! How the command line reaches the operators' interface: over HTTP while a hub runs, in process
//! while none does. Either way it is the same routes.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use axum::{Router, body::Body, http};
use http_body_util::BodyExt;
use pabal_core::{Clock, Secret};
use pabal_engine::Engine;
use pabal_store_sqlite::{LockError, RunLock};
use serde::{Serialize, de::DeserializeOwned};
use tower::ServiceExt;

use crate::{api::Problem, plan::Plan, stores::Opened, token};

/// A bulk act on a busy store takes its time, but no command waits for ever.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

const HEALTH_LIMIT: Duration = Duration::from_secs(2);

/// The way to the operators' interface.
pub(crate) enum Client {
    /// A hub runs.
    Remote {
        http: reqwest::Client,
        base: String,
        token: Secret,
        /// Who holds the database, for messages.
        holder: String,
    },
    /// None does: this process works on the store itself, ...
    Here {
        router: Router,
        token: Secret,
        engine: Arc<Engine>,
        opened: Opened,
        clock: Arc<dyn Clock>,
        /// ... and keeps others from it while the command lasts, unless it can be shared.
        lock: Option<RunLock>,
    },
}

impl Client {
    /// To the hub that runs on this database. `configured` is the address in its configuration,
    /// `token` the one its configuration names.
    pub(crate) fn remote(
        database: &Path,
        configured: SocketAddr,
        token: Option<Secret>,
        holder: String,
    ) -> Result<Self> {
        // The port in the configuration may be 0; what the hub got, it wrote down.
        let written = std::fs::read_to_string(token::address_file(database)).ok();
        let address = written.and_then(|text| text.trim().parse().ok()).unwrap_or(configured);
        let token = match token {
            Some(token) => token,
            None => token::read(database).with_context(|| {
                format!(
                    "{} is in the hands of {holder}, and the admin token is not to be had: run \
                     this as the user the hub runs as, or set `admin.token` in hub.toml for both",
                    database.display()
                )
            })?,
        };
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(5))
            .timeout(ANSWER_LIMIT)
            .build()?;
        Ok(Self::Remote { http, base: format!("http://{}", reachable(address)), token, holder })
    }

    /// To a node that runs from here on a store that nodes share: the one this configuration names,
    /// or else any that answers. `None`: nobody runs from here, or will speak to this user.
    pub(crate) async fn to_any_node(plan: &Plan, clock: &dyn Clock) -> Result<Option<Self>> {
        for place in places(plan) {
            // Who still holds the lock wrote the address; what the dead left leads to strangers.
            let holder = match RunLock::take(&place) {
                Err(LockError::Held { holder, .. }) => holder,
                Ok(_) | Err(LockError::Io { .. }) => continue,
            };
            let remote = Self::remote(&place, plan.admin(), plan.token()?, holder);
            if let Ok(remote) = remote
                && remote.answers(clock).await
            {
                return Ok(Some(remote));
            }
        }
        Ok(None)
    }

    /// Whether nobody else can work on the store meanwhile.
    pub(crate) fn holds_the_store(&self) -> bool {
        matches!(self, Self::Here { lock: Some(_), .. })
    }

    /// Whether there is anybody to ask.
    pub(crate) async fn answers(&self, clock: &dyn Clock) -> bool {
        let Self::Remote { http, base, .. } = self else {
            return true;
        };
        let asked = http.get(format!("{base}/healthz")).send();
        matches!(clock.timeout(HEALTH_LIMIT, asked).await, Some(Ok(_)))
    }

    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T> {
        let mut path = path.to_owned();
        if !query.is_empty() {
            let mut text = url::form_urlencoded::Serializer::new(String::new());
            text.extend_pairs(query);
            path = format!("{path}?{}", text.finish());
        }
        self.ask(http::Method::GET, &path, Vec::new()).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        self.ask(http::Method::POST, path, serde_json::to_vec(body)?).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: http::Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T> {
        let path = format!("/api/v1{path}");
        let (status, answer) = match self {
            Self::Remote { http, base, token, holder } => {
                let sent = http
                    .request(method, format!("{base}{path}"))
                    .bearer_auth(token.expose())
                    .header(http::header::CONTENT_TYPE, "application/json")
                    .body(body)
                    .send()
                    .await
                    .map_err(reqwest::Error::without_url);
                let answer = sent.with_context(|| {
                    format!(
                        "{holder} holds the database but does not answer at {base}: if it is \
                         another pabal command, try again; if it is the hub, look at its log"
                    )
                })?;
                (answer.status(), answer.bytes().await?)
            }
            Self::Here { router, token, .. } => {
                let request = http::Request::builder()
                    .method(method)
                    .uri(path)
                    .header(http::header::AUTHORIZATION, format!("Bearer {}", token.expose()))
                    .header(http::header::CONTENT_TYPE, "application/json")
                    .body(Body::from(body))?;
                let answer = router.clone().oneshot(request).await?;
                (answer.status(), answer.into_body().collect().await?.to_bytes())
            }
        };
        if status.is_success() {
            return serde_json::from_slice(&answer)
                .context("the hub's answer is not understood: is it of the same version?");
        }
        if status == http::StatusCode::UNAUTHORIZED {
            return Err(anyhow!(
                "the hub does not accept the admin token: its token was changed after it started, \
                 or this configuration is not the one it runs with"
            ));
        }
        Err(match serde_json::from_slice::<Problem>(&answer) {
            Ok(Problem { title, detail: Some(detail), .. }) => anyhow!("{title}: {detail}"),
            Ok(problem) => anyhow!(problem.title),
            Err(_) => anyhow!("the hub answered {status}"),
        })
    }

    /// Ends what was started for the command.
    pub(crate) async fn close(self) {
        if let Self::Here { engine, opened, clock, .. } = self {
            engine.stop().await;
            opened.close(&*clock).await;
        }
    }
}

/// Where nodes of this hub that run from here have their files, the plan's own first.
fn places(plan: &Plan) -> Vec<PathBuf> {
    let own = plan.place();
    let mut places = vec![own.to_owned()];
    let found = own.parent().and_then(|folder| std::fs::read_dir(folder).ok());
    let mut others: Vec<_> = found
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?;
            let place = path.with_file_name(name.strip_suffix(token::ADDRESS)?);
            (name.starts_with(&format!("{}.", plan.hub())) && place != own).then_some(place)
        })
        .collect();
    others.sort();
    places.append(&mut others);
    // Without an address there is nobody to ask, and to look would leave a lock file behind.
    places.retain(|place| token::address_file(place).exists());
    places
}

/// Where to call a listener that listens everywhere.
fn reachable(address: SocketAddr) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    let ip: std::net::IpAddr = if address.is_ipv4() {
        std::net::Ipv4Addr::LOCALHOST.into()
    } else {
        std::net::Ipv6Addr::LOCALHOST.into()
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_addresses_is_called_on_loopback() {
        let call = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(call("0.0.0.0:1"), "127.0.0.1:1");
        assert_eq!(call("[::]:1"), "[::1]:1");
        assert_eq!(call("10.1.2.3:1"), "10.1.2.3:1");
    }
}
