//! How messages and their tokens stand in requests and answers.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Response, header},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http_body_util::{BodyExt as _, Full};
use pabal_core::{Bytes, Handout, MessageId, Pulled, SendError};

use crate::{
    cloudevents,
    request::{put, safe},
    structured,
};

/// The attribute that a partner gives back to say what became of a message, ...
pub(super) const TOKEN: &str = "pulltoken";
/// ... and the one that says for the so-manieth time it is handed out.
pub(super) const ATTEMPT: &str = "pullattempt";

/// The first byte of a token: its form.
const FORM: u8 = 1;
const TOKEN_BYTES: usize = 33;

/// A handing out as text. It is no secret: it counts only from who is let in, and only here.
pub(super) fn token(handout: &Handout) -> String {
    let mut bytes = Vec::with_capacity(TOKEN_BYTES);
    bytes.push(FORM);
    bytes.extend_from_slice(&handout.number.to_be_bytes());
    bytes.extend_from_slice(handout.message.0.as_bytes());
    bytes.extend_from_slice(&handout.round.to_be_bytes());
    bytes.extend_from_slice(&handout.attempt.to_be_bytes());
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// The handing out in a token; `None`: it is none.
pub(super) fn handout(token: &str) -> Option<Handout> {
    let bytes: [u8; TOKEN_BYTES] =
        BASE64_URL_SAFE_NO_PAD.decode(token.trim()).ok()?.try_into().ok()?;
    let (form, rest) = bytes.split_first()?;
    let (number, rest) = rest.split_first_chunk()?;
    let (message, rest) = rest.split_first_chunk()?;
    let (round, attempt) = rest.split_first_chunk()?;
    (*form == FORM).then_some(())?;
    Some(Handout {
        number: i64::from_be_bytes(*number),
        message: MessageId(uuid::Uuid::from_bytes(*message)),
        round: u32::from_be_bytes(*round),
        attempt: u32::from_be_bytes(attempt.try_into().ok()?),
    })
}

/// What an answer says of a handing out besides its message.
fn extras(handout: &Handout) -> [(&'static str, String); 2] {
    [(TOKEN, token(handout)), (ATTEMPT, handout.attempt.to_string())]
}

/// All of them in one JSON array.
pub(super) fn batched(pulled: Vec<Pulled>) -> Response<Body> {
    let mut out = vec![b'['];
    for (index, it) in pulled.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let body = it.message.body.inline().cloned().unwrap_or_default();
        out.extend_from_slice(&structured::write(&it.message, &body, &extras(&it.handout)));
    }
    out.push(b']');
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(structured::BATCH));
    answer(headers, out.into(), pulled)
}

/// One message with its envelope in headers, its body byte for byte.
///
/// # Errors
/// If it cannot stand in headers.
pub(super) fn binary(pulled: Pulled) -> Result<Response<Body>, SendError> {
    let headers = headers(&pulled)?;
    let body = pulled.message.body.inline().cloned().unwrap_or_default();
    Ok(answer(headers, body, vec![pulled]))
}

fn headers(pulled: &Pulled) -> Result<HeaderMap, SendError> {
    let (message, extras) = (&pulled.message, extras(&pulled.handout));
    let mut headers = HeaderMap::new();
    for (name, value) in cloudevents::attributes(message) {
        put(&mut headers, &format!("ce-{name}"), &cloudevents::encode(&value))?;
    }
    // After them: an origin must not bring a token of its own.
    for (name, value) in extras {
        put(&mut headers, &format!("ce-{name}"), &value)?;
    }
    if let Some(trace) = &message.trace {
        put(&mut headers, "traceparent", &safe(trace))?;
    }
    if let Some(content_type) = &message.content_type {
        put(&mut headers, header::CONTENT_TYPE.as_str(), &safe(content_type))?;
    }
    Ok(headers)
}

/// An answer that gives the messages' room in memory back once it is written, or nobody wants it.
fn answer(mut headers: HeaderMap, body: Bytes, pulled: Vec<Pulled>) -> Response<Body> {
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let rooms: Vec<_> = pulled.into_iter().map(|it| it.room).collect();
    let body = Full::new(body).map_frame(move |frame| {
        let _held = &rooms;
        frame
    });
    let mut response = Response::new(Body::new(body));
    *response.headers_mut() = headers;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_was_and_anything_else_is_none() {
        let message = MessageId(uuid::Uuid::from_u128(0x1234_5678_9abc_def0));
        for (number, round, attempt) in [(1, 0, 1), (i64::MAX, u32::MAX, u32::MAX), (-1, 7, 0)] {
            let it = Handout { number, message, round, attempt };
            assert_eq!(handout(&token(&it)), Some(it));
        }
        let good = token(&Handout { number: 1, message, round: 0, attempt: 1 });
        assert_eq!(good.len(), 44);
        for bad in ["", "x", &good[1..], &format!("{good}A"), &good.replace('A', "*"), "한국"] {
            assert_eq!(handout(bad), None, "{bad}");
        }
    }
}
