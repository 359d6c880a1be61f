//! Volumes as byte ranges.
