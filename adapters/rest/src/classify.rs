//! The one place where what HTTP says becomes a verdict.
//!
//! An answer is judged in this order: the `status` table of the destination; 401, 403, 407 and 429,
//! which are about the place and no rule is asked for; the destination's answer rule; the table
//! [`Fate::of`]. A redirect counts only if the table or the rule calls it a success: it is never
//! followed, so the message was not taken where it was sent.

use std::{
    collections::BTreeMap,
    error::Error,
    time::{Duration, UNIX_EPOCH},
};

use http::{
    HeaderMap,
    header::{DATE, LOCATION, RETRY_AFTER},
};
use pabal_core::{
    Answer, AnswerRule, Cause, Judgement, Reason, Receipt, SendError, Timestamp, Verdict,
};
use rustls::AlertDescription;
use url::Url;

use crate::settings::StatusMeaning;

/// Longer than this nobody is waited for; it also keeps arithmetic on times safe.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// What a status code means unless something says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The other side holds the message.
    Taken,
    /// The URL is another one now: about the place.
    Moved,
    /// About the place: who we are, or how fast.
    Place,
    /// This message, this time.
    Again,
    /// Never as it stands.
    Never(Reason),
}

impl Fate {
    /// The table of decisions.
    fn of(status: u16) -> Self {
        match status {
            200..=299 => Self::Taken,
            301 | 302 | 303 | 307 | 308 => Self::Moved,
            401 | 403 | 407 | 429 => Self::Place,
            408 | 425 | 500..=599 => Self::Again,
            400 | 422 => Self::Never(Reason::Invalid),
            409 => Self::Never(Reason::Conflict),
            410 => Self::Never(Reason::Expired),
            413 | 414 | 431 => Self::Never(Reason::TooLarge),
            415 => Self::Never(Reason::Unreadable),
            402..=499 => Self::Never(Reason::Refused),
            // No answer of this kind is known to mean that anybody took the message.
            _ => Self::Again,
        }
    }
}

/// How the answers of one destination are judged.
#[derive(Debug)]
pub(crate) struct Judge<'a> {
    /// Single status codes, before everything else.
    pub status: &'a BTreeMap<u16, StatusMeaning>,
    /// The rule, which may have nothing to say.
    pub rule: &'a dyn AnswerRule,
    /// Where the request went.
    pub url: &'a Url,
    /// When the answer came.
    pub now: Timestamp,
}

impl Judge<'_> {
    /// The verdict on a complete answer; `judged` holds what the rule may see, `kept` what is kept.
    pub(crate) fn verdict(&self, headers: &HeaderMap, judged: &Answer, kept: Answer) -> Verdict {
        let status = judged.status.unwrap_or_default();
        let fate = Fate::of(status);
        let retry_after = retry_after(headers, self.now);
        let receipt = |duplicate| Ok(Receipt { duplicate, ..Receipt::default() });
        let said = || Cause::with(format!("HTTP {status}"), text(&kept));
        let meaning = self.status.get(&status).map(|meaning| match meaning {
            StatusMeaning::Success => Judgement::Success,
            StatusMeaning::Duplicate => Judgement::Duplicate,
            StatusMeaning::Retry => Judgement::Retry(said()),
            StatusMeaning::Dead => Judgement::Dead(said()),
        });
        let asked = || match fate {
            Fate::Place => None,
            Fate::Moved => self
                .rule
                .judge(judged)
                .filter(|judgement| matches!(judgement, Judgement::Success | Judgement::Duplicate)),
            Fate::Taken | Fate::Again | Fate::Never(_) => self.rule.judge(judged),
        };
        let verdict = match (meaning.or_else(asked), fate) {
            (Some(Judgement::Success), _) | (None, Fate::Taken) => receipt(false),
            (Some(Judgement::Duplicate), _) => receipt(true),
            (Some(Judgement::Retry(cause)), _) => {
                Err(SendError::Transient { cause: with_text(cause, &kept), retry_after })
            }
            (Some(Judgement::Dead(cause)), fate) => {
                let reason = match fate {
                    Fate::Never(reason) => reason,
                    _ => Reason::Refused,
                };
                Err(SendError::Permanent { reason, cause: with_text(cause, &kept) })
            }
            (None, Fate::Moved) => {
                let target = target(self.url, headers);
                let cause = Cause::with(format!("HTTP {status}"), format!("redirects to {target}"));
                Err(SendError::Unreachable { cause, retry_after })
            }
            (None, Fate::Place) => Err(SendError::Unreachable { cause: said(), retry_after }),
            (None, Fate::Again) => Err(SendError::Transient { cause: said(), retry_after }),
            (None, Fate::Never(reason)) => Err(SendError::Permanent { reason, cause: said() }),
        };
        match verdict {
            Ok(receipt) => Ok(Receipt { answer: Some(kept), ..receipt }),
            Err(error) => Err(answered(error, status)),
        }
    }
}

/// The same error, with the status of the answer that was its cause.
fn answered(error: SendError, status: u16) -> SendError {
    match error {
        SendError::Unreachable { cause, retry_after } => {
            SendError::Unreachable { cause: cause.status(status), retry_after }
        }
        SendError::Transient { cause, retry_after } => {
            SendError::Transient { cause: cause.status(status), retry_after }
        }
        SendError::Permanent { reason, cause } => {
            SendError::Permanent { reason, cause: cause.status(status) }
        }
        SendError::NotSent => SendError::NotSent,
    }
}

/// The start of an answer as text, whatever its bytes are.
pub(crate) fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).trim().to_owned()
}

/// A rule's cause with the start of the answer, where the rule gave no detail of its own.
fn with_text(cause: Cause, kept: &Answer) -> Cause {
    match cause.detail {
        Some(_) => cause,
        None => Cause::with(cause.summary, text(kept)),
    }
}

/// Where a redirect points, without anything that may be secret.
fn target(url: &Url, headers: &HeaderMap) -> String {
    let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let Some(target) = location.and_then(|location| url.join(location).ok()) else {
        return "nowhere".into();
    };
    let origin = target.origin();
    if !origin.is_tuple() {
        return format!("another scheme, {}", target.scheme());
    }
    format!("{}{}", origin.ascii_serialization(), target.path())
}

/// How long the other side asked to be left alone: seconds, or a date, which is measured from the
/// answer's own date where it has one. `None` for what is past, negative or unreadable.
pub(crate) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than a number holds are still a wish to be left alone.
        value.parse::<u64>().unwrap_or(u64::MAX)
    } else {
        let from = headers.get(DATE).and_then(|date| date.to_str().ok()).and_then(date);
        let from = from.unwrap_or_else(|| now.as_second().try_into().unwrap_or(0));
        date(value)?.checked_sub(from)?
    };
    (seconds > 0).then(|| Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// An HTTP date in Unix seconds.
fn date(text: &str) -> Option<u64> {
    let time = httpdate::parse_http_date(text.trim()).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// What kept an exchange from ending with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The name has no address.
    Name,
    /// No connection in time.
    ConnectTimeout,
    /// The handshake failed.
    Tls,
    /// No connection.
    Connect,
    /// TLS 1.3 tells only at the first read that a client certificate is not wanted.
    Certificate,
    /// The request could not be put into the form of HTTP.
    Request,
    /// The connection broke after it was made.
    Broken,
}

impl Fault {
    /// Which of them a library error is.
    pub(crate) fn of(error: &reqwest::Error) -> Self {
        if error.is_builder() {
            return Self::Request;
        }
        if !error.is_connect() {
            return if is_about_us(&chain(error)) { Self::Certificate } else { Self::Broken };
        }
        match () {
            () if error.is_timeout() => Self::ConnectTimeout,
            () if is_tls(error) => Self::Tls,
            () if chain(error).contains("dns error") => Self::Name,
            () => Self::Connect,
        }
    }

    /// The verdict: only what happened before a byte of the message could matter is about the place.
    pub(crate) fn error(self, detail: &str) -> SendError {
        match self {
            Self::Name => SendError::unreachable(Cause::with("the name has no address", detail)),
            Self::ConnectTimeout => {
                SendError::unreachable(Cause::with("connecting took too long", detail))
            }
            Self::Tls => SendError::unreachable(Cause::with("TLS failed", detail)),
            Self::Connect => SendError::unreachable(Cause::with("cannot connect", detail)),
            Self::Certificate => {
                SendError::unreachable(Cause::with("our certificate was refused", detail))
            }
            Self::Request => SendError::permanent(
                Reason::Invalid,
                Cause::with("this message makes no HTTP request", detail),
            ),
            Self::Broken => {
                SendError::transient(Cause::with("the connection broke before the answer", detail))
            }
        }
    }
}

/// Alerts that end a handshake because of what we showed; nothing of a message was read by then.
const ABOUT_US: [AlertDescription; 10] = [
    AlertDescription::CertificateRequired,
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
    AlertDescription::DecryptError,
    AlertDescription::HandshakeFailure,
];

/// Whether an error tells of such an alert. By its text, because over HTTP/2 nothing else is left of
/// the error of TLS.
fn is_about_us(chain: &str) -> bool {
    let alert = chain.split_once("fatal alert: ").map_or("", |(_, alert)| alert);
    let name = alert.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    ABOUT_US.iter().any(|known| name == format!("{known:?}"))
}

/// The next error inside; an I/O error hides the one it was made of from `source`.
fn inner<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        Some(hidden) => Some(hidden),
        None => error.source(),
    }
}

fn is_tls(error: &reqwest::Error) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if error.is::<rustls::Error>() {
            return true;
        }
        next = inner(error);
    }
    false
}

/// What an error says, from outside to inside, without the URL it may carry.
pub(crate) fn chain(error: &reqwest::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut next = inner(error);
    while let Some(error) = next {
        let part = error.to_string();
        // Wrappers repeat what is inside them.
        if !parts.iter().any(|known| known.contains(&part)) {
            parts.push(part);
        }
        next = inner(error);
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_the_documented_fate() {
        use Fate::*;
        let table = [
            (100..=199, Again),
            (200..=299, Taken),
            (300..=300, Again),
            (301..=303, Moved),
            (304..=306, Again),
            (307..=308, Moved),
            (400..=400, Never(Reason::Invalid)),
            (401..=401, Place),
            (402..=402, Never(Reason::Refused)),
            (403..=403, Place),
            (404..=406, Never(Reason::Refused)),
            (407..=407, Place),
            (408..=408, Again),
            (409..=409, Never(Reason::Conflict)),
            (410..=410, Never(Reason::Expired)),
            (411..=412, Never(Reason::Refused)),
            (413..=414, Never(Reason::TooLarge)),
            (415..=415, Never(Reason::Unreadable)),
            (416..=421, Never(Reason::Refused)),
            (422..=422, Never(Reason::Invalid)),
            (423..=424, Never(Reason::Refused)),
            (425..=425, Again),
            (426..=428, Never(Reason::Refused)),
            (429..=429, Place),
            (430..=430, Never(Reason::Refused)),
            (431..=431, Never(Reason::TooLarge)),
            (432..=499, Never(Reason::Refused)),
            (500..=999, Again),
        ];
        for (range, fate) in table {
            for status in range {
                assert_eq!(Fate::of(status), fate, "{status}");
            }
        }
    }

    #[test]
    fn every_fault_before_the_first_byte_is_about_the_place() {
        for (fault, place) in [
            (Fault::Name, true),
            (Fault::ConnectTimeout, true),
            (Fault::Tls, true),
            (Fault::Connect, true),
            (Fault::Certificate, true),
            (Fault::Request, false),
            (Fault::Broken, false),
        ] {
            let error = fault.error("");
            assert_eq!(matches!(error, SendError::Unreachable { .. }), place, "{fault:?}");
        }
    }

    #[test]
    fn only_alerts_about_what_we_showed_are_about_the_place() {
        for alert in ABOUT_US {
            let text = rustls::Error::AlertReceived(alert).to_string();
            assert!(is_about_us(&format!("connection error: {text}")), "{text}");
        }
        for text in ["", "received fatal alert: InternalError", "fatal alert: ", "UnknownCA"] {
            assert!(!is_about_us(text), "{text}");
        }
    }

    #[test]
    fn retry_after_is_read_in_both_forms_and_never_breaks_the_wait() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let read = |value: &str, date: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            if let Some(date) = date {
                headers.insert(DATE, date.parse().unwrap());
            }
            retry_after(&headers, now).map(|time| time.as_secs())
        };
        assert_eq!(read("30", None), Some(30));
        assert_eq!(read("Thu, 01 Jan 2026 00:00:30 GMT", None), Some(30));
        // The other side's clock is an hour ahead of ours.
        let theirs = Some("Thu, 01 Jan 2026 01:00:00 GMT");
        assert_eq!(read("Thu, 01 Jan 2026 01:00:30 GMT", theirs), Some(30));
        assert_eq!(read("Wed, 31 Dec 2025 23:59:00 GMT", None), None);
        for bad in ["-5", "abc", "", "0", "1.5", "+3", "Thu, 99 Jan 2026 00:00:30 GMT"] {
            assert_eq!(read(bad, None), None, "{bad}");
        }
        assert_eq!(read("99999999999999999999999", None), Some(365 * 24 * 3600));
    }

    #[test]
    fn a_redirect_shows_its_target_without_secrets() {
        let url: Url = "https://a.example/x?key=1".parse().unwrap();
        let show = |location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, location.parse().unwrap());
            target(&url, &headers)
        };
        assert_eq!(show("/login?next=secret#f"), "https://a.example/login");
        assert_eq!(show("https://u:p@b.example:8443/y?t=s"), "https://b.example:8443/y");
        assert_eq!(show("javascript:secret"), "another scheme, javascript");
        assert_eq!(target(&url, &HeaderMap::new()), "nowhere");
    }
}
