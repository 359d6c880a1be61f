//! The adaptive replacement cache.
