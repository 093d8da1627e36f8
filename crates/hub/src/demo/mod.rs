//! `pabal demo`: the whole job on this machine. A hub as it is shipped, two play agencies, a play
//! sender, faults, and at the end a count that is taken from the agencies' own books.

mod agency;
mod book;
mod files;
mod report;
mod sender;
mod table;
mod watch;

use std::{
    collections::{BTreeSet, HashSet},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use pabal_core::{
    Adapter, Clock, DeadKind, DeadLetterQuery, DeadReason, MessageId, MessageQuery, Secret, Stop,
};

use self::{
    agency::Agency,
    book::Book,
    files::Place,
    report::Report,
    sender::{Sender, Sent},
    table::{EXISTS, Input, Record},
    watch::Watch,
};
use crate::{
    cli::Demo,
    logging, out,
    plan::{Depth, Plan},
    running::Running,
    signals::StopSignals,
    stores,
};

/// The hub's name, a part of every message id.
const HUB: &str = "demo";
const SOURCE: &str = "city/districts";
/// What the play sender says it is.
const ORIGIN: &str = "/city/districts";
/// So many ids are used again for other content.
const ALTERATIONS: usize = 3;
/// Once nothing at all has happened for so long, something is wrong.
const STALL: Duration = Duration::from_secs(60);

/// The id that the message of a record must have.
fn message_id(code: &str) -> Result<MessageId> {
    Ok(MessageId::of(HUB, &SOURCE.parse()?, ORIGIN, code))
}

/// What is known of the input before anything is sent.
#[derive(Debug, Default)]
struct Survey {
    records: u64,
    existing: u64,
    lines: Vec<u32>,
}

/// Runs all of it. Success: everything was as it must be.
pub(crate) async fn demo(
    demo: &Demo,
    json: bool,
    adapters: Vec<Arc<dyn Adapter>>,
    ingress: pabal_adapter_rest::Ingress,
    clock: Arc<dyn Clock>,
) -> Result<ExitCode> {
    let input = demo.input.clone().map_or(Input::Sample, Input::File);
    let survey = survey(input.clone()).await?;
    let mut place = Place::make(demo.dir.as_deref())?;
    logging::start_in_file(&place.log())?;
    let stop = Stop::new();
    let book = |name: &str| match &demo.books {
        None => Ok(Book::default()),
        Some(dir) => {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("cannot make {}", dir.display()))?;
            Book::written_to(&dir.join(format!("{name}.jsonl")))
        }
    };
    let seed = Some(demo.seed);
    let archive = Agency::open(book("archive")?, seed, clock.clone(), stop.clone()).await?;
    let census = Agency::open(book("census")?, None, clock.clone(), stop.clone()).await?;
    let postgres = demo.postgres.as_ref().map(Secret::new);
    let token = files::write(&place, archive.address, census.address, postgres.as_ref())?;
    let plan = Plan::load(&place.config(), None, adapters, ingress, Depth::Parts)
        .context("the demo's own configuration is refused")?;
    if demo.postgres.is_some() {
        must_be_empty(&plan, &clock).await?;
    }
    let hub = Running::start(&plan, clock.clone()).await?;
    if !json {
        out::note(format_args!(
            "a hub in {}, two play agencies, {} records to hand over (seed {})",
            place.dir.display(),
            out::count(survey.records),
            demo.seed
        ));
    }
    let play = Play {
        hub: &hub,
        archive: &archive,
        census: &census,
        sender: Sender {
            url: format!("http://{}/in/{SOURCE}", hub.http),
            token,
            http: client()?,
            clock: clock.clone(),
            seed: demo.seed,
            altered: Arc::new(altered(&survey.lines, demo.seed)),
            sent: Arc::new(Sent::default()),
        },
        clock: clock.clone(),
    };
    let mut signals = StopSignals::listen()?;
    let played = tokio::select! {
        played = play.play(&survey, input, json) => Some(played),
        () = signals.next() => None,
    };
    let report = match played {
        Some(Ok(report)) => report,
        None => {
            hub.stop().await;
            out::note("stopped before the end");
            return Ok(ExitCode::from(1));
        }
        Some(Err(error)) => {
            place.keep();
            hub.stop().await;
            return Err(error
                .context(format!("the demo failed; its files stay in {}", place.dir.display())));
        }
    };
    if json {
        out::json(&report.json())?;
    } else {
        out::line(report.table());
    }
    if !report.right() {
        place.keep();
        out::note(format_args!(
            "not all is as it must be; files and log stay in {}",
            place.dir.display()
        ));
    }
    if demo.keep {
        keep(&hub, &place);
        signals.next().await;
    }
    hub.stop().await;
    stop.fire();
    if place.kept() {
        out::note(format_args!("files stay in {}", place.dir.display()));
    }
    Ok(if report.right() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// What an earlier demo left would be counted again; another hub's database is refused by name.
async fn must_be_empty(plan: &Plan, clock: &Arc<dyn Clock>) -> Result<()> {
    let opened = stores::open(plan, clock.clone()).await?;
    let any = opened.store.messages(&MessageQuery { limit: 1, ..MessageQuery::default() }).await;
    opened.close(&**clock).await;
    ensure!(
        any?.is_empty(),
        "the database holds the messages of an earlier demo: drop its schema `pabal`, or name \
         another database"
    );
    Ok(())
}

/// Says how to reach the hub that is left running.
fn keep(hub: &Running, place: &Place) {
    out::note(format_args!(
        "the hub goes on, until Ctrl-C\n  partners   http://{}/in/{SOURCE}\n  operators  http://{}/metrics (token in {})\n  try        pabal --config {} status",
        hub.http,
        hub.admin,
        hub.token_file.display(),
        place.config().display()
    ));
}

fn client() -> Result<reqwest::Client> {
    Ok(reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(Duration::from_secs(5))
        .pool_idle_timeout(Duration::from_secs(30))
        .build()?)
}

/// Reads the whole input once, so that a fault in it is told before anything starts.
async fn survey(input: Input) -> Result<Survey> {
    let reading = tokio::task::spawn_blocking(move || {
        let mut survey = Survey::default();
        let mut codes = HashSet::new();
        for record in input.records()? {
            let record = record?;
            ensure!(
                codes.insert(record.code.parse::<u64>()?),
                "line {}: the code {} is there twice",
                record.line,
                record.code
            );
            survey.records += 1;
            survey.existing += u64::from(record.status == EXISTS);
            survey.lines.push(u32::try_from(record.line)?);
        }
        ensure!(survey.records > 0, "the table has no records");
        Ok(survey)
    });
    reading.await.context("reading the table broke")?
}

/// The lines whose ids are used again for other content.
fn altered(lines: &[u32], seed: u64) -> HashSet<u64> {
    let mut draw = fastrand::Rng::with_seed(seed);
    let chosen: BTreeSet<u32> =
        draw.choose_multiple(lines.iter().copied(), ALTERATIONS).into_iter().collect();
    chosen.into_iter().map(u64::from).collect()
}

/// The play itself.
struct Play<'a> {
    hub: &'a Running,
    archive: &'a Agency,
    census: &'a Agency,
    sender: Sender,
    clock: Arc<dyn Clock>,
}

impl Play<'_> {
    async fn play(&self, survey: &Survey, input: Input, json: bool) -> Result<Report> {
        let began = self.clock.elapsed();
        let watch = Watch::new(survey.records, survey.existing, json);
        let sending = self.sender.run(input.clone());
        tokio::pin!(sending);
        let mut sent = false;
        let mut moved = (self.numbers(), self.clock.elapsed());
        // Ends when all is handed over, all is in the books, and the outbox is empty.
        loop {
            tokio::select! {
                done = &mut sending, if !sent => {
                    done?;
                    sent = true;
                }
                () = self.clock.sleep(Duration::from_millis(100)) => {}
            }
            let numbers = self.numbers();
            let [handed_over, first, second, ..] = numbers;
            watch.show(handed_over, first, second, self.clock.elapsed());
            if sent
                && first >= survey.records
                && second >= survey.existing
                && self.waiting().await? == 0
            {
                break;
            }
            if numbers != moved.0 {
                moved = (numbers, self.clock.elapsed());
            } else if self.clock.elapsed() - moved.1 > STALL {
                watch.end();
                return Err(self.stalled(survey, sent).await);
            }
        }
        watch.end();
        let seconds = (self.clock.elapsed() - began).as_secs_f64();
        self.report(survey, input, seconds).await
    }

    /// Everything that moves as long as the play does.
    fn numbers(&self) -> [u64; 6] {
        let (first, second) = (self.archive.book.tally(), self.census.book.tally());
        let sent = self.sender.sent.counts();
        [
            sent.handed_over,
            first.effects,
            second.effects,
            first.repeats + second.repeats,
            sent.recognised + sent.conflicts,
            self.archive.faults().busy + self.archive.faults().lost_before,
        ]
    }

    async fn waiting(&self) -> Result<u64> {
        let counts = self.hub.store.counts().await?;
        Ok(counts.iter().map(|count| count.waiting).sum())
    }

    async fn stalled(&self, survey: &Survey, sent: bool) -> anyhow::Error {
        let [handed_over, first, second, ..] = self.numbers();
        let counts = self.hub.store.counts().await;
        let dead = self.hub.store.dead_letter_groups(&DeadLetterQuery::default()).await;
        anyhow::anyhow!(
            "nothing has happened for {STALL:?}. It waits for: {}first agency {first} of {}, \
             second agency {second} of {}\nin the store: {counts:?}\ndestinations: {:?}\n\
             dead letters: {dead:?}",
            if sent {
                String::new()
            } else {
                format!("hand-overs {handed_over} of {}, ", survey.records)
            },
            survey.records,
            survey.existing,
            self.hub.engine.status(),
        )
    }

    async fn report(&self, survey: &Survey, input: Input, seconds: f64) -> Result<Report> {
        let groups = self.hub.store.dead_letter_groups(&DeadLetterQuery::default()).await?;
        let (conflicts, others): (Vec<_>, Vec<_>) = groups.iter().partition(|group| {
            group.kind == DeadKind::Source && group.reason == DeadReason::Conflict
        });
        self.archive.book.flush()?;
        self.census.book.flush()?;
        let expected = |wanted: fn(&Record) -> bool| -> Result<_> {
            let records =
                input.records()?.filter(move |record| record.as_ref().map_or(true, wanted));
            Ok(records.map(|record| {
                let record = record?;
                Ok((message_id(&record.code)?, record))
            }))
        };
        Ok(Report {
            records: survey.records,
            existing: survey.existing,
            alterations: self.sender.altered.len() as u64,
            sent: self.sender.sent.counts(),
            first: self.archive.book.tally(),
            first_audit: self.archive.book.audit(expected(|_| true)?)?,
            faults: self.archive.faults(),
            second: self.census.book.tally(),
            second_audit: self.census.book.audit(expected(|record| record.status == EXISTS)?)?,
            conflicts_kept: conflicts.iter().map(|group| group.count).sum(),
            other_dead_letters: others.iter().map(|group| group.count).sum(),
            seconds,
            peak_memory_mib: report::peak_memory_mib(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_lines_are_chosen_by_the_seed() {
        let lines: Vec<u32> = (2..100).collect();
        assert_eq!(altered(&lines, 1).len(), 3);
        assert_eq!(altered(&lines, 1), altered(&lines, 1));
        assert_ne!(altered(&lines, 1), altered(&lines, 2));
        assert_eq!(altered(&lines[..2], 1).len(), 2);
    }
}
