//! A play agency's own book: what took effect there, as its inbox would have it. It knows nothing
//! of the hub but what came over the wire.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result};
use pabal_core::{Bytes, Fingerprint, MessageId};
use serde::Serialize;

use super::table::Record;

/// What came with one request.
#[derive(Debug, Clone)]
pub(super) struct Arrived {
    pub(super) id: MessageId,
    pub(super) key: String,
    pub(super) version: u64,
    pub(super) body: Bytes,
}

/// What took effect under one id; bodies are not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Effect {
    fingerprint: Fingerprint,
    key: u32,
    version: u64,
}

/// The numbers of a book.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    /// Messages once in effect.
    pub(super) effects: u64,
    /// The same id again, with the same content: no second effect.
    pub(super) repeats: u64,
    /// The same id again, with other content.
    pub(super) changed: u64,
    /// A first effect behind a later one of its key.
    pub(super) order_violations: u64,
    /// Not what was agreed on: no id, no key, not the JSON of a record.
    pub(super) unreadable: u64,
}

/// What a book says when it is held against the input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Audit {
    /// Should have taken effect and did not.
    pub(super) lost: u64,
    /// Took effect with other content, key or version than in the input.
    pub(super) differs: u64,
    /// Took effect and should not have.
    pub(super) surplus: u64,
}

#[derive(Debug, Default)]
struct Inner {
    effects: HashMap<MessageId, Effect>,
    newest: HashMap<u32, u64>,
    tally: Tally,
    written: Option<BufWriter<File>>,
}

/// The book itself.
#[derive(Debug, Default)]
pub(super) struct Book(Mutex<Inner>);

/// One line of the written book.
#[derive(Serialize)]
struct Line<'a> {
    code: &'a str,
    name: &'a str,
    status: &'a str,
    key: &'a str,
    version: u64,
}

impl Book {
    /// A book that is also written to a file, one JSON line per effect.
    pub(super) fn written_to(path: &Path) -> Result<Self> {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let inner = Inner { written: Some(BufWriter::new(file)), ..Inner::default() };
        Ok(Self(Mutex::new(inner)))
    }

    /// Takes one message; its answer goes out after this.
    pub(super) fn enter(&self, arrived: &Arrived) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let record: Option<Record> = serde_json::from_slice(&arrived.body).ok();
        let (Some(record), Ok(key)) = (record, arrived.key.parse()) else {
            inner.tally.unreadable += 1;
            return;
        };
        let effect =
            Effect { fingerprint: Fingerprint::of(&arrived.body), key, version: arrived.version };
        if let Some(known) = inner.effects.get(&arrived.id) {
            if *known == effect {
                inner.tally.repeats += 1;
            } else {
                inner.tally.changed += 1;
            }
            return;
        }
        inner.effects.insert(arrived.id, effect);
        inner.tally.effects += 1;
        let newest = inner.newest.entry(key).or_insert(0);
        let behind = effect.version <= *newest;
        *newest = (*newest).max(effect.version);
        inner.tally.order_violations += u64::from(behind);
        if let Some(file) = &mut inner.written {
            let line = Line {
                code: &record.code,
                name: &record.name,
                status: &record.status,
                key: &arrived.key,
                version: arrived.version,
            };
            // A book that cannot be written shows when it is flushed.
            let _ = serde_json::to_writer(&mut *file, &line);
            let _ = file.write_all(b"\n");
        }
    }

    pub(super) fn unreadable(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).tally.unreadable += 1;
    }

    pub(super) fn tally(&self) -> Tally {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).tally
    }

    /// Writes what is still in memory.
    pub(super) fn flush(&self) -> Result<()> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut inner.written {
            Some(file) => file.flush().context("cannot write an agency's book"),
            None => Ok(()),
        }
    }

    /// Holds the book against the records that should be in it, each with the id it must have.
    pub(super) fn audit(
        &self,
        expected: impl Iterator<Item = Result<(MessageId, Record)>>,
    ) -> Result<Audit> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut audit = Audit::default();
        let mut found = 0;
        for expected in expected {
            let (id, record) = expected?;
            let Some(effect) = inner.effects.get(&id) else {
                audit.lost += 1;
                continue;
            };
            found += 1;
            let right = Effect {
                fingerprint: Fingerprint::of(&record.body()),
                key: record.key().parse()?,
                version: record.line,
            };
            audit.differs += u64::from(*effect != right);
        }
        audit.surplus = inner.effects.len() as u64 - found;
        Ok(audit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(code: &str, line: u64) -> Record {
        Record { code: code.into(), name: "청운동".into(), status: "존재".into(), line }
    }

    fn id(code: &str) -> MessageId {
        MessageId::of("demo", &"city/districts".parse().unwrap(), "/city/districts", code)
    }

    fn arrive(book: &Book, record: &Record) {
        book.enter(&Arrived {
            id: id(&record.code),
            key: record.key().to_owned(),
            version: record.line,
            body: record.body(),
        });
    }

    #[test]
    fn a_book_sees_repeats_changes_order_and_what_is_missing() {
        let book = Book::default();
        let (first, second) = (record("1111010100", 2), record("1111010200", 3));
        arrive(&book, &second);
        arrive(&book, &first);
        arrive(&book, &first);
        arrive(&book, &Record { name: "?".into(), ..first.clone() });
        assert_eq!(
            book.tally(),
            Tally { effects: 2, repeats: 1, changed: 1, order_violations: 1, unreadable: 0 }
        );
        let expected = |records: &[Record]| {
            let records: Vec<_> = records.iter().map(|r| Ok((id(&r.code), r.clone()))).collect();
            book.audit(records.into_iter()).unwrap()
        };
        assert_eq!(expected(&[first.clone(), second]), Audit::default());
        let audit = expected(&[record("1111010100", 9), record("1111010300", 4)]);
        assert_eq!(audit, Audit { lost: 1, differs: 1, surplus: 1 });
    }
}
