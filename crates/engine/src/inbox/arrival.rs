//! One arrival before it is stored: checked, read, identified, routed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pabal_core::{
    Body, Cause, DeadReason, Entry, Fingerprint, HEADERS_BYTES_MAX, Message, MessageId, NewMessage,
    REDELIVERIES_MAX, Reason, SendError, SetAside,
};

use super::Shared;
use crate::{Event, MissingId, OnInvalid, Source, edge};

/// Checks, reads, identifies and routes one arrival.
pub(crate) fn prepare(
    source: &Source,
    shared: &Shared,
    mut message: Message,
) -> Result<Entry, SendError> {
    let fingerprint = fingerprint(&message);
    message.source = source.name.clone();
    let set_aside = |message: Message, reason: DeadReason, cause: Cause| {
        Entry::SetAside(SetAside { message, fingerprint, reason, cause })
    };
    if message.arrival.redeliveries >= REDELIVERIES_MAX {
        let cause = Cause::with(
            "redelivered too often to be read",
            format!("the origin counts {} redeliveries", message.arrival.redeliveries),
        );
        return Ok(set_aside(storable(message), DeadReason::Unread, cause));
    }
    let received = message.clone();
    let read = || read(source, shared, message, fingerprint);
    // A rule that panics refuses its message, and no other.
    let read = catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        tracing::error!(alert = true, source = %source.name, "a rule panicked");
        Err(edge::refusal(Reason::Panic, "a rule panicked on it").into())
    });
    match read {
        Ok(entry) => Ok(entry),
        Err(Refusal { reason, error: SendError::Permanent { cause, .. } })
            if source.on_invalid == OnInvalid::Keep || received.arrival.one_way =>
        {
            Ok(set_aside(storable(received), reason, cause))
        }
        Err(Refusal { error, .. }) => {
            if let SendError::Permanent { reason, .. } = &error {
                let event = Event::Refused { source: &source.name, reason: *reason };
                shared.observer.observe(event);
            }
            Err(error)
        }
    }
}

struct Refusal {
    reason: DeadReason,
    error: SendError,
}

impl From<SendError> for Refusal {
    fn from(error: SendError) -> Self {
        let reason = match &error {
            SendError::Permanent { reason, .. } => (*reason).into(),
            _ => DeadReason::Unreadable,
        };
        Self { reason, error }
    }
}

fn read(
    source: &Source,
    shared: &Shared,
    mut message: Message,
    fingerprint: Fingerprint,
) -> Result<Entry, Refusal> {
    if let Some(reader) = &source.reader {
        reader.read(&mut message)?;
    }
    edge::check(&message, source.body_bytes_max)?;
    if edge::runs_in_a_circle(&message) {
        let cause = format!("it came through {} hubs: it runs in a circle", message.arrival.hops);
        let error = edge::refusal(Reason::Refused, cause);
        return Err(Refusal { reason: DeadReason::TooManyHops, error });
    }
    let address = edge::address(&message, source.may_address)?;
    let origin_id = match (&message.origin.id, source.missing_id) {
        (Some(id), _) if !id.is_empty() => id.clone(),
        (_, MissingId::Content) => fingerprint.to_string(),
        (_, MissingId::Random) => uuid::Uuid::new_v4().to_string(),
        (_, MissingId::Refuse) => {
            return Err(edge::refusal(
                Reason::Invalid,
                "the message has no id, so a repeat could not be told from a new one: send \
                 `ce-id` or `Idempotency-Key`, or set `identify` on the source",
            )
            .into());
        }
    };
    message.id = MessageId::of(&shared.hub, &source.name, &message.origin.source, &origin_id);
    message.origin.id = Some(origin_id);
    let routed = shared.router.route(&message, address)?;
    Ok(Entry::Message(NewMessage {
        message,
        fingerprint,
        destinations: routed.destinations,
        faults: routed.faults,
        repeats: 0,
    }))
}

fn fingerprint(message: &Message) -> Fingerprint {
    match &message.body {
        Body::Inline(bytes) => Fingerprint::of(bytes),
        Body::Stored(reference) => Fingerprint(reference.sha256),
    }
}

/// What could not be read is kept, so its texts must fit the store: what does not is cut.
fn storable(mut message: Message) -> Message {
    let texts = [
        Some(&mut message.message_type),
        Some(&mut message.origin.source),
        message.origin.id.as_mut(),
        message.key.as_mut(),
        message.schema.as_mut(),
        message.content_type.as_mut(),
        message.time.as_mut(),
        message.subject.as_mut(),
        message.correlation.as_mut(),
        message.causation.as_mut(),
        message.trace.as_mut(),
        message.destination.as_mut(),
    ];
    for text in texts.into_iter().flatten() {
        if text.len() > pabal_core::ID_BYTES_MAX || text.contains('\0') {
            *text = pabal_core::shorten(&text.replace('\0', "\u{fffd}"), pabal_core::ID_BYTES_MAX)
                .into_owned();
        }
    }
    if message.headers.size() > HEADERS_BYTES_MAX
        || message.headers.iter().any(|(name, value)| name.contains('\0') || value.contains('\0'))
    {
        message.headers = pabal_core::Headers::default();
    }
    message
}
