//! Datasets, snapshots, clones, properties.
