//! Loopback ports that stay free while a test starts and restarts things on them.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::atomic::{AtomicU16, Ordering},
};

/// Below the range from which the system takes ports for outgoing connections, so that none of
/// them can take a port between a stop and a restart.
const FIRST: u16 = 20_000;
const BLOCK: u16 = 16;
const BLOCKS: u16 = 750;

/// A port nobody listens on. Test processes that run side by side search in different blocks.
///
/// # Panics
/// If none of the ports is free.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let block = (std::process::id() % u32::from(BLOCKS)) as u16;
    for _ in 0..BLOCK * BLOCKS {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (block * BLOCK).wrapping_add(next) % (BLOCK * BLOCKS);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port from {FIRST} on is free");
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
