//! Legacy znodes.
