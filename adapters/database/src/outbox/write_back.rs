//! Writes back what became of rows, and removes old ones.

use std::time::Duration;

use super::{
    access::{Connection, Sql},
    hand_over::{Fate, Item},
    memory::Receipts,
    relay::{Memory, Relay},
    statements::PRUNED_AT_ONCE,
    table::Table,
    trouble::Trouble,
};

/// The bounds of how often sent rows are removed.
pub(super) const PRUNE_FIRST: Duration = Duration::from_secs(1);
const PRUNE_MAX: Duration = Duration::from_secs(3600);

impl Relay {
    /// Writes back what became of rows, in the transaction that holds them if there is one.
    pub(super) async fn write_back(
        &self,
        table: &Table,
        items: &[Item],
        held: Option<Connection>,
        memory: &mut Memory,
    ) -> Result<(), Trouble> {
        let one = self.checked.settings.one_transaction;
        let (mut taken, mut refused, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut receipts = Receipts::new();
        for item in items {
            match &item.fate {
                Fate::Taken if one => {
                    // It was marked together with its message, unless it comes again.
                    if memory.receipts.contains(&item.id) {
                        taken.push(item.id.clone());
                    }
                    receipts.insert(item.id.clone());
                }
                Fate::Taken => taken.push(item.id.clone()),
                Fate::Refused(reason) => refused.push((item.id.clone(), reason.clone())),
                Fate::Failed(reason) => failed.push((item.id.clone(), reason.clone())),
                Fate::Elsewhere | Fate::Untouched(_) | Fate::Ready(_) => {}
            }
        }
        memory.receipts = receipts;
        if taken.is_empty() && refused.is_empty() && failed.is_empty() {
            if let Some(connection) = held {
                self.ask("letting rows go", connection.roll_back()).await?;
            }
            return Ok(());
        }
        let write = |reasons: bool| {
            let mut statements = Vec::new();
            if !taken.is_empty() {
                statements.push(table.mark_sent(&taken));
            }
            if !refused.is_empty() {
                statements.extend(table.mark_failed(&refused, reasons));
            }
            if !failed.is_empty() {
                statements.extend(table.count_retries(&failed, reasons));
            }
            statements
        };
        match self.write(held, &write(true)).await {
            // A reason may be too long for its column, and must not keep the rest from being written.
            Err(Trouble::Lasting(why)) if !(refused.is_empty() && failed.is_empty()) => {
                tracing::warn!(source = %self.source, why, "written without the reasons");
                self.write(None, &write(false)).await
            }
            result => result,
        }
    }

    async fn write(&self, held: Option<Connection>, statements: &[Sql]) -> Result<(), Trouble> {
        let mut connection = match held {
            Some(connection) => connection,
            None => {
                let mut connection = self.connect().await?;
                self.ask("beginning a transaction", connection.begin()).await?;
                connection
            }
        };
        for statement in statements {
            self.ask("writing back what became of rows", connection.execute(statement)).await?;
        }
        self.ask("committing what became of rows", connection.commit()).await
    }

    /// Removes what was sent long ago, again and again, for a relay that does not look.
    pub(super) async fn keep_pruned(&self, table: &Table) {
        let mut wait = PRUNE_FIRST;
        loop {
            self.clock.sleep(wait).await;
            wait = self.prune(table).await.max(PRUNE_FIRST);
        }
    }

    /// Removes some of what was sent long ago; when to do so again.
    pub(super) async fn prune(&self, table: &Table) -> Duration {
        let Some(keep) = self.checked.settings.keep_sent else { return Duration::MAX };
        let Some(statement) = table.prune(keep) else { return Duration::MAX };
        let removed = async {
            let mut connection = self.connect().await?;
            let removed = self.ask("removing sent rows", connection.execute(&statement)).await?;
            connection.give_back();
            Ok::<_, Trouble>(removed)
        };
        match removed.await {
            Ok(removed) if removed >= PRUNED_AT_ONCE as u64 => Duration::ZERO,
            Ok(_) => (keep / 100).clamp(PRUNE_FIRST, PRUNE_MAX),
            Err(Trouble::Passing(why) | Trouble::Lasting(why)) => {
                tracing::error!(alert = true, source = %self.source, why, "sent rows are not removed");
                PRUNE_MAX
            }
        }
    }
}
