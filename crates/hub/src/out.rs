//! What the command line prints: one way to standard output, one to standard error.

use std::{
    borrow::Cow,
    fmt::Display,
    io::{IsTerminal, Write},
};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// On a narrower terminal lines are left to wrap by themselves.
const WIDTH_MIN: u16 = 40;

/// Of plain facts, where nobody can say how wide the page is.
pub(crate) const WIDTH_WITHOUT_TERMINAL: u16 = 100;

/// What was asked for cannot be meant: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongUse(pub(crate) String);

/// One line to standard output. A reader that went away (`| head`) is no failure of ours.
pub(crate) fn line(text: impl Display) {
    let _ = writeln!(std::io::stdout().lock(), "{}", harmless(&text.to_string()));
}

/// What partners write must not move an operator's cursor or retitle the window.
fn harmless(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(harmful) {
        return Cow::Borrowed(text);
    }
    let shown = text.chars().map(|c| if harmful(c) { char::REPLACEMENT_CHARACTER } else { c });
    Cow::Owned(shown.collect())
}

/// An empty screen.
pub(crate) fn clear() {
    let _ = write!(std::io::stdout().lock(), "\x1b[2J");
}

/// Fills the screen anew: from the top, and then clears what is left, which flickers less than
/// clearing first.
pub(crate) fn screen(text: impl Display) {
    let text = text.to_string();
    let _ = writeln!(std::io::stdout().lock(), "\x1b[H{}\x1b[J", harmless(&text));
}

/// A value as JSON to standard output.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?);
    Ok(())
}

/// A body to standard output: as it is for programs, harmless for a terminal.
pub(crate) fn bytes(bytes: &[u8]) {
    let mut output = std::io::stdout().lock();
    let _ = if output.is_terminal() {
        output.write_all(harmless(&String::from_utf8_lossy(bytes)).as_bytes())
    } else {
        output.write_all(bytes)
    };
}

/// One line to standard error: for people, beside what programs read.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{}", harmless(&text.to_string()));
}

/// What went wrong, with everything that led to it, and never a backtrace.
pub(crate) fn failure(error: &anyhow::Error) {
    note(format_args!("error: {}", whole(error)));
}

/// An error and its causes; many errors say their cause themselves, and once is enough.
fn whole(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for part in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = part;
        } else if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
    }
    text
}

/// A table with a header line.
pub(crate) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = sheet();
    table.set_header(header);
    table
}

/// A table with a frame and no header line.
pub(crate) fn sheet() -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic);
    // A snapshot must not depend on how wide somebody's terminal is, and some pretend to be 0 wide.
    if cfg!(test) || table.width().is_some_and(|width| width < WIDTH_MIN) {
        table.force_no_tty();
    }
    table
}

/// A table without a frame, for `name  value` lines.
pub(crate) fn facts() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    // A long value must not be one long line where there is no terminal to say how wide it is.
    if table.width().is_none() {
        table.set_width(WIDTH_WITHOUT_TERMINAL);
    }
    table
}

/// Asks on the terminal; true for yes. Where nobody can answer, the way on is `--yes`.
pub(crate) fn ask(question: &str) -> anyhow::Result<bool> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        let text = format!("{question} Nobody can be asked here: say --yes to go on");
        return Err(WrongUse(text).into());
    }
    let mut screen = std::io::stderr().lock();
    write!(screen, "{question} [y/N] ")?;
    screen.flush()?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Whether people watch standard error.
pub(crate) fn watched() -> bool {
    std::io::stderr().is_terminal()
}

/// `-` for what is not there.
pub(crate) fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// The word that a value of several choices is written as everywhere.
pub(crate) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// A duration in words a person can compare: `850ms`, `12s`, `3m 20s`, `5h 2m`, `4d 3h`.
pub(crate) fn span(time: std::time::Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{}ms", time.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// `46,228`
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_a_partner_wrote_cannot_steer_the_terminal() {
        assert_eq!(harmless("a\tb\n동"), "a\tb\n동");
        assert_eq!(harmless("a\x1b[2Jb\r\u{9b}"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}");
    }

    #[test]
    fn a_long_fact_wraps_without_a_terminal() {
        let mut facts = facts();
        facts.add_row(["detail", &"word ".repeat(100)]);
        assert!(facts.to_string().lines().all(|line| line.chars().count() <= 100), "{facts}");
    }

    #[test]
    fn an_error_says_its_cause_once() {
        let cause = anyhow::anyhow!("denied");
        let error = cause.context("cannot lock: denied; may it write?").context("no");
        assert_eq!(whole(&error), "no: cannot lock: denied; may it write?");
    }

    #[test]
    fn numbers_and_spans_are_easy_to_compare() {
        assert_eq!(
            [0, 999, 1000, 46_228, 1_234_567].map(count),
            ["0", "999", "1,000", "46,228", "1,234,567"]
        );
        assert_eq!(
            [0, 850, 12_000, 200_000, 18_120_000, 356_400_000]
                .map(|ms| span(Duration::from_millis(ms))),
            ["0ms", "850ms", "12s", "3m 20s", "5h 2m", "4d 3h"]
        );
    }
}
