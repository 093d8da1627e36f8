//! `pabal dead-letters`

use std::time::Duration;

use anyhow::Result;
use indicatif::ProgressBar;
use pabal_core::{Clock, DeadLetter, DeadLetterGroup, DeadLetterQuery, Holds};
use pabal_engine::ReplayReport;

use super::messages::{content, second};
use crate::{
    api::GONE,
    api::types::{Discarded, Preview, Replayed, Selection, ToldDead},
    cli::{Act, DeadLetters, Which},
    client::Client,
    operator, out,
};

/// So many are read at once to be replayed.
const PAGE: u32 = 1000;

pub(super) async fn dead_letters(
    client: &Client,
    what: DeadLetters,
    json: bool,
    clock: &dyn Clock,
) -> Result<()> {
    match what {
        DeadLetters::List { which, each: false, .. } => groups(client, &which, json).await,
        DeadLetters::List { which, each: true, limit } => list(client, &which, limit, json).await,
        DeadLetters::Show { id, body } => {
            let told: ToldDead =
                client.get(&format!("/dead-letters/{id}"), &super::open_query(body)).await?;
            if json { out::json(&told) } else { show(&told) }
        }
        DeadLetters::Replay { ids, which, all, canary, rate, dry_run, act } => {
            let choice = Choice::new(ids, which, all)?;
            let replay = Replay { client, choice, canary, rate, json, clock };
            replay.run(dry_run, act).await
        }
        DeadLetters::Discard { ids, which, all, dry_run, act } => {
            discard(client, Choice::new(ids, which, all)?, dry_run, act, json).await
        }
    }
}

/// The dead letters that were chosen: by number, or by what they have in common.
struct Choice {
    ids: Vec<i64>,
    query: Option<DeadLetterQuery>,
}

impl Choice {
    fn new(ids: Vec<i64>, which: Which, all: bool) -> Result<Self> {
        let query = DeadLetterQuery {
            endpoint: which.endpoint,
            reason: which.reason,
            cause: which.cause,
            kind: which.kind,
            message: which.message,
            ..DeadLetterQuery::default()
        };
        let narrowed = query != DeadLetterQuery::default();
        let wrong = |text: &str| Err(out::WrongUse(text.to_owned()).into());
        if !ids.is_empty() && narrowed {
            return wrong("say either numbers or options that choose, not both");
        }
        if ids.is_empty() && !narrowed && !all {
            return wrong("say which: numbers, options such as --endpoint or --reason, or --all");
        }
        let query = ids.is_empty().then_some(query);
        Ok(Self { ids, query })
    }

    fn selection(&self, act: &Act) -> Selection {
        Selection {
            ids: self.ids.clone(),
            query: self.query.clone(),
            why: act.why.clone(),
            by: operator::name(),
            ..Selection::default()
        }
    }
}

fn query(which: &Which) -> Vec<(&'static str, String)> {
    let mut query = Vec::new();
    let mut add = |name, value: Option<String>| query.extend(value.map(|value| (name, value)));
    add("endpoint", which.endpoint.as_ref().map(ToString::to_string));
    add("reason", which.reason.as_ref().map(out::word));
    add("cause", which.cause.clone());
    add("kind", which.kind.as_ref().map(out::word));
    add("message", which.message.map(|id| id.to_string()));
    query
}

async fn groups(client: &Client, which: &Which, json: bool) -> Result<()> {
    let groups: Vec<DeadLetterGroup> = client.get("/dead-letters/groups", &query(which)).await?;
    if json {
        return out::json(&groups);
    }
    if groups.is_empty() {
        out::line("no dead letters");
    } else {
        out::line(group_table(&groups));
    }
    Ok(())
}

fn group_table(groups: &[DeadLetterGroup]) -> comfy_table::Table {
    let mut table = out::table([
        "endpoint",
        "kind",
        "reason",
        "cause",
        "count",
        "holding a key",
        "oldest",
        "newest",
    ]);
    for group in groups {
        table.add_row([
            group.endpoint.to_string(),
            out::word(&group.kind),
            out::word(&group.reason),
            group.cause.clone(),
            out::count(group.count),
            out::count(group.holding),
            second(group.oldest),
            second(group.newest),
        ]);
    }
    table
}

async fn list(client: &Client, which: &Which, limit: u32, json: bool) -> Result<()> {
    let mut query = query(which);
    query.push(("limit", limit.to_string()));
    let found: Vec<DeadLetter> = client.get("/dead-letters", &query).await?;
    if json {
        return out::json(&found);
    }
    if found.is_empty() {
        out::line("no dead letters");
        return Ok(());
    }
    let mut table = out::table([
        "no.", "since", "endpoint", "kind", "reason", "cause", "message", "key", "holds",
    ]);
    for dead in &found {
        table.add_row([
            dead.id.to_string(),
            second(dead.at),
            dead.endpoint.to_string(),
            out::word(&dead.kind),
            out::word(&dead.reason),
            dead.cause.clone(),
            dead.message.map_or_else(|| out::or_dash(dead.origin_id.as_ref()), |id| id.to_string()),
            out::or_dash(dead.key.as_ref()),
            out::word(&dead.holds),
        ]);
    }
    out::line(table);
    if found.len() == limit as usize {
        out::note("there may be more: raise --limit, or narrow by the options");
    }
    Ok(())
}

fn show(told: &ToldDead) -> Result<()> {
    let dead = &told.dead_letter;
    let mut facts = out::facts();
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            facts.add_row([name.to_owned(), value]);
        }
    };
    fact("dead letter", Some(dead.id.to_string()));
    fact("of", Some(format!("{} ({})", dead.endpoint, out::word(&dead.kind))));
    fact("since", Some(second(dead.at)));
    fact("reason", Some(out::word(&dead.reason)));
    fact("cause", Some(dead.cause.clone()));
    fact("detail", dead.detail.clone());
    fact("message id", dead.message.map(|id| id.to_string()));
    fact("origin id", dead.origin_id.clone());
    fact("type", Some(dead.message_type.clone()));
    fact("key", dead.key.clone());
    fact("replayed", Some(format!("{} times", dead.round)));
    fact(
        "holds",
        match dead.holds {
            Holds::Nothing => None,
            Holds::Key => {
                Some("the messages of its key, until it is replayed or discarded".to_owned())
            }
            Holds::Destination => Some(
                "all messages of the destination, until it is replayed or discarded".to_owned(),
            ),
        },
    );
    out::line(facts);
    content(told.content.as_ref())
}

/// A replay under way.
struct Replay<'a> {
    client: &'a Client,
    choice: Choice,
    canary: Option<u32>,
    rate: u32,
    json: bool,
    clock: &'a dyn Clock,
}

impl Replay<'_> {
    async fn run(self, dry_run: bool, act: Act) -> Result<()> {
        let mut selection = self.choice.selection(&act);
        selection.canary = self.canary;
        selection.dry_run = true;
        // Whoever names them by number knows what they are.
        if dry_run || self.choice.query.is_some() {
            let told: Replayed = self.client.post("/dead-letters/replay", &selection).await?;
            let preview = told.preview.unwrap_or_default();
            if !go_on(&preview, "replay", dry_run, &act, self.json)? {
                return Ok(());
            }
        }
        selection.dry_run = false;
        let report = self.replay(selection).await?;
        let nothing = report.queued + report.taken + report.routed == 0;
        if self.json {
            out::json(&report)?;
        } else {
            tell(&report, self.choice.query.is_some());
        }
        if nothing {
            // By number they never were there; else they were a moment ago.
            let why = match &self.choice.query {
                Some(_) if report.refused.iter().all(|(_, why)| why == GONE) => {
                    ": nothing was left of them, somebody else was faster"
                }
                _ => "",
            };
            anyhow::bail!("nothing was replayed{why}");
        }
        if self.canary.is_some() && !self.json {
            out::note(
                "see what becomes of them with `pabal dead-letters list`, then replay the rest",
            );
        }
        Ok(())
    }

    /// A second's worth at a time: the partner gets them at this pace, and new messages go out in
    /// between.
    async fn replay(&self, selection: Selection) -> Result<ReplayReport> {
        let mut report = ReplayReport::default();
        let ids = self.chosen().await?;
        let bar = if out::watched() && ids.len() > self.rate as usize {
            ProgressBar::new(ids.len() as u64)
        } else {
            ProgressBar::hidden()
        };
        let mut due = self.clock.elapsed();
        for part in ids.chunks(self.rate as usize) {
            self.clock.sleep_until(due).await;
            due += Duration::from_secs(1);
            let step =
                Selection { ids: part.to_vec(), query: None, canary: None, ..selection.clone() };
            let told: Replayed = self.client.post("/dead-letters/replay", &step).await?;
            let told = told.report.unwrap_or_default();
            report.queued += told.queued;
            report.taken += told.taken;
            report.routed += told.routed;
            report.refused.extend(told.refused);
            bar.inc(part.len() as u64);
        }
        bar.finish_and_clear();
        Ok(report)
    }

    /// The numbers of all that were chosen, oldest first, as they are now: what dies again on the
    /// way is not replayed again.
    async fn chosen(&self) -> Result<Vec<i64>> {
        let most = self.canary.map_or(usize::MAX, |canary| canary as usize);
        let Some(narrow) = &self.choice.query else {
            let mut ids = self.choice.ids.clone();
            ids.sort_unstable();
            ids.dedup();
            ids.truncate(most);
            return Ok(ids);
        };
        let which = Which {
            endpoint: narrow.endpoint.clone(),
            reason: narrow.reason,
            cause: narrow.cause.clone(),
            kind: narrow.kind,
            message: narrow.message,
        };
        let mut ids: Vec<i64> = Vec::new();
        while ids.len() < most {
            let mut query = query(&which);
            query.push(("after", ids.last().copied().unwrap_or(0).to_string()));
            query.push(("limit", PAGE.to_string()));
            let page: Vec<DeadLetter> = self.client.get("/dead-letters", &query).await?;
            let full = page.len() == PAGE as usize;
            ids.extend(page.iter().map(|dead| dead.id));
            if !full {
                break;
            }
        }
        ids.truncate(most);
        Ok(ids)
    }
}

/// Shows what would be done; true: do it.
fn go_on(preview: &Preview, verb: &str, dry_run: bool, act: &Act, json: bool) -> Result<bool> {
    if dry_run && json {
        out::json(preview)?;
        return Ok(false);
    }
    if preview.count == 0 {
        if json {
            out::json(preview)?;
        } else {
            out::line("no dead letter fits");
        }
        return Ok(false);
    }
    let table = group_table(&preview.groups);
    if dry_run {
        out::line(table);
        out::line(format_args!("would {verb} {}", out::count(preview.count)));
        return Ok(false);
    }
    if act.yes {
        return Ok(true);
    }
    out::note(table);
    out::ask(&format!("{} dead letters: {verb}?", out::count(preview.count)))
}

/// What was done; those that were `found` by what they share were nobody's to name.
fn tell(report: &ReplayReport, found: bool) {
    for (count, what) in [
        (report.queued, "queued again at their old place"),
        (report.taken, "read again and taken"),
        (report.routed, "routed again"),
    ] {
        if count > 0 {
            out::line(format_args!("{} {what}", out::count(count)));
        }
    }
    let (gone, refused): (Vec<_>, Vec<_>) =
        report.refused.iter().partition(|(_, why)| found && why == GONE);
    for (id, why) in refused {
        out::line(format_args!("{id} not replayed: {why}"));
    }
    if !gone.is_empty() {
        out::line(format_args!("{} were {GONE}", out::count(gone.len() as u64)));
    }
}

async fn discard(
    client: &Client,
    choice: Choice,
    dry_run: bool,
    act: Act,
    json: bool,
) -> Result<()> {
    let mut selection = choice.selection(&act);
    selection.dry_run = true;
    // Discarding is final, so it is always asked for.
    let told: Discarded = client.post("/dead-letters/discard", &selection).await?;
    if !go_on(&told.preview.unwrap_or_default(), "discard", dry_run, &act, json)? {
        return Ok(());
    }
    selection.dry_run = false;
    let told: Discarded = client.post("/dead-letters/discard", &selection).await?;
    if json {
        return out::json(&told);
    }
    out::line(format_args!("{} discarded", out::count(told.discarded.len() as u64)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_by_number_or_by_what_they_share_and_never_all_by_accident() {
        assert!(Choice::new(vec![], Which::default(), false).is_err());
        assert!(Choice::new(vec![], Which::default(), true).unwrap().query.is_some());
        assert!(Choice::new(vec![1], Which::default(), false).unwrap().query.is_none());
        let narrow = Which { cause: Some("HTTP 404".to_owned()), ..Which::default() };
        assert!(Choice::new(vec![1], narrow.clone(), false).is_err());
        assert!(Choice::new(vec![], narrow, false).is_ok());
    }
}
