//! Dedup tables.
