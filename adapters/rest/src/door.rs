//! Who may come in: everything that can be told without the body.

use std::net::SocketAddr;

use axum::{
    extract::ConnectInfo,
    http::{StatusCode, request::Parts},
};
use ipnet::IpNet;
use pabal_core::EndpointName;

use crate::{
    auth::Check,
    incoming::{unambiguous, unauthorized},
    ingress::PeerCertificate,
    peer::{caller, within},
    problem::Problem,
};

/// The door of one source, or of one destination that is fetched from.
#[derive(Debug)]
pub(crate) struct Door {
    /// Whose.
    pub name: EndpointName,
    /// How callers show who they are.
    pub check: Check,
    /// Networks that may call; empty: all.
    pub allow: Vec<IpNet>,
    /// Networks whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
}

impl Door {
    /// Lets a caller in, or says why not.
    pub(crate) fn admit(&self, parts: &Parts) -> Result<(), Problem> {
        let headers = &parts.headers;
        if !self.allow.is_empty() {
            let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
            let caller = peer
                .and_then(|ConnectInfo(peer)| caller(peer.ip(), headers, &self.trusted_proxies));
            if !caller.is_some_and(|caller| within(caller, &self.allow)) {
                self.turned_away(parts, "an address in `allow`");
                let title = "Calls from this address are not taken";
                return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", title));
            }
        }
        unambiguous(headers, &self.check)?;
        let certificate = parts.extensions.get::<PeerCertificate>();
        let names = certificate.map(|certificate| certificate.names.as_slice());
        if let Err(missing) = self.check.admit(headers, names) {
            self.turned_away(parts, &missing);
            return Err(unauthorized(&self.check, "no or wrong credentials"));
        }
        Ok(())
    }

    /// For the log: whoever looks for a wrong token or an intruder looks there.
    pub(crate) fn turned_away(&self, parts: &Parts, missing: &str) {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        let peer = peer.map(|ConnectInfo(peer)| peer.ip().to_canonical());
        let caller = peer.and_then(|peer| caller(peer, &parts.headers, &self.trusted_proxies));
        tracing::warn!(
            endpoint = %self.name,
            peer = peer.map(tracing::field::display),
            caller = caller.filter(|_| caller != peer).map(tracing::field::display),
            missing, "a caller was turned away"
        );
    }
}
