//! The command line: what can be said, not what it does.

use std::{ffi::OsString, path::PathBuf};

use axum::http;
use clap::{
    ArgGroup, Args, Parser, Subcommand,
    builder::{OsStringValueParser, TypedValueParser},
};
use pabal_core::{DeadKind, DeadReason, EndpointName, MessageId};

/// Carries messages between agencies: never loses one, never applies one twice, and can always say
/// where one is.
#[derive(Debug, Parser)]
#[command(name = "pabal", version, about, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Set apart from what a command itself takes.
const GLOBAL: &str = "Global options";

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// Configuration directory
    #[arg(
        long,
        env = "PABAL_CONFIG",
        hide_env_values = true,
        default_value = "config",
        global = true, help_heading = GLOBAL,
        value_name = "DIR",
        value_parser = OsStringValueParser::new().map(directory)
    )]
    pub(crate) config: PathBuf,
    /// Lays `x.PROFILE.toml` over every `x.toml`
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    /// Prints JSON, for programs
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The hub
    Run,
    /// The whole job on this machine: hub, play agencies, traffic, faults, a verified count at the end
    Demo(Demo),
    /// Checks all of the configuration, offline
    Check {
        /// Then looks at the store, every source and every destination, without handing anything over
        #[arg(long)]
        connect: bool,
    },
    /// Hands a message over
    Send(Send),
    /// Sources and destinations: waiting, held, oldest, dead, breaker
    Status {
        /// Shows it again every second, until Ctrl-C
        #[arg(long)]
        watch: bool,
    },
    /// Where is message 2026-001234?
    #[command(subcommand)]
    Messages(Messages),
    /// What was set aside, and what becomes of it
    #[command(subcommand)]
    DeadLetters(DeadLetters),
    /// Holds a destination; what comes for it waits
    Pause(Link),
    /// Lets a paused destination go on
    Resume(Link),
    /// The configuration as it is in effect
    #[command(subcommand)]
    Config(Config),
    /// Makes or updates the tables of the store
    Migrate,
    /// Removes what is over for longer than `retention` says; a running hub does so by itself
    Prune,
}

/// `pabal demo`
#[derive(Debug, Clone, Args)]
pub(crate) struct Demo {
    /// A table to send instead of the built-in sample: EUC-KR, tab-separated, with the header line
    /// 법정동코드, 법정동명, 폐지여부
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Works in this directory, which must not exist or be empty, and leaves it there
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Leaves the hub running at the end, with its addresses printed, until Ctrl-C
    #[arg(long)]
    pub(crate) keep: bool,
    /// Decides which faults happen when
    #[arg(long, default_value_t = 1597, value_name = "N")]
    pub(crate) seed: u64,
    /// Keeps everything in this PostgreSQL database instead of a file of its own, in its schema
    /// `pabal`, which must not hold anything yet: postgres://user:password@host:port/database
    #[arg(long, value_name = "URL", env = "PABAL_DEMO_POSTGRES", hide_env_values = true)]
    pub(crate) postgres: Option<String>,
    /// Writes each agency's book into this directory, as JSON lines
    #[arg(long, value_name = "DIR")]
    pub(crate) books: Option<PathBuf>,
}

/// `pabal send`
#[derive(Debug, Args)]
pub(crate) struct Send {
    /// The message's type, e.g. application.submitted
    #[arg(value_name = "TYPE")]
    pub(crate) message_type: String,
    /// Only to this destination; else to all that take the type
    #[arg(long, value_name = "DESTINATION")]
    pub(crate) to: Option<EndpointName>,
    /// Its id: the same id again is the same message. Random if not given
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// Its ordering key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// What it belongs to
    #[arg(long, value_name = "ID")]
    pub(crate) correlation: Option<String>,
    /// The message that caused it
    #[arg(long, value_name = "ID")]
    pub(crate) causation: Option<String>,
    /// A further header; may be given several times
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    pub(crate) headers: Vec<(String, String)>,
    /// The media type of the body; if not given, application/json where the body is JSON, else
    /// application/octet-stream
    #[arg(long, value_name = "TYPE")]
    pub(crate) content_type: Option<String>,
    /// The body; `-` reads it from standard input
    pub(crate) file: PathBuf,
}

/// `pabal messages`
#[derive(Debug, Subcommand)]
pub(crate) enum Messages {
    /// Messages by id, key, type, source or time; newest first
    Find(Find),
    /// Everything known of one message
    Show {
        /// The message id
        id: MessageId,
        /// With headers and body, which is recorded
        #[arg(long)]
        body: bool,
    },
    /// Asks again who takes messages that nobody took
    #[command(group = ArgGroup::new("which").required(true))]
    Reroute {
        /// The message ids
        #[arg(group = "which")]
        ids: Vec<MessageId>,
        /// All that nobody took
        #[arg(long, group = "which")]
        all: bool,
        #[command(flatten)]
        act: Act,
    },
}

/// `pabal messages find`
#[derive(Debug, Args)]
pub(crate) struct Find {
    /// A message id, an origin's id or a correlation id
    pub(crate) id: Option<String>,
    /// With this key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) message_type: Option<String>,
    /// From this source
    #[arg(long)]
    pub(crate) source: Option<EndpointName>,
    /// Received at or after: an instant (2026-01-31T09:00:00Z), or how long ago (2h)
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Received before
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
    /// Only those nobody takes
    #[arg(long)]
    pub(crate) unrouted: bool,
    /// After this sequence number of an earlier answer
    #[arg(long, value_name = "SEQUENCE")]
    pub(crate) after: Option<i64>,
    /// At most so many
    #[arg(long, default_value_t = 50, value_name = "N")]
    pub(crate) limit: u32,
}

/// `pabal dead-letters`
#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetters {
    /// Counted by source or destination, reason and cause
    List {
        #[command(flatten)]
        which: Which,
        /// One line for each instead
        #[arg(long)]
        each: bool,
        /// At most so many lines with --each
        #[arg(long, default_value_t = 50, value_name = "N")]
        limit: u32,
    },
    /// Everything known of one
    Show {
        /// Its number
        id: i64,
        /// With headers and body, which is recorded
        #[arg(long)]
        body: bool,
    },
    /// Tries them again: deliveries are queued at their old place, arrivals are read again
    Replay {
        /// Their numbers; or choose by the options
        ids: Vec<i64>,
        #[command(flatten)]
        which: Which,
        /// All there are
        #[arg(long, conflicts_with = "ids")]
        all: bool,
        /// Only so many, the oldest, to see what becomes of them
        #[arg(long, value_name = "N")]
        canary: Option<u32>,
        /// At most so many a second
        #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        rate: u32,
        /// Shows what would be replayed
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        act: Act,
    },
    /// Gives them up, which frees what waits behind them
    Discard {
        /// Their numbers; or choose by the options
        ids: Vec<i64>,
        #[command(flatten)]
        which: Which,
        /// All there are
        #[arg(long, conflicts_with = "ids")]
        all: bool,
        /// Shows what would be discarded
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        act: Act,
    },
}

/// Which dead letters; every option narrows.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Which {
    /// Of this source or destination
    #[arg(long, value_name = "PARTNER/NAME")]
    pub(crate) endpoint: Option<EndpointName>,
    /// For this reason, e.g. refused
    #[arg(long, value_parser = word::<DeadReason>)]
    pub(crate) reason: Option<DeadReason>,
    /// For this cause, as the list shows it
    #[arg(long)]
    pub(crate) cause: Option<String>,
    /// Of this kind: delivery, source or routing
    #[arg(long, value_parser = word::<DeadKind>)]
    pub(crate) kind: Option<DeadKind>,
    /// Of this message
    #[arg(long, value_name = "ID")]
    pub(crate) message: Option<MessageId>,
}

/// Said with every act.
#[derive(Debug, Clone, Args)]
pub(crate) struct Act {
    /// Why; kept with the act
    #[arg(long, value_name = "WORDS")]
    pub(crate) why: Option<String>,
    /// Does not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `pabal pause` and `pabal resume`
#[derive(Debug, Args)]
pub(crate) struct Link {
    /// Which, e.g. welfare/applications
    #[arg(value_name = "PARTNER/NAME")]
    pub(crate) endpoint: EndpointName,
    /// Why; kept with the act
    #[arg(long, value_name = "WORDS")]
    pub(crate) why: Option<String>,
}

/// `pabal config`
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Everything in effect, defaults and overlays included; secrets by name only
    Show,
}

/// An empty `PABAL_CONFIG` is none.
fn directory(text: OsString) -> PathBuf {
    if text.is_empty() { "config".into() } else { text.into() }
}

/// What no destination would pass on is refused here: it must not get lost in silence.
fn header(text: &str) -> Result<(String, String), String> {
    let Some((name, value)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
        return Err("write it as NAME=VALUE".to_owned());
    };
    let Ok(known) = http::HeaderName::from_bytes(name.as_bytes()) else {
        return Err(format!("`{name}` is not the name of a header"));
    };
    if !pabal_adapter_rest::passes_on(known.as_str()) {
        return Err(format!("no message carries the header `{name}`: it is the connection's own"));
    }
    if value.contains(|c: char| c.is_control() && c != '\t') {
        return Err("a value has no control characters".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// One of the words that `T` is written as everywhere else; serde's error lists them.
fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(serde_json::Value::String(text.to_owned()))
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_header_has_a_name_and_a_value() {
        assert_eq!(header("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(header("a").is_err());
        for bad in ["=b", "x y=1", "Authorization=Basic abc", "ce-id=1", "접수=1", "a=b\nc"] {
            assert!(header(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_empty_directory_is_the_default() {
        let config = |args: &[&str]| Cli::try_parse_from(args).unwrap().global.config;
        assert_eq!(config(&["pabal", "--config", "", "check"]), PathBuf::from("config"));
        assert_eq!(config(&["pabal", "check", "--config", "x"]), PathBuf::from("x"));
    }

    #[test]
    fn a_reroute_of_nothing_is_told_of_all() {
        let parse = |args: &[&str]| {
            let args = ["pabal", "messages", "reroute"].iter().chain(args);
            Cli::try_parse_from(args).map(|_| ()).map_err(|error| error.to_string())
        };
        assert!(parse(&[]).unwrap_err().contains("--all"));
        assert!(parse(&["--all"]).is_ok());
        assert!(parse(&["--all", "018f0000-0000-7000-8000-000000000000"]).is_err());
    }

    #[test]
    fn a_wrong_reason_is_answered_with_the_words_there_are() {
        assert_eq!(word("killed-process"), Ok(DeadReason::KilledProcess));
        assert!(word::<DeadReason>("x").unwrap_err().contains("`exhausted`"));
    }

    #[test]
    fn the_commands_are_these() {
        insta::assert_snapshot!(Cli::command().term_width(100).render_help().to_string());
    }
}
