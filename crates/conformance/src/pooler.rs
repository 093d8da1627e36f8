//! A transaction pooler in front of a PostgreSQL server, and a network that can be cut: every
//! transaction runs on another connection than the one before, and none keeps anything of another's.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
};

/// Connections to the server for all clients together.
const SERVERS: usize = 3;
/// What a client may ask for at its start; poolers refuse the rest.
const STARTUP: [&str; 6] =
    ["user", "database", "application_name", "client_encoding", "DateStyle", "TimeZone"];
const SSL_REQUEST: u32 = 80_877_103;

/// A pooler that runs; for clients of one role and one database.
#[derive(Debug, Clone)]
pub struct Pooler {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: u16,
    idle: Mutex<Idle>,
    back: Condvar,
    /// The first statement with these words gets no answer, nor does anything after it.
    cut: Mutex<Option<&'static str>>,
}

#[derive(Debug, Default)]
struct Idle {
    servers: VecDeque<Server>,
    made: usize,
}

#[derive(Debug)]
struct Server {
    stream: TcpStream,
    /// What it said of itself.
    greeting: Vec<u8>,
}

impl Pooler {
    /// Starts one in front of the server at this port.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn start(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            server,
            idle: Mutex::default(),
            back: Condvar::new(),
            cut: Mutex::new(None),
        });
        let serving = Arc::clone(&shared);
        // Ends with the process, as do the connections.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                thread::spawn(move || shared.serve(client));
            }
        });
        Self { port, shared }
    }

    /// The same URL, through the pooler.
    #[must_use]
    pub fn url(&self, direct: &str) -> String {
        direct.replace(&format!(":{}/", self.shared.server), &format!(":{}/", self.port))
    }

    /// Cuts the connection on which a statement with these words comes next: the server gets it, and
    /// its answer is lost.
    pub fn cut_after(&self, words: &'static str) {
        *self.shared.cut.lock().unwrap() = Some(words);
    }

    /// Whether it has come to that.
    #[must_use]
    pub fn has_cut(&self) -> bool {
        self.shared.cut.lock().unwrap().is_none()
    }
}

impl Shared {
    /// One client, until it goes.
    fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let startup = loop {
            let startup = message(&mut client, false)?;
            if startup[4..8] != SSL_REQUEST.to_be_bytes() {
                break startup;
            }
            client.write_all(b"N")?;
        };
        let mut words = startup[8..].split(|byte| *byte == 0).map(String::from_utf8_lossy);
        while let (Some(name), Some(_)) = (words.next(), words.next()) {
            if !name.is_empty() && !STARTUP.contains(&&*name) {
                let text = format!("SFATAL\0C08P01\0Munsupported startup parameter: {name}\0\0");
                let length = (4 + text.len() as u32).to_be_bytes();
                return client.write_all(&[b"E", &length[..], text.as_bytes()].concat());
            }
        }
        let server = self.take(&startup)?;
        client.write_all(&server.greeting)?;
        self.give_back(server);
        loop {
            let first = message(&mut client, true)?;
            if first[0] == b'X' {
                return Ok(());
            }
            let server = self.take(&startup)?;
            let Ok(server) = self.transaction(first, &mut client, server) else {
                // What it was in the middle of is taken back by the server.
                self.lost();
                return Ok(());
            };
            self.give_back(server);
        }
    }

    /// From the first message of a transaction to the server's word that it is over.
    fn transaction(
        &self,
        first: Vec<u8>,
        client: &mut TcpStream,
        mut server: Server,
    ) -> io::Result<Server> {
        let mut next = first;
        let mut cut = false;
        loop {
            if next[0] == b'X' {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            server.stream.write_all(&next)?;
            cut |= self.is_cut(&next);
            if matches!(next[0], b'Q' | b'S') {
                let idle = answers(&mut server.stream, |answer| match cut {
                    true => Ok(()),
                    false => client.write_all(answer),
                })?;
                if cut {
                    // Until the client gives up.
                    io::copy(client, &mut io::sink())?;
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                if idle {
                    return Ok(server);
                }
            }
            next = message(client, true)?;
        }
    }

    fn is_cut(&self, statement: &[u8]) -> bool {
        let mut cut = self.cut.lock().unwrap();
        let found = cut.is_some_and(|words| {
            statement.windows(words.len()).any(|window| window == words.as_bytes())
        });
        if found {
            *cut = None;
        }
        found
    }

    /// The one that was not used for longest, or one more.
    fn take(&self, startup: &[u8]) -> io::Result<Server> {
        let mut idle = self.idle.lock().unwrap();
        loop {
            if idle.made < SERVERS {
                idle.made += 1;
                drop(idle);
                return Server::connect(self.server, startup).inspect_err(|_| self.lost());
            }
            if let Some(server) = idle.servers.pop_front() {
                return Ok(server);
            }
            idle = self.back.wait(idle).unwrap();
        }
    }

    fn give_back(&self, server: Server) {
        self.idle.lock().unwrap().servers.push_back(server);
        self.back.notify_one();
    }

    fn lost(&self) {
        self.idle.lock().unwrap().made -= 1;
        self.back.notify_one();
    }
}

impl Server {
    fn connect(port: u16, startup: &[u8]) -> io::Result<Self> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.write_all(startup)?;
        let mut greeting = Vec::new();
        answers(&mut stream, |answer| {
            greeting.extend_from_slice(answer);
            Ok(())
        })?;
        Ok(Self { stream, greeting })
    }
}

/// One message whole; the first of a connection has no letter in front.
fn message(from: &mut TcpStream, letter: bool) -> io::Result<Vec<u8>> {
    let head = if letter { 5 } else { 4 };
    let mut message = vec![0; head];
    from.read_exact(&mut message)?;
    let length = u32::from_be_bytes([
        message[head - 4],
        message[head - 3],
        message[head - 2],
        message[head - 1],
    ]);
    message.resize(head - 4 + length as usize, 0);
    from.read_exact(&mut message[head..])?;
    Ok(message)
}

/// What the server says until it is ready for more; whether no transaction is open then.
fn answers(
    server: &mut TcpStream,
    mut put: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<bool> {
    loop {
        let answer = message(server, true)?;
        put(&answer)?;
        if answer[0] == b'Z' {
            return Ok(answer[5] == b'I');
        }
        // It refuses the connection.
        if answer[0] == b'E' && answer.windows(7).any(|it| it == b"SFATAL\0") {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
    }
}
