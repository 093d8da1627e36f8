//! What a look at the server finds, before or beside a relay that runs. Nothing is made by it.

use bytesize::ByteSize;
use pabal_core::{Finding, Severity};

use super::{Fault, facts::Facts, relay::Cdc};

impl Cdc {
    /// What stands in the way of a stream, and what will one day; worst first.
    pub(crate) async fn probe(&self) -> Vec<Finding> {
        let mut found = match Facts::look(&self.pool, &self.slot).await {
            Ok(facts) => self.findings(&facts),
            Err(fault) => return vec![Finding::fault(fault.to_string())],
        };
        match self.poll.find().await {
            Ok(table) => self.poll.layout(&table, &mut found),
            // That there is no table, or no right to read it, has been said.
            Err(_) if found.iter().any(|finding| finding.severity == Severity::Fault) => {}
            Err(trouble) => found.push(Finding::fault(Fault::from(trouble).to_string())),
        }
        found.sort_by_key(|finding| finding.severity);
        found
    }

    fn findings(&self, facts: &Facts) -> Vec<Finding> {
        let obstacles = facts.obstacles(&self.slot).into_iter().map(|(what, help)| {
            // It goes on without a stream.
            let found = if self.fall_back {
                Finding::warning(format!("{what}; the table is polled"))
            } else {
                Finding::fault(what)
            };
            found.help(help)
        });
        let mut found: Vec<Finding> = obstacles.collect();
        if facts.keeps_all {
            let what = "nothing limits what a slot makes the server keep: a hub that is away for long \
                        fills its disk";
            found.push(Finding::warning(what).help("set max_slot_wal_keep_size"));
        }
        let slot = &self.slot.name;
        match &facts.slot {
            Some(state) if state.wal_status == "unreserved" => found.push(
                Finding::warning(format!("the slot {slot} is about to be lost"))
                    .help("let the hub catch up, or raise max_slot_wal_keep_size"),
            ),
            Some(state)
                if u64::try_from(state.kept_bytes).is_ok_and(|kept| kept > self.kept_bytes_max) =>
            {
                let kept = ByteSize::b(state.kept_bytes.unsigned_abs());
                let what = format!("the server keeps {kept} of its log for the slot {slot}");
                found.push(Finding::warning(what).help("it is more than `cdc.wal_max`"));
            }
            Some(_) => {}
            None if facts.free_slots > 0 => {
                let what = format!("the slot {slot} is made once the source runs");
                found.push(Finding::note(what));
            }
            None => {}
        }
        found
    }
}
