//! FUID tables.
