//! A statement with named parameters, taken apart: what is text, and what is a `:name`. Knows
//! quotes, comments, casts and dollar quotes, and nothing of what a statement means.

use crate::name::Dialect;

/// A piece of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Goes to the database as it is.
    Text(String),
    /// A parameter, by the name that follows the colon.
    Parameter(String),
}

/// A statement in pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sql(Vec<Piece>);

/// What a statement may begin with: one that ends the transaction, or does so by itself, would tear
/// the row of the inbox from what follows from it.
const VERBS: [&str; 8] =
    ["INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "SELECT", "WITH", "CALL"];

impl Sql {
    /// Takes one statement apart.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn parse(text: &str, dialect: Dialect) -> Result<Self, String> {
        let mut reader = Reader { text, at: 0, dialect, pieces: Vec::new(), begun: 0 };
        reader.read()?;
        let sql = Self(reader.pieces);
        let verb = sql.verb(dialect);
        match VERBS.iter().any(|known| verb.eq_ignore_ascii_case(known)) {
            true => Ok(sql),
            false => Err(format!("begins with `{verb}`, not with one of {}", VERBS.join(", "))),
        }
    }

    /// The names of its parameters, in the order in which they stand.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Parameter(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        })
    }

    /// The statement with what `place` gives for each parameter, counted from 0.
    pub(crate) fn with(&self, mut place: impl FnMut(usize) -> String) -> String {
        let mut text = String::new();
        let mut count = 0;
        for piece in &self.0 {
            match piece {
                Piece::Text(part) => text.push_str(part),
                Piece::Parameter(_) => {
                    text.push_str(&place(count));
                    count += 1;
                }
            }
        }
        text
    }

    /// Its first word.
    fn verb(&self, dialect: Dialect) -> &str {
        let Some(Piece::Text(text)) = self.0.first() else { return "" };
        let mut rest = text.as_str();
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '(');
            match comment(rest, dialect) {
                Some(length) => rest = &rest[length..],
                None => break,
            }
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        &rest[..end]
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    dialect: Dialect,
    pieces: Vec<Piece>,
    /// Where the text piece in hand begins.
    begun: usize,
}

impl<'a> Reader<'a> {
    fn read(&mut self) -> Result<(), String> {
        let mut before = ' ';
        while let Some(c) = self.rest().chars().next() {
            let from = self.at;
            match self.step(c, before)? {
                Some(length) => self.at += length,
                None => self.at += c.len_utf8(),
            }
            before = self.text[from..self.at].chars().next_back().unwrap_or(' ');
        }
        self.text_until(self.text.len());
        if self.pieces.is_empty() { Err("is empty".to_owned()) } else { Ok(()) }
    }

    /// How many bytes belong together here; `None`: this character alone.
    fn step(&mut self, c: char, before: char) -> Result<Option<usize>, String> {
        let (rest, dialect) = (self.rest(), self.dialect);
        if let Some(length) = comment(rest, dialect) {
            return Ok(Some(length));
        }
        let word = |c: char| c.is_alphanumeric() || c == '_';
        match (c, dialect) {
            ('\'', _) => {
                // E'…' of PostgreSQL; in MySQL every string.
                let escapes = dialect == Dialect::MySql
                    || dialect == Dialect::Postgres && self.is_escape_string();
                quoted(rest, '\'', escapes).map(Some)
            }
            ('"', _) => quoted(rest, '"', dialect == Dialect::MySql).map(Some),
            ('`', Dialect::MySql | Dialect::Sqlite) => quoted(rest, '`', false).map(Some),
            ('[', Dialect::Sqlite) => {
                rest.find(']').map(|end| Some(end + 1)).ok_or_else(|| unended("["))
            }
            ('$', Dialect::Postgres) if !word(before) => self.dollar(),
            (':', _) => Ok(self.colon()),
            (';', _) => {
                let mut behind = &rest[1..];
                while let Some(length) = comment(behind.trim_start(), dialect) {
                    behind = &behind.trim_start()[length..];
                }
                match behind.trim().is_empty() {
                    // A prepared statement is one.
                    true => {
                        self.text_until(self.at);
                        self.begun = self.text.len();
                        Ok(Some(rest.len()))
                    }
                    false => Err("holds more than one statement: write a list of them".to_owned()),
                }
            }
            ('?', Dialect::MySql | Dialect::Sqlite) | ('$' | '@', Dialect::Sqlite) => {
                Err(format!("holds `{c}`: a parameter is written :name"))
            }
            _ => Ok(None),
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Whether the quote here follows an `E` that is a word of its own.
    fn is_escape_string(&self) -> bool {
        let mut before = self.text[..self.at].chars().rev();
        let letter = before.next().is_some_and(|c| c == 'E' || c == 'e');
        letter && before.next().is_none_or(|c| !c.is_alphanumeric() && c != '_')
    }

    /// `$tag$ … $tag$`, or `$1`.
    fn dollar(&self) -> Result<Option<usize>, String> {
        let rest = self.rest();
        let end = rest[1..].find(|c: char| !c.is_alphanumeric() && c != '_').map(|end| end + 1);
        let tag = &rest[1..end.unwrap_or(rest.len())];
        if tag.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(format!("holds `${tag}`: a parameter is written :name"));
        }
        let Some(end) = end.filter(|end| rest[*end..].starts_with('$')) else { return Ok(None) };
        let fence = &rest[..=end];
        match rest[fence.len()..].find(fence) {
            Some(inner) => Ok(Some(fence.len() + inner + fence.len())),
            None => Err(unended(fence)),
        }
    }

    /// `:name`, or colons that are none.
    fn colon(&mut self) -> Option<usize> {
        let rest = self.rest();
        if rest.starts_with("::") {
            return Some(2);
        }
        let name = parameter(&rest[1..]);
        if name.is_empty() {
            return None;
        }
        let (name, length) = (name.to_owned(), 1 + name.len());
        self.text_until(self.at);
        self.begun = self.at + length;
        self.pieces.push(Piece::Parameter(name));
        Some(length)
    }

    fn text_until(&mut self, end: usize) {
        if let Some(text) = self.text.get(self.begun..end).filter(|text| !text.is_empty()) {
            self.pieces.push(Piece::Text(text.to_owned()));
        }
    }
}

/// The name at the start of `text`: a word, and of `body` the way into it, as `body.items.0.name`.
fn parameter(text: &str) -> &str {
    let word =
        |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    if text.starts_with(|c: char| c.is_numeric()) {
        return "";
    }
    let mut end = word(text);
    let into = &text[..end] == "body";
    while into && text[end..].starts_with('.') {
        match word(&text[end + 1..]) {
            0 => break,
            length => end += 1 + length,
        }
    }
    &text[..end]
}

/// The length of the comment at the start of `text`, if one is there; one without an end is all of it.
fn comment(text: &str, dialect: Dialect) -> Option<usize> {
    let line = || text.find('\n').map_or(text.len(), |end| end + 1);
    if let Some(behind) = text.strip_prefix("--") {
        // In MySQL `a--1` is a sum.
        let begins = dialect != Dialect::MySql
            || behind.chars().next().is_none_or(|c| c.is_whitespace() || c.is_control());
        return begins.then(line);
    }
    if dialect == Dialect::MySql && text.starts_with('#') {
        return Some(line());
    }
    if !text.starts_with("/*") {
        return None;
    }
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") && (depth == 0 || dialect == Dialect::Postgres) {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    Some(text.len())
}

/// The length of what stands in these quotes; a doubled quote does not end it, and where backslashes
/// escape, what follows one neither.
fn quoted(text: &str, quote: char, escapes: bool) -> Result<usize, String> {
    let mut inside = text.char_indices().skip(1).peekable();
    while let Some((index, c)) = inside.next() {
        if escapes && c == '\\' {
            inside.next();
        } else if c == quote {
            match inside.peek() {
                Some((_, next)) if *next == quote => {
                    inside.next();
                }
                _ => return Ok(index + 1),
            }
        }
    }
    Err(unended(&quote.to_string()))
}

fn unended(quote: &str) -> String {
    format!("what begins with {quote} has no end")
}

#[cfg(test)]
#[path = "sql_tests.rs"]
mod tests;
