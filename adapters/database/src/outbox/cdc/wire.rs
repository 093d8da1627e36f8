//! A connection that speaks PostgreSQL's protocol: the frames, the way in, and single questions. sqlx
//! has none of its own for replication.

use std::{collections::HashMap, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use pabal_core::Clock;
use postgres_protocol::{
    authentication::{md5_hash, sasl},
    message::{
        backend::{ErrorFields, Message},
        frontend,
    },
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    Fault,
    target::{Socket, Target},
};

/// How long a server may take to let somebody in.
const CONNECT: Duration = Duration::from_secs(10);
/// The largest message that is not part of the stream, in bytes.
const ANSWER_MAX: usize = 1024 * 1024;
/// What is read at a time at least, in bytes.
const READ: usize = 32 * 1024;
/// Bytes before what a message holds: its kind and its size.
pub(super) const HEADER: usize = 5;

/// A connection. What is read and what is to be written stands in buffers of its own, so a future
/// that is dropped in the middle loses and repeats nothing.
pub(super) struct Wire {
    socket: Box<dyn Socket>,
    /// Read, and not yet taken.
    pub(super) input: BytesMut,
    /// To be written.
    pub(super) output: BytesMut,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wire")
    }
}

/// One message of the server's, whole, with its header.
#[derive(Debug)]
pub(super) struct Frame {
    /// What kind of message it is.
    pub(super) kind: u8,
    whole: BytesMut,
}

impl Frame {
    /// What it holds, without its header.
    pub(super) fn body(self) -> Bytes {
        let mut body = self.whole.freeze();
        body.advance(HEADER);
        body
    }

    fn message(mut self) -> Result<Message, Fault> {
        let unreadable = || Fault::Lost("the server does not speak PostgreSQL's protocol".into());
        Message::parse(&mut self.whole).map_err(|_| unreadable())?.ok_or_else(unreadable)
    }

    /// The fault that an `ErrorResponse` is.
    pub(super) fn fault(self) -> Fault {
        match self.message() {
            Ok(Message::ErrorResponse(body)) => fault(body.fields()),
            Ok(_) => Fault::Lost("the server said something out of place".into()),
            Err(fault) => fault,
        }
    }
}

fn fault(mut fields: ErrorFields<'_>) -> Fault {
    use fallible_iterator::FallibleIterator;
    let mut said: HashMap<u8, String> = HashMap::new();
    while let Ok(Some(field)) = fields.next() {
        said.insert(field.type_(), String::from_utf8_lossy(field.value_bytes()).into_owned());
    }
    let code = said.remove(&b'C').unwrap_or_default();
    Fault::said(&code, said.remove(&b'M').unwrap_or_default())
}

impl Wire {
    /// Connects, and logs in with these further parameters of the session.
    ///
    /// # Errors
    /// If nobody answers in time, or lets us in.
    pub(super) async fn connect(
        target: &Target,
        parameters: &[(&str, &str)],
        clock: &dyn Clock,
    ) -> Result<Self, Fault> {
        let connecting = async {
            let socket = target.open().await?;
            let mut wire = Self { socket, input: BytesMut::new(), output: BytesMut::new() };
            wire.log_in(target, parameters).await?;
            Ok(wire)
        };
        clock.timeout(CONNECT, connecting).await.unwrap_or_else(|| {
            Err(Fault::Lost(format!("no answer from {target} within {CONNECT:?}")))
        })
    }

    async fn log_in(&mut self, target: &Target, parameters: &[(&str, &str)]) -> Result<(), Fault> {
        let who = [("user", target.user()), ("database", target.database())];
        let all = who.into_iter().chain(parameters.iter().copied());
        frontend::startup_message(all, &mut self.output).map_err(unwritable)?;
        self.flush().await?;
        let mut scram = None;
        loop {
            match self.answer().await?.message()? {
                Message::AuthenticationOk => {}
                Message::AuthenticationCleartextPassword => {
                    frontend::password_message(target.password(), &mut self.output)
                        .map_err(unwritable)?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let hash = md5_hash(target.user().as_bytes(), target.password(), body.salt());
                    frontend::password_message(hash.as_bytes(), &mut self.output)
                        .map_err(unwritable)?;
                }
                Message::AuthenticationSasl(_) => {
                    let binding = sasl::ChannelBinding::unsupported();
                    let client = sasl::ScramSha256::new(target.password(), binding);
                    frontend::sasl_initial_response(
                        sasl::SCRAM_SHA_256,
                        client.message(),
                        &mut self.output,
                    )
                    .map_err(unwritable)?;
                    scram = Some(client);
                }
                Message::AuthenticationSaslContinue(body) => {
                    let client = scram.as_mut().ok_or_else(out_of_turn)?;
                    client.update(body.data()).map_err(not_proven)?;
                    frontend::sasl_response(client.message(), &mut self.output)
                        .map_err(unwritable)?;
                }
                Message::AuthenticationSaslFinal(body) => {
                    let client = scram.as_mut().ok_or_else(out_of_turn)?;
                    client.finish(body.data()).map_err(not_proven)?;
                }
                Message::ErrorResponse(body) => return Err(fault(body.fields())),
                Message::ReadyForQuery(_) => return Ok(()),
                Message::BackendKeyData(_)
                | Message::ParameterStatus(_)
                | Message::NoticeResponse(_) => {}
                _ => {
                    let asked = "the server asks for a way to log in that is not supported here: \
                                 use a password (scram-sha-256)";
                    return Err(Fault::Unavailable(asked.into()));
                }
            }
            self.flush().await?;
        }
    }

    /// Sends a statement whose answer is not rows: `START_REPLICATION`.
    ///
    /// # Errors
    /// If the server refuses it.
    pub(super) async fn start_copy(&mut self, statement: &str) -> Result<(), Fault> {
        frontend::query(statement, &mut self.output).map_err(unwritable)?;
        self.flush().await?;
        loop {
            let frame = self.answer().await?;
            match frame.kind {
                b'W' => return Ok(()),
                b'E' => return Err(frame.fault()),
                _ => {}
            }
        }
    }

    /// The next message, outside the stream.
    async fn answer(&mut self) -> Result<Frame, Fault> {
        loop {
            if let Some(frame) = self.take(ANSWER_MAX)? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// The size of the message that comes next, without its header, once that is known.
    pub(super) fn next_size(&self) -> Result<Option<usize>, Fault> {
        let Some(header) = self.input.first_chunk::<HEADER>() else { return Ok(None) };
        let size = u32::from_be_bytes([header[1], header[2], header[3], header[4]]);
        let size = usize::try_from(size).ok().and_then(|size| size.checked_sub(4));
        size.map(Some).ok_or_else(|| Fault::Lost("a message without a size".into()))
    }

    /// Takes the next message, if it is here in full.
    ///
    /// # Errors
    /// If it is larger than `size_max`, in bytes without its header.
    pub(super) fn take(&mut self, size_max: usize) -> Result<Option<Frame>, Fault> {
        let Some(size) = self.next_size()? else { return Ok(None) };
        if size > size_max {
            return Err(Fault::Lost(format!("the server sent a message of {size} bytes")));
        }
        if self.input.len() < HEADER + size {
            self.input.reserve(HEADER + size - self.input.len());
            return Ok(None);
        }
        let whole = self.input.split_to(HEADER + size);
        Ok(Some(Frame { kind: whole[0], whole }))
    }

    /// Waits until more has come.
    ///
    /// # Errors
    /// If the connection is gone.
    pub(super) async fn fill(&mut self) -> Result<(), Fault> {
        self.input.reserve(READ);
        match self.socket.read_buf(&mut self.input).await {
            Ok(0) => Err(Fault::Lost("the server closed the connection".into())),
            Ok(_) => Ok(()),
            Err(error) => Err(Fault::Lost(format!("the connection broke: {error}"))),
        }
    }

    /// Writes what is to be written.
    ///
    /// # Errors
    /// If the connection is gone.
    pub(super) async fn flush(&mut self) -> Result<(), Fault> {
        let broke = |error| Fault::Lost(format!("the connection broke: {error}"));
        while !self.output.is_empty() {
            self.socket.write_buf(&mut self.output).await.map_err(broke)?;
        }
        self.socket.flush().await.map_err(broke)
    }
}

fn unwritable(error: std::io::Error) -> Fault {
    Fault::Unavailable(format!("a setting cannot be sent to the server: {error}"))
}

fn out_of_turn() -> Fault {
    Fault::Lost("the server logs in out of turn".into())
}

fn not_proven(_: std::io::Error) -> Fault {
    Fault::Unavailable(
        "the server does not know our password, or is not the one that should: logging in failed"
            .into(),
    )
}
