//! The data management unit: objects, object sets, ZAPs, and the traversal of all block
//! pointers.
//!
//! # Theory
//! An [`Objset`] is an array of dnodes. An [`Object`] is one dnode with its tree of blocks.
//! Reading block *b* descends from the dnode's pointers, one indirect block per level, each
//! taken from the block cache. A [`Zap`] interprets an object's blocks as a map.
//! [`traverse`] visits every pointer of an object set in parallel.
//!
//! # Invariants
//! * A descent takes at most `levels` steps. Each pointer must carry the level and size
//!   that its position demands, so no image can make the descent loop.
//! * This crate has no notion of datasets or files.
//!
//! Lock order: the dnode cache's shard locks and those of [`zfetch`] are leaves.

pub mod live;
pub mod object;
pub mod objset;
pub mod traverse;
pub mod tx;
pub mod walk;
pub mod zap;
pub mod zap_write;
pub mod zaps;
pub mod zfetch;

pub use live::{
    CloneOutcome, Early, Events, ObjectShape, ObjectSpec, ObjsetProps, Pending, Reclaimed,
    RedundantMetadata, RelocatedTree, SealedRoot, StoredForm, SyncCtx,
};
pub use object::{Extent, Object};
pub use objset::Objset;
pub use tx::{DirtyMeter, Tx};
pub use walk::{OnError, OrderedWalk, WalkVisitor, walk as walk_in_order};
pub use zap::{Match, Zap, ZapEntry};
pub use zap_write::{ZapLimits, ZapMut, ZapStore};
pub use zfetch::{PrefetchMode, Zfetch, ZfetchFiles};
pub use zio::{Access, CacheTiers, CacheUse, Caching, Copies, Io, Mode, OutagePolicy, PackedForm};
