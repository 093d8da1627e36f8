//! TLS as the URL asks for it, in the same way as the ordinary connections have it.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use sqlx::postgres::PgSslMode;

/// What is to be checked of the server, and what we prove. The texts are paths, or PEM itself.
#[derive(Debug, Clone)]
pub(super) struct Tls {
    pub(super) mode: PgSslMode,
    pub(super) root: Option<String>,
    pub(super) certificate: Option<String>,
    pub(super) key: Option<String>,
}

impl Tls {
    /// Whether TLS is asked for at all.
    pub(super) fn wanted(&self) -> bool {
        !matches!(self.mode, PgSslMode::Disable | PgSslMode::Allow)
    }

    /// Whether nothing may go over the wire without it.
    pub(super) fn required(&self) -> bool {
        self.wanted() && !matches!(self.mode, PgSslMode::Prefer)
    }

    /// Reads what is to be read.
    ///
    /// # Errors
    /// If a file cannot be read, or does not hold what it should.
    pub(super) fn config(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let checked = matches!(self.mode, PgSslMode::VerifyCa | PgSslMode::VerifyFull);
        let authorities = if checked {
            let roots = Arc::new(self.roots()?);
            let built = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
            Some(built.build().map_err(|error| format!("no certificate authority: {error}"))?)
        } else {
            None
        };
        let names = matches!(self.mode, PgSslMode::VerifyFull);
        let verifier = Verifier { authorities, names, provider: Arc::clone(&provider) };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let chain = certificates(certificate)?;
                let key = PrivateKeyDer::from_pem_slice(&pem(key)?)
                    .map_err(|_| "sslkey holds no private key in PEM".to_owned())?;
                config.with_client_auth_cert(chain, key).map_err(|error| error.to_string())
            }
            (None, None) => Ok(config.with_no_client_auth()),
            _ => Err("sslcert and sslkey go together".to_owned()),
        }
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        // What cannot be read of the system's own is not needed either, or verifying fails.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(root) = &self.root {
            for certificate in certificates(root)? {
                roots.add(certificate).map_err(|error| format!("sslrootcert: {error}"))?;
            }
        }
        Ok(roots)
    }
}

fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(&pem(text)?)
        .map(|certificate| certificate.map_err(|_| "a certificate is not in PEM".to_owned()))
        .collect()
}

fn pem(text: &str) -> Result<Vec<u8>, String> {
    if text.trim_start().starts_with("-----BEGIN") {
        return Ok(text.into());
    }
    std::fs::read(text).map_err(|error| format!("{text} cannot be read: {error}"))
}

/// Checks as much of the server as `sslmode` says: `require` takes any certificate, `verify-ca` any
/// name, `verify-full` neither.
#[derive(Debug)]
struct Verifier {
    authorities: Option<Arc<WebPkiServerVerifier>>,
    names: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authorities) = &self.authorities else {
            return Ok(ServerCertVerified::assertion());
        };
        match authorities.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.names => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
