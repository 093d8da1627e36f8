//! The slot and the publication: their names, and making them if they are missing and may be made.

use pabal_core::{ConfigError, EndpointName};
use sqlx::{AssertSqlSafe, PgPool};

use super::{Fault, facts::Facts, pgoutput::BYTEA};
use crate::name::{Dialect, TableName};

/// The longest name that PostgreSQL has, in bytes.
const NAME_MAX: usize = 63;

/// What a stream stands on, by name.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    /// The slot: lower-case letters, digits and `_`, one in the whole server.
    pub(super) name: String,
    /// The publication.
    pub(super) publication: String,
    /// The table.
    pub(super) table: TableName,
}

/// The name of a source's slot and publication where none is set.
///
/// # Errors
/// If it would be longer than PostgreSQL's names may be.
pub(super) fn default_name(source: &EndpointName) -> Result<String, ConfigError> {
    let name = format!("pabal_{}_{}", source.partner(), source.name()).replace('-', "_");
    check_name("cdc.slot", &name)?;
    Ok(name)
}

/// Whether a slot may have this name.
///
/// # Errors
/// If not; says under `key` what is wrong with it.
pub(super) fn check_name(key: &str, name: &str) -> Result<(), ConfigError> {
    let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_');
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(allowed) {
        let shown = pabal_core::shorten(name, 80);
        return Err(ConfigError::new(key, format!("`{shown}` cannot be the name of a slot"))
            .help("1 to 63 lower-case letters, digits and `_`; it is one in the whole server"));
    }
    Ok(())
}

impl Slot {
    /// Looks whether a stream is to be had, and makes the publication if it is missing.
    ///
    /// # Errors
    /// If it is not to be had; says what has to be changed.
    pub(super) async fn check(&self, pool: &PgPool) -> Result<Facts, Fault> {
        let facts = Facts::look(pool, self).await?;
        if let Some((what, help)) = facts.obstacles(self).into_iter().next() {
            return Err(Fault::Unavailable(format!("{what}: {help}")));
        }
        if facts.publication.is_none() {
            // Before the slot: a stream sees only publications older than what it reads.
            let create = sqlx::raw_sql(AssertSqlSafe(self.create_publication()));
            made_by_now(create.execute(pool).await.map(drop))?;
        }
        Ok(facts)
    }

    /// The statement that makes the publication.
    pub(super) fn create_publication(&self) -> String {
        format!(
            "CREATE PUBLICATION {} FOR TABLE {} \
             WITH (publish = 'insert', publish_via_partition_root = true)",
            Dialect::Postgres.quoted(&self.publication),
            self.table.quoted(Dialect::Postgres)
        )
    }

    /// Makes the slot: from here on the server keeps what it needs. Waits for transactions that began
    /// before.
    ///
    /// # Errors
    /// If it may not be made.
    pub(super) async fn create(&self, pool: &PgPool) -> Result<(), Fault> {
        let (version,): (String,) =
            sqlx::query_as("SELECT current_setting('server_version_num')").fetch_one(pool).await?;
        // From 17 on it goes over to a standby that takes over.
        let failover = version.parse().is_ok_and(|version: u32| version >= 170_000);
        let create = if failover {
            "SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, false, true)::text"
        } else {
            "SELECT pg_create_logical_replication_slot($1, 'pgoutput')::text"
        };
        made_by_now(sqlx::query(create).bind(&self.name).execute(pool).await.map(drop))
    }

    /// The server gave up the log that the slot still needed.
    pub(super) fn lost(&self) -> (String, String) {
        let what = format!(
            "the slot {} is lost: the server kept no more of its log than max_slot_wal_keep_size",
            self.name
        );
        let help = format!(
            "SELECT pg_drop_replication_slot('{}'), and a new one is made: rows that still stand in \
             the table are then taken, rows deleted in the meantime are not",
            self.name
        );
        (what, help)
    }

    /// The types whose values are bytes: `bytea`, and the domains over it.
    ///
    /// # Errors
    /// If the server cannot say.
    pub(super) async fn byte_types(pool: &PgPool) -> Result<Vec<u32>, Fault> {
        let types: Vec<(i64,)> = sqlx::query_as(
            "WITH RECURSIVE bytes AS (SELECT $1::oid AS oid UNION SELECT t.oid FROM pg_type t \
             JOIN bytes ON t.typbasetype = bytes.oid WHERE t.typtype = 'd') \
             SELECT oid::int8 FROM bytes",
        )
        .bind(i64::from(BYTEA))
        .fetch_all(pool)
        .await?;
        Ok(types.into_iter().filter_map(|(oid,)| u32::try_from(oid).ok()).collect())
    }
}

/// Somebody else may have made it in the meantime.
fn made_by_now(made: Result<(), sqlx::Error>) -> Result<(), Fault> {
    match made {
        Err(sqlx::Error::Database(said)) if said.code().as_deref() == Some("42710") => Ok(()),
        made => Ok(made?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_named_after_its_source_and_never_cut() {
        let name = |text: &str| default_name(&text.parse().unwrap());
        assert_eq!(name("welfare/out-box").unwrap(), "pabal_welfare_out_box");
        let long = format!("{}/{}", "a".repeat(40), "b".repeat(20));
        assert_eq!(name(&long).unwrap_err().key, "cdc.slot");
        for bad in ["", "Pabal", "a-b", "a b", &"a".repeat(64)] {
            assert!(check_name("cdc.slot", bad).is_err(), "{bad:?} was taken");
        }
    }
}
