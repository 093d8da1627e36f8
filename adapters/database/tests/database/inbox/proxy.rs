//! A wire between the adapter and a server that can be cut: everything passes, until it must not.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
};

/// The wire.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    server: u16,
    /// Bound and not listening: keeps the port while nobody can connect to it.
    _port: TcpSocket,
    /// The next commit reaches the server, and its answer nobody.
    cut: Arc<AtomicBool>,
    running: Mutex<Option<JoinSet<()>>>,
}

impl Proxy {
    /// To the server on this port of loopback.
    pub(crate) fn to(server: u16) -> Self {
        let port = bound("127.0.0.1:0".parse().unwrap());
        let address = port.local_addr().unwrap();
        let (cut, running) = Default::default();
        let proxy = Self { address, server, _port: port, cut, running };
        proxy.up();
        proxy
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Lets the next commit happen and says nothing of it.
    pub(crate) fn cut_next_commit(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    /// Takes no connections any more, and ends those there are.
    pub(crate) async fn down(&self) {
        let running = self.running.lock().unwrap().take();
        if let Some(mut running) = running {
            running.shutdown().await;
        }
    }

    /// Takes connections; nothing is cut any more.
    pub(crate) fn up(&self) {
        self.cut.store(false, Ordering::SeqCst);
        let mut running = self.running.lock().unwrap();
        if running.is_some() {
            return;
        }
        let listener: TcpListener = bound(self.address).listen(64).unwrap();
        let (server, cut) = (self.server, Arc::clone(&self.cut));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut wires = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                wires.spawn(wire(client, server, Arc::clone(&cut)));
            }
        });
        *running = Some(tasks);
    }
}

/// A socket that shares its port with those that say the same.
fn bound(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseport(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

async fn wire(mut client: TcpStream, server: u16, cut: Arc<AtomicBool>) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let (mut up, mut down) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut silent = false;
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(count @ 1..) = read else { return };
                // Not that of READ COMMITTED.
                let mut words = up[..count].windows(6).enumerate();
                let commits = words
                    .any(|(at, part)| part == b"COMMIT" && up[..count].get(at + 6) != Some(&b'T'));
                silent |= commits && cut.swap(false, Ordering::SeqCst);
                if server.write_all(&up[..count]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut down) => {
                let Ok(count @ 1..) = read else { return };
                // It has answered, so it is done.
                if silent || client.write_all(&down[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}
