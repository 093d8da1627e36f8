//! The table of records that the play sender reads: EUC-KR, tab-separated, one header line. It is
//! read as a stream, three times, and never kept.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use pabal_core::Bytes;
use pabal_translate::Charset;
use serde::{Deserialize, Serialize};

/// The project's own sample: 5,000 invented records.
static SAMPLE: &[u8] = include_bytes!("../../samples/legal-districts.euckr.tsv");
const COLUMNS: &str = "법정동코드\t법정동명\t폐지여부";
/// What the second agency wants.
pub(super) const EXISTS: &str = "존재";
const ABOLISHED: &str = "폐지";
const KEY_DIGITS: usize = 5;
const CODE_DIGITS: usize = 10;
const LINE_BYTES_MAX: u64 = 4096;

/// Where the table is.
#[derive(Debug, Clone)]
pub(super) enum Input {
    Sample,
    File(PathBuf),
}

impl Input {
    /// The records, in order.
    pub(super) fn records(&self) -> Result<Records<Box<dyn BufRead + Send>>> {
        match self {
            Self::Sample => Records::new(Box::new(SAMPLE), Path::new("the built-in sample")),
            Self::File(path) => {
                let file =
                    File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
                Records::new(Box::new(BufReader::new(file)), path)
            }
        }
    }
}

/// One record; its JSON is the body of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) code: String,
    pub(super) name: String,
    pub(super) status: String,
    /// Where it stands in the file; the business version.
    #[serde(skip)]
    pub(super) line: u64,
}

impl Record {
    /// The ordering key: the first five digits of the code.
    pub(super) fn key(&self) -> &str {
        &self.code[..KEY_DIGITS]
    }

    pub(super) fn body(&self) -> Bytes {
        // A struct of three strings cannot fail to be JSON.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// Reads the table line by line; the first fault ends it, with file and line.
#[derive(Debug)]
pub(super) struct Records<R> {
    reader: R,
    charset: Charset,
    name: String,
    line: u64,
    buffer: Vec<u8>,
}

impl<R: BufRead> Records<R> {
    fn new(reader: R, path: &Path) -> Result<Self> {
        let mut records = Self {
            reader,
            charset: Charset::for_label("euc-kr")?,
            name: path.display().to_string(),
            line: 0,
            buffer: Vec::new(),
        };
        match records.next_line()? {
            Some(header) if header == COLUMNS => Ok(records),
            _ => bail!(
                "{}, line 1: the columns must be 법정동코드, 법정동명, 폐지여부, with tabs between",
                records.name
            ),
        }
    }

    fn next_line(&mut self) -> Result<Option<String>> {
        self.buffer.clear();
        self.line += 1;
        let read = self
            .reader
            .by_ref()
            .take(LINE_BYTES_MAX + 1)
            .read_until(b'\n', &mut self.buffer)
            .with_context(|| format!("cannot read {}", self.name))?;
        if read == 0 {
            return Ok(None);
        }
        ensure!(
            read as u64 <= LINE_BYTES_MAX,
            "{}, line {}: over {LINE_BYTES_MAX} bytes",
            self.name,
            self.line
        );
        let bytes = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let text = self
            .charset
            .decode(bytes)
            .with_context(|| format!("{}, line {}", self.name, self.line))?;
        Ok(Some(text.into_owned()))
    }

    fn next_record(&mut self) -> Result<Option<Record>> {
        let Some(text) = self.next_line()? else { return Ok(None) };
        let (name, line) = (&self.name, self.line);
        let fields: Vec<&str> = text.split('\t').collect();
        let [code, district, status] = fields[..] else {
            bail!("{name}, line {line}: {} columns instead of three", fields.len());
        };
        ensure!(
            code.len() == CODE_DIGITS && code.bytes().all(|byte| byte.is_ascii_digit()),
            "{name}, line {line}: `{code}` is not a code of ten digits"
        );
        ensure!(!district.is_empty(), "{name}, line {line}: the name is empty");
        ensure!(
            matches!(status, EXISTS | ABOLISHED),
            "{name}, line {line}: `{status}` is neither {EXISTS} nor {ABOLISHED}"
        );
        Ok(Some(Record {
            code: code.to_owned(),
            name: district.to_owned(),
            status: status.to_owned(),
            line,
        }))
    }
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = Result<Record>;
    fn next(&mut self) -> Option<Self::Item> {
        self.next_record().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Record>> {
        let bytes = Charset::for_label("euc-kr")?.encode(text)?.into_owned();
        Records::new(&bytes[..], Path::new("t.tsv"))?.collect()
    }

    fn fault(text: &str) -> String {
        format!("{:#}", read(text).unwrap_err())
    }

    #[test]
    fn records_are_read_with_or_without_a_last_line_end() {
        for end in ["", "\n", "\r\n"] {
            let records = read(&format!(
                "{COLUMNS}\n1111010100\t서울 청운동\t존재\r\n1111010200\t뷁동\t폐지{end}"
            ))
            .unwrap();
            assert_eq!(records.len(), 2);
            assert_eq!((records[1].line, records[1].key()), (3, "11110"));
            assert_eq!(records[1].body(), r#"{"code":"1111010200","name":"뷁동","status":"폐지"}"#);
        }
    }

    #[test]
    fn a_fault_names_the_line() {
        assert!(fault("법정동\n").starts_with("t.tsv, line 1: the columns"));
        assert!(fault(&format!("{COLUMNS}\n111\tx\t존재\n")).starts_with("t.tsv, line 2: `111`"));
        assert!(fault(&format!("{COLUMNS}\n1111010100\tx\n")).contains("2 columns"));
        assert!(fault(&format!("{COLUMNS}\n1111010100\tx\t?\n")).contains("neither"));
        let mut bytes = Charset::for_label("euc-kr").unwrap().encode(COLUMNS).unwrap().into_owned();
        bytes.extend_from_slice(b"\n1111010100\t\xff\xff\t\n");
        let mut records = Records::new(&bytes[..], Path::new("t.tsv")).unwrap();
        let fault = format!("{:#}", records.next().unwrap().unwrap_err());
        assert!(fault.starts_with("t.tsv, line 2"), "{fault}");
    }

    #[test]
    fn the_sample_is_whole() {
        let records: Vec<Record> = Input::Sample.records().unwrap().collect::<Result<_>>().unwrap();
        assert_eq!(records.len(), 5_000);
    }
}
