//! Where the server is, who we are there, and how to reach it: taken from the ordinary connections'
//! own options, so that one URL says it for both.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use bytes::BytesMut;
use pabal_core::Secret;
use postgres_protocol::message::frontend;
use rustls::pki_types::ServerName;
use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsConnector;

use super::{Fault, tls::Tls};

/// What bytes go over.
pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Socket for S {}

/// How long an idle connection may be before the operating system asks whether the server is there.
const PROBE_AFTER: Duration = Duration::from_secs(30);
/// How long what was written may go without an answer before the connection counts as broken.
const UNANSWERED_MAX: Duration = Duration::from_secs(60);

/// A server and an account. `Display` and `Debug` name the place, and nobody's password.
#[derive(Clone)]
pub(super) struct Target {
    place: Place,
    user: String,
    database: String,
    password: Secret,
    tls: Tls,
}

#[derive(Clone)]
enum Place {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl Target {
    /// The server that these options lead to.
    pub(super) fn new(options: &PgConnectOptions) -> Self {
        let url = options.to_url_lossy();
        let parameter = |name: &str| {
            let found = url.query_pairs().find(|(key, _)| key == name);
            // A path comes out of sqlx with a word before it.
            found.map(|(_, value)| value.strip_prefix("file: ").unwrap_or(&value).to_owned())
        };
        let password = percent_encoding::percent_decode_str(url.password().unwrap_or_default());
        let user = options.get_username().to_owned();
        let (host, port) = (options.get_host(), options.get_port());
        // A host that is a path is a folder with a socket in it.
        let folder = options.get_socket().cloned();
        let place = match folder.or_else(|| host.starts_with('/').then(|| host.into())) {
            Some(folder) => Place::Unix(folder.join(format!(".s.PGSQL.{port}"))),
            None => Place::Tcp(host.to_owned(), port),
        };
        Self {
            place,
            database: options.get_database().unwrap_or(&user).to_owned(),
            user,
            password: Secret::new(password.decode_utf8_lossy()),
            tls: Tls {
                mode: options.get_ssl_mode(),
                root: parameter("sslrootcert"),
                certificate: parameter("sslcert"),
                key: parameter("sslkey"),
            },
        }
    }

    pub(super) fn user(&self) -> &str {
        &self.user
    }

    pub(super) fn database(&self) -> &str {
        &self.database
    }

    pub(super) fn password(&self) -> &[u8] {
        self.password.expose().as_bytes()
    }

    /// A connection on which nothing was said yet.
    ///
    /// # Errors
    /// If nobody is there, or TLS is not to be had as asked for.
    pub(super) async fn open(&self) -> Result<Box<dyn Socket>, Fault> {
        let unreachable = |error| Fault::Lost(format!("{self} is not to be reached: {error}"));
        match &self.place {
            // Nothing leaves the machine, so there is nothing to encrypt.
            Place::Unix(path) => {
                Ok(Box::new(UnixStream::connect(path).await.map_err(unreachable)?))
            }
            Place::Tcp(host, port) => {
                let socket =
                    TcpStream::connect((host.as_str(), *port)).await.map_err(unreachable)?;
                watch_over(&socket).map_err(unreachable)?;
                self.secure(socket, host).await
            }
        }
    }

    async fn secure(&self, mut socket: TcpStream, host: &str) -> Result<Box<dyn Socket>, Fault> {
        if !self.tls.wanted() {
            return Ok(Box::new(socket));
        }
        let broke = |error| Fault::Lost(format!("the connection broke: {error}"));
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        socket.write_all(&request).await.map_err(broke)?;
        // One byte and no more: what came behind it would not be encrypted.
        if socket.read_u8().await.map_err(broke)? != b'S' {
            if self.tls.required() {
                let why = format!("{self} has no TLS, and the URL's `sslmode` asks for it");
                return Err(Fault::Unavailable(why));
            }
            return Ok(Box::new(socket));
        }
        let insecure = |why: String| Fault::Unavailable(format!("TLS with {self}: {why}"));
        let config = self.tls.config().map_err(insecure)?;
        let name = ServerName::try_from(host.to_owned()).map_err(|e| insecure(e.to_string()))?;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, socket);
        Ok(Box::new(connecting.await.map_err(|error| insecure(error.to_string()))?))
    }
}

/// Lets the operating system find out when the other machine is gone: a quiet stream would not.
fn watch_over(socket: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PROBE_AFTER)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(socket, UNANSWERED_MAX.as_millis() as u32)?;
    Ok(())
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Tcp(host, port) => write!(f, "{host}:{port}"),
            Place::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}
