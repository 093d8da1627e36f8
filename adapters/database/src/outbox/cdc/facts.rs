//! What one look at the server tells of a slot, a publication and their table. Nothing is changed by it.

use sqlx::{PgPool, Row};

use super::{Fault, slot::Slot};
use crate::name::Dialect;

/// What is there, and what this account may do.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// How much the server writes into its log; it has to be `logical`.
    pub(super) wal_level: String,
    /// Nothing limits what a slot makes the server keep.
    pub(super) keeps_all: bool,
    /// Slots that are not in use.
    pub(super) free_slots: i64,
    /// The account may replicate.
    pub(super) may_replicate: bool,
    /// The account may publish the table.
    pub(super) may_publish: bool,
    /// The account may read the table.
    pub(super) may_read: bool,
    /// Schema and name of the table.
    pub(super) table: Option<(String, String)>,
    /// Whether the publication publishes inserts, and whether it has the table.
    pub(super) publication: Option<(bool, bool)>,
    /// The slot.
    pub(super) slot: Option<Found>,
}

/// A slot as it was found.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// It decodes with `pgoutput`, in this database.
    pub(super) is_ours: bool,
    /// `reserved`, `extended`, `unreserved` (soon to be lost) or `lost`.
    pub(super) wal_status: String,
    /// What may still be written before it is lost, in bytes; `None`: no limit is set.
    pub(super) safe_bytes: Option<i64>,
    /// The log that the server keeps because of it, in bytes.
    pub(super) kept_bytes: i64,
}

const LOOK: &str = "SELECT current_setting('wal_level') AS wal_level, \
     (SELECT setting = '-1' FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keeps_all, \
     (SELECT setting::int8 FROM pg_settings WHERE name = 'max_replication_slots') \
         - (SELECT count(*) FROM pg_replication_slots) AS free_slots, \
     (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user) AS may_replicate, \
     coalesce(pg_has_role(c.relowner, 'USAGE') AND \
         has_database_privilege(current_database(), 'CREATE'), false) AS may_publish, \
     coalesce(has_table_privilege(c.oid, 'SELECT'), false) AS may_read, \
     n.nspname::text AS schema, c.relname::text AS table, p.pubinsert AS inserts, \
     EXISTS (SELECT FROM pg_publication_tables t WHERE t.pubname = $2 \
         AND t.schemaname = n.nspname AND t.tablename = c.relname) AS has_table, \
     s.slot_name IS NOT NULL AS has_slot, \
     coalesce(s.plugin = 'pgoutput' AND s.database = current_database(), false) AS is_ours, \
     coalesce(s.wal_status, 'lost') AS wal_status, s.safe_wal_size, \
     coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() \
         ELSE pg_current_wal_lsn() END, s.restart_lsn), 0)::int8 AS kept_bytes \
     FROM (SELECT to_regclass($1) AS oid) AS asked \
     LEFT JOIN pg_class c ON c.oid = asked.oid LEFT JOIN pg_namespace n ON n.oid = c.relnamespace \
     LEFT JOIN pg_publication p ON p.pubname = $2 \
     LEFT JOIN pg_replication_slots s ON s.slot_name = $3";

impl Facts {
    /// Looks.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub(super) async fn look(pool: &PgPool, slot: &Slot) -> Result<Self, Fault> {
        let row = sqlx::query(LOOK)
            .bind(slot.table.quoted(Dialect::Postgres))
            .bind(&slot.publication)
            .bind(&slot.name)
            .fetch_one(pool)
            .await?;
        let (schema, table): (Option<String>, Option<String>) =
            (row.try_get("schema")?, row.try_get("table")?);
        let inserts: Option<bool> = row.try_get("inserts")?;
        let has_table: bool = row.try_get("has_table")?;
        let found = Found {
            is_ours: row.try_get("is_ours")?,
            wal_status: row.try_get("wal_status")?,
            safe_bytes: row.try_get("safe_wal_size")?,
            kept_bytes: row.try_get("kept_bytes")?,
        };
        Ok(Self {
            wal_level: row.try_get("wal_level")?,
            keeps_all: row.try_get("keeps_all")?,
            free_slots: row.try_get("free_slots")?,
            may_replicate: row.try_get("may_replicate")?,
            may_publish: row.try_get("may_publish")?,
            may_read: row.try_get("may_read")?,
            table: schema.zip(table),
            publication: inserts.map(|inserts| (inserts, has_table)),
            slot: row.try_get::<bool, _>("has_slot")?.then_some(found),
        })
    }

    /// All that stands in the way of a stream, each with what is to be done about it.
    pub(super) fn obstacles(&self, slot: &Slot) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut say = |what: String, help: String| found.push((what, help));
        let (name, publication) = (&slot.name, &slot.publication);
        if self.table.is_none() {
            let what = format!("there is no table {}, or this account may not see it", slot.table);
            say(what, "GRANT USAGE on its schema, or name the schema in `table`".into());
        } else if !self.may_read {
            let what = format!("this account may not read the table {}", slot.table);
            say(what, format!("GRANT SELECT ON {} TO …", slot.table));
        }
        if self.wal_level != "logical" {
            let what = format!("the server writes its log with wal_level = {}", self.wal_level);
            say(what, "set wal_level = logical and restart it".into());
        }
        if !self.may_replicate {
            say("this account may not replicate".into(), "ALTER ROLE … REPLICATION".into());
        }
        match self.publication {
            Some((false, _)) => say(
                format!("the publication {publication} does not publish inserts"),
                format!("ALTER PUBLICATION {publication} SET (publish = 'insert')"),
            ),
            Some((true, false)) => say(
                format!("the publication {publication} has no table {}", slot.table),
                format!(
                    "ALTER PUBLICATION {publication} ADD TABLE {}; of a table in partitions it \
                     needs publish_via_partition_root = true",
                    slot.table
                ),
            ),
            None if !self.may_publish => say(
                format!("there is no publication {publication}, and this account may not make it"),
                format!("as the table's owner: {}", slot.create_publication()),
            ),
            Some((true, true)) | None => {}
        }
        match &self.slot {
            Some(found) if !found.is_ours => say(
                format!("there is a slot {name} already, for another database or plugin"),
                "set another `cdc.slot`".into(),
            ),
            Some(found) if found.wal_status == "lost" => {
                let (what, help) = slot.lost();
                say(what, help);
            }
            None if self.free_slots <= 0 => say(
                "the server has no slot free".into(),
                "raise max_replication_slots, or drop a slot that nobody uses".into(),
            ),
            _ => {}
        }
        found
    }
}
