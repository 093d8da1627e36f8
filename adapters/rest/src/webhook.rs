//! Standard Webhooks: signing what goes out, verifying what comes in. Always over the bytes as they
//! are on the wire.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use pabal_core::{ConfigError, Secret};
use sha2::Sha256;

/// How far a timestamp may be from now, in seconds, either way.
pub(crate) const TOLERANCE_SECONDS: i64 = 300;
/// The header of the message id.
pub(crate) const ID: &str = "webhook-id";
/// The header of the time of signing, in Unix seconds.
pub(crate) const TIMESTAMP: &str = "webhook-timestamp";
/// The header of the signatures.
pub(crate) const SIGNATURE: &str = "webhook-signature";

/// The secrets of one side: those to sign with, or those any of which may have signed.
#[derive(Clone)]
pub(crate) struct Keys(Vec<Hmac<Sha256>>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({} × [secret])", self.0.len())
    }
}

/// Why a signature was not taken. Tells the caller nothing about the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unverified {
    /// A header is missing or cannot be read.
    Malformed,
    /// Signed too long ago, or in the future.
    OutOfTime,
    /// No signature fits.
    NoMatch,
}

impl fmt::Display for Unverified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => {
                "webhook-id, webhook-timestamp or webhook-signature is missing or unreadable"
            }
            Self::OutOfTime => "webhook-timestamp is more than five minutes from now",
            Self::NoMatch => "no webhook-signature fits the body",
        })
    }
}

impl Keys {
    /// From secrets in their text form, `whsec_` and base64; a fault is told under `key` and its
    /// index, without the value.
    pub(crate) fn new(key: &str, secrets: &[Secret]) -> Result<Self, ConfigError> {
        let mut keys = Vec::new();
        for (index, secret) in secrets.iter().enumerate() {
            let text = secret.expose();
            let bytes = BASE64_STANDARD
                .decode(text.strip_prefix("whsec_").unwrap_or(text))
                .ok()
                .filter(|bytes| !bytes.is_empty())
                .and_then(|bytes| Hmac::new_from_slice(&bytes).ok());
            keys.push(bytes.ok_or_else(|| {
                ConfigError::new(format!("{key}.{index}"), "not a Standard Webhooks secret")
                    .help("write `whsec_` and the key in base64")
            })?);
        }
        Ok(Self(keys))
    }

    /// The value of `webhook-signature`: one signature per secret.
    pub(crate) fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let signatures: Vec<_> = self
            .0
            .iter()
            .map(|key| {
                let mac = feed(key, id, &timestamp.to_string(), body).finalize();
                format!("v1,{}", BASE64_STANDARD.encode(mac.into_bytes()))
            })
            .collect();
        signatures.join(" ")
    }

    /// Whether any of the `v1` signatures was made with any of the secrets, `now` being in Unix
    /// seconds. Gives the time of signing.
    pub(crate) fn verify(
        &self,
        id: &str,
        timestamp: &str,
        signatures: &str,
        body: &[u8],
        now: i64,
    ) -> Result<i64, Unverified> {
        if id.is_empty() || signatures.is_empty() {
            return Err(Unverified::Malformed);
        }
        let time: i64 = timestamp.parse().map_err(|_| Unverified::Malformed)?;
        if now.abs_diff(time) > TOLERANCE_SECONDS.unsigned_abs() {
            return Err(Unverified::OutOfTime);
        }
        for key in &self.0 {
            let mac = feed(key, id, timestamp, body);
            for entry in signatures.split(' ') {
                let Some(signature) = entry.strip_prefix("v1,") else {
                    continue;
                };
                let Ok(signature) = BASE64_STANDARD.decode(signature) else {
                    continue;
                };
                // Compares in constant time.
                if mac.clone().verify_slice(&signature).is_ok() {
                    return Ok(time);
                }
            }
        }
        Err(Unverified::NoMatch)
    }
}

fn feed(key: &Hmac<Sha256>, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
    let mut mac = key.clone();
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const SECOND: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const BOTH: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= \
                        v1,78nXHjpFP0tVJQW5D0SBwmVyyW87BV/rL6MgfM/Bw44=";

    fn keys(secrets: &[&str]) -> Keys {
        let secrets: Vec<_> = secrets.iter().copied().map(Secret::new).collect();
        Keys::new("sign", &secrets).unwrap()
    }

    #[test]
    fn the_signature_is_the_one_other_implementations_make() {
        assert_eq!(keys(&[FIRST]).sign(ID, 1_614_265_330, BODY), BOTH[..47]);
        assert_eq!(keys(&[FIRST, SECOND]).sign(ID, 1_614_265_330, BODY), BOTH);
        assert_eq!(
            keys(&[FIRST]).sign("msg_empty", 1_796_000_000, b""),
            "v1,JDIWRzGPKU/nLTattb/Q/izGd4ZpyOG0bS58zYttCpE="
        );
    }

    #[test]
    fn either_secret_is_enough_while_one_replaces_the_other() {
        for key in [FIRST, SECOND] {
            let verdict = keys(&[key]).verify(ID, "1614265330", BOTH, BODY, 1_614_265_330);
            assert_eq!(verdict, Ok(1_614_265_330));
        }
    }

    #[test]
    fn whatever_is_wrong_with_a_signature_is_a_refusal_and_no_panic() {
        let first = keys(&[FIRST]);
        let at = |timestamp: &str, signature: &str, body: &[u8], now: i64| {
            first.verify(ID, timestamp, signature, body, now).err()
        };
        let good = &BOTH[..47];
        let now = 1_614_265_330;
        assert_eq!(at("1614265330", good, BODY, now), None);
        assert_eq!(at("1614265330", &format!("v1,AAAA v1a,xyz {good}"), BODY, now), None);
        assert_eq!(at("1614265330", good, BODY, now + 300), None);
        assert_eq!(at("1614265330", good, BODY, now + 301), Some(Unverified::OutOfTime));
        assert_eq!(at("1614265330", good, BODY, now - 301), Some(Unverified::OutOfTime));
        assert_eq!(at("1614265330", good, b"{}", now), Some(Unverified::NoMatch));
        assert_eq!(at("1614265330", "garbage", BODY, now), Some(Unverified::NoMatch));
        assert_eq!(at("1614265330", "v1,=== v1, ,", BODY, now), Some(Unverified::NoMatch));
        assert_eq!(at("", good, BODY, now), Some(Unverified::Malformed));
        assert_eq!(at("9223372036854775807", good, BODY, -2), Some(Unverified::OutOfTime));
    }

    #[test]
    fn a_bad_secret_is_a_fault_that_does_not_show_it() {
        let fault = Keys::new("sign", &[Secret::new("whsec_not*base64")]).unwrap_err();
        assert!(!format!("{fault:?}").contains("not*base64"));
    }
}
