//! An application's own database: its outbox table is a source, its inbox table a destination.
//!
//! Business data and the message to send are one transaction of the application's; the relay takes
//! the row from there. The way in is the same thing mirrored: the row that says that a message was
//! taken and what the application does with it are one transaction.
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
