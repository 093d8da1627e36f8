//! Charsets by the names partners really write; strict both ways, so that no character is ever lost
//! without a word.

use std::borrow::Cow;

use encoding_rs::{DecoderResult, EUC_KR, EncoderResult, Encoding, UTF_8};

/// One charset. EUC-KR here is what Windows calls 949: all 11,172 syllables, two bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charset(&'static Encoding);

/// What could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CharsetError {
    /// No charset goes by this label.
    #[error("no charset is called `{0}`; common ones are utf-8, euc-kr, cp949")]
    Unknown(String),
    /// The bytes are not text of this charset.
    #[error("not valid {charset} at byte {offset}")]
    Undecodable {
        /// The charset's name.
        charset: &'static str,
        /// Where the first bad sequence starts.
        offset: usize,
    },
    /// The charset has no such character.
    #[error("{charset} has no character for {character:?} (U+{:04X}, at character {index})", u32::from(*.character))]
    Unencodable {
        /// The charset's name.
        charset: &'static str,
        /// The character.
        character: char,
        /// Its number within the text, from 0.
        index: usize,
    },
}

/// Names for EUC-KR that the WHATWG list does not have.
const CODE_PAGE_949: [&str; 6] = ["cp949", "ms949", "uhc", "x-windows-949", "949", "windows949"];

impl Charset {
    /// UTF-8.
    pub const UTF_8: Self = Self(UTF_8);
    /// EUC-KR with the full syllables of code page 949.
    pub const EUC_KR: Self = Self(EUC_KR);

    /// The charset that goes by `label`: the WHATWG labels, and what Korean systems call code page
    /// 949. Case and spaces around it do not matter.
    ///
    /// # Errors
    /// [`CharsetError::Unknown`].
    pub fn for_label(label: &str) -> Result<Self, CharsetError> {
        let plain = label.trim().to_ascii_lowercase();
        if CODE_PAGE_949.contains(&plain.as_str()) {
            return Ok(Self::EUC_KR);
        }
        Encoding::for_label_no_replacement(plain.as_bytes())
            .map(Self)
            .ok_or_else(|| CharsetError::Unknown(pabal_core::shorten(label, 60).into_owned()))
    }

    /// Its WHATWG name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// The text these bytes are. A byte-order mark is not text and is left out for UTF-8 only.
    ///
    /// # Errors
    /// [`CharsetError::Undecodable`] with the place of the first sequence that is not text of this
    /// charset; nothing is ever replaced.
    pub fn decode(self, bytes: &[u8]) -> Result<Cow<'_, str>, CharsetError> {
        let skipped = match bytes.strip_prefix(b"\xef\xbb\xbf") {
            Some(_) if self == Self::UTF_8 => 3,
            _ => 0,
        };
        let bytes = &bytes[skipped..];
        match self.0.decode_without_bom_handling_and_without_replacement(bytes) {
            Some(text) => Ok(text),
            None => Err(CharsetError::Undecodable {
                charset: self.name(),
                offset: skipped + self.first_bad(bytes),
            }),
        }
    }

    /// Where the first malformed sequence starts.
    fn first_bad(self, bytes: &[u8]) -> usize {
        let mut decoder = self.0.new_decoder_without_bom_handling();
        let room =
            decoder.max_utf8_buffer_length_without_replacement(bytes.len()).unwrap_or(bytes.len());
        let mut text = String::with_capacity(room);
        match decoder.decode_to_string_without_replacement(bytes, &mut text, true) {
            // The malformed bytes end `after` before what was read.
            (DecoderResult::Malformed(length, after), read) => {
                read.saturating_sub(usize::from(length) + usize::from(after))
            }
            (_, read) => read,
        }
    }

    /// The bytes of this text.
    ///
    /// # Errors
    /// [`CharsetError::Unencodable`] with the first character that this charset does not have;
    /// nothing is ever replaced.
    pub fn encode(self, text: &str) -> Result<Cow<'_, [u8]>, CharsetError> {
        let (bytes, charset, replaced) = self.0.encode(text);
        // Labels of UTF-16 encode as UTF-8 in that library; bytes of another charset are no answer.
        if charset == self.0 && !replaced {
            return Ok(bytes);
        }
        let mut encoder = self.0.new_encoder();
        let mut out = Vec::with_capacity(text.len() * 4 + 16);
        let bad = encoder.encode_from_utf8_to_vec_without_replacement(text, &mut out, true);
        let (character, read) = match bad {
            (EncoderResult::Unmappable(character), read) => (character, read),
            (_, read) => (text.chars().next().unwrap_or_default(), read),
        };
        let before = text.get(..read).map_or(0, |read| read.chars().count());
        Err(CharsetError::Unencodable {
            charset: self.name(),
            character,
            index: before.saturating_sub(1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_names_korean_systems_write_are_known() {
        for label in [
            "euc-kr",
            "EUC-KR",
            "ks_c_5601-1987",
            "windows-949",
            "cp949",
            "CP949",
            "ms949",
            "uhc",
            "x-windows-949",
            "949",
            " euc_kr".trim_start_matches(' ').replace('_', "-").as_str(),
        ] {
            assert_eq!(Charset::for_label(label), Ok(Charset::EUC_KR), "{label}");
        }
        assert_eq!(Charset::for_label("utf8"), Ok(Charset::UTF_8));
        let error = Charset::for_label("klingon").unwrap_err().to_string();
        assert_eq!(error, "no charset is called `klingon`; common ones are utf-8, euc-kr, cp949");
    }

    #[test]
    fn syllables_beyond_the_old_table_are_two_bytes_both_ways() {
        for (text, bytes) in [
            ("똠방각하", &[0x8c, 0x63, 0xb9, 0xe6, 0xb0, 0xa2, 0xc7, 0xcf][..]),
            ("힣", &[0xc6, 0x52]),
            ("서울 A1", &[0xbc, 0xad, 0xbf, 0xef, 0x20, 0x41, 0x31]),
        ] {
            assert_eq!(Charset::EUC_KR.encode(text).unwrap(), bytes);
            assert_eq!(Charset::EUC_KR.decode(bytes).unwrap(), text);
        }
    }

    #[test]
    fn what_cannot_be_read_says_at_which_byte() {
        for (charset, bytes, offset) in [
            (Charset::EUC_KR, &b"ab\xff\xffcd"[..], 2),
            (Charset::EUC_KR, b"\xb0\xa1\xb0", 2),
            (Charset::EUC_KR, b"\xb0\x20x", 0),
            (Charset::UTF_8, b"a\xeb\xb3\xb5\xeb", 4),
            (Charset::UTF_8, b"a\xeb\xb3x", 1),
            (Charset::UTF_8, b"\xef\xbb\xbfa\xff", 4),
            (Charset::UTF_8, b"\xbc\xad", 0),
        ] {
            let error = charset.decode(bytes).unwrap_err();
            let name = charset.name();
            assert_eq!(error, CharsetError::Undecodable { charset: name, offset }, "{bytes:x?}");
        }
    }

    #[test]
    fn what_cannot_be_written_names_the_character() {
        let error = Charset::EUC_KR.encode("가나😀다").unwrap_err().to_string();
        assert_eq!(error, "EUC-KR has no character for '😀' (U+1F600, at character 2)");
        assert!(Charset::for_label("utf-16le").unwrap().encode("a").is_err());
    }

    proptest! {
        #[test]
        fn all_syllables_survive_the_way_there_and_back(text in "[가-힣a-z0-9 ]{0,40}") {
            let bytes = Charset::EUC_KR.encode(&text).unwrap();
            prop_assert_eq!(Charset::EUC_KR.decode(&bytes).unwrap(), text.as_str());
        }

        #[test]
        fn no_bytes_make_a_replacement_character(bytes: Vec<u8>) {
            if let Ok(text) = Charset::EUC_KR.decode(&bytes) {
                prop_assert!(!text.contains(char::REPLACEMENT_CHARACTER), "replaced");
            }
        }
    }
}
