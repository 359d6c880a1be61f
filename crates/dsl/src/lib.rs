//! The dataset and snapshot layer: directories, datasets, snapshots, clones, block-pointer
//! lists, properties, features.
//!
//! # Theory
//! This crate interprets objects of the meta object set (MOS). A [`DslDir`] is a node of
//! the dataset tree and has accounting and properties. A [`DslDataset`] is a head or a
//! snapshot and has an object set. A name is found by descending child ZAPs from the root
//! directory.
//!
//! # Invariants
//! * A directory is recognised by its bonus type, never by its object type (it may be
//!   zapified, chapter 04 §0).
//! * Every descent is bounded: `DATASET_DEPTH_MAX` levels down, and chains of snapshots
//!   must descend in creation txg.
//! * This crate has no notion of the content of an object set.

pub mod bpobj;
pub mod dataset;
pub mod dir;
pub mod features;
pub mod mos;
pub mod props;
pub mod stored;
pub mod write;

pub use dataset::DslDataset;
pub use dir::DslDir;
pub use features::FeatureState;
pub use mos::Mos;
