//! The MOS of a new pool (chapter 04 §15).
//!
//! # Theory
//! The DSL is built first, without features, so that its empty deadlists have lists of
//! their own. Then features are enabled, in the order of the table. Object 1 is the
//! directory; all other object ids are arbitrary.
//!
//! The caller writes the root file system's object set in the same txg and accounts for it
//! with a [`super::Delta`] on [`Initial::root_head`]. The caller also writes the contents
//! of `config`, vdev ZAPs and space maps.

use base::Result;
use ondisk::ObjType;
use ondisk::blkptr::COMPRESS_OFF;
use ondisk::features::Feature;
use ondisk::uberblock::VERSION_FEATURES;

use super::links::ORIGIN;
use super::store::DIRECTORY;
use super::upgrade::{ORIGIN_TXG, VERSION_LISTS, VERSION_ORIGIN, make_tables, put_salt};
use super::{
    FREE_LIST, NewObject, SMALL_BLOCK, SyncCx, bpobj, create, features, history, props, snapshot,
};
use crate::stored::Stored;

/// Bytes of a block of the configuration, and of the list of deferred frees.
const CONFIG_BLOCK: u32 = 16 << 10;

/// Parameters of the new pool.
#[derive(Clone, Copy, Debug)]
pub struct NewPool<'a> {
    /// Its version: 10 to 28, or 5000.
    pub version: u64,
    /// Features to enable, with those that they depend on.
    pub features: &'a [&'static Feature],
    /// Bytes that datasets can have; the size of the history depends on it.
    pub dspace: u64,
    /// Salt of salted checksums.
    pub salt: [u8; 32],
    /// Properties of the pool that its ZAP holds.
    pub pool_props: &'a [(&'a str, Stored)],
}

/// The objects of a new pool that the caller fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initial {
    /// Directory of the root file system.
    pub root_dir: u64,
    /// Its head, still without an object set.
    pub root_head: u64,
    /// The configuration: a packed nvlist, still empty.
    pub config: u64,
    /// Frees deferred to the next txg (chapter 05 §6).
    pub sync_bplist: u64,
    /// Blocks of destroyed snapshots; `None` before version 26.
    pub free_bpobj: Option<u64>,
    /// The history.
    pub history: u64,
}

/// Makes the directory and the snapshot `$ORIGIN`; returns both.
pub(super) fn origin(cx: &SyncCx<'_>, root_dir: u64) -> Result<(u64, u64)> {
    let dir = create::directory(cx, root_dir, ORIGIN)?;
    let head = create::head(cx, dir, None, false)?;
    Ok((dir, snapshot::take_at(cx, head, ORIGIN, ORIGIN_TXG)?))
}

/// Fills an empty MOS.
///
/// # Errors
/// Those of the store.
pub fn create(cx: &SyncCx<'_>, pool: &NewPool<'_>) -> Result<Initial> {
    cx.mos.claim(DIRECTORY, &NewObject::plain(ObjType::OBJECT_DIRECTORY, SMALL_BLOCK))?;
    cx.mos.zap_init(DIRECTORY, 0)?;
    let root_dir = create::directory(cx, 0, "")?;
    create::directory(cx, root_dir, "$MOS")?;
    let lists = pool.version >= VERSION_LISTS;
    let mut free_bpobj = None;
    if lists {
        create::directory(cx, root_dir, "$FREE")?;
        let list = bpobj::create(cx, bpobj::BLOCK, 0)?;
        cx.put_number(DIRECTORY, FREE_LIST, list)?;
        free_bpobj = Some(list);
    }
    let origin = match pool.version {
        ..VERSION_ORIGIN => None,
        _ => Some(origin(cx, root_dir)?.1),
    };
    let features = pool.version == VERSION_FEATURES;
    if features {
        make_tables(cx)?;
    }
    let root_head = create::head(cx, root_dir, origin, false)?;
    let history = history::create(cx, pool.dspace)?;
    let config = NewObject::plain(ObjType::PACKED_NVLIST, CONFIG_BLOCK)
        .with_bonus(ObjType::PACKED_NVLIST_SIZE, vec![0; 8]);
    let config = cx.mos.allocate(&config)?;
    let sync_bplist = if lists {
        bpobj::create(cx, CONFIG_BLOCK, COMPRESS_OFF)?
    } else {
        bpobj::create_plain(cx, CONFIG_BLOCK, COMPRESS_OFF)?
    };
    let numbers = [
        ("history", history),
        ("config", config),
        ("creation_version", pool.version),
        ("deflate", 1),
        ("sync_bplist", sync_bplist),
    ];
    for (name, value) in numbers {
        cx.put_number(DIRECTORY, name, value)?;
    }
    for feature in pool.features {
        features::enable(cx, feature)?;
    }
    if features {
        put_salt(cx, &pool.salt)?;
    }
    for (name, value) in pool.pool_props {
        props::set_pool(cx, name, Some(value))?;
    }
    Ok(Initial { root_dir, root_head, config, sync_bplist, free_bpobj, history })
}
