//! Feature flags: enabling them, counting their uses, marking datasets (chapter 04 §14).
//!
//! # Theory
//! A feature is a count in one of two ZAPs. The uses of a feature of datasets are counted
//! by the keys in the datasets. A dataset that needs one is turned into a ZAP first, which
//! feature extensible_dataset counts in turn.
//!
//! # Invariants
//! * Only features that are enabled are counted or marked.
//! * A count never falls below zero: it stays there, and [`super::check()`] reports it.

use base::{Error, Result};
use ondisk::features::{ACTIVATE_ON_ENABLE, FEATURES, Feature, by_guid};
use ondisk::removal::Removing;
use ondisk::zap::ZapValue;
use ondisk::{BlkPtr, ObjType};

use super::store::DIRECTORY;
use super::{MosRead, SyncCx, bpobj, remap};

/// References to the shared empty list.
pub(crate) const EMPTY_BPOBJ: &str = "com.delphix:empty_bpobj";
/// A list of trees to free exists.
pub(crate) const ASYNC_DESTROY: &str = "com.delphix:async_destroy";
/// When features were enabled.
pub const ENABLED_TXG: &str = "com.delphix:enabled_txg";
/// Objects with attributes.
pub(crate) const EXTENSIBLE_DATASET: &str = "com.delphix:extensible_dataset";
/// Limits on the number of datasets.
pub const FILESYSTEM_LIMITS: &str = "com.joyent:filesystem_limits";
/// Lists of a clone's blocks.
pub(crate) const LIVELIST: &str = "com.delphix:livelist";
/// Heads with bookmarks.
pub(crate) const BOOKMARKS: &str = "com.delphix:bookmarks";
/// Bookmarks of the long form.
pub(crate) const BOOKMARK_V2: &str = "com.datto:bookmark_v2";
/// Bookmarks with a count of the blocks freed since.
pub(crate) const BOOKMARK_WRITTEN: &str = "com.delphix:bookmark_written";
/// Datasets that a redacted stream was received into.
pub const REDACTED_DATASETS: &str = "com.delphix:redacted_datasets";
/// Bookmarks with redaction lists.
pub const REDACTION_BOOKMARKS: &str = "com.delphix:redaction_bookmarks";
/// Redaction lists too long for a bonus buffer.
pub(crate) const REDACTION_LIST_SPILL: &str = "com.delphix:redaction_list_spill";
/// Encrypted datasets.
pub const ENCRYPTION: &str = "com.datto:encryption";
/// Blocks above 128 KiB.
pub const LARGE_BLOCKS: &str = "org.open-zfs:large_blocks";
/// Dnodes of several slots.
pub const ZILSAXATTR: &str = "org.openzfs:zilsaxattr";
/// See [`LARGE_BLOCKS`].
pub const LARGE_DNODE: &str = "org.zfsonlinux:large_dnode";
/// Blocks that moved and kept their logical birth.
pub const PHYSICAL_REWRITE: &str = "com.truenas:physical_rewrite";
/// The error log's new form.
const HEAD_ERRLOG: &str = "com.delphix:head_errlog";

/// The ZAP that counts a feature's uses.
fn zap_of(mos: &dyn MosRead, guid: &str) -> Result<Option<u64>> {
    let known = by_guid(guid).ok_or_else(|| base::bug!("no feature {guid}"))?;
    let name =
        if known.is_read_only_compatible() { "features_for_write" } else { "features_for_read" };
    mos.directory(name)
}

/// The stored count of a feature; `None` unless it is enabled.
///
/// # Errors
/// Those of reading the MOS.
pub fn count(mos: &dyn MosRead, guid: &str) -> Result<Option<u64>> {
    match zap_of(mos, guid)? {
        Some(zap) => mos.number(zap, guid),
        None => Ok(None),
    }
}

/// Whether the feature is enabled.
///
/// # Errors
/// Those of reading the MOS.
pub fn is_enabled(mos: &dyn MosRead, guid: &str) -> Result<bool> {
    Ok(count(mos, guid)?.is_some())
}

/// Whether the feature is in use.
///
/// # Errors
/// Those of reading the MOS.
pub fn is_active(mos: &dyn MosRead, guid: &str) -> Result<bool> {
    Ok(count(mos, guid)?.unwrap_or(0) > 0)
}

/// Changes a feature's count by `by`; returns the new count.
///
/// # Errors
/// `Unsupported` when the feature is not enabled; those of the store.
pub fn add(cx: &SyncCx<'_>, guid: &str, by: i64) -> Result<u64> {
    let before = count(cx.read(), guid)?.ok_or_else(|| disabled(guid))?;
    let after = before.saturating_add_signed(by);
    set_count(cx, guid, after)?;
    Ok(after)
}

fn disabled(guid: &str) -> Error {
    Error::unsupported(format!("the pool's feature {guid} is not enabled"))
}

/// Sets a feature's count.
///
/// # Errors
/// `Unsupported` when the pool has no features; those of the store.
pub fn set_count(cx: &SyncCx<'_>, guid: &str, value: u64) -> Result<()> {
    let zap = zap_of(cx.read(), guid)?.ok_or_else(|| disabled(guid))?;
    let before = cx.read().number(zap, guid)?.unwrap_or(0);
    cx.put_number(zap, guid, value)?;
    if by_guid(guid).is_some_and(Feature::is_mos) && (before == 0) != (value == 0) {
        cx.label_features_changed.set(true);
    }
    Ok(())
}

/// Enables a feature and the features that it depends on. An enabled feature is unchanged.
///
/// # Errors
/// `Unsupported` for pools without features and where the error log would have to be
/// converted; those of the store.
pub fn enable(cx: &SyncCx<'_>, feature: &Feature) -> Result<()> {
    if is_enabled(cx.read(), feature.guid)? {
        return Ok(());
    }
    for guid in feature.depends {
        let needed = by_guid(guid).ok_or_else(|| base::bug!("a feature needs an unknown one"))?;
        enable(cx, needed)?;
    }
    if feature.guid == HEAD_ERRLOG {
        check_error_logs(cx)?;
    }
    let texts = cx.read().required("feature_descriptions")?;
    let text = [feature.description.as_bytes(), &[0]].concat();
    let text = ZapValue::from_bytes(&text).ok_or_else(|| base::bug!("description too long"))?;
    cx.mos.zap_update(texts, feature.guid.as_bytes(), &text)?;
    set_count(cx, feature.guid, u64::from(feature.has(ACTIVATE_ON_ENABLE)))?;
    if is_enabled(cx.read(), ENABLED_TXG)? {
        let txgs = match cx.read().directory("feature_enabled_txg")? {
            Some(zap) => zap,
            None => {
                let zap = cx.new_zap(ObjType::OTN_ZAP_METADATA, 0)?;
                cx.put_number(DIRECTORY, "feature_enabled_txg", zap)?;
                zap
            }
        };
        cx.put_number(txgs, feature.guid, cx.txg.0)?;
        add(cx, ENABLED_TXG, 1)?;
    }
    Ok(())
}

/// Whether [`enable`] would succeed for all of these.
///
/// # Errors
/// As [`enable`].
pub fn check_enable(cx: &SyncCx<'_>, list: &[&'static Feature]) -> Result<()> {
    for feature in list {
        if feature.guid == HEAD_ERRLOG && !is_enabled(cx.read(), HEAD_ERRLOG)? {
            check_error_logs(cx)?;
        }
    }
    Ok(())
}

/// Errors logged in the old form would be unreadable in the new one (§18).
fn check_error_logs(cx: &SyncCx<'_>) -> Result<()> {
    for name in ["errlog_last", "errlog_scrub"] {
        let log = cx.read().directory(name)?.unwrap_or(0);
        if log != 0 && !cx.mos.zap_entries(log)?.is_empty() {
            return Err(Error::unsupported(
                "the pool's error log has an old form; clear the errors first",
            ));
        }
    }
    Ok(())
}

/// Converts a directory or dataset so that named attributes can be attached to it
/// (chapter 04 §0).
///
/// # Errors
/// `Unsupported` unless extensible_dataset is enabled; those of the store.
pub(crate) fn zapify(cx: &SyncCx<'_>, object: u64) -> Result<()> {
    if cx.read().is_zapified(object)? {
        return Ok(());
    }
    add(cx, EXTENSIBLE_DATASET, 1)?;
    cx.mos.set_object_type(object, ObjType::OTN_ZAP_METADATA)?;
    cx.mos.zap_init(object, 0)
}

/// Attaches an attribute to a directory or dataset.
///
/// # Errors
/// As [`zapify`].
pub(crate) fn set_attribute(
    cx: &SyncCx<'_>,
    object: u64,
    key: &str,
    value: &ZapValue,
) -> Result<()> {
    zapify(cx, object)?;
    cx.mos.zap_update(object, key.as_bytes(), value)
}

/// Frees a directory or dataset object.
///
/// # Errors
/// Those of the store.
pub(crate) fn free_zapified(cx: &SyncCx<'_>, object: u64) -> Result<()> {
    if cx.read().is_zapified(object)? {
        add(cx, EXTENSIBLE_DATASET, -1)?;
    }
    cx.mos.free_object(object)
}

/// Features whose key is in a dataset, with the key's value.
///
/// # Errors
/// Those of reading the MOS.
pub fn of_dataset(mos: &dyn MosRead, dataset: u64) -> Result<Vec<(&'static Feature, ZapValue)>> {
    if !mos.is_zapified(dataset)? {
        return Ok(Vec::new());
    }
    let mut out = Vec::new();
    for (name, value) in mos.zap_entries(dataset)? {
        let feature = std::str::from_utf8(&name).ok().and_then(by_guid);
        if let Some(feature) = feature.filter(|f| f.is_per_dataset()) {
            out.push((feature, value));
        }
    }
    Ok(out)
}

/// Marks a dataset as using a feature; no effect if it is marked already.
///
/// # Errors
/// `Unsupported` unless the feature is enabled; those of the store.
pub fn activate(cx: &SyncCx<'_>, dataset: u64, guid: &str) -> Result<()> {
    activate_with(cx, dataset, guid, &ZapValue::from_u64(0))
}

/// The same with the value of the key (redacted_datasets).
///
/// # Errors
/// As [`activate`].
pub(crate) fn activate_with(
    cx: &SyncCx<'_>,
    dataset: u64,
    guid: &str,
    value: &ZapValue,
) -> Result<()> {
    if cx.read().attribute(dataset, guid)?.is_some() {
        return Ok(());
    }
    add(cx, guid, 1)?;
    set_attribute(cx, dataset, guid, value)
}

/// Marks `to` with all features of `from`.
///
/// # Errors
/// As [`activate`].
pub fn copy(cx: &SyncCx<'_>, from: u64, to: u64) -> Result<()> {
    for (feature, value) in of_dataset(cx.read(), from)? {
        activate_with(cx, to, feature.guid, &value)?;
    }
    Ok(())
}

/// Removes one mark of a dataset, if it exists.
///
/// # Errors
/// Those of the store.
pub fn deactivate(cx: &SyncCx<'_>, dataset: u64, guid: &str) -> Result<()> {
    if cx.read().attribute(dataset, guid)?.is_some() {
        cx.mos.zap_remove(dataset, guid.as_bytes())?;
        add(cx, guid, -1)?;
    }
    Ok(())
}

/// Removes all marks of a dataset.
///
/// # Errors
/// Those of the store.
pub(crate) fn deactivate_all(cx: &SyncCx<'_>, dataset: u64) -> Result<()> {
    for (feature, _) in of_dataset(cx.read(), dataset)? {
        cx.mos.zap_remove(dataset, feature.guid.as_bytes())?;
        add(cx, feature.guid, -1)?;
    }
    Ok(())
}

/// Exchanges the marks of two datasets.
///
/// # Errors
/// Those of the store.
pub(crate) fn exchange(cx: &SyncCx<'_>, a: u64, b: u64) -> Result<()> {
    let (of_a, of_b) = (of_dataset(cx.read(), a)?, of_dataset(cx.read(), b)?);
    deactivate_all(cx, a)?;
    deactivate_all(cx, b)?;
    for (object, marks) in [(a, of_b), (b, of_a)] {
        for (feature, value) in marks {
            activate_with(cx, object, feature.guid, &value)?;
        }
    }
    Ok(())
}

/// Features whose use a block's pointer implies for its dataset (§5.2).
pub(crate) fn needed_by(bp: &BlkPtr) -> impl Iterator<Item = &'static str> {
    let (compression, checksum) = match bp {
        BlkPtr::Block(b) => (b.compression, b.checksum),
        BlkPtr::Embedded(e) => (e.compression, 0),
        BlkPtr::Hole(_) | BlkPtr::Redacted(_) => (0, 0),
    };
    let size = (bp.head().lsize.0 > 128 << 10 && !bp.is_hole()).then_some(LARGE_BLOCKS);
    let checksum = match checksum {
        11 => Some("org.illumos:sha512"),
        12 => Some("org.illumos:skein"),
        13 => Some("org.illumos:edonr"),
        14 => Some("org.openzfs:blake3"),
        _ => None,
    };
    let compression = (compression == 16).then_some("org.freebsd:zstd_compress");
    let rewritten = bp.as_block().is_some_and(|b| b.rewritten).then_some(PHYSICAL_REWRITE);
    size.into_iter().chain(checksum).chain(compression).chain(rewritten)
}

/// A reason why the pool can be opened only for reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The feature, or the structure of the MOS.
    pub what: String,
    /// Why Cenote cannot write to the pool.
    pub why: &'static str,
}

/// Features that Cenote's writer does not maintain, and the consequence.
const NOT_MAINTAINED: &[(&str, &str)] =
    &[("com.seagate:draid_failure_domains", "its layout is not known")];

/// The state of the removal of a device, in the object directory.
const REMOVING: &str = "com.delphix:removing";

/// The reasons why the pool can be opened only for reading; none if Cenote maintains all
/// features in use. Obstacles that only labels and vdevs show (a RAID-Z expansion in
/// progress), and damaged dedup tables, must be detected by the code that opens the pool.
///
/// # Errors
/// Those of reading the MOS.
pub fn obstacles(mos: &dyn MosRead) -> Result<Vec<Obstacle>> {
    let mut out = Vec::new();
    for name in ["features_for_read", "features_for_write"] {
        // Pools older than version 5000 have none.
        let Some(zap) = mos.directory(name)? else { continue };
        for (guid, refs) in mos.numbers(zap)? {
            if refs == 0 {
                continue;
            }
            if by_guid(&guid).is_none() {
                let why = "the feature is in use and unknown to this version";
                out.push(Obstacle { what: guid, why });
            } else if let Some((_, why)) = NOT_MAINTAINED.iter().find(|(g, _)| *g == guid) {
                out.push(Obstacle { what: guid, why });
            }
        }
    }
    let scan = mos.zap_lookup(DIRECTORY, b"scan")?;
    if scan.is_none() && mos.directory("scrub_func")?.unwrap_or(0) != 0 {
        let why = "software older than version 25 has not finished scrubbing it";
        out.push(Obstacle { what: "scrub_func".to_owned(), why });
    }
    out.extend(removal_obstacles(mos)?);
    Ok(out)
}

/// Records of removals, and lists of obsolete addresses, of an unknown form.
fn removal_obstacles(mos: &dyn MosRead) -> Result<Vec<Obstacle>> {
    let mut out = Vec::new();
    if let Some(value) = mos.zap_lookup(DIRECTORY, REMOVING.as_bytes())? {
        let words = value.u64s().unwrap_or_default();
        let removing = words.first_chunk().map(Removing::from_words);
        if removing.is_none_or(|r| r.is_err()) {
            let why = "the record of a device's removal cannot be read";
            out.push(Obstacle { what: REMOVING.to_owned(), why });
        }
    }
    if let Some(list) = mos.directory(remap::OBSOLETE_LIST)?
        && bpobj::for_each(mos, list, &mut |_| Ok(())).is_err()
    {
        let why = "the addresses to be noted in a removed device's mapping cannot be read";
        out.push(Obstacle { what: remap::OBSOLETE_LIST.to_owned(), why });
    }
    Ok(out)
}

/// Whether Cenote enables the feature in new pools. It does if it can read the structures
/// of the feature and maintains them.
pub fn is_maintained(feature: &Feature) -> bool {
    feature.is_readable() && !NOT_MAINTAINED.iter().any(|(guid, _)| *guid == feature.guid)
}

/// All maintained features, in the order in which they are enabled.
pub fn maintained() -> impl Iterator<Item = &'static Feature> {
    FEATURES.iter().filter(|f| is_maintained(f))
}
