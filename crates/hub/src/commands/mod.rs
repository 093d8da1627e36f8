//! What each command does.

mod dead_letters;
mod links;
mod messages;
mod send;
mod status;

use anyhow::Result;

use crate::{
    cli::{Command, Global},
    client::Client,
};
use pabal_core::Clock;

/// Runs a command that works through the operators' interface.
pub(crate) async fn operate(
    command: Command,
    global: &Global,
    client: &Client,
    clock: &dyn Clock,
) -> Result<()> {
    let json = global.json;
    match command {
        Command::Send(send) => send::send(client, send, json).await,
        Command::Status { watch: false } => status::show(client, json, clock.now()).await,
        Command::Status { watch: true } => status::watch(client, json, clock).await,
        Command::Messages(what) => messages::messages(client, what, json, clock.now()).await,
        Command::DeadLetters(what) => dead_letters::dead_letters(client, what, json, clock).await,
        Command::Pause(link) => links::act(client, link, "pause", json).await,
        Command::Resume(link) => links::act(client, link, "resume", json).await,
        Command::Prune => status::prune(client, json).await,
        // These do not get here: they need no hub, or are one.
        Command::Run
        | Command::Demo(_)
        | Command::Check { .. }
        | Command::Config(_)
        | Command::Migrate => Ok(()),
    }
}

/// Opening a body is recorded, so it says by whom.
fn open_query(body: bool) -> Vec<(&'static str, String)> {
    if !body {
        return Vec::new();
    }
    vec![("body", "true".to_owned()), ("by", crate::operator::name())]
}
