//! Who calls, seen through the proxies in front.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use ipnet::IpNet;

/// The header proxies write the caller's address in, each at the end.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The caller's address: the connection's, or, if that is a trusted proxy, the rightmost one in
/// `X-Forwarded-For` that is not. `None` if a trusted proxy passed on what is no address.
pub(crate) fn caller(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> Option<IpAddr> {
    let mut caller = peer.to_canonical();
    let mut hops = Vec::new();
    for value in headers.get_all(FORWARDED_FOR) {
        // Bytes that are no text are no address either.
        hops.extend(value.to_str().unwrap_or("?").split(','));
    }
    while within(caller, trusted) {
        let Some(hop) = hops.pop() else {
            break;
        };
        caller = address(hop.trim())?.to_canonical();
    }
    Some(caller)
}

/// Whether `address` is in one of these networks.
pub(crate) fn within(address: IpAddr, networks: &[IpNet]) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

/// An address, with or without a port, as proxies write it.
fn address(text: &str) -> Option<IpAddr> {
    text.parse()
        .ok()
        .or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
        .or_else(|| text.strip_prefix('[')?.strip_suffix(']')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(peer: &str, forwarded: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append(FORWARDED_FOR, value.parse().unwrap());
        }
        let trusted = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        caller(peer.parse().unwrap(), &headers, &trusted).map(|address| address.to_string())
    }

    #[test]
    fn only_a_trusted_proxy_is_believed_and_only_its_own_entry() {
        assert_eq!(seen("192.0.2.1", &["10.1.1.1"]).unwrap(), "192.0.2.1");
        assert_eq!(seen("10.0.0.1", &["198.51.100.7"]).unwrap(), "198.51.100.7");
        // What the caller wrote itself stands further left.
        assert_eq!(seen("10.0.0.1", &["10.9.9.9, 198.51.100.7"]).unwrap(), "198.51.100.7");
        assert_eq!(
            seen("10.0.0.1", &["1.1.1.1", "198.51.100.7, 10.2.2.2"]).unwrap(),
            "198.51.100.7"
        );
        assert_eq!(seen("::ffff:10.0.0.1", &["[2001:db8::1]:443"]).unwrap(), "2001:db8::1");
        assert_eq!(seen("10.0.0.1", &["10.3.3.3"]).unwrap(), "10.3.3.3");
        assert_eq!(seen("10.0.0.1", &[]).unwrap(), "10.0.0.1");
        assert_eq!(seen("10.0.0.1", &["unknown"]), None);
    }
}
