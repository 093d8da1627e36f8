//! What can go wrong.

/// Why a message was not built or not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A part of the message is missing, too long or of a shape no hub takes.
    #[error("{field}: {why}")]
    Invalid {
        /// The part, as its method of [`MessageBuilder`](crate::MessageBuilder) is called.
        field: &'static str,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// The payload cannot be written as JSON.
    #[error("the payload cannot be written as JSON: {0}")]
    Json(#[source] serde_json::Error),
    /// The connection is in no transaction, so that the message would be committed alone.
    #[error(
        "not in a transaction: the message would be committed without what it is about; \
         begin one with `begin` of the pool or connection and write both in it"
    )]
    NoTransaction,
    /// The table took fewer rows than it was given, without an error: a trigger or a rule kept them
    /// out, or (PostgreSQL) `payload` is not `bytea`. Roll back.
    #[error(
        "{table} took {taken} of {given} messages and reported no error: is its payload `bytea`, \
         and does no trigger or rule keep rows out?"
    )]
    NotTaken {
        /// The table, quoted.
        table: String,
        /// How many rows it took.
        taken: u64,
        /// How many it was given.
        given: usize,
    },
    /// The database refused or did not answer; the transaction is to be rolled back.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

impl Error {
    pub(crate) fn invalid(field: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { field, why: why.into() }
    }
}
