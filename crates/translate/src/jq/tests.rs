//! Claims about what expressions may do, and what stops those that do more.
