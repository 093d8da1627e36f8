//! How messages and other words of the core stand in rows.

use std::time::Duration;

use jiff::Timestamp;
use pabal_core::{
    Arrival, Body, BodyReference, Bytes, DeadLetter, EndpointName, Headers, Message, MessageId,
    Number, Origin, StoreError,
};
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, IntoDeserializer},
};
use sqlx::{
    Decode, Row, Sqlite, Type,
    query_builder::Separated,
    sqlite::{SqliteArguments, SqliteRow},
};
use uuid::Uuid;

use crate::error::{classify, unreadable};

/// A query with its arguments.
pub(crate) type Query<'q> = sqlx::query::Query<'q, Sqlite, SqliteArguments>;

/// Rows per statement: large enough that the statement costs nothing per row, small enough that 30
/// columns stay under SQLite's limit of 32,766 arguments.
pub(crate) const CHUNK: usize = 100;

/// The columns that tables `message` and `arrival` share, in the order of [`bind_envelope`] and
/// [`envelope`].
pub(crate) const ENVELOPE: &str = "id, source, origin_source, origin_id, type, key, version, \
    schema, content_type, correlation, size, rest, body";

/// What nobody searches for: one column, because every column costs with every row, and most
/// messages have nothing of this.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Rest {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    causation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<String>,
    redeliveries: u32,
    /// As text: nanoseconds survive.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin_time: Option<Timestamp>,
    hops: u8,
    #[serde(skip_serializing_if = "Headers::is_empty")]
    headers: Headers,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<BodyReference>,
}

/// Binds the columns of [`ENVELOPE`].
pub(crate) fn bind_envelope(row: &mut Separated<'_, Sqlite, &str>, message: &Message) {
    let (reference, body) = match &message.body {
        Body::Inline(bytes) => (None, Some(bytes.as_ref())),
        Body::Stored(reference) => (Some(reference.clone()), None),
    };
    let rest = Rest {
        time: message.time.clone(),
        subject: message.subject.clone(),
        causation: message.causation.clone(),
        trace: message.trace.clone(),
        destination: message.destination.clone(),
        redeliveries: message.arrival.redeliveries,
        origin_time: message.arrival.origin_time,
        hops: message.arrival.hops,
        headers: message.headers.clone(),
        body: reference,
    };
    row.push_bind(message.id.0)
        .push_bind(message.source.as_str())
        .push_bind(message.origin.source.as_str())
        .push_bind(message.origin.id.as_deref())
        .push_bind(message.message_type.as_str())
        .push_bind(message.key.as_deref())
        .push_bind(message.version)
        .push_bind(message.schema.as_deref())
        .push_bind(message.content_type.as_deref())
        .push_bind(message.correlation.as_deref())
        .push_bind(saturate(message.body.size()))
        .push_bind((rest != Rest::default()).then(|| json(rest)))
        .push_bind(body);
}

/// Reads the columns of [`ENVELOPE`]. What only the way in needed (a state write) is not kept.
pub(crate) fn envelope(row: &mut Columns<'_>) -> Result<Message, StoreError> {
    let id = row.id()?;
    let source = row.endpoint()?;
    let origin = Origin { source: row.next()?, id: row.next()? };
    let message_type = row.next()?;
    let (key, version, schema) = (row.next()?, row.next()?, row.next()?);
    let (content_type, correlation) = (row.next()?, row.next()?);
    let _size: i64 = row.next()?;
    let rest: Rest = match row.next::<Option<&str>>()? {
        Some(rest) => from_json("message", rest)?,
        None => Rest::default(),
    };
    let body = row.next::<Option<&[u8]>>()?;
    Ok(Message {
        id,
        source,
        origin,
        message_type,
        key,
        version,
        schema,
        content_type,
        time: rest.time,
        subject: rest.subject,
        correlation,
        causation: rest.causation,
        trace: rest.trace,
        destination: rest.destination,
        headers: rest.headers,
        body: match rest.body {
            Some(reference) => Body::Stored(reference),
            None => Body::Inline(Bytes::copy_from_slice(body.unwrap_or_default())),
        },
        arrival: Arrival {
            redeliveries: rest.redeliveries,
            origin_time: rest.origin_time,
            hops: rest.hops,
            ..Arrival::default()
        },
    })
}

/// The columns of [`dead_letter`].
pub(crate) const DEAD_LETTER: &str = "id, kind, endpoint, message, origin_id, type, key, number, \
    reason, cause, detail, round, holds, at";

/// Reads the columns of [`DEAD_LETTER`].
pub(crate) fn dead_letter(row: &SqliteRow) -> Result<DeadLetter, StoreError> {
    let mut row = Columns::of(row);
    Ok(DeadLetter {
        id: row.next()?,
        kind: row.word()?,
        endpoint: row.endpoint()?,
        message: row.next::<Option<Uuid>>()?.map(MessageId),
        origin_id: row.next()?,
        message_type: row.next()?,
        key: row.next()?,
        number: row.next()?,
        reason: row.word()?,
        cause: row.next()?,
        detail: row.next()?,
        round: row.count()?,
        holds: row.word()?,
        at: row.time()?,
    })
}

/// A row read column by column, in the order of the statement.
#[derive(Debug)]
pub(crate) struct Columns<'r> {
    row: &'r SqliteRow,
    at: usize,
}

impl<'r> Columns<'r> {
    pub(crate) fn of(row: &'r SqliteRow) -> Self {
        Self { row, at: 0 }
    }

    pub(crate) fn next<T: Decode<'r, Sqlite> + Type<Sqlite>>(&mut self) -> Result<T, StoreError> {
        let value = self.row.try_get(self.at).map_err(|error| classify(&error));
        self.at += 1;
        value
    }

    pub(crate) fn endpoint(&mut self) -> Result<EndpointName, StoreError> {
        self.next::<&str>()?.parse().map_err(|error| unreadable("name", error))
    }

    pub(crate) fn id(&mut self) -> Result<MessageId, StoreError> {
        self.next().map(MessageId)
    }

    /// A number that is never negative.
    pub(crate) fn count<T: TryFrom<i64>>(&mut self) -> Result<T, StoreError> {
        let value: i64 = self.next()?;
        T::try_from(value).map_err(|_| unreadable("count", value))
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, StoreError> {
        time(self.next()?)
    }

    pub(crate) fn optional_time(&mut self) -> Result<Option<Timestamp>, StoreError> {
        self.next::<Option<i64>>()?.map(time).transpose()
    }

    pub(crate) fn word<T: DeserializeOwned>(&mut self) -> Result<T, StoreError> {
        let text: &str = self.next()?;
        T::deserialize(text.into_deserializer())
            .map_err(|error: serde::de::value::Error| unreadable("word", error))
    }
}

pub(crate) fn time(micros: i64) -> Result<Timestamp, StoreError> {
    Timestamp::from_microsecond(micros).map_err(|error| unreadable("time", error))
}

/// The word of an enum, as it stands in JSON and in TEXT columns.
pub(crate) fn word(value: impl Serialize) -> String {
    json(value).trim_matches('"').to_owned()
}

/// JSON of a value that cannot fail to be written.
pub(crate) fn json(value: impl Serialize) -> String {
    serde_json::to_string(&value).unwrap_or_default()
}

pub(crate) fn from_json<'a, T: Deserialize<'a>>(
    what: &str,
    text: &'a str,
) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| unreadable(what, error))
}

/// One argument that stands for many numbers: `IN (SELECT value FROM json_each(?))` keeps one
/// prepared statement for any count.
pub(crate) fn numbers(numbers: impl IntoIterator<Item = Number>) -> String {
    json(numbers.into_iter().collect::<Vec<_>>())
}

/// The same for message ids: `unhex(value)`.
pub(crate) fn ids(ids: impl IntoIterator<Item = MessageId>) -> String {
    json(ids.into_iter().map(|id| id.0.simple().to_string()).collect::<Vec<_>>())
}

/// A span as microseconds.
pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// The time from `from` to `to`; none if it is past.
pub(crate) fn span(from: i64, to: i64) -> Duration {
    Duration::from_micros(u64::try_from(to.saturating_sub(from)).unwrap_or(0))
}

/// SQLite knows signed numbers only.
pub(crate) fn saturate(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
