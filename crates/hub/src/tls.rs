//! The partners' listener with TLS.

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result, ensure};
use pabal_adapter_rest::PeerCertificate;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Reads certificate, key and, if clients may or must show certificates, their authority.
///
/// A client without a certificate is let in: whether a source asks for one is that source's own
/// setting, and a health check has none.
///
/// # Errors
/// If a file cannot be read or the pair does not fit.
pub(crate) fn acceptor(
    certificate: &Path,
    key: &Path,
    client_authority: Option<&Path>,
) -> Result<TlsAcceptor> {
    let chain = certificates(certificate, "http.tls.cert")?;
    let secret = PrivateKeyDer::from_pem_file(key).with_context(|| {
        format!("cannot read a private key from {} (`http.tls.key` in hub.toml)", key.display())
    })?;
    let builder = ServerConfig::builder();
    let builder = match client_authority {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(path, "http.tls.client_ca")? {
                roots.add(root).with_context(|| format!("a certificate in {}", path.display()))?;
            }
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots))
                .allow_unauthenticated()
                .build()
                .with_context(|| format!("cannot use {} as client authority", path.display()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, secret).with_context(|| {
        format!("certificate {} and key {} do not fit", certificate.display(), key.display())
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path, setting: &str) -> Result<Vec<CertificateDer<'static>>> {
    let read = || -> Result<Vec<_>, rustls::pki_types::pem::Error> {
        CertificateDer::pem_file_iter(path)?.collect()
    };
    let chain = read()
        .with_context(|| format!("cannot read {} (`{setting}` in hub.toml)", path.display()))?;
    ensure!(
        !chain.is_empty(),
        "there is no certificate in {} (`{setting}` in hub.toml)",
        path.display()
    );
    Ok(chain)
}

/// The common name and the alternative names in a certificate. One that cannot be read has none,
/// and so opens nothing.
pub(crate) fn names(certificate: &CertificateDer<'_>) -> PeerCertificate {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return PeerCertificate::default();
    };
    let common = certificate.subject().iter_common_name();
    let mut names: Vec<String> =
        common.filter_map(|name| Some(name.as_str().ok()?.to_owned())).collect();
    if let Ok(Some(alternatives)) = certificate.subject_alternative_name() {
        names.extend(alternatives.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
                Some((*name).to_owned())
            }
            _ => None,
        }));
    }
    PeerCertificate { names }
}
