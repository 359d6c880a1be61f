//! Storing properties (chapter 04 §12.1, §12.4, §12.5).
//!
//! # Theory
//! A property ZAP has, for each property, the value set here, the value received, and
//! whether a received value is overridden. Some properties have effects beyond their entry:
//! quotas and reservations are accounted for, limits are counted, compression with zstd
//! marks the dataset.
//!
//! # Invariants
//! * The effects beyond an entry are applied in the same txg.

use base::{Error, ErrorKind, Result};
use ondisk::ObjType;
use ondisk::zap::ZapValue;

use super::store::DIRECTORY;
use super::{MosRead, SyncCx, accounting, counts, features};
use crate::stored::Stored;

/// Type of the ZAP of pool properties.
const POOL_PROPS: ObjType = ObjType(31);
/// Bytes of a property's name in the ZAP, suffix included.
const NAME_MAX: usize = 255;
/// Bytes of a string, its NUL included.
const TEXT_MAX: usize = 8192;
const RECEIVED: &str = "$recvd";
const INHERIT: &str = "$inherit";
const UNKNOWN_VALUE: &str = "$iuv";
const HAS_RECEIVED: &str = "$hasrecvd";
const NO_LIMIT: u64 = u64::MAX;

/// A change of a property (the table of §12.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Set here.
    Set(Stored),
    /// Inherited from above, or the default.
    Inherit,
    /// The received value is in effect again.
    Revert,
    /// A stream contained a value.
    Receive(Stored),
    /// The received value is removed.
    ClearReceived,
    /// All values stored here are removed.
    ClearAll,
}

/// The owner of a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A directory's: of a file system or volume.
    Dir(u64),
    /// A snapshot's, by its dataset object.
    Snapshot(u64),
}

fn value_of(zap: &ZapValue) -> Result<Stored> {
    Stored::from_zap(zap)
}

/// The value stored in this very ZAP that is in effect: the one set, else the one received.
///
/// # Errors
/// Those of reading; `Corrupt`.
pub fn own(mos: &dyn MosRead, zap: u64, name: &str) -> Result<Option<Stored>> {
    if zap == 0 {
        return Ok(None);
    }
    let get = |suffix: &str| mos.zap_lookup(zap, format!("{name}{suffix}").as_bytes());
    if let Some(value) = get("")? {
        return value_of(&value).map(Some);
    }
    if get(INHERIT)?.is_some() {
        return Ok(None);
    }
    get(RECEIVED)?.as_ref().map(value_of).transpose()
}

/// The same for a number that is not inherited and by default 0.
///
/// # Errors
/// As [`own`].
pub fn own_number(mos: &dyn MosRead, dir: u64, name: &str) -> Result<u64> {
    let stored = own(mos, mos.dir(dir)?.props_zapobj, name)?;
    Ok(stored.and_then(|v| v.number()).unwrap_or(0))
}

/// The refreservation of a directory's head.
///
/// # Errors
/// As [`own`].
pub fn refreservation(mos: &dyn MosRead, dir: u64) -> Result<u64> {
    own_number(mos, dir, "refreservation")
}

fn to_zap(value: &Stored) -> Result<ZapValue> {
    match value {
        Stored::Number(n) => Ok(ZapValue::from_u64(*n)),
        Stored::Text(text) => {
            let bytes = [text.as_bytes(), &[0]].concat();
            ZapValue::from_bytes(&bytes)
                .filter(|_| bytes.len() <= TEXT_MAX && !text.contains('\0'))
                .ok_or_else(|| Error::invalid("a property has at most 8191 bytes, none of them 0"))
        }
    }
}

/// Whether `name` is a valid property name.
///
/// # Errors
/// `NameTooLong`, `Invalid`.
pub fn check_name(name: &str) -> Result<()> {
    if name.len() + INHERIT.len() > NAME_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, "a property's name is too long"));
    }
    if name.is_empty() || name.contains(['$', '\0']) {
        return Err(Error::invalid("this cannot be a property's name"));
    }
    Ok(())
}

/// Whether older software does not recognise this value (the `$iuv` rule).
fn is_new_value(name: &str, value: &Stored) -> bool {
    match (name, value.number()) {
        ("redundant_metadata", Some(n)) => n >= 2,
        ("snapdir", Some(n)) => n >= 2,
        _ => false,
    }
}

fn edit_zap(cx: &SyncCx<'_>, zap: u64, name: &str, change: &Change) -> Result<()> {
    let with = |suffix: &str| format!("{name}{suffix}");
    let remove = |suffix: &str| cx.remove_if_present(zap, &with(suffix)).map(|_| ());
    let put =
        |suffix: &str, v: &Stored| cx.mos.zap_update(zap, with(suffix).as_bytes(), &to_zap(v)?);
    match change {
        Change::Set(value) => {
            remove(INHERIT)?;
            if is_new_value(name, value) {
                put(UNKNOWN_VALUE, value)?;
                put("", &Stored::Number(0))
            } else {
                remove(UNKNOWN_VALUE)?;
                put("", value)
            }
        }
        Change::Inherit => {
            remove("")?;
            remove(UNKNOWN_VALUE)?;
            if cx.mos.zap_lookup(zap, HAS_RECEIVED.as_bytes())?.is_some() {
                cx.put_number(zap, &with(INHERIT), 0)?;
            }
            Ok(())
        }
        Change::Revert => {
            remove("")?;
            remove(UNKNOWN_VALUE)?;
            remove(INHERIT)
        }
        Change::Receive(value) => {
            cx.put_number(zap, HAS_RECEIVED, 0)?;
            put(RECEIVED, value)
        }
        Change::ClearReceived => remove(RECEIVED),
        Change::ClearAll => {
            remove("")?;
            remove(UNKNOWN_VALUE)?;
            remove(INHERIT)?;
            remove(RECEIVED)
        }
    }
}

/// Changes a property and everything that depends on it. The caller validates the value.
///
/// # Errors
/// `Invalid`, `NameTooLong`; `Unsupported` for a value whose feature is not enabled; those
/// of the store.
pub fn change(cx: &SyncCx<'_>, target: Target, name: &str, change: &Change) -> Result<()> {
    check_name(name)?;
    if let Change::Set(value) | Change::Receive(value) = change {
        to_zap(value)?;
    }
    match target {
        Target::Dir(dir) => change_dir(cx, dir, name, change),
        Target::Snapshot(snapshot) => change_snapshot(cx, snapshot, name, change),
    }
}

fn change_dir(cx: &SyncCx<'_>, dir: u64, name: &str, change: &Change) -> Result<()> {
    let mut zap = cx.dir(dir)?.props_zapobj;
    if zap == 0 {
        zap = cx.new_zap(ObjType::DSL_PROPS, 0)?;
        cx.edit_dir(dir, |d| d.props_zapobj = zap)?;
    }
    let before = own(cx.read(), zap, name)?.and_then(|v| v.number());
    edit_zap(cx, zap, name, change)?;
    let after = own(cx.read(), zap, name)?.and_then(|v| v.number());
    if before == after {
        return Ok(());
    }
    let (old, new) = (before.unwrap_or(0), after.unwrap_or(0));
    match name {
        "quota" => cx.edit_dir(dir, |d| d.quota = new),
        "reservation" => accounting::set_reservation(cx, dir, new),
        "refreservation" => accounting::refreservation_changed(cx, dir, old, new),
        "filesystem_limit" | "snapshot_limit" if after.is_some_and(|n| n != NO_LIMIT) => {
            counts::activate(cx, dir)
        }
        "compression" if after.is_some_and(|n| n & 0x7f == 16) => {
            let head = cx.dir(dir)?.head_dataset_obj;
            features::activate(cx, head, "org.freebsd:zstd_compress")
        }
        _ => Ok(()),
    }
}

fn change_snapshot(cx: &SyncCx<'_>, snapshot: u64, name: &str, change: &Change) -> Result<()> {
    let mut phys = cx.dataset(snapshot)?;
    if !phys.is_snapshot() {
        return Err(base::bug!("a head's properties belong to its directory"));
    }
    if phys.props_obj == 0 {
        if !matches!(change, Change::Set(_) | Change::Receive(_)) {
            return Ok(());
        }
        phys.props_obj = cx.new_zap(ObjType::DSL_PROPS, 0)?;
        cx.put_dataset(snapshot, &phys)?;
    }
    edit_zap(cx, phys.props_obj, name, change)?;
    if cx.mos.zap_entries(phys.props_obj)?.is_empty() {
        cx.mos.free_object(phys.props_obj)?;
        phys.props_obj = 0;
        cx.put_dataset(snapshot, &phys)?;
    }
    Ok(())
}

/// Sets a property of the pool that is stored in its ZAP; `None` removes it.
///
/// # Errors
/// `Invalid`, `NameTooLong`; those of the store.
pub fn set_pool(cx: &SyncCx<'_>, name: &str, value: Option<&Stored>) -> Result<()> {
    check_name(name)?;
    let zap = cx.read().directory("pool_props")?;
    match (zap, value) {
        (None, None) => Ok(()),
        (Some(zap), None) => cx.remove_if_present(zap, name).map(|_| ()),
        (zap, Some(value)) => {
            let value = to_zap(value)?;
            let zap = match zap {
                Some(zap) => zap,
                None => {
                    let zap = cx.new_zap(POOL_PROPS, 0)?;
                    cx.put_number(DIRECTORY, "pool_props", zap)?;
                    zap
                }
            };
            cx.mos.zap_update(zap, name.as_bytes(), &value)
        }
    }
}

/// Clears the pool's bootfs property if it names `dataset`.
///
/// # Errors
/// Those of the store.
pub(crate) fn clear_bootfs(cx: &SyncCx<'_>, dataset: u64) -> Result<()> {
    let Some(zap) = cx.read().directory("pool_props")? else { return Ok(()) };
    if cx.read().number(zap, "bootfs")? == Some(dataset) {
        cx.put_number(zap, "bootfs", 0)?;
    }
    Ok(())
}
