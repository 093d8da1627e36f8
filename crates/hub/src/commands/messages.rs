//! `pabal messages`

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use pabal_core::{DeliveryState, EndpointName, MessageSummary};

use crate::{
    api::types::{Content, Reroute, Rerouted, Told},
    cli::{Find, Messages},
    client::Client,
    operator, out,
};

pub(super) async fn messages(
    client: &Client,
    what: Messages,
    json: bool,
    now: Timestamp,
) -> Result<()> {
    match what {
        Messages::Find(which) => find(client, which, json, now).await,
        Messages::Show { id, body } => {
            let told: Told =
                client.get(&format!("/messages/{id}"), &super::open_query(body)).await?;
            if json { out::json(&told) } else { show(&told) }
        }
        Messages::Reroute { ids, all, act } => {
            if all && !act.yes && !out::ask("Ask again who takes all unrouted messages?")? {
                return Ok(());
            }
            let given = Reroute { ids, all, why: act.why, by: operator::name() };
            let done: Rerouted = client.post("/messages/reroute", &given).await?;
            if json {
                return out::json(&done);
            }
            out::line(format_args!("{} found a destination", out::count(done.routed)));
            Ok(())
        }
    }
}

async fn find(client: &Client, which: Find, json: bool, now: Timestamp) -> Result<()> {
    let mut query = Vec::new();
    let mut add = |name: &'static str, value: Option<String>| {
        query.extend(value.map(|value| (name, value)));
    };
    add("id", which.id);
    add("key", which.key);
    add("message_type", which.message_type);
    add("source", which.source.map(Into::into));
    add("since", which.since.map(|text| instant(&text, now)).transpose()?.map(|at| at.to_string()));
    add("until", which.until.map(|text| instant(&text, now)).transpose()?.map(|at| at.to_string()));
    add("unrouted", which.unrouted.then(|| "true".to_owned()));
    add("after", which.after.map(|after| after.to_string()));
    add("limit", Some(which.limit.to_string()));
    let found: Vec<MessageSummary> = client.get("/messages", &query).await?;
    if json {
        return out::json(&found);
    }
    if found.is_empty() {
        out::line("no message fits");
        return Ok(());
    }
    let mut table =
        out::table(["received", "message id", "type", "source", "origin id", "key", "deliveries"]);
    for message in &found {
        table.add_row([
            second(message.received),
            message.id.to_string(),
            message.message_type.clone(),
            message.source.to_string(),
            message.origin_id.clone(),
            out::or_dash(message.key.as_ref()),
            deliveries(message),
        ]);
    }
    out::line(table);
    if let Some(last) = found.last()
        && found.len() == which.limit as usize
    {
        out::note(format_args!("there may be more: --after {}", last.sequence));
    }
    Ok(())
}

fn deliveries(message: &MessageSummary) -> String {
    if message.deliveries.is_empty() {
        return "unrouted".to_owned();
    }
    let lines = message.deliveries.iter().map(|delivery| {
        let mut line = format!("{}: {}", delivery.destination, out::word(&delivery.state));
        if delivery.state == DeliveryState::Waiting && delivery.attempts > 0 {
            line.push_str(&format!(", {} attempts", delivery.attempts));
        }
        line
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn show(told: &Told) -> Result<()> {
    let story = &told.story;
    let summary = &story.summary;
    let mut facts = out::facts();
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            facts.add_row([name.to_owned(), value]);
        }
    };
    fact("message id", Some(summary.id.to_string()));
    fact("type", Some(summary.message_type.clone()));
    fact("key", summary.key.clone());
    fact("version", story.version.map(|version| version.to_string()));
    fact("schema", story.schema.clone());
    fact("correlation", summary.correlation.clone());
    fact("source", Some(summary.source.to_string()));
    fact("origin id", Some(summary.origin_id.clone()));
    fact("received", Some(second(summary.received)));
    fact("came again", (story.duplicates > 0).then(|| format!("{} times", story.duplicates)));
    fact("content type", story.content_type.clone());
    fact("size", Some(format!("{} bytes", out::count(summary.size))));
    out::line(facts);
    let mut table = out::table(["destination", "state", "attempts", "round", "due"]);
    for delivery in &summary.deliveries {
        table.add_row([
            delivery.destination.to_string(),
            out::word(&delivery.state),
            tried(told, &delivery.destination).to_string(),
            delivery.round.to_string(),
            out::or_dash(delivery.due.map(second)),
        ]);
    }
    if summary.deliveries.is_empty() {
        out::line("\nnobody takes it (unrouted); `pabal messages reroute` asks again");
    } else {
        out::line(format_args!("\n{table}"));
    }
    let mut log =
        out::table(["at", "destination", "outcome", "took", "status", "what happened", "sent"]);
    for line in &story.log {
        let what = [line.cause.as_deref(), line.answer.as_deref()];
        let sent = line.sha256.as_deref().map(|hash| {
            let hash = hash.get(..12).unwrap_or(hash);
            format!("{} bytes, SHA-256 {hash}…", out::count(line.size.unwrap_or(0)))
        });
        log.add_row([
            second(line.at),
            line.destination.to_string(),
            line.outcome.clone(),
            format!("{} ms", line.duration_ms),
            out::or_dash(line.status),
            what.into_iter().flatten().collect::<Vec<_>>().join("\n"),
            out::or_dash(sent),
        ]);
    }
    if !story.log.is_empty() {
        out::line(format_args!("\nwhat was tried, oldest first\n{log}"));
    }
    for dead in &story.dead_letters {
        out::line(format_args!(
            "\ndead letter {} at {}: {} ({}); see `pabal dead-letters show {0}`",
            dead.id,
            dead.endpoint,
            dead.cause,
            out::word(&dead.reason)
        ));
    }
    content(told.content.as_ref())
}

/// How often it was tried in all: a delivery that is settled no longer counts for itself.
fn tried(told: &Told, destination: &EndpointName) -> usize {
    let lines = told.story.log.iter().filter(|line| line.destination == *destination);
    lines.filter(|line| !matches!(line.outcome.as_str(), "discarded" | "replayed")).count()
}

/// Headers and body, if they were asked for.
pub(super) fn content(content: Option<&Content>) -> Result<()> {
    let Some(content) = content else { return Ok(()) };
    out::line("");
    for (name, value) in &content.headers {
        out::line(format_args!("{name}: {value}"));
    }
    match &content.body {
        Some(body) => {
            let bytes = crate::api::from_base64(body).context("the hub's answer is broken")?;
            out::line("");
            out::bytes(&bytes);
            out::line("");
        }
        None => out::line("the body is kept elsewhere"),
    }
    Ok(())
}

/// Whole seconds, in UTC.
pub(super) fn second(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// An instant, or how long ago.
fn instant(text: &str, now: Timestamp) -> Result<Timestamp> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let ago: SignedDuration = text.parse().map_err(|_| {
        out::WrongUse(format!(
            "`{text}` is neither an instant (2026-01-31T09:00:00Z, 2026-01-31T18:00:00+09:00) nor \
             how long ago (2h, 15m)"
        ))
    })?;
    Ok(now.checked_sub(ago)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_an_instant_or_how_long_ago() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let at = |text: &str| instant(text, now).unwrap().to_string();
        assert_eq!(at("2h"), "2026-01-01T22:00:00Z");
        assert_eq!(at("2026-01-01T09:00:00+09:00"), "2026-01-01T00:00:00Z");
        assert!(instant("yesterday", now).is_err());
    }
}
