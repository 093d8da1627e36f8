//! Building a request from a message. Pure: the same message gives the same request, but for the
//! time of a signature.
//!
//! Header values: printable ASCII goes as it is; a value with anything else is percent-encoded as
//! CloudEvents has it, so that no message can add a header of its own. One over 8 KiB is refused.

use std::{collections::BTreeMap, fmt};

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONTENT_TYPE, USER_AGENT},
};
use pabal_core::{Bytes, Cause, ConfigError, Message, Reason, Secrets, SendError, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::{
    auth::Credential,
    cloudevents,
    settings::{Method, Mode, SenderSettings, Sign},
    structured,
    template::Template,
    webhook::{self, Keys},
};

/// The longest header value, in bytes; common servers take no more.
const HEADER_VALUE_BYTES_MAX: usize = 8 * 1024;
/// What a request has besides all that is counted: host, content type, trace, signatures.
const OVERHEAD_BYTES: usize = 1024;

/// Headers that belong to the connection, to this hub or to whoever holds the other end: none of
/// them is passed on from a message, and none can be configured.
const RESERVED: [&str; 20] = [
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "set-cookie",
    "te",
    "trailer",
    "traceparent",
    "transfer-encoding",
    "upgrade",
    "via",
    "www-authenticate",
];

/// Whether a message may bring a header of this name, in lower case, to a partner.
#[must_use]
pub fn passes_on(name: &str) -> bool {
    !is_reserved(name) && !is_ours(name)
}

/// Whether a header is reserved, by name or by family.
pub(crate) fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
        || ["ce-", "webhook-", "x-forwarded-"].iter().any(|family| name.starts_with(family))
}

/// Further ones that a configuration may set but a message may not bring.
fn is_ours(name: &str) -> bool {
    matches!(name, "content-type" | "idempotency-key" | "user-agent" | "accept" | "accept-encoding")
        || matches!(name, "date" | "prefer")
}

/// How one destination's requests are built.
pub(crate) struct Builder {
    method: http::Method,
    url: Template,
    query: Vec<(String, Template)>,
    headers: Vec<(HeaderName, Template)>,
    mode: Mode,
    credential: Option<Credential>,
    keys: Option<Keys>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URL, query and headers may hold what operators should have made a secret.
        f.debug_struct("Builder")
            .field("method", &self.method)
            .field("mode", &self.mode)
            .field("credential", &self.credential)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

/// A request as it goes on the wire.
pub(crate) struct Request {
    pub method: http::Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Builder {
    /// Where requests go, as far as no message decides it.
    pub(crate) fn place(&self) -> Option<Url> {
        // It was parsed like this before.
        self.url.with_all("x").parse().ok()
    }

    /// Checks the settings and looks the secrets up.
    pub(crate) fn new(
        settings: &SenderSettings,
        secrets: &dyn Secrets,
    ) -> Result<Self, Vec<ConfigError>> {
        let mut faults = Vec::new();
        let mut keep = |fault| faults.push(fault);
        let url = url(&settings.url).map_err(&mut keep).ok();
        let credential = settings
            .auth
            .as_ref()
            .and_then(|auth| Credential::new(auth, secrets).map_err(&mut keep).ok());
        let keys =
            settings.sign.as_ref().and_then(|sign| keys(sign, secrets).map_err(&mut keep).ok());
        let (headers, header_faults) = headers(&settings.headers, credential.as_ref());
        let mut query = Vec::new();
        for (name, text) in &settings.query {
            match Template::parse(&format!("query.{name}"), text) {
                Ok(template) => query.push((encoded(name), template)),
                Err(fault) => keep(fault),
            }
        }
        faults.extend(header_faults);
        let method = match settings.method {
            Method::Post => http::Method::POST,
            Method::Put => http::Method::PUT,
            Method::Patch => http::Method::PATCH,
            Method::Delete => http::Method::DELETE,
        };
        match url {
            Some(url) if faults.is_empty() => {
                Ok(Self { method, url, query, headers, mode: settings.mode, credential, keys })
            }
            _ => Err(faults),
        }
    }

    /// `bytes` without our secret.
    pub(crate) fn redact(&self, bytes: Bytes) -> Bytes {
        match &self.credential {
            Some(credential) => credential.redact(bytes),
            None => bytes,
        }
    }

    /// The size of a message on the wire in bytes, rather over than under.
    pub(crate) fn wire_size(&self, message: &Message) -> usize {
        let body = usize::try_from(message.body.size()).unwrap_or(usize::MAX);
        let envelope: usize = cloudevents::attributes(message)
            .iter()
            .map(|(name, value)| "ce-: \r\n".len() + name.len() + cloudevents::encode(value).len())
            .sum();
        let headers: usize = message
            .headers
            .iter()
            .map(|(name, value)| name.len() + 4 + cloudevents::encode(value).len())
            .sum();
        let body = match (self.mode, message.body.inline()) {
            (Mode::Structured, Some(bytes)) if !structured::is_embedded(message, bytes) => {
                // As base64.
                body.saturating_add(body / 3).saturating_add(4)
            }
            _ => body,
        };
        let around = match self.mode {
            Mode::Raw => 0,
            Mode::Binary | Mode::Structured => envelope.saturating_add(headers),
        };
        body.saturating_add(around)
            .saturating_add(self.own_size(message))
            .saturating_add(OVERHEAD_BYTES)
    }

    /// What the settings add: a key in the URL is as long there as in the envelope.
    fn own_size(&self, message: &Message) -> usize {
        let url = self.address(message).map_or(0, |url| url.as_str().len());
        let headers = self.headers.iter().filter_map(|(name, template)| {
            let value = template.plain(message).ok()?;
            Some(name.as_str().len() + 4 + safe(&value).len())
        });
        let credential = self.credential.as_ref();
        let credential = credential.map_or(0, |own| own.name.as_str().len() + 4 + own.value.len());
        url + headers.sum::<usize>() + credential
    }

    /// The request for `message`, signed at `now`.
    ///
    /// # Errors
    /// `Permanent(Invalid)` if the message makes no request; `Transient` if its body is not here.
    pub(crate) fn build(&self, message: &Message, now: Timestamp) -> Result<Request, SendError> {
        let Some(body) = message.body.inline() else {
            return Err(SendError::transient("the body is kept elsewhere and was not fetched"));
        };
        let url = self.address(message)?;
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static("pabal"));
        let mut content_type = message.content_type.as_deref();
        let mut body = body.clone();
        match self.mode {
            Mode::Raw => {}
            Mode::Binary => {
                for (name, value) in cloudevents::attributes(message) {
                    let value = cloudevents::encode(&value);
                    put(&mut headers, &format!("ce-{name}"), &value)?;
                }
                self.further(&mut headers, message)?;
            }
            Mode::Structured => {
                body = structured::write(message, &body, &[]);
                content_type = Some(structured::STRUCTURED);
                self.further(&mut headers, message)?;
            }
        }
        if let Some(content_type) = content_type {
            put(&mut headers, CONTENT_TYPE.as_str(), &safe(content_type))?;
        }
        for (name, template) in &self.headers {
            if let Ok(value) = template.plain(message) {
                put(&mut headers, name.as_str(), &safe(&value))?;
            }
        }
        if let Some(keys) = &self.keys {
            let (id, time) = (message.id.to_string(), now.as_second());
            let signature = keys.sign(&id, time, &body);
            put(&mut headers, webhook::ID, &id)?;
            put(&mut headers, webhook::TIMESTAMP, &time.to_string())?;
            put(&mut headers, webhook::SIGNATURE, &signature)?;
        }
        if let Some(credential) = &self.credential {
            headers.insert(credential.name.clone(), credential.value.clone());
        }
        Ok(Request { method: self.method.clone(), url, headers, body })
    }

    /// What both modes of CloudEvents send besides the envelope.
    fn further(&self, headers: &mut HeaderMap, message: &Message) -> Result<(), SendError> {
        put(headers, "idempotency-key", &message.id.to_string())?;
        if let Some(trace) = &message.trace {
            put(headers, "traceparent", &safe(trace))?;
        }
        for (name, value) in message.headers.iter() {
            let lower = name.to_ascii_lowercase();
            let credential = self.credential.as_ref().is_some_and(|own| own.name == *lower);
            let Ok(name) = HeaderName::from_bytes(lower.as_bytes()) else {
                continue;
            };
            if !passes_on(&lower) || credential {
                continue;
            }
            headers.append(&name, header_value(&lower, &safe(value))?);
        }
        Ok(())
    }

    fn address(&self, message: &Message) -> Result<Url, SendError> {
        let invalid = |text: String| {
            SendError::permanent(Reason::Invalid, Cause::with("no URL for this message", text))
        };
        let missing = |name: &str| {
            invalid(format!("the URL has {{{name}}}, and the message has nothing for it"))
        };
        let mut text = self.url.url(message).map_err(missing)?;
        if has_dot_segment(&text) {
            return Err(invalid("a part of the path would be `.` or `..`".into()));
        }
        for (name, template) in &self.query {
            if let Ok(value) = template.plain(message) {
                text.push(if text.contains('?') { '&' } else { '?' });
                text.push_str(&format!("{name}={}", encoded(&value)));
            }
        }
        // The library's error may show the text.
        Url::parse(&text).map_err(|_| invalid("it cannot be read".into()))
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A URL parser removes such segments, however they are written, and the one before with them.
fn has_dot_segment(url: &str) -> bool {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    path.split(['/', '\\']).skip(3).any(|segment| {
        let segment = segment.to_ascii_lowercase().replace("%2e", ".");
        segment == "." || segment == ".."
    })
}

/// A header value that can be one: encoded if it holds anything but printable ASCII.
pub(crate) fn safe(value: &str) -> std::borrow::Cow<'_, str> {
    if value.bytes().all(|b| (b' '..=b'~').contains(&b) || b == b'\t') {
        value.into()
    } else {
        cloudevents::encode(value)
    }
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, SendError> {
    let refused = |why: &str| {
        SendError::permanent(
            Reason::Invalid,
            Cause::with("a header cannot be sent", format!("header {name}: {why}")),
        )
    };
    if value.len() > HEADER_VALUE_BYTES_MAX {
        return Err(refused("the value is over 8 KiB"));
    }
    HeaderValue::from_str(value).map_err(|_| refused("the value cannot be encoded"))
}

pub(crate) fn put(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), SendError> {
    let value = header_value(name, value)?;
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
        SendError::permanent(Reason::Invalid, Cause::with("a header cannot be sent", name))
    })?;
    headers.insert(name, value);
    Ok(())
}

fn url(text: &str) -> Result<Template, ConfigError> {
    let fault = |message: &str| ConfigError::new("url", message);
    let template = Template::parse("url", text)?;
    let authority = text.split_once("://").map_or("", |(_, rest)| rest);
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('{') || text.find("://") > text.find('{') && text.contains('{') {
        return Err(fault("placeholders may stand in path and query only"));
    }
    let sample = template.with_all("x");
    let url: Url = sample.parse().map_err(|error| fault(&format!("not a URL: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(fault("only http:// and https:// are sent to"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(fault("holds credentials").help("use `auth = { basic = … }`"));
    }
    if url.fragment().is_some() {
        return Err(fault("a fragment (#…) is never sent"));
    }
    if has_dot_segment(&sample) {
        return Err(fault("the path holds `.` or `..`"));
    }
    Ok(template)
}

fn keys(sign: &Sign, secrets: &dyn Secrets) -> Result<Keys, ConfigError> {
    const KEY: &str = "sign.standard_webhooks";
    let Sign::StandardWebhooks(references) = sign;
    if !(1..=2).contains(&references.len()) {
        return Err(ConfigError::new(KEY, "one secret, or two while one replaces the other"));
    }
    let mut found = Vec::new();
    for (index, reference) in references.iter().enumerate() {
        found.push(secrets.get(&format!("{KEY}.{index}"), reference)?);
    }
    Keys::new(KEY, &found)
}

type Headers = Vec<(HeaderName, Template)>;

fn headers(
    settings: &BTreeMap<String, String>,
    credential: Option<&Credential>,
) -> (Headers, Vec<ConfigError>) {
    let mut headers = Vec::new();
    let mut faults = Vec::new();
    for (name, text) in settings {
        let key = format!("headers.{name}");
        let lower = name.to_ascii_lowercase();
        let Ok(header) = HeaderName::from_bytes(lower.as_bytes()) else {
            faults.push(ConfigError::new(key, "not the name of a header"));
            continue;
        };
        if is_reserved(&lower) || credential.is_some_and(|own| own.name == header) {
            let fault = ConfigError::new(key, "this header is not set here");
            faults.push(fault.help("credentials go under `auth`, signatures under `sign`"));
            continue;
        }
        match Template::parse(&key, text) {
            Ok(template) => headers.push((header, template)),
            Err(fault) => faults.push(fault),
        }
    }
    (headers, faults)
}
