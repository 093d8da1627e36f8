//! What a message may carry at most; a hub refuses more. Texts hold no zero character.

/// An aggregate's id, a correlation or causation id, in bytes.
pub const ID_BYTES_MAX: usize = 512;
/// An event type, an aggregate's type, a schema or a content type, in bytes.
pub const TYPE_BYTES_MAX: usize = 256;
/// All headers together, names and values, in bytes.
pub const HEADERS_BYTES_MAX: usize = 64 * 1024;
/// A payload, in bytes: what a hub takes unless its source is set to take less or more. Send a
/// reference to what is larger.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;
