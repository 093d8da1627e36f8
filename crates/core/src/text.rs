//! Text helpers that logs and records share.

use std::borrow::Cow;

/// Shortens `text` to at most `bytes_max` bytes at a character boundary; what was cut shows as `…`
/// (which counts towards the limit).
#[must_use]
pub fn shorten(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(bytes_max.saturating_sub('…'.len_utf8()));
    Cow::Owned(format!("{}…", &text[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shortened_at_a_character_boundary() {
        let text = "가나다라마바사".repeat(40);
        for bytes_max in 3..600 {
            let short = shorten(&text, bytes_max);
            assert!(short.len() <= bytes_max);
            assert!(short.ends_with('…') && text.starts_with(short.trim_end_matches('…')));
        }
        assert_eq!(shorten("짧다", 6), "짧다");
    }
}
