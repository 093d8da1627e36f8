//! A plain HTTP client for tests: no proxy, no redirects, and answers that are read whole.

use bytes::Bytes;
use http::HeaderMap;

use crate::within;

/// A client that does only what the test says.
///
/// # Panics
/// Never in practice: it needs nothing of the machine.
pub fn client() -> reqwest::Client {
    // Only the first of a process counts, and they are all the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .expect("a client without settings can be built")
}

/// An answer, read whole.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Reply {
    pub(crate) async fn of(what: &str, request: reqwest::RequestBuilder) -> Self {
        Self::try_of(what, request)
            .await
            .unwrap_or_else(|error| panic!("{what}: no answer: {error:?}"))
    }

    pub(crate) async fn try_of(
        what: &str,
        request: reqwest::RequestBuilder,
    ) -> reqwest::Result<Self> {
        within(what, async {
            let response = request.send().await?;
            Ok(Self {
                status: response.status().as_u16(),
                headers: response.headers().clone(),
                body: response.bytes().await?,
            })
        })
        .await
    }

    /// The value of a header; `None` if it is not there or not text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("no JSON: {error}\n{}: {}", self.status, self.text()))
    }

    /// Itself, if it has this status.
    ///
    /// # Panics
    /// If it has another.
    #[track_caller]
    pub fn expect_status(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }
}
