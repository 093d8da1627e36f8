//! What is sent: a message and how it is built.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;
use uuid::Uuid;

use crate::{Error, Schema, limits};

/// A payload that knows what it is: its type and schema stand beside it, once.
pub trait Event: Serialize {
    /// What happened or is asked, such as `application.submitted`. Destinations subscribe to it.
    const TYPE: &'static str;
    /// Which version of which schema its JSON follows.
    const SCHEMA: Schema;
}

/// A message that is complete and within all limits, with an id of its own for ever.
#[derive(Clone, PartialEq, Eq)]
#[must_use = "a message is sent by writing it with `enqueue`, in the transaction it is about"]
pub struct Message {
    pub(crate) id: Uuid,
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: String,
    pub(crate) event_type: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) content_type: String,
    pub(crate) schema: Option<String>,
    pub(crate) version: Option<i64>,
    pub(crate) correlation: Option<String>,
    pub(crate) causation: Option<String>,
    pub(crate) traceparent: Option<String>,
    pub(crate) destination: Option<String>,
    /// A JSON object of strings.
    pub(crate) headers: Option<String>,
}

impl Message {
    /// An event as JSON, with its type and schema.
    pub fn of<E: Event>(event: &E) -> MessageBuilder {
        Self::json(E::TYPE, event).schema(E::SCHEMA)
    }

    /// A payload as JSON, whose schema, if it has one, is said by [`MessageBuilder::schema`].
    pub fn json(event_type: &str, payload: &impl Serialize) -> MessageBuilder {
        let payload = serde_json::to_vec(payload).map_err(Error::Json);
        MessageBuilder::new(event_type, "application/json", payload)
    }

    /// A payload of any other content type; it is sent byte for byte.
    pub fn bytes(
        event_type: &str,
        content_type: &str,
        payload: impl Into<Vec<u8>>,
    ) -> MessageBuilder {
        MessageBuilder::new(event_type, content_type, Ok(payload.into()))
    }

    /// Its id, a UUID of version 7: the same in every attempt at the transaction, and what the hub
    /// and all partners know it by (`ce-originid` on the wire).
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.id
    }
}

/// Payload and headers hold personal data and are not shown.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("event_type", &self.event_type)
            .field("aggregate_type", &self.aggregate_type)
            .field("aggregate_id", &self.aggregate_id)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// A message in the making: begun by [`Message::of`], [`Message::json`] or [`Message::bytes`].
#[derive(Debug)]
#[must_use = "nothing is checked or made before `build`"]
pub struct MessageBuilder {
    payload: Result<Vec<u8>, Error>,
    headers: BTreeMap<String, String>,
    rest: Message,
}

impl MessageBuilder {
    fn new(event_type: &str, content_type: &str, payload: Result<Vec<u8>, Error>) -> Self {
        let rest = Message {
            id: Uuid::nil(),
            aggregate_type: String::new(),
            aggregate_id: String::new(),
            event_type: event_type.to_owned(),
            payload: Vec::new(),
            content_type: content_type.to_owned(),
            schema: None,
            version: None,
            correlation: None,
            causation: None,
            traceparent: None,
            destination: None,
            headers: None,
        };
        Self { payload, headers: BTreeMap::new(), rest }
    }

    /// What it is about, such as `("application", "2026-001234")`; every message needs it. The id is
    /// the ordering key: nothing of one id overtakes another of the same id at one destination.
    pub fn aggregate(mut self, aggregate_type: impl Into<String>, id: impl Into<String>) -> Self {
        self.rest.aggregate_type = aggregate_type.into();
        self.rest.aggregate_id = id.into();
        self
    }

    /// Which version of which schema the payload follows.
    pub fn schema(mut self, schema: Schema) -> Self {
        self.rest.schema = Some(schema.to_string());
        self
    }

    /// The business version: a number that grows with every change of the aggregate, by which a
    /// receiver recognises what is older than what it has.
    pub fn version(mut self, version: i64) -> Self {
        self.rest.version = Some(version);
        self
    }

    /// What it belongs to, such as the id of the case; answers carry it again.
    pub fn correlation(mut self, id: impl Into<String>) -> Self {
        self.rest.correlation = Some(id.into());
        self
    }

    /// The id of the message that caused this one.
    pub fn causation(mut self, id: impl Into<String>) -> Self {
        self.rest.causation = Some(id.into());
        self
    }

    /// The W3C trace context of the request in hand, as in its header `traceparent`. What has
    /// another shape is left out, as W3C has it: it must not keep the message from being written.
    pub fn traceparent(mut self, traceparent: &str) -> Self {
        self.rest.traceparent = is_traceparent(traceparent).then(|| traceparent.to_owned());
        self
    }

    /// The one destination it is for, `partner/name`, instead of all that subscribe to its type.
    /// The hub takes it only from a source that says `may_address = true`.
    pub fn destination(mut self, destination: impl Into<String>) -> Self {
        self.rest.destination = Some(destination.into());
        self
    }

    /// A further header; its name is written in lower case. A second one of the same name takes the
    /// place of the first.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into().to_ascii_lowercase(), value.into());
        self
    }

    /// Checks all of it and gives it its id.
    ///
    /// # Errors
    /// [`Error::Json`] if the payload cannot be written as JSON; [`Error::Invalid`] with the name
    /// of the part that is missing, over its limit or of a shape that no hub takes.
    pub fn build(self) -> Result<Message, Error> {
        let Self { payload, headers, rest: mut message } = self;
        message.payload = payload?;
        message.headers = headers_as_json(&headers)?;
        check(&message)?;
        message.id = Uuid::now_v7();
        Ok(message)
    }
}

fn check(message: &Message) -> Result<(), Error> {
    let size = message.payload.len();
    if size > limits::PAYLOAD_BYTES_MAX {
        let max = limits::PAYLOAD_BYTES_MAX;
        let why = format!("has {size} bytes, the limit is {max}: send a reference to it instead");
        return Err(Error::invalid("payload", why));
    }
    let (id, kind) = (limits::ID_BYTES_MAX, limits::TYPE_BYTES_MAX);
    for (field, text, bytes_max) in [
        ("event_type", Some(&message.event_type), kind),
        ("aggregate", Some(&message.aggregate_type), kind),
        ("aggregate", Some(&message.aggregate_id), id),
        ("content_type", Some(&message.content_type), kind),
        ("correlation", message.correlation.as_ref(), id),
        ("causation", message.causation.as_ref(), id),
    ] {
        check_text(field, text, bytes_max)?;
    }
    if message.destination.as_deref().is_some_and(|text| !is_destination(text)) {
        let why = "write partner/name, each of 1 to 64 lower-case letters, digits, `-` or `_`";
        return Err(Error::invalid("destination", why));
    }
    Ok(())
}

fn check_text(field: &'static str, text: Option<&String>, bytes_max: usize) -> Result<(), Error> {
    let Some(text) = text else {
        return Ok(());
    };
    if text.is_empty() {
        return Err(Error::invalid(field, format!("is missing: say it by `{field}`")));
    }
    if text.len() > bytes_max {
        let size = text.len();
        return Err(Error::invalid(field, format!("has {size} bytes, the limit is {bytes_max}")));
    }
    if text.contains('\0') {
        return Err(Error::invalid(field, "holds a zero character, which no database takes"));
    }
    Ok(())
}

fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let is_hex = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.iter().all(is_hex) && parts.iter().map(|part| part.len()).eq([2, 32, 16, 2])
}

fn is_destination(text: &str) -> bool {
    let is_part = |part: &str| {
        (1..=64).contains(&part.len())
            && part.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
    };
    text.split_once('/').is_some_and(|(partner, name)| is_part(partner) && is_part(name))
}

fn headers_as_json(headers: &BTreeMap<String, String>) -> Result<Option<String>, Error> {
    if headers.is_empty() {
        return Ok(None);
    }
    let size: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if size > limits::HEADERS_BYTES_MAX {
        let max = limits::HEADERS_BYTES_MAX;
        let why = format!("all together have {size} bytes, the limit is {max}");
        return Err(Error::invalid("header", why));
    }
    for (name, value) in headers {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err(Error::invalid("header", format!("`{name}` is not the name of a header")));
        }
        if value.chars().any(char::is_control) {
            let why = format!("the value of `{name}` has a control character");
            return Err(Error::invalid("header", why));
        }
    }
    serde_json::to_string(headers).map(Some).map_err(Error::Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder() -> MessageBuilder {
        Message::json("application.submitted", &[1]).aggregate("application", "A-1")
    }

    fn fault(builder: MessageBuilder) -> &'static str {
        match builder.build() {
            Err(Error::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_message_has_an_id_of_its_own_and_ids_grow() {
        let ids: Vec<Uuid> = (0..1000).map(|_| builder().build().unwrap().id()).collect();
        assert!(ids.is_sorted_by(|one, next| one < next));
        assert!(ids.iter().all(|id| id.get_version_num() == 7));
    }

    #[test]
    fn what_is_missing_too_long_or_of_no_shape_is_named() {
        let long = |bytes: usize| "x".repeat(bytes);
        assert_eq!(fault(Message::json("t", &1)), "aggregate");
        assert_eq!(fault(Message::json("", &1).aggregate("a", "1")), "event_type");
        assert_eq!(fault(Message::bytes("t", "", b"x").aggregate("a", "1")), "content_type");
        assert_eq!(fault(builder().aggregate("a", long(513))), "aggregate");
        assert_eq!(fault(builder().aggregate("a", "1\0")), "aggregate");
        assert_eq!(fault(builder().correlation(long(513))), "correlation");
        assert_eq!(fault(builder().causation("")), "causation");
        for name in ["welfare", "Welfare/applications", "welfare/a/b", "/a"] {
            assert_eq!(fault(builder().destination(name)), "destination", "{name}");
        }
        for (name, value) in [("", "v"), ("a b", "v"), ("이름", "v"), ("a", "v\n"), ("a", "v\0")]
        {
            assert_eq!(fault(builder().header(name, value)), "header", "{name}");
        }
        assert_eq!(fault(builder().header("a", long(limits::HEADERS_BYTES_MAX))), "header");
        let large = vec![0; limits::PAYLOAD_BYTES_MAX + 1];
        assert_eq!(fault(Message::bytes("t", "x/y", large).aggregate("a", "1")), "payload");
    }

    #[test]
    fn what_is_at_its_limit_is_taken() {
        let large = vec![0; limits::PAYLOAD_BYTES_MAX];
        let message = Message::bytes("t".repeat(256).as_str(), "x/y", large)
            .aggregate("a".repeat(256), "가".repeat(170))
            .correlation("x".repeat(512))
            .destination("welfare/applications_2")
            .traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
            .header("A", "v".repeat(limits::HEADERS_BYTES_MAX - 1));
        let _ = message.build().unwrap();
    }

    #[test]
    fn a_header_is_there_once_however_its_name_is_written() {
        let message = builder().header("Region", "11").header("region", "서울 \"11\"");
        assert_eq!(message.build().unwrap().headers.unwrap(), r#"{"region":"서울 \"11\""}"#);
    }

    #[test]
    fn a_trace_that_is_none_is_left_out_and_keeps_nothing_back() {
        for text in ["", "00-1-2-01", "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01"] {
            assert_eq!(builder().traceparent(text).build().unwrap().traceparent, None, "{text}");
        }
    }

    #[test]
    fn a_payload_that_is_no_json_is_an_error_of_the_build() {
        let keys = std::collections::HashMap::from([((1, 2), 3)]);
        let built = Message::json("t", &keys).aggregate("a", "1").build();
        assert!(matches!(built, Err(Error::Json(_))));
    }

    #[test]
    fn debugging_shows_neither_payload_nor_headers() {
        let message = Message::json("t", &"resident number").aggregate("a", "1");
        let message = message.header("name", "Kim").build().unwrap();
        let shown = format!("{message:?}");
        assert!(!shown.contains("resident") && !shown.contains("Kim"), "{shown}");
    }
}
