//! The play sender: hands every record over by HTTP, some of them twice, three with other content
//! under the same id.

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use pabal_core::{Bytes, Clock, MessageId, Secret};
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, task::JoinSet};

use super::table::{Input, Record};

/// Hand-overs side by side, each worker with its own keys.
const WORKERS: usize = 48;
/// The table is sorted by key, so the reader must get far ahead to keep all workers busy.
const AHEAD: usize = 1024;
/// Later repeats come after so many other records of the worker.
const LATER: usize = 16;
/// The hub may say "later" for so long before the sender gives up.
const PATIENCE: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
pub(super) const TYPE: &str = "district.changed";

/// What the sender knows of its own doing.
#[derive(Debug, Default)]
pub(super) struct Sent {
    handed_over: AtomicU64,
    repeated: AtomicU64,
    recognised: AtomicU64,
    altered: AtomicU64,
    conflicts: AtomicU64,
    retries: AtomicU64,
}

/// The same as numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct SentCounts {
    /// Records with a receipt.
    pub(super) handed_over: u64,
    /// Records handed over a second time.
    pub(super) repeated: u64,
    /// Of these, recognised by the hub, with the first receipt's id.
    pub(super) recognised: u64,
    /// Ids used again for other content.
    pub(super) altered: u64,
    /// Of these, refused as a conflict.
    pub(super) conflicts: u64,
    /// Hand-overs that had to be tried again.
    pub(super) retries: u64,
}

impl Sent {
    pub(super) fn counts(&self) -> SentCounts {
        SentCounts {
            handed_over: self.handed_over.load(Relaxed),
            repeated: self.repeated.load(Relaxed),
            recognised: self.recognised.load(Relaxed),
            altered: self.altered.load(Relaxed),
            conflicts: self.conflicts.load(Relaxed),
            retries: self.retries.load(Relaxed),
        }
    }
}

/// Where and as whom to hand over.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    pub(super) url: String,
    pub(super) token: Secret,
    pub(super) http: reqwest::Client,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) seed: u64,
    /// The lines whose ids are used again for other content.
    pub(super) altered: Arc<HashSet<u64>>,
    pub(super) sent: Arc<Sent>,
}

/// What the hub said to one hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Stored,
    Duplicate,
    Conflict,
}

#[derive(Deserialize)]
struct Taken {
    id: MessageId,
}

impl Sender {
    /// Hands all records over and returns once each has a receipt.
    pub(super) async fn run(&self, input: Input) -> Result<()> {
        let mut workers = JoinSet::new();
        let mut queues = Vec::new();
        for _ in 0..WORKERS {
            let (queue, records) = mpsc::channel(AHEAD);
            queues.push(queue);
            workers.spawn(self.clone().work(records));
        }
        let reader = tokio::task::spawn_blocking(move || -> Result<()> {
            for record in input.records()? {
                let record = record?;
                let worker = pabal_core::slot(record.key()) as usize % WORKERS;
                // A worker that is gone has said why.
                if queues[worker].blocking_send(record).is_err() {
                    break;
                }
            }
            Ok(())
        });
        while let Some(done) = workers.join_next().await {
            done.context("a worker of the play sender broke")??;
        }
        reader.await.context("the reader of the table broke")?
    }

    async fn work(self, mut records: mpsc::Receiver<Record>) -> Result<()> {
        let mut later = VecDeque::new();
        while let Some(record) = records.recv().await {
            self.hand_over(record, &mut later).await?;
            if later.len() > LATER
                && let Some(record) = later.pop_front()
            {
                self.repeat(&record).await?;
            }
        }
        for record in later {
            self.repeat(&record).await?;
        }
        Ok(())
    }

    async fn hand_over(&self, record: Record, later: &mut VecDeque<Record>) -> Result<()> {
        let mut draw = fastrand::Rng::with_seed(self.seed ^ record.line.wrapping_mul(0x9e37_79b9));
        let twice = draw.u8(..10) == 0;
        let at_once = draw.bool();
        if twice && at_once {
            let (one, other) =
                tokio::join!(self.post(&record, record.body()), self.post(&record, record.body()));
            let said = [one?, other?];
            ensure!(
                !said.contains(&Said::Conflict),
                "line {}: the same content twice was called a conflict",
                record.line
            );
            self.sent.repeated.fetch_add(1, Relaxed);
            let recognised = said.contains(&Said::Duplicate);
            self.sent.recognised.fetch_add(recognised.into(), Relaxed);
        } else {
            let said = self.post(&record, record.body()).await?;
            ensure!(said != Said::Conflict, "line {}: called a conflict", record.line);
        }
        self.sent.handed_over.fetch_add(1, Relaxed);
        if self.altered.contains(&record.line) {
            let other =
                Record { name: format!("{} (다른 내용)", record.name), ..record.clone() };
            let said = self.post(&record, other.body()).await?;
            self.sent.altered.fetch_add(1, Relaxed);
            self.sent.conflicts.fetch_add((said == Said::Conflict).into(), Relaxed);
        }
        if twice && !at_once {
            later.push_back(record);
        }
        Ok(())
    }

    async fn repeat(&self, record: &Record) -> Result<()> {
        let said = self.post(record, record.body()).await?;
        self.sent.repeated.fetch_add(1, Relaxed);
        self.sent.recognised.fetch_add((said == Said::Duplicate).into(), Relaxed);
        Ok(())
    }

    /// Hands over once, with the same id for as long as the hub does not say what became of it.
    async fn post(&self, record: &Record, body: Bytes) -> Result<Said> {
        let give_up = self.clock.elapsed() + PATIENCE;
        loop {
            let wait = match self.try_post(record, body.clone()).await {
                Ok(Ok(said)) => return Ok(said),
                Ok(Err(wait)) => wait,
                Err(error) if self.clock.elapsed() > give_up => {
                    return Err(error)
                        .with_context(|| format!("line {}: cannot hand over", record.line));
                }
                Err(_) => Duration::from_millis(100),
            };
            ensure!(
                self.clock.elapsed() <= give_up,
                "line {}: the hub says \"later\" for {PATIENCE:?}",
                record.line
            );
            self.sent.retries.fetch_add(1, Relaxed);
            self.clock.sleep(wait).await;
        }
    }

    /// `Ok(Err(wait))`: the hub asks to come back.
    async fn try_post(&self, record: &Record, body: Bytes) -> Result<Result<Said, Duration>> {
        let answer = self
            .http
            .post(&self.url)
            .bearer_auth(self.token.expose())
            .header("ce-specversion", "1.0")
            .header("ce-id", &record.code)
            .header("ce-source", super::ORIGIN)
            .header("ce-type", TYPE)
            .header("ce-partitionkey", record.key())
            .header("ce-keyversion", record.line)
            .header("content-type", "application/json")
            .timeout(ANSWER_LIMIT)
            .body(body)
            .send()
            .await?;
        let status = answer.status().as_u16();
        let wait =
            answer.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
        let content = answer.bytes().await?;
        let said = match status {
            202 => Said::Stored,
            200 => Said::Duplicate,
            409 => return Ok(Ok(Said::Conflict)),
            503 => return Ok(Err(Duration::from_secs(wait.unwrap_or(1)))),
            _ => bail!(
                "line {}: the hub answered {status}: {}",
                record.line,
                String::from_utf8_lossy(&content)
            ),
        };
        let taken: Taken =
            serde_json::from_slice(&content).context("the hub's receipt cannot be read")?;
        let right = super::message_id(&record.code)?;
        ensure!(
            taken.id == right,
            "line {}: the receipt names {} instead of {right}",
            record.line,
            taken.id
        );
        Ok(Ok(said))
    }
}
