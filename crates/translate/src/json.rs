//! JSON whose numbers keep every digit: `0.10` stays `0.10`, and an integer of twenty digits stays
//! what it was.

use std::fmt;

use jaq_json::{Num, Val};

/// How deep JSON may nest. The parser behind it recurses, and an overflow would end the process.
pub const DEPTH_MAX: usize = 128;

/// How many digits a number may have: what reads them takes quadratic time.
const DIGITS_MAX: usize = 1000;

/// A JSON value. Cloning it is cheap.
#[derive(Debug, Clone, Default)]
pub struct Json(pub(crate) Val);

/// Why bytes are not JSON, or a value cannot be written as JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JsonError(String);

impl JsonError {
    pub(crate) fn new(text: impl fmt::Display) -> Self {
        Self(text.to_string())
    }
}

impl Json {
    /// `null`.
    pub const NULL: Self = Self(Val::Null);

    /// Exactly one JSON value by the letter of RFC 8259, in UTF-8.
    ///
    /// # Errors
    /// Says where it stops being JSON, or that it nests deeper than [`DEPTH_MAX`].
    pub fn parse(bytes: &[u8]) -> Result<Self, JsonError> {
        // Three steps, because jaq's parser alone knows to keep digits, but takes more than JSON,
        // checks less, and recurses without a limit.
        std::str::from_utf8(bytes)
            .map_err(|e| JsonError::new(format_args!("not UTF-8 at byte {}", e.valid_up_to())))?;
        check_size(bytes)?;
        serde_json::from_slice::<serde::de::IgnoredAny>(bytes).map_err(JsonError::new)?;
        jaq_json::read::parse_single(bytes).map(Self).map_err(JsonError::new)
    }

    /// A string.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self(Val::utf8_str(text.to_owned()))
    }

    /// An integer.
    pub(crate) fn integer(value: i64) -> Self {
        Self(Val::Num(Num::from_integral(value)))
    }

    /// An object.
    pub(crate) fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        let fields = fields.into_iter();
        Self(Val::obj(fields.map(|(name, value)| (Self::text(name).0, value.0)).collect()))
    }

    /// The boolean, if it is one.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self.0 {
            Val::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// Whether it is `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self.0, Val::Null)
    }

    /// The text of a string, or a number digit for digit; `None` for anything else.
    #[must_use]
    pub fn as_plain_text(&self) -> Option<String> {
        match &self.0 {
            Val::TStr(bytes) => std::str::from_utf8(bytes).ok().map(str::to_owned),
            Val::Num(number) => number_text(number),
            _ => None,
        }
    }

    /// As JSON bytes without spaces.
    ///
    /// # Errors
    /// If it holds what JSON cannot say (not a number, an infinity, a key that is no string), nests
    /// deeper than [`DEPTH_MAX`], or is longer than `bytes_max`.
    pub fn to_bytes(&self, bytes_max: usize) -> Result<Vec<u8>, JsonError> {
        let mut out = Vec::new();
        write(&self.0, &mut out, DEPTH_MAX, bytes_max)?;
        Ok(out)
    }

    /// Its length as JSON, if that is at most `bytes_max` and it nests no deeper than allowed.
    pub(crate) fn size(&self, bytes_max: usize) -> Option<usize> {
        size(&self.0, DEPTH_MAX, bytes_max)
    }

    /// For messages to people: what it is, cut short.
    pub(crate) fn excerpt(&self) -> String {
        match self.to_bytes(4096) {
            Ok(bytes) => pabal_core::shorten(&String::from_utf8_lossy(&bytes), 80).into_owned(),
            Err(_) => self.kind().to_owned(),
        }
    }

    /// The kind of value, in JSON's words.
    pub(crate) fn kind(&self) -> &'static str {
        match self.0 {
            Val::Null => "null",
            Val::Bool(_) => "a boolean",
            Val::Num(_) => "a number",
            Val::BStr(_) => "bytes",
            Val::TStr(_) => "a string",
            Val::Arr(_) => "an array",
            Val::Obj(_) => "an object",
        }
    }
}

fn number_text(number: &Num) -> Option<String> {
    match number {
        Num::Float(value) if !value.is_finite() => None,
        _ => Some(number.to_string()),
    }
}

fn write(value: &Val, out: &mut Vec<u8>, depth: usize, bytes_max: usize) -> Result<(), JsonError> {
    if out.len() > bytes_max {
        return Err(JsonError::new(format_args!("longer than {bytes_max} bytes")));
    }
    let deeper = || {
        depth
            .checked_sub(1)
            .ok_or_else(|| JsonError::new(format_args!("nests deeper than {DEPTH_MAX}")))
    };
    match value {
        Val::Null => out.extend_from_slice(b"null"),
        Val::Bool(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
        Val::Num(number) => match number_text(number) {
            Some(text) => out.extend_from_slice(text.as_bytes()),
            None => return Err(JsonError::new("not a finite number")),
        },
        Val::TStr(text) => write_text(text, out)?,
        Val::BStr(_) => return Err(JsonError::new("bytes are not JSON")),
        Val::Arr(items) => {
            let depth = deeper()?;
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(item, out, depth, bytes_max)?;
            }
            out.push(b']');
        }
        Val::Obj(fields) => {
            let depth = deeper()?;
            out.push(b'{');
            for (index, (name, item)) in fields.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                match name {
                    Val::TStr(name) => write_text(name, out)?,
                    _ => return Err(JsonError::new("a key of an object is not a string")),
                }
                out.push(b':');
                write(item, out, depth, bytes_max)?;
            }
            out.push(b'}');
        }
    }
    if out.len() > bytes_max {
        return Err(JsonError::new(format_args!("longer than {bytes_max} bytes")));
    }
    Ok(())
}

/// An estimate that is never under the length of the values' own bytes.
fn size(value: &Val, depth: usize, bytes_max: usize) -> Option<usize> {
    let mut sum = match value {
        Val::Null | Val::Bool(_) => 4,
        Val::Num(number) => number.to_string().len(),
        Val::TStr(text) | Val::BStr(text) => text.len() + 2,
        Val::Arr(_) | Val::Obj(_) => 2,
    };
    let mut add = |part: &Val| {
        // A comma or a colon comes with each.
        let left = bytes_max.checked_sub(sum)?;
        sum += 1 + size(part, depth.checked_sub(1)?, left)?;
        Some(())
    };
    match value {
        Val::Arr(items) => items.iter().try_for_each(add)?,
        Val::Obj(fields) => fields.iter().try_for_each(|(name, item)| {
            add(name)?;
            add(item)
        })?,
        _ => {}
    }
    (sum <= bytes_max).then_some(sum)
}

fn write_text(text: &[u8], out: &mut Vec<u8>) -> Result<(), JsonError> {
    let text = std::str::from_utf8(text).map_err(|_| JsonError::new("a string is not UTF-8"))?;
    serde_json::to_writer(out, text).map_err(JsonError::new)
}

/// Refuses what nests too deep or has too long a number, before anything recurses over it or reads
/// its digits.
fn check_size(bytes: &[u8]) -> Result<(), JsonError> {
    let (mut depth, mut digits, mut quoted, mut escaped) = (0_usize, 0_usize, false, false);
    for (offset, byte) in bytes.iter().enumerate() {
        digits = if byte.is_ascii_digit() && !quoted { digits + 1 } else { 0 };
        if digits > DIGITS_MAX {
            return Err(JsonError::new(format_args!(
                "a number of more than {DIGITS_MAX} digits at byte {offset}"
            )));
        }
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Err(JsonError::new(format_args!(
                        "nests deeper than {DEPTH_MAX} at byte {offset}"
                    )));
                }
            }
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round(text: &str) -> String {
        let bytes = Json::parse(text.as_bytes()).unwrap().to_bytes(10_000).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn every_digit_survives() {
        for text in [
            r#"{"id":9007199254740993,"ref":8202522731445525542,"n":12345678901234567890123}"#,
            r#"{"amt":0.10,"b":4.81,"c":1.0,"d":117.63331139400017}"#,
            "[1e3,1E+2,-0.0,0.000]",
            r#"{"가":"\"\\\u0001"}"#,
        ] {
            assert_eq!(round(text), text);
        }
    }

    #[test]
    fn what_is_not_json_says_where() {
        for (text, error) in [
            (&b"{\"a\":1,}"[..], "key must be a string at line 1 column 8"),
            (b"{\"a\":NaN}", "expected value at line 1 column 6"),
            (b"# x\n1", "expected value at line 1 column 1"),
            (b"1 2", "trailing characters at line 1 column 3"),
            (b"\"\xb0\xa1\"", "not UTF-8 at byte 1"),
            (b"", "EOF while parsing a value at line 1 column 0"),
            (b"012", "invalid number at line 1 column 2"),
        ] {
            assert_eq!(Json::parse(text).unwrap_err().to_string(), error);
        }
        assert!(Json::parse(br#""\ud800""#).is_err());
    }

    #[test]
    fn deep_nesting_is_refused_and_ends_nothing() {
        let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert_eq!(round(&deep(DEPTH_MAX)), deep(DEPTH_MAX));
        let error = Json::parse(deep(200_000).as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "nests deeper than 128 at byte 128");
        assert!(Json::parse(br#"["\"[[[", "]"]"#).is_ok());
    }

    #[test]
    fn a_number_that_would_take_minutes_to_read_is_refused() {
        let number = |digits: usize| "7".repeat(digits);
        assert_eq!(round(&number(DIGITS_MAX)), number(DIGITS_MAX));
        let error = Json::parse(number(5_000_000).as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "a number of more than 1000 digits at byte 1000");
        let text = format!("\"{}\"", number(5_000));
        assert_eq!(round(&text), text);
    }

    proptest! {
        #[test]
        fn decimal_numbers_are_written_as_they_came(number in "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,40})?") {
            prop_assume!(number != "-0");
            prop_assert_eq!(round(&number), number);
        }

        #[test]
        fn any_bytes_are_parsed_or_refused_without_a_panic(bytes: Vec<u8>) {
            let _ = Json::parse(&bytes);
        }
    }
}
