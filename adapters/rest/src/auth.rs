//! Showing who we are, and checking who calls. Values are compared in constant time and never
//! printed.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{AUTHORIZATION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING},
};
use pabal_core::{Bytes, ConfigError, Secret, Secrets};
use subtle::ConstantTimeEq as _;

use crate::{
    settings::{Basic, ReceiverAuth, SecretHeader, SenderAuth},
    webhook::Keys,
};

/// The header that shows who we are, and what must not be seen of it.
#[derive(Clone)]
pub(crate) struct Credential {
    pub name: HeaderName,
    pub value: HeaderValue,
    needles: Vec<Secret>,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({}: [secret])", self.name)
    }
}

/// Shorter secrets are not looked for in answers: they would be found everywhere.
const NEEDLE_BYTES_MIN: usize = 6;

impl Credential {
    /// Looks the secrets up and makes the header.
    pub(crate) fn new(auth: &SenderAuth, secrets: &dyn Secrets) -> Result<Self, ConfigError> {
        let (key, name, value, needles) = match auth {
            SenderAuth::Bearer(reference) => {
                let token = secrets.get("auth.bearer", reference)?;
                let value = format!("Bearer {}", token.expose());
                ("auth.bearer", AUTHORIZATION, value, vec![token])
            }
            SenderAuth::Basic(basic) => {
                let (password, encoded) = basic_pair(basic, secrets)?;
                let value = format!("Basic {}", encoded.expose());
                ("auth.basic", AUTHORIZATION, value, vec![password, encoded])
            }
            SenderAuth::Header(header) => {
                let (name, value) = secret_header(header, secrets)?;
                ("auth.header.value", name, value.expose().to_owned(), vec![value])
            }
        };
        // The value itself may stand in no message.
        let mut value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| {
            ConfigError::new(key, "the secret holds a line break or zero character")
        })?;
        value.set_sensitive(true);
        let mut needles = needles;
        let encoded: Vec<_> =
            needles.iter().map(|needle| BASE64_STANDARD.encode(needle.expose())).collect();
        needles.extend(encoded.into_iter().map(Secret::new));
        needles.retain(|needle| needle.expose().len() >= NEEDLE_BYTES_MIN);
        Ok(Self { name, value, needles })
    }

    /// `bytes` without our secret: some servers repeat the request in their answer.
    pub(crate) fn redact(&self, bytes: Bytes) -> Bytes {
        self.needles.iter().fold(bytes, |bytes, needle| {
            let needle = needle.expose().as_bytes();
            if !bytes.windows(needle.len()).any(|window| window == needle) {
                return bytes;
            }
            let mut clean = Vec::with_capacity(bytes.len());
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                match rest.strip_prefix(needle) {
                    Some(behind) => {
                        clean.extend_from_slice(b"[secret]");
                        rest = behind;
                    }
                    None => {
                        clean.push(rest[0]);
                        rest = &rest[1..];
                    }
                }
            }
            clean.into()
        })
    }
}

/// The password, and user and password as Basic has them.
fn basic_pair(basic: &Basic, secrets: &dyn Secrets) -> Result<(Secret, Secret), ConfigError> {
    if basic.user.contains(':') {
        return Err(ConfigError::new("auth.basic.user", "a user's name has no colon"));
    }
    let password = secrets.get("auth.basic.password", &basic.password)?;
    let encoded = BASE64_STANDARD.encode(format!("{}:{}", basic.user, password.expose()));
    Ok((password, Secret::new(encoded)))
}

fn secret_header(
    header: &SecretHeader,
    secrets: &dyn Secrets,
) -> Result<(HeaderName, Secret), ConfigError> {
    let name = HeaderName::from_bytes(header.name.as_bytes())
        .ok()
        .filter(|name| ![HOST, CONTENT_LENGTH, TRANSFER_ENCODING].contains(name))
        .ok_or_else(|| ConfigError::new("auth.header.name", "not the name of such a header"))?;
    Ok((name, secrets.get("auth.header.value", &header.value)?))
}

/// How the callers of one source are checked.
#[derive(Debug, Clone)]
pub(crate) enum Check {
    /// Not at all.
    Open,
    /// By one header and its whole value.
    Header(HeaderName, Secret),
    /// By a scheme of `Authorization` and what follows it.
    Authorization(&'static str, Secret),
    /// By the signature of the body.
    Webhook(Keys),
    /// By a name in the certificate that the listener has checked.
    Certificate(String),
}

impl Check {
    /// Looks the secrets up.
    pub(crate) fn new(auth: &ReceiverAuth, secrets: &dyn Secrets) -> Result<Self, ConfigError> {
        Ok(match auth {
            ReceiverAuth::None => Self::Open,
            ReceiverAuth::Bearer(reference) => {
                let secret = secrets.get("auth.bearer", reference)?;
                Self::Authorization("Bearer", not_empty("auth.bearer", secret)?)
            }
            ReceiverAuth::Basic(basic) => {
                let (password, encoded) = basic_pair(basic, secrets)?;
                not_empty("auth.basic.password", password)?;
                Self::Authorization("Basic", encoded)
            }
            ReceiverAuth::Header(header) => {
                let (name, value) = secret_header(header, secrets)?;
                Self::Header(name, not_empty("auth.header.value", value)?)
            }
            ReceiverAuth::StandardWebhooks(references) => {
                const KEY: &str = "auth.standard_webhooks";
                if references.is_empty() {
                    return Err(ConfigError::new(KEY, "at least one secret is needed"));
                }
                let mut found = Vec::new();
                for (index, reference) in references.iter().enumerate() {
                    found.push(secrets.get(&format!("{KEY}.{index}"), reference)?);
                }
                Self::Webhook(Keys::new(KEY, &found)?)
            }
            ReceiverAuth::ClientCertificate(name) if name.is_empty() => {
                return Err(ConfigError::new("auth.client_certificate", "a name is needed"));
            }
            ReceiverAuth::ClientCertificate(name) => Self::Certificate(name.clone()),
        })
    }

    /// What can be told from the headers and the certificate. A signature is checked later, over the
    /// body.
    ///
    /// # Errors
    /// What is missing, for the log: no part of what was given or should have been.
    pub(crate) fn admit(
        &self,
        headers: &HeaderMap,
        certificate: Option<&[String]>,
    ) -> Result<(), String> {
        let fine = |fine: bool, why: &str| if fine { Ok(()) } else { Err(why.to_owned()) };
        match self {
            Self::Open | Self::Webhook(_) => Ok(()),
            Self::Header(name, secret) => match headers.get(name) {
                None => Err(format!("the header {name}")),
                Some(value) => {
                    fine(same(value.as_bytes(), secret), "the right value in its header")
                }
            },
            Self::Authorization(scheme, secret) => {
                let given = headers.get(AUTHORIZATION).ok_or("the header authorization")?;
                let given = given.as_bytes();
                let space = given.iter().position(|b| *b == b' ').unwrap_or(given.len());
                let (given, value) = given.split_at(space);
                if !given.eq_ignore_ascii_case(scheme.as_bytes()) {
                    return Err(format!("the scheme {scheme} in the header authorization"));
                }
                fine(same(value.trim_ascii(), secret), "the right secret")
            }
            Self::Certificate(name) => match certificate {
                None => Err("a client certificate".to_owned()),
                Some(names) => fine(names.contains(name), "a client certificate of the right name"),
            },
        }
    }

    /// What a 401 says about how to do better.
    pub(crate) fn challenge(&self) -> &'static str {
        match self {
            Self::Open => "None",
            Self::Header(..) => "ApiKey",
            Self::Authorization("Basic", _) => r#"Basic realm="pabal", charset="UTF-8""#,
            Self::Authorization(..) => r#"Bearer realm="pabal""#,
            Self::Webhook(_) => "StandardWebhooks",
            Self::Certificate(_) => "ClientCertificate",
        }
    }

    /// The header that must not be given twice.
    pub(crate) fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(name, ..) => Some(name),
            _ => None,
        }
    }
}

/// An empty secret would admit everybody who sends nothing.
fn not_empty(key: &str, secret: Secret) -> Result<Secret, ConfigError> {
    if secret.expose().is_empty() {
        return Err(ConfigError::new(key, "the secret is empty"));
    }
    Ok(secret)
}

fn same(given: &[u8], secret: &Secret) -> bool {
    given.ct_eq(secret.expose().as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_and_never_a_value() {
        let check = |headers: &[(&'static str, &str)]| {
            let map = headers.iter().map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            });
            let bearer = Check::Authorization("Bearer", Secret::new("right"));
            bearer.admit(&map.collect(), None)
        };
        assert_eq!(check(&[("authorization", "bearer  right")]), Ok(()));
        for (headers, missing) in [
            (&[][..], "the header authorization"),
            (&[("authorization", "Basic abc")], "the scheme Bearer in the header authorization"),
            (&[("authorization", "Bearer")], "the right secret"),
            (&[("authorization", "Bearer wrong")], "the right secret"),
        ] {
            assert_eq!(check(headers).unwrap_err(), missing);
        }
        let certificate = Check::Certificate("tax".to_owned());
        let none = HeaderMap::new();
        assert_eq!(certificate.admit(&none, None).unwrap_err(), "a client certificate");
        assert!(certificate.admit(&none, Some(&["other".to_owned()])).is_err());
        assert!(certificate.admit(&none, Some(&["tax".to_owned()])).is_ok());
    }
}
