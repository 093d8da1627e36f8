//! How messages and other words of the core stand in rows.

use std::time::Duration;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use pabal_core::{
    Arrival, Body, BodyReference, Bytes, DeadLetter, EndpointName, Headers, Message, MessageId,
    Origin, StoreError,
};
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, IntoDeserializer},
};
use sha2::{Digest, Sha256};
use sqlx::{
    Decode, Postgres, Row, Type,
    postgres::{PgArguments, PgRow},
};
use uuid::Uuid;

use crate::error::{classify, unreadable};

/// A query with its arguments.
pub(crate) type Query<'q> = sqlx::query::Query<'q, Postgres, PgArguments>;

/// The columns that tables `message` and `arrival` share, in the order of [`Envelopes`] and
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

/// Messages as columns, for one statement of many rows.
#[derive(Debug, Default)]
pub(crate) struct Envelopes<'a> {
    ids: Vec<Uuid>,
    sources: Vec<&'a str>,
    origin_sources: Vec<&'a str>,
    origin_ids: Vec<Option<&'a str>>,
    types: Vec<&'a str>,
    keys: Vec<Option<&'a str>>,
    versions: Vec<Option<i64>>,
    schemas: Vec<Option<&'a str>>,
    content_types: Vec<Option<&'a str>>,
    correlations: Vec<Option<&'a str>>,
    sizes: Vec<i64>,
    rests: Vec<Option<String>>,
    bodies: Vec<Option<&'a [u8]>>,
}

/// The arguments of [`Envelopes::bind`], from this number on.
pub(crate) fn envelope_arguments(first: usize) -> String {
    let types = [
        "uuid", "text", "text", "text", "text", "text", "bigint", "text", "text", "text", "bigint",
        "text", "bytea",
    ];
    let arguments = types.iter().enumerate().map(|(at, of)| format!("${}::{of}[]", first + at));
    arguments.collect::<Vec<_>>().join(", ")
}

impl<'a> Envelopes<'a> {
    pub(crate) fn of(messages: impl Iterator<Item = &'a Message>) -> Self {
        let mut all = Self::default();
        for message in messages {
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
            all.ids.push(message.id.0);
            all.sources.push(message.source.as_str());
            all.origin_sources.push(message.origin.source.as_str());
            all.origin_ids.push(message.origin.id.as_deref());
            all.types.push(message.message_type.as_str());
            all.keys.push(message.key.as_deref());
            all.versions.push(message.version);
            all.schemas.push(message.schema.as_deref());
            all.content_types.push(message.content_type.as_deref());
            all.correlations.push(message.correlation.as_deref());
            all.sizes.push(saturate(message.body.size()));
            all.rests.push((rest != Rest::default()).then(|| json(rest)));
            all.bodies.push(body);
        }
        all
    }

    /// Binds them, in the order of [`ENVELOPE`].
    pub(crate) fn bind<'q>(self, query: Query<'q>) -> Query<'q>
    where
        'a: 'q,
    {
        query
            .bind(self.ids)
            .bind(self.sources)
            .bind(self.origin_sources)
            .bind(self.origin_ids)
            .bind(self.types)
            .bind(self.keys)
            .bind(self.versions)
            .bind(self.schemas)
            .bind(self.content_types)
            .bind(self.correlations)
            .bind(self.sizes)
            .bind(self.rests)
            .bind(self.bodies)
    }
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

/// The primary key of the inbox: the first 16 bytes of a hash over own source, origin source and
/// origin id, each with its length, so that no two identities give the same bytes.
pub(crate) fn identity(message: &Message) -> Uuid {
    let origin_id = message.origin.id.as_deref().unwrap_or_default();
    identity_of([message.source.as_str(), message.origin.source.as_str(), origin_id])
}

/// The same of the three names.
pub(crate) fn identity_of(names: [&str; 3]) -> Uuid {
    let mut hash = Sha256::new();
    for part in names {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let mut first = [0; 16];
    first.copy_from_slice(&hash.finalize()[..16]);
    Uuid::from_bytes(first)
}

/// The columns of [`dead_letter`].
pub(crate) const DEAD_LETTER: &str = "id, kind, endpoint, message, origin_id, type, key, number, \
    reason, cause, detail, round, holds, at";

/// Reads the columns of [`DEAD_LETTER`].
pub(crate) fn dead_letter(row: &PgRow) -> Result<DeadLetter, StoreError> {
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
    row: &'r PgRow,
    at: usize,
}

impl<'r> Columns<'r> {
    pub(crate) fn of(row: &'r PgRow) -> Self {
        Self { row, at: 0 }
    }

    pub(crate) fn next<T: Decode<'r, Postgres> + Type<Postgres>>(
        &mut self,
    ) -> Result<T, StoreError> {
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

    /// An `integer` that is never negative.
    pub(crate) fn count<T: TryFrom<i32>>(&mut self) -> Result<T, StoreError> {
        let value: i32 = self.next()?;
        T::try_from(value).map_err(|_| unreadable("count", value))
    }

    /// A `bigint` that is never negative.
    pub(crate) fn large<T: TryFrom<i64>>(&mut self) -> Result<T, StoreError> {
        let value: i64 = self.next()?;
        T::try_from(value).map_err(|_| unreadable("count", value))
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, StoreError> {
        self.next::<jiff_sqlx::Timestamp>().map(jiff_sqlx::Timestamp::to_jiff)
    }

    pub(crate) fn optional_time(&mut self) -> Result<Option<Timestamp>, StoreError> {
        let time = self.next::<Option<jiff_sqlx::Timestamp>>()?;
        Ok(time.map(jiff_sqlx::Timestamp::to_jiff))
    }

    pub(crate) fn word<T: DeserializeOwned>(&mut self) -> Result<T, StoreError> {
        let text: &str = self.next()?;
        T::deserialize(text.into_deserializer())
            .map_err(|error: serde::de::value::Error| unreadable("word", error))
    }
}

/// A time as an argument.
pub(crate) fn at(time: Timestamp) -> jiff_sqlx::Timestamp {
    time.to_sqlx()
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

/// A span as microseconds; longer than a thousand years is as good as for ever, and still a time
/// that PostgreSQL can add.
pub(crate) fn micros(span: Duration) -> i64 {
    const MAX: i64 = 1_000 * 365 * 86_400 * 1_000_000;
    i64::try_from(span.as_micros()).unwrap_or(MAX).min(MAX)
}

/// The time from `from` to `to`; none if it is past.
pub(crate) fn span(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// PostgreSQL knows signed numbers only.
pub(crate) fn saturate(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The same for an `integer`.
pub(crate) fn small(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
