//! What is refused at the edge, alike for every transport and every store.

use pabal_core::{
    EndpointName, HEADERS_BYTES_MAX, HOPS_MAX, ID_BYTES_MAX, Message, Reason, SendError,
    TYPE_BYTES_MAX,
};

/// Checks everything about an arrival that needs neither rules nor the store.
///
/// # Errors
/// `Permanent`, with the field's name and its limit.
pub(crate) fn check(message: &Message, body_bytes_max: usize) -> Result<(), SendError> {
    let size = message.body.size();
    if size > body_bytes_max as u64 {
        return Err(refusal(
            Reason::TooLarge,
            format!("the body has {size} bytes, this source takes {body_bytes_max}"),
        ));
    }
    if message.message_type.is_empty() {
        return Err(refusal(
            Reason::Invalid,
            "the message has no type: send `ce-type`, or let the source set or identify one",
        ));
    }
    let texts = [
        ("type", Some(&message.message_type), TYPE_BYTES_MAX),
        ("origin source", Some(&message.origin.source), ID_BYTES_MAX),
        ("origin id", message.origin.id.as_ref(), ID_BYTES_MAX),
        ("key", message.key.as_ref(), ID_BYTES_MAX),
        ("schema", message.schema.as_ref(), TYPE_BYTES_MAX),
        ("content type", message.content_type.as_ref(), TYPE_BYTES_MAX),
        ("time", message.time.as_ref(), TYPE_BYTES_MAX),
        ("subject", message.subject.as_ref(), ID_BYTES_MAX),
        ("correlation id", message.correlation.as_ref(), ID_BYTES_MAX),
        ("causation id", message.causation.as_ref(), ID_BYTES_MAX),
        ("trace", message.trace.as_ref(), TYPE_BYTES_MAX),
        ("destination", message.destination.as_ref(), ID_BYTES_MAX),
    ];
    for (field, text, bytes_max) in texts {
        check_text(field, text.map_or("", String::as_str), bytes_max)?;
    }
    if message.headers.size() > HEADERS_BYTES_MAX {
        return Err(refusal(
            Reason::TooLarge,
            format!(
                "the headers have {} bytes, the limit is {HEADERS_BYTES_MAX}",
                message.headers.size()
            ),
        ));
    }
    for (name, value) in message.headers.iter() {
        check_text("header name", name, HEADERS_BYTES_MAX)?;
        check_text("header", value, HEADERS_BYTES_MAX)?;
    }
    Ok(())
}

/// A message that came through too many hubs runs in a circle.
pub(crate) fn runs_in_a_circle(message: &Message) -> bool {
    message.arrival.hops >= HOPS_MAX
}

/// The one destination a message names, if it may.
///
/// # Errors
/// If its source may not address, or what it names is no name.
pub(crate) fn address(
    message: &Message,
    may_address: bool,
) -> Result<Option<EndpointName>, SendError> {
    let Some(destination) = &message.destination else {
        return Ok(None);
    };
    if !may_address {
        return Err(refusal(
            Reason::Refused,
            "this source may not name a destination: set `may_address = true` on it, or leave \
             `ce-destination` out",
        ));
    }
    let name = destination
        .parse()
        .map_err(|error| refusal(Reason::Invalid, format!("destination: {error}")))?;
    Ok(Some(name))
}

fn check_text(field: &str, text: &str, bytes_max: usize) -> Result<(), SendError> {
    if text.len() > bytes_max {
        let size = text.len();
        return Err(refusal(
            Reason::TooLarge,
            format!("the {field} has {size} bytes, the limit is {bytes_max}"),
        ));
    }
    // PostgreSQL cannot store it in text, and both stores behave alike.
    if text.contains('\0') {
        return Err(refusal(Reason::Invalid, format!("the {field} holds a zero character")));
    }
    Ok(())
}

pub(crate) fn refusal(
    reason: Reason,
    text: impl Into<std::borrow::Cow<'static, str>>,
) -> SendError {
    SendError::permanent(reason, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message::new("p/s".parse().unwrap(), "t", "body")
    }

    fn reason(message: &Message) -> Option<Reason> {
        match check(message, 4) {
            Ok(()) => None,
            Err(SendError::Permanent { reason, .. }) => Some(reason),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn limits_and_zero_characters_are_refused_at_the_edge() {
        assert_eq!(reason(&message()), None);
        type Change = fn(&mut Message);
        let changes: [(Change, Reason); 6] = [
            (|m| m.body = pabal_core::Body::Inline("12345".into()), Reason::TooLarge),
            (|m| m.message_type.clear(), Reason::Invalid),
            (|m| m.origin.id = Some("i".repeat(513)), Reason::TooLarge),
            (|m| m.key = Some("a\0b".into()), Reason::Invalid),
            (|m| m.headers.push("x", "v".repeat(65_536)), Reason::TooLarge),
            (|m| m.headers.push("x", "a\0b"), Reason::Invalid),
        ];
        for (change, expected) in changes {
            let mut message = message();
            change(&mut message);
            assert_eq!(reason(&message), Some(expected));
        }
    }
}
