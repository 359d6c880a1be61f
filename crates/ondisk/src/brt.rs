//! Block reference tables.
