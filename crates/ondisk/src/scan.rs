//! Scan state.
