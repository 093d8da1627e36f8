//! Watches a slot through an ordinary connection: what the server keeps because of it can fill a disk.

use std::time::Duration;

use bytesize::ByteSize;
use pabal_core::{Clock, EndpointName};
use sqlx::PgPool;

use super::{
    Fault,
    facts::{Facts, Found},
    slot::Slot,
};

/// What is watched, and from when on somebody is told.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    pub(super) source: &'a EndpointName,
    pub(super) pool: &'a PgPool,
    pub(super) slot: &'a Slot,
    pub(super) kept_bytes_max: u64,
    pub(super) every: Duration,
    pub(super) clock: &'a dyn Clock,
}

/// What there is to be told of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    /// Nothing.
    Fine,
    /// The server keeps more than it may.
    TooMuch,
    /// The server is about to give up what is still needed.
    SoonLost,
}

impl Finding {
    fn of(health: &Found, kept_bytes_max: u64) -> Self {
        if health.wal_status == "unreserved" {
            Self::SoonLost
        } else if u64::try_from(health.kept_bytes).is_ok_and(|kept| kept > kept_bytes_max) {
            Self::TooMuch
        } else {
            Self::Fine
        }
    }
}

impl Watch<'_> {
    /// Watches until the slot is lost. Whatever changes is told once.
    pub(super) async fn run(&self) -> Fault {
        let mut before = Finding::Fine;
        loop {
            // If the server cannot say, the stream tells of it.
            if let Ok(Facts { slot: Some(health), .. }) = Facts::look(self.pool, self.slot).await {
                if health.wal_status == "lost" {
                    let (what, help) = self.slot.lost();
                    return Fault::Unavailable(format!("{what}: {help}"));
                }
                let finding = Finding::of(&health, self.kept_bytes_max);
                if finding != before {
                    self.tell(finding, &health);
                }
                before = finding;
            }
            self.clock.sleep(self.every).await;
        }
    }

    fn tell(&self, finding: Finding, health: &Found) {
        let size = |bytes: i64| ByteSize::b(bytes.unsigned_abs()).to_string();
        let (source, slot, kept) = (self.source, &*self.slot.name, size(health.kept_bytes));
        let left = health.safe_bytes.map_or_else(|| "no limit".to_owned(), size);
        let max = ByteSize::b(self.kept_bytes_max);
        match finding {
            Finding::Fine => {
                tracing::info!(%source, slot, kept, "the server keeps little of its log for the slot again");
            }
            Finding::TooMuch => tracing::warn!(
                alert = true, %source, slot, kept, %max, left,
                "the server keeps more of its log for the slot than `cdc.wal_max`: its disk may fill up"
            ),
            Finding::SoonLost => tracing::error!(
                alert = true, %source, slot, kept, left,
                "the server is about to give up what the slot still needs: rows that are deleted \
                 then are not taken"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_judged_by_its_size_and_by_what_the_server_says() {
        let health = |wal_status: &str, kept_bytes| Found {
            is_ours: true,
            wal_status: wal_status.to_owned(),
            safe_bytes: None,
            kept_bytes,
        };
        assert_eq!(Finding::of(&health("reserved", 100), 100), Finding::Fine);
        assert_eq!(Finding::of(&health("reserved", -1), 100), Finding::Fine);
        assert_eq!(Finding::of(&health("extended", 101), 100), Finding::TooMuch);
        assert_eq!(Finding::of(&health("unreserved", 1), 100), Finding::SoonLost);
    }
}
