//! The two tables: `[destination.x.rest]` and `[source.x.rest]`.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use bytesize::ByteSize;
use ipnet::IpNet;
use pabal_core::SecretReference;
use schemars::JsonSchema;
use serde::Deserialize;

/// `[destination.x.rest]`: how messages go out.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SenderSettings {
    /// Where to send. `{key}`, `{id}`, `{type}`, `{version}`, `{correlation}` and `{origin_id}` may
    /// stand in path and query and are percent-encoded; http or https, without credentials.
    pub url: String,
    /// The HTTP method.
    #[serde(default)]
    pub method: Method,
    /// Headers of one's own, name to value; the placeholders of `url` may stand in the values. A
    /// header whose placeholder has no value in a message is left out of that request.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Query parameters, name to value, with placeholders as in `headers`.
    #[serde(default)]
    pub query: BTreeMap<String, String>,
    /// How the envelope travels.
    #[serde(default)]
    pub mode: Mode,
    /// How to show who we are.
    pub auth: Option<SenderAuth>,
    /// How to sign the body.
    pub sign: Option<Sign>,
    /// Certificates: whom to trust, and who we are.
    #[serde(default)]
    pub tls: Tls,
    /// The limit of the whole exchange, from connecting to the last byte of the answer.
    #[serde(default = "default_timeout", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// The limit of connecting, TLS included; at most half of `timeout`. Default 5s, or that half.
    #[serde(default, with = "humantime_serde")]
    #[schemars(with = "Option<String>")]
    pub connect_timeout: Option<Duration>,
    /// How long an unused connection is kept: less than the other side keeps it.
    #[serde(default = "default_idle", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub idle: Duration,
    /// What is kept of an answer's body; at most 64 KiB.
    #[serde(default = "default_answer_max")]
    #[schemars(with = "String")]
    pub answer_max: ByteSize,
    /// What single status codes mean here, e.g. `{ "404" = "retry", "409" = "duplicate" }`. Comes
    /// before everything else that judges an answer.
    #[serde(default)]
    pub status: BTreeMap<String, StatusMeaning>,
}

/// HTTP methods that carry a body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Method {
    /// The default.
    #[default]
    Post,
    /// Replaces what is at the URL.
    Put,
    /// Changes what is at the URL.
    Patch,
    /// Removes what is at the URL; the body is sent along.
    Delete,
}

/// How the envelope travels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// CloudEvents binary mode: the envelope in `ce-…` headers, the body as it is.
    #[default]
    Binary,
    /// CloudEvents structured mode: one JSON document holds both.
    Structured,
    /// The body and its content type, nothing of the envelope.
    Raw,
}

/// What a status code means to this destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StatusMeaning {
    /// The other side holds the message.
    Success,
    /// The other side had it already.
    Duplicate,
    /// Try again later.
    Retry,
    /// It will never be taken.
    Dead,
}

/// How to show who we are.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SenderAuth {
    /// `Authorization: Bearer …`.
    Bearer(SecretReference),
    /// `Authorization: Basic …`.
    Basic(Basic),
    /// A header of the partner's choice.
    Header(SecretHeader),
}

/// User and password.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Basic {
    /// The user's name, without a colon.
    pub user: String,
    /// The password.
    pub password: SecretReference,
}

/// A header with a secret value.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SecretHeader {
    /// The header's name.
    pub name: String,
    /// Its value.
    pub value: SecretReference,
}

/// How to sign the body.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sign {
    /// Standard Webhooks with one secret, or with two while one replaces the other.
    StandardWebhooks(Vec<SecretReference>),
}

/// Certificates of a destination. Changed files are used without a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tls {
    /// PEM file of the authorities to trust instead of the machine's.
    pub ca: Option<PathBuf>,
    /// PEM file of our certificate, leaf first; needs `key`.
    pub cert: Option<PathBuf>,
    /// Our private key in PEM.
    pub key: Option<SecretReference>,
}

/// `[source.x.rest]`: how messages come in, by `POST /in/{partner}/{source}`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReceiverSettings {
    /// How callers show who they are; `"none"` must be written out.
    pub auth: ReceiverAuth,
    /// Networks that may call, e.g. `["10.1.0.0/16"]`. Empty: all.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub allow: Vec<IpNet>,
    /// Networks of the proxies in front, whose `X-Forwarded-For` is believed.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub trusted_proxies: Vec<IpNet>,
    /// The largest body taken. Default: the source's limit.
    #[schemars(with = "Option<String>")]
    pub body_max: Option<ByteSize>,
    /// Hand-overs at the same time; more are asked to come back.
    #[serde(default = "default_concurrent")]
    pub concurrent: usize,
    /// The message type of plain bodies, which carry none.
    #[serde(rename = "type")]
    pub message_type: Option<String>,
    /// The limit of reading one body.
    #[serde(default = "default_timeout", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// Further request headers to keep with the message and pass on. Others are dropped, except
    /// `tracestate` and CloudEvents extensions.
    #[serde(default)]
    pub keep_headers: Vec<String>,
}

/// How callers show who they are.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReceiverAuth {
    /// Anybody may hand over.
    None,
    /// `Authorization: Bearer …`.
    Bearer(SecretReference),
    /// `Authorization: Basic …`.
    Basic(Basic),
    /// A header with a secret value.
    Header(SecretHeader),
    /// A Standard Webhooks signature by any of these secrets, not older than five minutes.
    StandardWebhooks(Vec<SecretReference>),
    /// A client certificate with this common name or alternative name, checked by the listener.
    ClientCertificate(String),
}

fn default_timeout() -> Duration {
    Duration::from_secs(30)
}

/// Below the five seconds after which common servers close unused connections.
fn default_idle() -> Duration {
    Duration::from_secs(4)
}

fn default_answer_max() -> ByteSize {
    ByteSize::b(pabal_core::ANSWER_BYTES_KEPT as u64)
}

fn default_concurrent() -> usize {
    256
}

#[cfg(test)]
mod tests {
    use pabal_core::Settings;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unknown_key_is_a_fault_with_the_nearest_known_one() {
        let faults = Settings(json!({ "url": "http://a", "metod": "PUT" }))
            .parse::<SenderSettings>()
            .unwrap_err();
        assert_eq!(faults[0].help.as_deref(), Some("did you mean `method`?"));
        let faults = Settings(json!({ "auth": { "basic": { "user": "u", "pasword": 1 } } }))
            .parse::<ReceiverSettings>()
            .unwrap_err();
        assert!(faults.iter().any(|fault| fault.message.contains("pasword")), "{faults:?}");
    }

    #[test]
    fn a_source_without_auth_is_a_fault_and_none_must_be_written_out() {
        assert!(Settings(json!({})).parse::<ReceiverSettings>().is_err());
        let settings: ReceiverSettings = Settings(json!({ "auth": "none" })).parse().unwrap();
        assert_eq!(settings.auth, ReceiverAuth::None);
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let settings: SenderSettings = Settings(json!({ "url": "http://a" })).parse().unwrap();
        assert_eq!(settings.timeout, Duration::from_secs(30));
        assert_eq!(settings.idle, Duration::from_secs(4));
        assert_eq!(settings.answer_max, ByteSize::kib(2));
        assert_eq!((settings.method, settings.mode), (Method::Post, Mode::Binary));
    }
}
