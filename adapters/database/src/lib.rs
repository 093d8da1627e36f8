//! An application's own database: its outbox table is a source, its inbox table a destination.
//!
//! Business data and the message to send are one transaction of the application's; the relay takes
//! the row from there. The way in is the same thing mirrored: the row that says that a message was
//! taken and what the application does with it are one transaction.
//!
//! # `[source.x.database]`: the outbox table of an application
//!
//! ```toml
//! [source.applications.database]
//! url       = { env = "WELFARE_DATABASE" }        # postgres://…, mysql://… or sqlite:…
//! relay     = "notify"
//! keep_sent = "7d"
//! ```
//!
//! | key | default | meaning |
//! |---|---|---|
//! | `url` | must be set | a secret: where the database is, and as whom; TLS by its own parameters (`sslmode=verify-full`, `ssl-mode=VERIFY_IDENTITY`) |
//! | `table` | `"outbox"` | `table` or `schema.table`, as the database writes it: `migrations/app-side/…/outbox.sql` has it, with the rights it takes |
//! | `preset` | `"pabal"` | the layout; `"debezium"`: `id`, `aggregatetype`, `aggregateid`, `type`, `payload` |
//! | `columns` | the preset's | `{ key = "case_no", schema = "" }`: what is called otherwise, or not there |
//! | `status` | `NEW` `SENT` `FAILED` | `{ new, sent, failed }`: the words in the column of the status |
//! | `content_type` | `"application/json"` | of a body whose row does not say |
//! | `relay` | `"poll"` | or `"notify"`: woken by the trigger in `migrations/app-side/postgres/notify.sql`; or `"cdc"`: out of PostgreSQL's log, as `migrations/app-side/postgres/cdc.sql` sets it up |
//! | `batch` | `500` | rows taken at once, up to 5000, and no more than 16 MiB of bodies |
//! | `interval` | `"1s"` | between two looks |
//! | `idle_interval` | `"5s"` | to this it grows while the table is empty; with `notify` the net |
//! | `sent` | `"mark"` | or `"delete"`: what becomes of a sent row; without a status it can only be deleted |
//! | `keep_sent` | for ever | how long sent rows are kept |
//! | `on_failed` | `"pass"` | or `"hold"`: the rows of a key wait behind one that was refused |
//! | `one_transaction` | `false` | the hub's store is in this PostgreSQL database: taken and marked in one transaction |
//! | `notify` | `{ channel = "pabal_outbox" }` | the channel that the trigger notifies |
//! | `cdc.slot` · `cdc.publication` | `pabal_{partner}_{source}` | made if they are missing and the account may; a slot is one in the whole server |
//! | `cdc.wal_max` | `"1GiB"` | an alert, if the server keeps more of its log because of the slot |
//! | `cdc.heartbeat` | `"10s"` | how often the server hears from the hub, and the slot is looked at |
//! | `cdc.fall_back` | `false` | the table is polled while logical replication is not to be had, and an alert says so |
//!
//! | in `columns` | `pabal` | becomes |
//! |---|---|---|
//! | `id` | `id` | the origin's id, for ever: text, a whole number or a UUID |
//! | `order` | `seq` | nothing: rows go in its order; without one by time and id |
//! | `key` · `aggregate` | `aggregate_id` · `aggregate_type` | the key · the header `ce-aggregatetype` |
//! | `type` · `body` | `event_type` · `payload` | the message type · the body, byte for byte; text in UTF-8 |
//! | `content_type` · `schema` · `version` | `content_type` · `schema_version` · `version` | themselves |
//! | `correlation` · `causation` · `trace` | `correlation_id` · `causation_id` · `traceparent` | themselves |
//! | `destination` | `destination` | the one destination, if the source `may_address` |
//! | `headers` | `headers` | headers: a JSON object of strings |
//! | `time` | `created_at` | CloudEvents `time`; without a zone it is UTC |
//! | `source` · `subject` | – | CloudEvents `source` and `subject` |
//! | `status` · `sent` · `retries` · `error` | `status` · `sent_at` · `retry_count` · `last_error` | nothing: written back |
//!
//! `id` and `body` must be there; what else a preset names and the table lacks is left out. `jsonb`, and
//! MySQL's `json`, write the text of a body anew (members in another order, `1E2` as `100`), so that
//! what arrives is not byte for byte what the application wrote; `bytea`, `text` and `json` of
//! PostgreSQL keep it.
//!
//! | the hub says | the row |
//! |---|---|
//! | receipt, a repeat's as well | `SENT` with the time; or deleted |
//! | refused for good | `FAILED` with the reason; without a status the hub keeps a dead letter, and it counts as sent |
//! | failed for now | stays `NEW`, `retry_count` grows; its key is tried again later, others pass |
//! | the hub takes nothing (paused, stopping) | untouched |
//!
//! What was sent is known by the status and by nothing else: there is no bookmark that a late commit
//! could fall behind. A row that somebody else holds keeps the rest of its key waiting. A commit of the
//! hub whose mark was lost is followed by a repeat, which the hub knows. The application's database has
//! a transaction of the relay's open while the hub commits a batch, for ten seconds at most; SQLite's is
//! only locked while marks are written.
//!
//! With `relay = "cdc"` rows come in the order of their commits, at once, and by an account that may do no
//! more than read and replicate. Then they stay as they are, and what is refused is a dead letter of the
//! source; with the right to write them they are marked as above. A row that was written with another
//! status than `NEW` does not go. What was there before the slot is read from the table. A row that is
//! larger than `body_max` and cannot be marked is named by an alert, and passed over. `on_failed = "hold"`
//! and `one_transaction` go with looking only.
//!
//! # `[destination.x.database]`: the inbox table of an application
//!
//! ```toml
//! [destination.applications.database]
//! url   = { env = "WELFARE_DATABASE" }            # postgres://…, mysql://… or sqlite:…
//! apply = """INSERT INTO application (no, applicant, amount)
//!            VALUES (:key, :body.applicant.name, :body.amount)"""
//! version_table = "inbox_version"
//! ```
//!
//! | key | default | meaning |
//! |---|---|---|
//! | `url` | must be set | a secret: where the database is, and as whom |
//! | `inbox` | `"inbox"` | the table: `migrations/app-side/…/inbox.sql` has it, with the rights it takes |
//! | `apply` | nothing | one SQL statement or a list, done in the same transaction |
//! | `parameters` | none | `{ name = ".a.b[0]" }`: further parameters, as ways into the body |
//! | `version_table` | none | the highest version of each source, type and key; a lower one is dropped |
//! | `version_query` | none | instead of that table, a query for the version that the application holds |
//! | `notify` | none | a PostgreSQL channel that is told each message id with the commit |
//! | `batch` | `100` | messages of one transaction at the most |
//! | `timeout` | `30s` | the limit of one transaction |
//!
//! For each message there is one transaction, or a share in one: the row of the inbox if it is not
//! there, then the version, then `apply`. A repeat finds its row and changes nothing (*duplicate*); a
//! version lower than the one held leaves its row and is not applied (*stale*). If a transaction of
//! many fails, each of its messages is tried in one of its own.
//!
//! **Parameters** are `:id :source :origin_source :origin_id :type :key :version :schema :correlation
//! :causation :subject :time :content_type :headers :body`, and `:body.path.to.0.field` of a body that
//! is JSON. What is not there is `NULL`; objects and lists go as JSON. On PostgreSQL each is read as
//! the type of its place, by the server itself: no digit is lost. MariaDB, MySQL and SQLite are given
//! whole numbers of 64 bits as such and all others as text: compare a decimal as
//! `CAST(:body.amount AS DECIMAL(38, 10))`, and on SQLite keep it in a column of `TEXT`.
//!
//! A statement must neither end the transaction nor change tables; a procedure that commits would tear
//! it apart. `pabal check --connect` prepares and explains every statement without running it.
//!
//! **What an error means** is one table, `classify.rs`: constraints and values that are none refuse
//! the message; a deadlock, a lock, a connection that breaks are for this time; a missing table, column
//! or right, and a server that cannot be reached, are about the place and cost no attempt.

mod classify;
mod connect;
mod inbox;
mod name;
mod outbox;

use pabal_core::{Adapter, ConfigError, Context, Receiver, Schema, Sender};

/// The adapter `database`.
#[derive(Debug, Clone, Copy, Default)]
pub struct DatabaseAdapter;

impl Adapter for DatabaseAdapter {
    fn name(&self) -> &'static str {
        "database"
    }

    fn sender_schema(&self) -> Schema {
        schemars::schema_for!(inbox::InboxSettings)
    }

    fn receiver_schema(&self) -> Schema {
        schemars::schema_for!(outbox::OutboxSettings)
    }

    fn sender(&self, context: Context) -> Result<Box<dyn Sender>, Vec<ConfigError>> {
        inbox::sender(context)
    }

    fn receiver(&self, context: Context) -> Result<Box<dyn Receiver>, Vec<ConfigError>> {
        outbox::receiver(context)
    }
}
