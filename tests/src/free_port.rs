//! Loopback ports that stay free while a test starts and restarts things on them.

use std::{
    net::{Ipv4Addr, TcpListener},
    ops::Range,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
    sync::{Mutex, PoisonError},
};

/// Below the range from which the system takes ports for outgoing connections, so that none of
/// them can take a port between a stop and a restart.
const FIRST: u16 = 20_000;
const BLOCK: u16 = 16;
const BLOCKS: u16 = 750;

/// What this process may give out, and what says so to others as long as it lives.
static OURS: Mutex<(Range<u16>, Vec<UnixListener>)> = Mutex::new((0..0, Vec::new()));

/// A port nobody listens on, and that no other test process is given, now or while this one lives.
///
/// # Panics
/// If none is left.
pub fn free_port() -> u16 {
    let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        if let Some(port) = ours.0.find(is_free) {
            return port;
        }
        let (block, name) = another_block();
        ours.0 = block;
        ours.1.push(name);
    }
}

/// A block of ports that no test process has: each has a name that one process at a time can hold.
fn another_block() -> (Range<u16>, UnixListener) {
    // Processes begin to look in different places.
    let first = (std::process::id() % u32::from(BLOCKS)) as u16;
    let block = (0..BLOCKS).map(|next| (first + next) % BLOCKS).find_map(|block| {
        let name = SocketAddr::from_abstract_name(format!("pabal-tests-ports-{block}")).ok()?;
        let held = UnixListener::bind_addr(&name).ok()?;
        let from = FIRST + block * BLOCK;
        Some((from..from + BLOCK, held))
    });
    block.unwrap_or_else(|| panic!("no port from {FIRST} on is free"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_out_once_and_can_be_listened_on() {
        let ports: Vec<u16> = (0..40).map(|_| free_port()).collect();
        let mut once = ports.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), ports.len());
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, ports[0])).is_ok());
    }
}
