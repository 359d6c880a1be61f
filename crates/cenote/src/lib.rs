//! The public library: find a pool, import it, read its datasets and files.
//!
//! ```no_run
//! use cenote::{Engine, EngineConfig, ImportOptions, Search};
//!
//! # fn main() -> cenote::Result<()> {
//! let engine = Engine::new(EngineConfig::default())?;
//! let found = engine.discover(&Search { paths: vec!["/srv/disks".into()], ..Search::default() })?;
//! let options = ImportOptions { readonly: true, ..ImportOptions::default() };
//! let pool = engine.import(&found.pools[0], &options)?;
//! let files = pool.dataset("tank/home")?.open_fs()?;
//! let id = files.walk(b"notes.txt", cenote::Io::WAIT)?;
//! for piece in files.read(id, 0, 4096, cenote::Io::WAIT)? {
//!     println!("{} bytes", piece.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Theory
//! An [`Engine`] is the state that one process shares among its pools: the block cache and
//! the device engines. A [`Pool`] is imported; a [`Dataset`] is a name in it; a
//! [`FileSystem`] or [`Volume`] is a dataset's content. Calls block. Those that take an
//! [`Io`] can be restricted to memory; they return `WouldBlock` otherwise.
//!
//! # Invariants
//! * Front ends access the engine through this crate alone.
//! * A pool is imported once per engine; its devices are locked while it is.

pub mod accounts;
pub mod advise;
mod cache_devices;
mod changes;
mod clones;
pub mod create;
mod dataset;
mod dedup;
mod defrag;
pub mod delegation;
pub mod diagnosis;
mod diff;
mod engine;
mod errlog;
mod events;
mod free_space;
mod holder;
mod holds;
mod host;
pub mod kstats;
pub use mover::layout;
mod looks;
pub mod memory;
mod objects;
mod opening;
mod outage;
mod owners;
mod pool;
mod pool_props;
mod rebalance;
mod receive;
pub mod space_map;
mod split;
mod topology;
pub mod tune;
mod upgrade;
mod values;
mod vdev_props;
mod volume;

pub use ::kstat;
pub use ::nvlist;
pub use ::stream;
pub use ::zevent;
pub use arc::{ArcStats, Config as ArcConfig, PolicyKind};
pub use base::{Buf, Error, ErrorKind, Guid, ObjectId, Result, Txg};
pub use device::EngineKind;
pub use dmu::{Access, Caching, Copies, Extent, Io, Mode, OutagePolicy};
pub use dsl::props;
pub use dsl::props::{PropData, PropValue, Source};
pub use mover::defrag::DefragEstimate;
pub use mover::job::{MoveRecord, MoveState, MoveStatus, MoveWork, WHOLE_SCORE};
pub use mover::special::SpecialEstimate;
pub use ondisk::config::PoolState;
pub use ondisk::ddt::StatBucket;
pub use ondisk::removal::Removing;
pub use spa::engine::{CheckpointState, CheckpointStatus, JobKind, JobStatus};
pub use spa::engine::{ExpansionProgress, ExpansionTuning, RemovalEstimate, RemovalTuning};
pub use spa::engine::{RebuildProgress, RebuildRecord, RebuildState};
pub use spa::status::{ClassDetail, ImportReason, IoDetail, VdevClass, VdevState, VdevStatus};
pub use spa::{ImportOptions, Rebuilt, Search};
pub use stream::SendOptions;
pub use zpl::{File, FileSystem};
pub use zvol::Volume;

pub use dataset::packages::{PackageOptions, ResumedSend, SendPlan};
pub use dataset::saved::SavedSend;
pub use dataset::{Dataset, DatasetKind};
pub use dedup::{DedupReport, PruneRequest};
pub use defrag::DefragTargets;
pub use diff::{DiffChange, DiffEntry};
pub use engine::{DeviceWrapper, Discovery, Engine, EngineConfig, FoundPool};
pub use errlog::DataError;
pub use free_space::JobAction;
pub use kstats::{ArcReport, WhatIfPoint, ZfetchStats};
pub use objects::{NewObject, Objects, WRITE_MAX};
pub use opening::Opening;
pub use owners::{OwnerSpace, owner_of_prop};
pub use pool::{ErrorScrubStatus, Pool, PoolStatus, ScanState, ScanStatus};
pub use rebalance::{RebalanceKind, RebalancePlan, RebalancedVdev};
pub use receive::{
    CorrectedBlocks, IncomingSnapshot, IncomingStream, ReceiveNames, ReceiveObserver,
    ReceiveOptions, ReceivedStream,
};
pub use spa::engine::{AttachMode, Offline, OfflineMode, ScanRequest};
pub use spa::engine::{NewBookmark, PermissionChange, SnapshotHold};
pub use split::{SplitPool, SplitRequest};
pub use topology::{AttachRequest, LookedAfter, NewDevice};
pub use upgrade::Upgraded;
pub use vdev_props::VdevProps;
pub use volume::REFRESERVATION_AUTO;

/// Arguments and results of calls of a [`FileSystem`].
pub mod files {
    pub use ondisk::znode::{ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_NODUMP, ZFS_PROJINHERIT};
    pub use zpl::{
        Atime, Attrs, Caller, CaseSensitivity, Device, DirEntry, Falloc, FileType, Groups, New,
        Rename, Rewrite, RewriteSummary, SetAttrs, SetHow, SetTime, SpaceEntry, SpaceKind, Time,
        Whence, WritePosition,
    };
}

/// Feature flags (chapter 04 §14).
pub mod features {
    pub use ondisk::features::{FEATURES, Feature, by_name};
}

/// The engine's internals, for tools that inspect pools. Only `zdb`, `stats`, `bench`,
/// `testkit`, tests and `daemon::vdev_history` use them; `scripts/tidy.sh` checks it.
pub mod inspect {
    pub use {arc, codec, device, dmu, dsl, nvlist, ondisk, spa, vdev, zil, zio, zpl};
}
