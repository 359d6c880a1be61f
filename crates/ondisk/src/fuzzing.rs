//! Fuzz entries.
