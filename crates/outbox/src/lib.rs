//! The outbox of an application: a message is a row, written in the transaction that it is about.
//!
//! Saving an application form and telling another system of it are two writes, and one of them will
//! fail alone. Here the second is an `INSERT` beside the first: both are committed or neither is. A
//! hub reads the table and does the rest, for as long as it takes.
//!
//! ```no_run
//! use pabal_outbox::{Event, Message, Schema, postgres};
//!
//! #[derive(serde::Serialize)]
//! struct Submitted { number: String, region: String }
//!
//! impl Event for Submitted {
//!     const TYPE: &'static str = "application.submitted";
//!     const SCHEMA: Schema = Schema::new("application", 1, 0);
//! }
//!
//! async fn submit(pool: &sqlx::PgPool, form: Submitted) -> Result<(), pabal_outbox::Error> {
//!     let message = Message::of(&form).aggregate("application", &form.number).version(1).build()?;
//!
//!     let mut transaction = pool.begin().await?;
//!     sqlx::query("INSERT INTO application (number, region) VALUES ($1, $2)")
//!         .bind(&form.number)
//!         .bind(&form.region)
//!         .execute(&mut *transaction)
//!         .await?;
//!     postgres::enqueue(&mut transaction, &message).await?;
//!     Ok(transaction.commit().await?)
//! }
//! ```
//!
//! That is all there is: [`Message`] says what is sent, and `enqueue` of `postgres`, `mysql` or
//! `sqlite`, each behind the feature of that name, writes it. The table is the hub's documented one
//! (`migrations/app-side`), in the application's own database.
//!
//! - **The id is made when the message is built**, not when it is sent: it is what partners
//!   recognise a repeat by. Build the message once, outside of the loop that tries the transaction
//!   again. If the answer to a `COMMIT` was lost, the same message says on the next try whether
//!   that one was committed: its id is then taken.
//! - **Order**: messages of one aggregate arrive in the order of their rows. Two transactions that
//!   write of one aggregate at the same time have an order only if the first makes the second wait:
//!   change or lock the aggregate's own row before the message is written.
//! - **Limits** are those of a hub, and checked before a statement is sent, since on PostgreSQL a
//!   statement that fails takes the transaction with it: see [`limits`].

mod error;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
mod insert;
pub mod limits;
mod message;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
mod schema;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod table;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod write;

pub use error::Error;
pub use message::{Event, Message, MessageBuilder};
pub use schema::Schema;
pub use table::Table;
