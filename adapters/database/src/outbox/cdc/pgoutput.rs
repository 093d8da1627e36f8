//! What a logical replication stream carries, as far as an outbox needs it: where transactions begin
//! and end, what a table looks like, and rows that were inserted.

use std::fmt;

use bytes::{Buf, Bytes};

/// A position in the server's log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lsn(pub(super) u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

/// One thing that the server said in the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A transaction begins that has been committed.
    Begin,
    /// It ends; once all of it is safe, this position may be confirmed.
    Commit(Lsn),
    /// What the rows of a table look like from here on.
    Relation(Relation),
    /// A row was inserted.
    Insert(Insert),
    /// All before this position has been sent.
    KeepAlive {
        /// The position.
        end: Lsn,
        /// The server would end the connection without an answer.
        answer: bool,
    },
    /// Nothing that an outbox needs.
    Other,
}

/// The type `bytea`.
pub(super) const BYTEA: u32 = 17;

/// A table in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Relation {
    pub(super) id: u32,
    pub(super) schema: String,
    pub(super) table: String,
    pub(super) columns: Vec<String>,
    /// The type of each column.
    pub(super) types: Vec<u32>,
}

/// A row that was inserted: the columns in the order of its table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Insert {
    pub(super) relation: u32,
    pub(super) columns: Vec<Column>,
}

/// One column of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Column {
    /// NULL.
    Null,
    /// The bytes of a `bytea`; of all else the text as the type writes it.
    Value(Bytes),
    /// The server did not send it: only ever an old value in an UPDATE.
    Unchanged,
    /// More bytes than may be held, so none of them were.
    TooLarge(usize),
}

impl Column {
    /// Turns what `bytea` is written as into the bytes that it is.
    pub(super) fn into_bytes(self) -> Result<Self, Unreadable> {
        let Self::Value(text) = self else { return Ok(self) };
        let digits = text.strip_prefix(br"\x").ok_or(NO_BYTES)?;
        let (pairs, rest) = digits.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(NO_BYTES);
        }
        let byte = |[high, low]: &[u8; 2]| Ok(nibble(*high)? << 4 | nibble(*low)?);
        let bytes: Result<Vec<u8>, Unreadable> = pairs.iter().map(byte).collect();
        Ok(Self::Value(bytes?.into()))
    }

    /// The bytes that are held of it.
    pub(super) fn size(&self) -> usize {
        if let Self::Value(value) = self { value.len() } else { 0 }
    }
}

/// The stream cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the replication stream has something in it that this version does not understand: {0}")]
pub(super) struct Unreadable(pub(super) &'static str);

const NO_BYTES: Unreadable = Unreadable("a bytea that is not in hexadecimal");

fn nibble(digit: u8) -> Result<u8, Unreadable> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(NO_BYTES),
    }
}

/// Bytes before a change: its kind, two positions and a time.
pub(super) const XLOG_DATA_HEADER: usize = 1 + 8 + 8 + 8;

/// Reads what one `CopyData` message of the stream holds.
pub(super) fn event(mut data: Bytes) -> Result<Event, Unreadable> {
    match byte(&mut data)? {
        b'k' => {
            let end = Lsn(u64(&mut data)?);
            skip(&mut data, 8)?;
            Ok(Event::KeepAlive { end, answer: byte(&mut data)? == 1 })
        }
        b'w' => {
            skip(&mut data, XLOG_DATA_HEADER - 1)?;
            change(data)
        }
        _ => Ok(Event::Other),
    }
}

fn change(mut data: Bytes) -> Result<Event, Unreadable> {
    Ok(match byte(&mut data)? {
        b'B' => Event::Begin,
        b'C' => {
            // Flags, and where the commit itself stands.
            skip(&mut data, 1 + 8)?;
            Event::Commit(Lsn(u64(&mut data)?))
        }
        b'R' => {
            let id = u32(&mut data)?;
            let (schema, table) = (text(&mut data)?, text(&mut data)?);
            skip(&mut data, 1)?;
            let count = u16(&mut data)?;
            let (mut columns, mut types) = (Vec::new(), Vec::new());
            for _ in 0..count {
                skip(&mut data, 1)?;
                columns.push(text(&mut data)?);
                types.push(u32(&mut data)?);
                skip(&mut data, 4)?;
            }
            Event::Relation(Relation { id, schema, table, columns, types })
        }
        b'I' => {
            let (relation, count) = insert_head(&mut data)?;
            let mut columns = Vec::new();
            for _ in 0..count {
                columns.push(match column_head(&mut data)? {
                    Head::Null => Column::Null,
                    Head::Unchanged => Column::Unchanged,
                    Head::Value(size) if data.len() < size => return Err(SHORT),
                    Head::Value(size) => Column::Value(data.split_to(size)),
                });
            }
            Event::Insert(Insert { relation, columns })
        }
        _ => Event::Other,
    })
}

/// The bytes that [`insert_head`] reads.
pub(super) const INSERT_HEAD: usize = 4 + 1 + 2;

/// Of an inserted row, after the `I`: the id of its table, and how many columns follow.
pub(super) fn insert_head(data: &mut impl Buf) -> Result<(u32, u16), Unreadable> {
    let relation = u32(data)?;
    if byte(data)? != b'N' {
        return Err(Unreadable("an inserted row without its values"));
    }
    Ok((relation, u16(data)?))
}

/// How a column begins.
pub(super) enum Head {
    /// It is NULL.
    Null,
    /// It was not sent.
    Unchanged,
    /// So many bytes of it follow.
    Value(usize),
}

/// The beginning of a column: one byte, and four more unless it is NULL or was not sent.
pub(super) fn column_head(data: &mut impl Buf) -> Result<Head, Unreadable> {
    match byte(data)? {
        b'n' => Ok(Head::Null),
        b'u' => Ok(Head::Unchanged),
        b't' => Ok(Head::Value(usize::try_from(u32(data)?).map_err(|_| SHORT)?)),
        _ => Err(Unreadable("a column that is not text")),
    }
}

const SHORT: Unreadable = Unreadable("a message that ends too early");

fn skip(data: &mut impl Buf, count: usize) -> Result<(), Unreadable> {
    if data.remaining() < count {
        return Err(SHORT);
    }
    data.advance(count);
    Ok(())
}

fn byte(data: &mut impl Buf) -> Result<u8, Unreadable> {
    data.try_get_u8().map_err(|_| SHORT)
}

fn u16(data: &mut impl Buf) -> Result<u16, Unreadable> {
    data.try_get_u16().map_err(|_| SHORT)
}

fn u32(data: &mut impl Buf) -> Result<u32, Unreadable> {
    data.try_get_u32().map_err(|_| SHORT)
}

fn u64(data: &mut impl Buf) -> Result<u64, Unreadable> {
    data.try_get_u64().map_err(|_| SHORT)
}

fn text(data: &mut Bytes) -> Result<String, Unreadable> {
    let end = data.iter().position(|&byte| byte == 0).ok_or(SHORT)?;
    let text = data.split_to(end);
    data.advance(1);
    String::from_utf8(text.into()).map_err(|_| Unreadable("a name that is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wal(change: &[u8]) -> Bytes {
        let mut data = vec![b'w'];
        data.extend_from_slice(&[0; XLOG_DATA_HEADER - 1]);
        data.extend_from_slice(change);
        data.into()
    }

    #[test]
    fn each_kind_of_event_is_read() {
        let mut alive = vec![b'k'];
        alive.extend_from_slice(&0x1_0000_0002_u64.to_be_bytes());
        alive.extend_from_slice(&[0; 8]);
        alive.push(1);
        let event_of = |data: Bytes| event(data).unwrap();
        let end = Lsn(0x1_0000_0002);
        assert_eq!(event_of(alive.into()), Event::KeepAlive { end, answer: true });
        assert_eq!(end.to_string(), "1/2");

        assert_eq!(event_of(wal(b"B")), Event::Begin);
        let mut commit = vec![b'C'];
        commit.extend_from_slice(&[0; 9]);
        commit.extend_from_slice(&7_u64.to_be_bytes());
        assert_eq!(event_of(wal(&commit)), Event::Commit(Lsn(7)));

        let relation = b"R\0\0\0\x09public\0outbox\0d\0\x02\x01id\0\0\0\0\x14\xff\xff\xff\xff\0payload\0\0\0\0\x11\xff\xff\xff\xff";
        let expected = Relation {
            id: 9,
            schema: "public".to_owned(),
            table: "outbox".to_owned(),
            columns: vec!["id".to_owned(), "payload".to_owned()],
            types: vec![20, BYTEA],
        };
        assert_eq!(event_of(wal(relation)), Event::Relation(expected));

        let insert = b"I\0\0\0\x09N\0\x03t\0\0\0\x02abnu";
        let columns =
            vec![Column::Value(Bytes::from_static(b"ab")), Column::Null, Column::Unchanged];
        assert_eq!(event_of(wal(insert)), Event::Insert(Insert { relation: 9, columns }));

        for other in [&b"U\0\0"[..], b"D", b"T", b"Y", b"O", b"M"] {
            assert_eq!(event_of(wal(other)), Event::Other);
        }
    }

    #[test]
    fn bytes_are_read_from_hexadecimal_and_nothing_else() {
        let bytes =
            |text: &'static str| Column::Value(Bytes::from_static(text.as_bytes())).into_bytes();
        let value = |value: &'static [u8]| Column::Value(Bytes::from_static(value));
        assert_eq!(bytes(r"\x").unwrap(), value(b""));
        assert_eq!(bytes(r"\x00ff5c").unwrap(), value(b"\x00\xff\\"));
        assert_eq!(Column::Null.into_bytes().unwrap(), Column::Null);
        for bad in ["", "00", r"\x0", r"\x0g", r"\134"] {
            assert_eq!(bytes(bad), Err(NO_BYTES), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_comes_makes_it_panic(data: Vec<u8>, kind in "[BCRI]") {
            let _ = event(data.clone().into());
            let _ = event(wal(&[kind.as_bytes(), &data].concat()));
        }
    }
}
