//! The HTTP client of one destination. Certificate and key are looked at again while messages go
//! out: a changed pair is used without a restart, a bad one is refused and the old one kept.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use pabal_core::{
    Clock, ConfigError, EndpointName, Fingerprint, Secret, SecretReference, Secrets, Timestamp,
};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// So often the files are looked at, at most.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// So long before a certificate expires the warnings begin.
pub(crate) const WARN_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);
/// One warning a day.
const WARN_EVERY: Duration = Duration::from_secs(24 * 3600);

/// How the client of a destination is made.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Whose, for the log.
    pub name: EndpointName,
    /// The limit of connecting.
    pub connect_timeout: Duration,
    /// How long an unused connection is kept.
    pub idle: Duration,
    /// Whether TLS is spoken at all.
    pub https: bool,
    /// Authorities to trust instead of the machine's.
    pub ca: Option<PathBuf>,
    /// Our certificate.
    pub cert: Option<PathBuf>,
    /// Our key.
    pub key: Option<SecretReference>,
    /// Where the key is looked up.
    pub secrets: Arc<dyn Secrets>,
}

/// What stands in the files now.
pub(crate) struct Files {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) cert: Option<Vec<u8>>,
    pub(crate) key: Option<Secret>,
}

/// A client, and when our certificate in it ends.
struct Built {
    client: reqwest::Client,
    expires: Option<Timestamp>,
}

struct Current {
    built: Built,
    files: Fingerprint,
    /// The fault logged last, so that it is not logged at every look.
    fault: Option<String>,
    checked: Duration,
    warned: Option<Duration>,
}

/// The client of one destination.
pub(crate) struct Client {
    plan: Plan,
    clock: Arc<dyn Clock>,
    current: Mutex<Current>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("name", &self.plan.name).finish_non_exhaustive()
    }
}

impl Client {
    /// Reads the files and makes the client; opens no connection.
    pub(crate) fn new(plan: Plan, clock: Arc<dyn Clock>) -> Result<Self, ConfigError> {
        let files = plan.read()?;
        let current = Current {
            built: plan.build(&files)?,
            files: files.fingerprint(),
            fault: None,
            checked: clock.elapsed(),
            warned: None,
        };
        let client = Self { plan, clock, current: Mutex::new(current) };
        // A certificate that ends soon is told at the start, whether or not messages go out.
        client.warn(&mut client.lock());
        Ok(client)
    }

    /// The client to send with now.
    pub(crate) fn get(&self) -> reqwest::Client {
        let mut current = self.lock();
        let now = self.clock.elapsed();
        if self.plan.has_files() && now.saturating_sub(current.checked) >= CHECK_EVERY {
            current.checked = now;
            self.look(&mut current);
            self.warn(&mut current);
        }
        current.built.client.clone()
    }

    /// How it is made.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// When our certificate ends, if we show one.
    pub(crate) fn expires(&self) -> Option<Timestamp> {
        self.lock().built.expires
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Current> {
        // What is inside is whole at every moment.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, current: &mut Current) {
        let replaced = self.plan.read().and_then(|files| {
            let fingerprint = files.fingerprint();
            let changed = fingerprint != current.files;
            Ok((fingerprint, if changed { Some(self.plan.build(&files)?) } else { None }))
        });
        match replaced {
            Ok((fingerprint, Some(built))) => {
                current.built = built;
                current.files = fingerprint;
                current.fault = None;
                current.warned = None;
                tracing::info!(destination = %self.plan.name, "changed certificates are in use");
            }
            Ok((_, None)) => current.fault = None,
            Err(fault) => {
                let fault = fault.to_string();
                if current.fault.as_ref() != Some(&fault) {
                    tracing::error!(
                        alert = true, destination = %self.plan.name, fault,
                        "changed certificates are refused, the old ones stay in use"
                    );
                    current.fault = Some(fault);
                }
            }
        }
    }

    fn warn(&self, current: &mut Current) {
        let Some(expires) = current.built.expires else {
            return;
        };
        let left = expires.duration_since(self.clock.now());
        let now = self.clock.elapsed();
        let again = current.warned.is_none_or(|then| now.saturating_sub(then) >= WARN_EVERY);
        if left < WARN_BEFORE.try_into().unwrap_or_default() && again {
            current.warned = Some(now);
            tracing::warn!(
                alert = true, destination = %self.plan.name, %expires,
                days_left = left.as_secs().div_euclid(24 * 3600),
                "the client certificate expires"
            );
        }
    }
}

impl Plan {
    fn has_files(&self) -> bool {
        self.ca.is_some() || self.cert.is_some()
    }

    pub(crate) fn read(&self) -> Result<Files, ConfigError> {
        let file = |key: &str, path: &Option<PathBuf>| match path {
            None => Ok(None),
            Some(path) => std::fs::read(self.secrets.path(path)).map(Some).map_err(|error| {
                ConfigError::new(key, format!("{} cannot be read: {error}", path.display()))
            }),
        };
        let key = self.key.as_ref().map(|key| self.secrets.get("tls.key", key)).transpose()?;
        Ok(Files { ca: file("tls.ca", &self.ca)?, cert: file("tls.cert", &self.cert)?, key })
    }

    fn build(&self, files: &Files) -> Result<Built, ConfigError> {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // The library would panic.
            return Err(ConfigError::new("", "no TLS provider is installed in this process"));
        }
        let mut builder = reqwest::Client::builder()
            // A redirect would turn POST into GET and carry the message elsewhere.
            .redirect(reqwest::redirect::Policy::none())
            // The engine owns retries.
            .retry(reqwest::retry::never())
            // A proxy from the environment would see every message.
            .no_proxy()
            .tls_version_min(reqwest::tls::Version::TLS_1_2)
            .connect_timeout(self.connect_timeout)
            .pool_idle_timeout(self.idle)
            .tcp_nodelay(true);
        match &files.ca {
            Some(pem) => {
                let fault = |_| ConfigError::new("tls.ca", "no PEM certificates");
                let ca = reqwest::Certificate::from_pem_bundle(pem).map_err(fault)?;
                if ca.is_empty() {
                    return Err(ConfigError::new("tls.ca", "holds no certificate"));
                }
                builder = builder.tls_certs_only(ca);
            }
            // The machine's authorities may be missing where nobody needs them.
            None if !self.https => builder = builder.tls_certs_only([]),
            None => {}
        }
        let mut expires = None;
        if let (Some(cert), Some(key)) = (&files.cert, &files.key) {
            expires = Some(expiry(cert)?);
            let pair = [cert, &b"\n"[..], key.expose().as_bytes(), b"\n"].concat();
            let identity = reqwest::Identity::from_pem(&pair)
                .map_err(|_| ConfigError::new("tls", "no PEM certificate and key"))?;
            builder = builder.identity(identity);
        }
        let client = builder.build().map_err(|error| {
            let why = crate::classify::chain(&error);
            ConfigError::new("tls", format!("the certificates cannot be used: {why}"))
                .help("`cert` and `key` must belong together")
        })?;
        Ok(Built { client, expires })
    }
}

/// When the first certificate ends.
fn expiry(pem: &[u8]) -> Result<Timestamp, ConfigError> {
    let fault = || ConfigError::new("tls.cert", "holds no certificate that can be read");
    let leaf = CertificateDer::from_pem_slice(pem).map_err(|_| fault())?;
    let (_, leaf) = X509Certificate::from_der(&leaf).map_err(|_| fault())?;
    Timestamp::from_second(leaf.validity().not_after.timestamp()).map_err(|_| fault())
}

impl Files {
    fn fingerprint(&self) -> Fingerprint {
        let mut all = Vec::new();
        let key = self.key.as_ref().map(|key| key.expose().as_bytes());
        for part in [self.ca.as_deref(), self.cert.as_deref(), key] {
            let part = part.unwrap_or_default();
            all.extend_from_slice(&(part.len() as u64).to_be_bytes());
            all.extend_from_slice(part);
        }
        Fingerprint::of(&all)
    }
}
