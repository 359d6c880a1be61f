//! The public library: open a pool, its datasets, its files.
