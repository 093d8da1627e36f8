//! `pabal status`

use std::time::Duration;

use anyhow::Result;
use pabal_core::{Clock, Paused, Timestamp};
use pabal_engine::HealthStatus;

use crate::{
    api::types::{NodeStatus, OutStatus, Phase, Prune, Pruned, Status},
    client::Client,
    operator, out,
};

pub(super) async fn show(client: &Client, json: bool, now: Timestamp) -> Result<()> {
    let status: Status = client.get("/status", &[]).await?;
    if json {
        return out::json(&status);
    }
    out::line(render(&status, now));
    Ok(())
}

/// Shows it every second until Ctrl-C; as JSON, one document a second.
pub(super) async fn watch(client: &Client, json: bool, clock: &dyn Clock) -> Result<()> {
    if client.holds_the_store() {
        // To go on would keep the store from a hub that wants to start.
        show(client, json, clock.now()).await?;
        out::note("no hub runs, so there is nothing to watch");
        return Ok(());
    }
    if !json {
        out::clear();
    }
    loop {
        let status: Status = client.get("/status", &[]).await?;
        if json {
            out::line(serde_json::to_string(&status)?);
        } else {
            out::screen(render(&status, clock.now()));
        }
        tokio::select! {
            () = clock.sleep(Duration::from_secs(1)) => {}
            stopped = tokio::signal::ctrl_c() => return Ok(stopped?),
        }
    }
}

/// `pabal prune`
pub(super) async fn prune(client: &Client, json: bool) -> Result<()> {
    let asked = Prune { by: operator::name() };
    let mut done = Pruned::default();
    loop {
        let step: Pruned = client.post("/prune", &asked).await?;
        done.messages += step.messages;
        done.log += step.log;
        done.inbox += step.inbox;
        done.dead_letters += step.dead_letters;
        if !step.more {
            break;
        }
    }
    if json {
        return out::json(&done);
    }
    let Pruned { messages, log, inbox, dead_letters, .. } = done;
    let [messages, log, inbox, dead] = [messages, log, inbox, dead_letters].map(out::count);
    out::line(format_args!(
        "removed {messages} messages, {log} lines of the delivery log, {inbox} remembered ids and \
         {dead} dead letters"
    ));
    Ok(())
}

fn render(status: &Status, now: Timestamp) -> String {
    let mut sources = out::table(["source", "state", "dead"]);
    for source in &status.sources {
        let state = paused(source.paused.as_ref()).unwrap_or_else(|| "open".to_owned());
        sources.add_row([source.source.to_string(), state, out::count(source.dead)]);
    }
    let mut destinations = out::table([
        "destination",
        "state",
        "waiting",
        "in flight",
        "held",
        "oldest",
        "pace",
        "lanes",
        "dead",
    ]);
    for destination in &status.destinations {
        destinations.add_row(row(destination, status.state, now));
    }
    let state = match status.state {
        Phase::NotRunning if status.nodes.iter().any(|node| node.live) => {
            "runs elsewhere; this is what its store holds"
        }
        Phase::Starting => "is starting",
        Phase::Running => "runs",
        Phase::Stopping => "is stopping",
        Phase::NotRunning => "does not run; this is what its store holds",
    };
    let mut text = format!("hub {} {state} (pabal {})\n", status.hub, status.version);
    let mut nodes = out::table(["node", "heartbeat", "lanes", "configuration", "state"]);
    status.nodes.iter().for_each(|node| {
        nodes.add_row(node_row(node));
    });
    for table in [sources, destinations, nodes] {
        if table.row_count() > 0 {
            text.push_str(&format!("{table}\n"));
        }
    }
    if status.unrouted > 0 {
        text.push_str(&format!(
            "{} unrouted: nobody takes them; see `pabal messages find --unrouted`\n",
            out::count(status.unrouted)
        ));
    }
    text.trim_end().to_owned()
}

fn node_row(node: &NodeStatus) -> [String; 5] {
    let mut state = Vec::new();
    if node.this {
        state.push("this one");
    }
    if !node.live {
        state.push("not heard of: others take over what it holds");
    }
    if node.differs {
        state.push("runs another configuration");
    }
    [
        node.node.clone(),
        format!("{} ago", out::span(Duration::from_millis(node.beat_ms_ago))),
        out::count(node.lanes as u64),
        node.plan.chars().take(8).collect(),
        state.join("; "),
    ]
}

fn row(destination: &OutStatus, phase: Phase, now: Timestamp) -> Vec<String> {
    let here = destination.now.as_ref();
    let state = if let Some(state) = paused(destination.paused.as_ref()) {
        state
    } else if let Some(HealthStatus::Held { cause, probes, probe_in_ms }) =
        here.map(|here| &here.health)
    {
        let next = out::span(Duration::from_millis(*probe_in_ms));
        format!("held: {cause}; {probes} probes failed, next in {next}")
    } else if let Some(tripped) = &destination.tripped {
        format!("held: {}; {} probes failed", tripped.cause, tripped.probes)
    } else if here.is_none() && phase == Phase::Running {
        "not configured: nothing will be sent".to_owned()
    } else if here.is_some_and(|here| here.fetched) {
        "open: the partner fetches".to_owned()
    } else {
        "open".to_owned()
    };
    let age =
        |at: Timestamp| out::span(Duration::try_from(now.duration_since(at)).unwrap_or_default());
    let keys = match destination.keys_held {
        0 => String::new(),
        1 => " (1 key)".to_owned(),
        keys => format!(" ({} keys)", out::count(keys)),
    };
    vec![
        destination.destination.to_string(),
        state,
        out::count(destination.waiting),
        out::count(here.map_or(0, |here| here.in_flight as u64)),
        format!("{}{keys}", out::count(destination.held)),
        out::or_dash(destination.oldest.map(age)),
        out::or_dash(here.and_then(|here| here.pace).map(|pace| format!("{pace:.1}/s"))),
        out::or_dash(
            here.filter(|here| here.lanes_of > 1)
                .map(|here| format!("{} of {}", here.lanes, here.lanes_of)),
        ),
        out::count(destination.dead),
    ]
}

fn paused(paused: Option<&Paused>) -> Option<String> {
    let paused = paused?;
    Some(match &paused.why {
        Some(why) => format!("paused by {}: {why}", paused.by),
        None => format!("paused by {}", paused.by),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_stands_where_and_why() {
        let status: Status = serde_json::from_value(serde_json::json!({
            "hub": "central", "version": "0.0.0", "state": "running", "unrouted": 2,
            "nodes": [
                { "node": "a", "epoch": 3, "beat_ms_ago": 1200, "live": true,
                  "plan": "0123456789abcdef", "differs": false, "this": true, "lanes": 3 },
                { "node": "b", "epoch": 4, "beat_ms_ago": 61000, "live": false,
                  "plan": "fedcba9876543210", "differs": true, "this": false, "lanes": 2 },
            ],
            "sources": [{ "source": "city/in", "paused": null, "dead": 3 }],
            "destinations": [
                { "destination": "welfare/applications", "paused": null, "tripped": null,
                  "now": { "destination": "welfare/applications", "in_flight": 1, "pace": 2.0, "lanes": 2, "lanes_of": 4,
                           "health": { "state": "held", "cause": "HTTP 401", "probes": 4, "probe_in_ms": 8000 } },
                  "waiting": 12345, "held": 7, "keys_held": 2, "oldest": "2026-01-01T00:00:00Z", "dead": 1 },
                { "destination": "clinic/results", "paused": null, "tripped": null,
                  "now": { "destination": "clinic/results", "in_flight": 0, "pace": null, "fetched": true,
                           "health": { "state": "open" } },
                  "waiting": 2, "held": 0, "keys_held": 0, "oldest": "2026-01-01T00:00:00Z", "dead": 0 },
                { "destination": "tax/decisions", "now": null, "tripped": null,
                  "paused": { "by": "kim", "why": "their maintenance", "at": "2026-01-01T00:00:00Z" },
                  "waiting": 0, "held": 0, "keys_held": 0, "oldest": null, "dead": 0 },
            ],
        }))
        .unwrap();
        let now = "2026-01-01T00:05:00Z".parse().unwrap();
        insta::assert_snapshot!(render(&status, now));
    }
}
