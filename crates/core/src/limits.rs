//! Limits on everything a message carries, alike on every store.

/// The longest origin id, origin source or key, in bytes.
pub const ID_BYTES_MAX: usize = 512;
/// The longest message type, subject, schema or content type, in bytes.
pub const TYPE_BYTES_MAX: usize = 256;
/// All further headers of a message together, names and values, in bytes.
pub const HEADERS_BYTES_MAX: usize = 64 * 1024;
/// The default limit of a body in bytes; a source may set its own.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// After so many hubs a message is taken to run in a circle.
pub const HOPS_MAX: u8 = 16;
/// A message its origin marks as redelivered so often is set aside without being read: reading it
/// may be what kills the process.
pub const REDELIVERIES_MAX: u32 = 5;
/// How many slots the keys of a destination are spread over, for ever.
pub const SLOTS: u16 = 256;
/// What is kept of a partner's answer, in bytes.
pub const ANSWER_BYTES_KEPT: usize = 2048;
