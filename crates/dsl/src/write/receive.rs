//! Datasets that are being received, in syncing context (chapter 07 §12.1, §13.2, §13.5).
//!
//! # Theory
//! A stream is received into a hidden head: a new dataset, or a clone named `%recv`
//! below the dataset that the stream changes. The head is marked inconsistent, so that what a
//! crash leaves of it is destroyed by the next import, unless it has the attributes of a
//! resumable receive.
//!
//! The last txg makes all of it visible: the clone's content becomes that of the dataset
//! ([`super::rollback::swap`]), and a snapshot with the stream's identity is taken. So every
//! uberblock has the state before the receive, or the one after it.

use base::{Error, Result};
use ondisk::dslphys::DS_FLAG_INCONSISTENT;
use ondisk::zap::ZapValue;

use super::crypt::{self, WrappedKeys};
use super::{MosRead, SyncCx, counts, create, features, snapshot};

/// Name of the directory of a clone that is being received.
pub const HIDDEN_NAME: &str = "%recv";
const FROM_GUID: &str = "com.delphix:resume_fromguid";
const TO_GUID: &str = "com.delphix:resume_toguid";
const TO_NAME: &str = "com.delphix:resume_toname";
const OBJECT: &str = "com.delphix:resume_object";
const OFFSET: &str = "com.delphix:resume_offset";
const BYTES: &str = "com.delphix:resume_bytes";
const LARGE_BLOCKS: &str = "com.delphix:resume_largeblockok";
const EMBEDDED: &str = "com.delphix:resume_embedok";
const COMPRESSED: &str = "com.delphix:resume_compressok";
const RAW: &str = "com.datto:resume_rawok";
const REDACT_SNAPS: &str = "com.delphix:resume_redact_book_snaps";

/// How far a receive has come (chapter 07 §12.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivePosition {
    /// The object of the last record that was applied.
    pub object: u64,
    /// Its byte offset.
    pub offset: u64,
    /// Bytes of the stream so far, those before interruptions included.
    pub bytes: u64,
}

impl ReceivePosition {
    /// That of a receive that has applied nothing.
    pub const BEGIN: ReceivePosition = ReceivePosition { object: 1, offset: 0, bytes: 0 };
}

/// The stored state of a resumable receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeState {
    /// Guid of the snapshot that the stream is incremental to; `None` for a full one.
    pub from_guid: Option<u64>,
    /// Guid of the snapshot that is received.
    pub to_guid: u64,
    /// Its name on the sender.
    pub to_name: String,
    /// How far it has come.
    pub position: ReceivePosition,
    /// The stream has large blocks.
    pub large_blocks: bool,
    /// It has embedded blocks.
    pub embedded: bool,
    /// It has compressed payloads.
    pub compressed: bool,
    /// It is raw.
    pub raw: bool,
    /// Guids of the redaction snapshots of the bookmark that the stream is incremental to.
    pub from_redacted: Option<Vec<u64>>,
}

/// The stored state of the resumable receive into the head `dataset`, if there is one.
///
/// # Errors
/// Those of reading.
pub fn resume_state(mos: &dyn MosRead, dataset: u64) -> Result<Option<ResumeState>> {
    let number = |key: &str| mos.attribute_u64(dataset, key);
    let Some(to_guid) = number(TO_GUID)? else { return Ok(None) };
    let name = mos.attribute(dataset, TO_NAME)?;
    let name = name.as_ref().and_then(|v| v.as_str_bytes()).unwrap_or_default();
    let has = |key: &str| number(key).map(|found| found.is_some());
    Ok(Some(ResumeState {
        from_guid: number(FROM_GUID)?,
        to_guid,
        to_name: String::from_utf8_lossy(name).into_owned(),
        position: ReceivePosition {
            object: number(OBJECT)?.unwrap_or(1),
            offset: number(OFFSET)?.unwrap_or(0),
            bytes: number(BYTES)?.unwrap_or(0),
        },
        large_blocks: has(LARGE_BLOCKS)?,
        embedded: has(EMBEDDED)?,
        compressed: has(COMPRESSED)?,
        raw: has(RAW)?,
        from_redacted: match mos.attribute(dataset, REDACT_SNAPS)? {
            Some(value) => value.u64s(),
            None => None,
        },
    }))
}

/// The head of the clone that is being received below the directory `dir`, if there is one.
///
/// # Errors
/// Those of reading.
pub fn hidden_head(mos: &dyn MosRead, dir: u64) -> Result<Option<u64>> {
    let children = mos.dir(dir)?.child_dir_zapobj;
    let hidden = mos.number(children, HIDDEN_NAME)?;
    hidden.map(|dir| mos.dir(dir).map(|d| d.head_dataset_obj)).transpose()
}

/// Makes the hidden clone of the snapshot `base` below the directory of the head `target`;
/// without `base` one without content. Returns its head.
///
/// # Errors
/// Those of the store.
pub fn hidden(cx: &SyncCx<'_>, target: u64, base: Option<u64>) -> Result<u64> {
    let ds = cx.dataset(target)?;
    let origin = match base {
        Some(base) => Some(base),
        None => cx.origin_of_all()?,
    };
    let dir = create::directory(cx, ds.dir_obj, HIDDEN_NAME)?;
    if base.is_some() {
        crypt::share(cx, dir, ds.dir_obj)?;
    }
    counts::filesystems(cx, ds.dir_obj, 1)?;
    let head = create::head(cx, dir, origin, ds.is_case_insensitive())?;
    counts::begin(cx, dir)?;
    Ok(head)
}

/// Marks a head as being received, and stores `resume` with it, if the receive can be resumed.
///
/// # Errors
/// `Unsupported` for `resume` in pools without extensible datasets; those of the store.
pub fn begin(cx: &SyncCx<'_>, head: u64, resume: Option<&ResumeState>) -> Result<()> {
    cx.edit_dataset(head, |ds| ds.flags |= DS_FLAG_INCONSISTENT)?;
    let Some(state) = resume else { return Ok(()) };
    let put = |key: &str, n: u64| features::set_attribute(cx, head, key, &ZapValue::from_u64(n));
    if let Some(guid) = state.from_guid {
        put(FROM_GUID, guid)?;
    }
    put(TO_GUID, state.to_guid)?;
    let name = [state.to_name.as_bytes(), &[0]].concat();
    let name = ZapValue::from_bytes(&name).ok_or_else(|| base::bug!("a name is a value"))?;
    features::set_attribute(cx, head, TO_NAME, &name)?;
    let flags = [
        (state.large_blocks, LARGE_BLOCKS),
        (state.embedded, EMBEDDED),
        (state.compressed, COMPRESSED),
        (state.raw, RAW),
    ];
    flags.iter().filter(|(set, _)| *set).try_for_each(|(_, key)| put(key, 1))?;
    if let Some(guids) = state.from_redacted.as_ref().filter(|guids| !guids.is_empty()) {
        features::set_attribute(cx, head, REDACT_SNAPS, &guid_list(guids)?)?;
    }
    put_position(cx, head, state.position)
}

fn guid_list(guids: &[u64]) -> Result<ZapValue> {
    ZapValue::from_u64s(guids).ok_or_else(|| Error::limit("too many redaction snapshots"))
}

/// Marks a head as redacted by these snapshots, or, without, as one that lacks nothing.
///
/// # Errors
/// `Unsupported` unless the feature is enabled; `Limit`; those of the store.
pub fn set_redacted(cx: &SyncCx<'_>, head: u64, guids: Option<&[u64]>) -> Result<()> {
    features::deactivate(cx, head, features::REDACTED_DATASETS)?;
    match guids {
        Some(guids) => {
            features::activate_with(cx, head, features::REDACTED_DATASETS, &guid_list(guids)?)
        }
        None => Ok(()),
    }
}

/// The guids of the snapshots by which a dataset is redacted; `None` if it is not.
///
/// # Errors
/// Those of reading; `Corrupt`.
pub fn redacted_by(mos: &dyn MosRead, dataset: u64) -> Result<Option<Vec<u64>>> {
    let odd = || Error::corrupt("the redaction snapshots are no numbers");
    let Some(value) = mos.attribute(dataset, features::REDACTED_DATASETS)? else {
        return Ok(None);
    };
    value.u64s().map(Some).ok_or_else(odd)
}

/// Stores how far a resumable receive has come, in the txg that writes its data.
///
/// # Errors
/// Those of the store.
pub fn put_position(cx: &SyncCx<'_>, head: u64, at: ReceivePosition) -> Result<()> {
    let put = |key: &str, n: u64| features::set_attribute(cx, head, key, &ZapValue::from_u64(n));
    put(OBJECT, at.object)?;
    put(OFFSET, at.offset)?;
    put(BYTES, at.bytes)
}

/// The identity of the snapshot that a stream ends with.
#[derive(Clone, Debug)]
pub struct ReceivedSnapshot {
    /// Its name, without dataset.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// When it was taken, seconds since 1970.
    pub creation_time: u64,
    /// What a raw stream brought with it.
    pub raw: Option<RawSnapshot>,
}

/// What only the snapshot of a raw stream has.
#[derive(Clone, Debug)]
pub struct RawSnapshot {
    /// The keys of its dataset.
    pub keys: WrappedKeys,
    /// Identity of its initialisation vectors.
    pub ivset: u64,
}

/// The head, which was synced in this txg, is complete: takes its snapshot, and returns that.
///
/// # Errors
/// As [`snapshot::take`].
pub fn finish(cx: &SyncCx<'_>, head: u64, new: &ReceivedSnapshot) -> Result<u64> {
    cx.edit_dataset(head, |ds| ds.flags &= !DS_FLAG_INCONSISTENT)?;
    if cx.read().is_zapified(head)? {
        for key in [FROM_GUID, TO_GUID, TO_NAME, OBJECT, OFFSET, BYTES, REDACT_SNAPS] {
            cx.remove_if_present(head, key)?;
        }
    }
    let taken = snapshot::take(cx, head, &new.name)?;
    cx.edit_dataset(taken, |ds| {
        ds.guid = new.guid;
        ds.creation_time = new.creation_time;
        ds.flags &= !DS_FLAG_INCONSISTENT;
    })?;
    if let Some(raw) = &new.raw {
        crypt::rewrap(cx, cx.dataset(head)?.dir_obj, &raw.keys)?;
        crypt::received(cx, taken, raw.ivset)?;
    }
    Ok(taken)
}
