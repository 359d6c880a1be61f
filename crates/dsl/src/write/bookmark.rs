//! Bookmarks: the records that outlive a snapshot (chapter 04 §11.3).
//!
//! # Theory
//! A bookmark of the long form has a count of the blocks that were freed between its
//! snapshot and the next one (FBN). It counts kills while its snapshot is the newest. Later
//! the count is computed from keys of deadlists, which must therefore outlive the snapshot.
//!
//! # Invariants
//! * Feature bookmarks counts heads with a ZAP of bookmarks, bookmark_written the bookmarks
//!   with FBN, bookmark_v2 those of the long form.

use base::{Error, ErrorKind, Result};
use dmu::Io;
use ondisk::dslphys::{
    BOOKMARK_HAS_FBN, BOOKMARK_SNAPSHOT_EXISTS, BookmarkPhys, RedactBlock, RedactionListPhys, Space,
};
use ondisk::normalize::TOUPPER;
use ondisk::zap::ZapValue;
use ondisk::{Endian, ObjType};

use super::features::{
    self, BOOKMARK_V2, BOOKMARK_WRITTEN, BOOKMARKS, REDACTION_BOOKMARKS, REDACTION_LIST_SPILL,
};
use super::{MosRead, NewObject, SyncCx, Usage, create, deadlist, links};
use crate::mos::Mos;

/// Key of a head's bookmarks.
pub const KEY: &str = "com.delphix:bookmarks";
/// Key of the identity of an encrypted snapshot's initialisation vectors.
const IVSET: &str = "com.datto:ivset_guid";
/// Words of the long form.
const LONG: usize = 12;
/// Bytes of a block of a redaction list.
const REDACTION_BLOCK: u32 = 128 << 10;
/// Redaction snapshots whose guids fit into a bonus buffer of 320 bytes. Longer headers, in spill
/// blocks, are read, but not written.
pub const REDACTION_SNAPS_MAX: usize = 36;
/// Runs of a redaction list that is read: 384 MiB of memory.
const REDACTION_RUNS_MAX: u64 = 16 << 20;

/// A bookmark and its name.
#[derive(Clone, Debug)]
pub struct NamedBookmark {
    /// Without dataset and `#`.
    pub name: Vec<u8>,
    /// The structure.
    pub phys: BookmarkPhys,
    /// It is stored in the long form.
    pub long: bool,
}

impl NamedBookmark {
    /// Whether it counts the blocks freed since its snapshot.
    pub(crate) fn has_fbn(&self) -> bool {
        self.phys.flags & BOOKMARK_HAS_FBN != 0
    }
}

/// Bookmarks of a head, in any order.
///
/// # Errors
/// Those of reading; `Corrupt`.
pub fn of_head(mos: &dyn MosRead, head: u64) -> Result<Vec<NamedBookmark>> {
    let Some(zap) = mos.attribute_u64(head, KEY)? else { return Ok(Vec::new()) };
    let odd = || Error::corrupt("a bookmark is not an array of numbers");
    let entries = mos.zap_entries(zap)?.into_iter().map(|(name, value)| {
        let words = value.u64s().ok_or_else(odd)?;
        let phys = BookmarkPhys::from_words(&words)?;
        Ok(NamedBookmark { name, phys, long: words.len() >= LONG })
    });
    entries.collect()
}

/// The bookmarks that count the blocks freed since.
///
/// # Errors
/// As [`of_head`].
pub(crate) fn with_fbn(mos: &dyn MosRead, head: u64) -> Result<Vec<NamedBookmark>> {
    Ok(of_head(mos, head)?.into_iter().filter(NamedBookmark::has_fbn).collect())
}

fn put(cx: &SyncCx<'_>, zap: u64, name: &[u8], phys: &BookmarkPhys) -> Result<bool> {
    let v2 = features::is_enabled(cx.read(), BOOKMARK_V2)?;
    let words = phys.to_words(v2);
    let value = ZapValue::from_u64s(&words).ok_or_else(|| base::bug!("bookmark too long"))?;
    cx.mos.zap_update(zap, name, &value)?;
    Ok(words.len() >= LONG)
}

/// Changes the bookmarks of a head that count the blocks freed since. Those for which
/// `edit` returns true are stored.
///
/// # Errors
/// Those of the store.
pub(crate) fn edit_fbn(
    cx: &SyncCx<'_>,
    head: u64,
    edit: &mut dyn FnMut(&mut BookmarkPhys) -> Result<bool>,
) -> Result<()> {
    let Some(zap) = cx.read().attribute_u64(head, KEY)? else { return Ok(()) };
    for mut mark in with_fbn(cx.read(), head)? {
        if edit(&mut mark.phys)? {
            put(cx, zap, &mark.name, &mark.phys)?;
        }
    }
    Ok(())
}

/// Adds to the blocks freed before the next snapshot.
pub(crate) fn add_fbn(phys: &mut BookmarkPhys, usage: Usage) {
    phys.fbn = (Usage::from(phys.fbn) + usage).space();
}

/// Checks that a head has no bookmark of this name.
fn check_free(cx: &SyncCx<'_>, head: u64, name: &str) -> Result<()> {
    if let Some(zap) = cx.read().attribute_u64(head, KEY)?
        && cx.mos.zap_lookup(zap, name.as_bytes())?.is_some()
    {
        return Err(Error::new(ErrorKind::Exists, "the bookmark exists"));
    }
    Ok(())
}

/// The ZAP of a head's bookmarks; made if there is none.
fn zap_of(cx: &SyncCx<'_>, head: u64) -> Result<u64> {
    if let Some(zap) = cx.read().attribute_u64(head, KEY)? {
        return Ok(zap);
    }
    features::add(cx, BOOKMARKS, 1)?;
    let zap = cx.new_zap(ObjType::OTN_ZAP_METADATA, TOUPPER)?;
    features::set_attribute(cx, head, KEY, &ZapValue::from_u64(zap))?;
    Ok(zap)
}

/// A head's bookmark by its name.
///
/// # Errors
/// `NotFound`; those of reading.
pub fn find(mos: &dyn MosRead, head: u64, name: &str) -> Result<NamedBookmark> {
    let mark = of_head(mos, head)?.into_iter().find(|m| m.name == name.as_bytes());
    mark.ok_or_else(|| Error::not_found("there is no such bookmark"))
}

/// Whether a head can get a bookmark of this name.
///
/// # Errors
/// `Exists`; `Invalid` and `NameTooLong` for an invalid name; `Unsupported` unless the
/// feature is enabled; those of reading.
pub fn check_new(cx: &SyncCx<'_>, head: u64, name: &str) -> Result<()> {
    create::check_component(name)?;
    if !features::is_enabled(cx.read(), BOOKMARKS)? {
        return Err(Error::unsupported("bookmark feature not enabled"));
    }
    check_free(cx, head, name)
}

/// Copies a bookmark of a head to another name. A redaction list is not copied.
///
/// # Errors
/// As [`check_new`]; `NotFound`; those of the store.
pub fn copy(cx: &SyncCx<'_>, head: u64, from: &str, to: &str) -> Result<()> {
    check_new(cx, head, to)?;
    let phys = BookmarkPhys { redaction_obj: 0, ..find(cx.read(), head, from)?.phys };
    let zap = zap_of(cx, head)?;
    if phys.flags & BOOKMARK_HAS_FBN != 0 {
        features::add(cx, BOOKMARK_WRITTEN, 1)?;
    }
    if put(cx, zap, to.as_bytes(), &phys)? {
        features::add(cx, BOOKMARK_V2, 1)?;
    }
    Ok(())
}

/// Moves a bookmark, which may have been changed, to another head. A ZAP that becomes empty
/// by this stays (§10.3).
///
/// # Errors
/// Those of the store.
pub(crate) fn move_to(cx: &SyncCx<'_>, from: u64, to: u64, mark: &NamedBookmark) -> Result<()> {
    let gone = || base::bug!("a bookmark is moved from a head without bookmarks");
    let old = cx.read().attribute_u64(from, KEY)?.ok_or_else(gone)?;
    cx.mos.zap_remove(old, &mark.name)?;
    let zap = zap_of(cx, to)?;
    match (mark.long, put(cx, zap, &mark.name, &mark.phys)?) {
        (false, true) => features::add(cx, BOOKMARK_V2, 1).map(drop),
        (true, false) => features::add(cx, BOOKMARK_V2, -1).map(drop),
        _ => Ok(()),
    }
}

/// Makes a bookmark of snapshot `snapshot` for the head of its directory.
///
/// # Errors
/// `Exists`; `Invalid` for an invalid name; `Unsupported` unless the feature is enabled;
/// those of the store.
pub fn make(cx: &SyncCx<'_>, snapshot: u64, name: &str) -> Result<()> {
    create::check_component(name)?;
    let snap = cx.dataset(snapshot)?;
    if !snap.is_snapshot() {
        return Err(Error::invalid("only snapshots can be bookmarked"));
    }
    let head = cx.dir(snap.dir_obj)?.head_dataset_obj;
    check_free(cx, head, name)?;
    let zap = zap_of(cx, head)?;
    let mut phys = BookmarkPhys {
        guid: snap.guid,
        creation_txg: snap.creation_txg,
        creation_time: snap.creation_time,
        ivset_guid: cx.read().attribute_u64(snapshot, IVSET)?.unwrap_or(0),
        ..BookmarkPhys::default()
    };
    if features::is_enabled(cx.read(), BOOKMARK_WRITTEN)? {
        let next = cx.dataset(snap.next_snap_obj)?;
        phys.flags = BOOKMARK_HAS_FBN | BOOKMARK_SNAPSHOT_EXISTS;
        phys.referenced = Space {
            used: snap.referenced_bytes,
            comp: snap.compressed_bytes,
            uncomp: snap.uncompressed_bytes,
        };
        phys.fbn = deadlist::total(cx.read(), next.deadlist_obj)?.space();
        features::add(cx, BOOKMARK_WRITTEN, 1)?;
    }
    if put(cx, zap, name.as_bytes(), &phys)? {
        features::add(cx, BOOKMARK_V2, 1)?;
    }
    Ok(())
}

/// Makes a redaction bookmark of snapshot `snapshot` (chapter 07 §10.2): `snaps` are the guids of
/// the redaction snapshots, `blocks` what they have changed, in order.
///
/// # Errors
/// As [`make`]; `Limit` for too many redaction snapshots.
pub fn make_redacted(
    cx: &SyncCx<'_>,
    snapshot: u64,
    name: &str,
    snaps: &[u64],
    blocks: &[RedactBlock],
) -> Result<()> {
    if snaps.len() > REDACTION_SNAPS_MAX {
        let text = format!("there can be at most {REDACTION_SNAPS_MAX} redaction snapshots");
        return Err(Error::limit(text));
    }
    if !features::is_enabled(cx.read(), REDACTION_BOOKMARKS)? {
        return Err(Error::unsupported("redaction bookmarks feature not enabled"));
    }
    make(cx, snapshot, name)?;
    let header = RedactionListPhys {
        last_object: u64::MAX,
        last_blkid: u64::MAX,
        num_entries: blocks.len() as u64,
        snaps: snaps.to_vec(),
    };
    let of = ObjType::OTN_UINT64_METADATA;
    let list = NewObject::plain(of, REDACTION_BLOCK).with_bonus(of, header.encode());
    let list = cx.mos.allocate(&list)?;
    let per_block = REDACTION_BLOCK as usize / RedactBlock::SIZE;
    for (blkid, part) in (0..).zip(blocks.chunks(per_block)) {
        cx.mos.edit_block(list, blkid, &mut |block| {
            for (to, run) in block.chunks_exact_mut(RedactBlock::SIZE).zip(part) {
                to.copy_from_slice(&run.encode());
            }
            Ok(())
        })?;
    }
    let head = cx.dir(cx.dataset(snapshot)?.dir_obj)?.head_dataset_obj;
    let zap = cx.read().attribute_u64(head, KEY)?;
    let zap = zap.ok_or_else(|| base::bug!("the bookmark just made is gone"))?;
    let mut mark = find(cx.read(), head, name)?;
    mark.phys.redaction_obj = list;
    features::add(cx, REDACTION_BOOKMARKS, 1)?;
    if put(cx, zap, name.as_bytes(), &mark.phys)? && !mark.long {
        features::add(cx, BOOKMARK_V2, 1)?;
    }
    Ok(())
}

/// The header of a redaction list (chapter 07 §10.2).
///
/// # Errors
/// `Corrupt`; those of reading.
pub fn redaction_header(mos: &Mos, object: u64) -> Result<RedactionListPhys> {
    let object = mos.object(object)?;
    let dnode = object.dnode();
    let fail = |e: Error| e.in_object(object.id());
    match RedactionListPhys::parse(&dnode.bonus, dnode.endian) {
        Ok(header) => Ok(header),
        // The bonus is too short for so many snapshots.
        Err(e) => match object.spill(Io::WAIT)? {
            Some((spill, endian)) => RedactionListPhys::parse(&spill, endian).map_err(fail),
            None => Err(fail(e)),
        },
    }
}

/// The header and the blocks of a redaction list (chapter 07 §10.2).
///
/// # Errors
/// `Corrupt` for one that is not complete, or shorter than it says; `Limit` for one of more than
/// 16 million runs; those of reading.
pub fn redaction_list(mos: &Mos, object: u64) -> Result<(RedactionListPhys, Vec<RedactBlock>)> {
    let header = redaction_header(mos, object)?;
    let object = mos.object(object)?;
    let dnode = object.dnode();
    let fail = |e: Error| e.in_object(object.id());
    if !header.is_complete() {
        return Err(fail(Error::corrupt("the redaction list is not complete")));
    }
    if header.num_entries > REDACTION_RUNS_MAX {
        return Err(fail(Error::limit("the redaction list is too long")));
    }
    let per_block = object.block_size() / RedactBlock::SIZE as u64;
    let blocks = header.num_entries.div_ceil(per_block.max(1));
    if per_block == 0 || blocks > dnode.max_blkid.saturating_add(1) {
        return Err(fail(Error::corrupt("the redaction list is shorter than it says")));
    }
    let mut out = Vec::new();
    for blkid in 0..blocks {
        let block = object.read_little(blkid, Io::WAIT)?;
        for entry in block.chunks_exact(RedactBlock::SIZE) {
            if out.len() as u64 == header.num_entries {
                break;
            }
            out.push(RedactBlock::parse(entry, Endian::Little).map_err(fail)?);
        }
    }
    Ok((header, out))
}

/// Destroys a bookmark of a head.
///
/// # Errors
/// `NotFound`; those of the store.
pub fn destroy(cx: &SyncCx<'_>, head: u64, name: &str) -> Result<()> {
    let marks = of_head(cx.read(), head)?;
    let missing = || Error::not_found("there is no such bookmark");
    let mark = marks.iter().find(|m| m.name == name.as_bytes()).ok_or_else(missing)?;
    let zap = cx.read().attribute_u64(head, KEY)?.ok_or_else(missing)?;
    let (txg, ds) = (mark.phys.creation_txg, cx.dataset(head)?);
    let same = marks.iter().filter(|m| m.has_fbn() && m.phys.creation_txg == txg).count();
    let orphan = mark.phys.flags & BOOKMARK_SNAPSHOT_EXISTS == 0;
    if mark.has_fbn() && orphan && same == 1 && txg < ds.prev_snap_txg {
        deadlist::remove_key(cx, ds.deadlist_obj, txg.0)?;
        links::remove_key_from_clones(cx, ds.dir_obj, txg)?;
    }
    forget(cx, mark)?;
    cx.mos.zap_remove(zap, name.as_bytes())?;
    if marks.len() == 1 {
        drop_zap(cx, head, zap)?;
    }
    Ok(())
}

/// Reverts the feature counts of a bookmark, and frees its redaction list.
fn forget(cx: &SyncCx<'_>, mark: &NamedBookmark) -> Result<()> {
    if mark.long {
        features::add(cx, BOOKMARK_V2, -1)?;
    }
    if mark.has_fbn() {
        features::add(cx, BOOKMARK_WRITTEN, -1)?;
    }
    if mark.phys.redaction_obj != 0 {
        let info = cx.mos.info(mark.phys.redaction_obj)?;
        // Its header is in a spill block if the bonus buffer is too short for one.
        if RedactionListPhys::parse(&info.bonus, info.endian).is_err() {
            features::add(cx, REDACTION_LIST_SPILL, -1)?;
        }
        features::add(cx, REDACTION_BOOKMARKS, -1)?;
        cx.mos.free_object(mark.phys.redaction_obj)?;
    }
    Ok(())
}

fn drop_zap(cx: &SyncCx<'_>, head: u64, zap: u64) -> Result<()> {
    cx.mos.free_object(zap)?;
    cx.mos.zap_remove(head, KEY.as_bytes())?;
    features::add(cx, BOOKMARKS, -1)?;
    Ok(())
}

/// Destroys all bookmarks of a head that is being destroyed.
///
/// # Errors
/// Those of the store.
pub(crate) fn destroy_all(cx: &SyncCx<'_>, head: u64) -> Result<()> {
    let Some(zap) = cx.read().attribute_u64(head, KEY)? else { return Ok(()) };
    for mark in of_head(cx.read(), head)? {
        forget(cx, &mark)?;
    }
    drop_zap(cx, head, zap)
}
