//! Encryption keys as they are stored, in syncing context (chapter 08 §A.3).
//!
//! # Theory
//! A dataset's directory refers to a ZAP with its master keys, wrapped by the key of its
//! encryption root; a clone refers to that of its origin. Nothing here needs a key: a raw stream
//! brings the wrapped keys, and the root is a number beside them.
//!
//! # Invariants
//! * The count in the ZAP is the number of directories that refer to it.
//! * An encryption root, and nothing else, has a local `keylocation`.

use base::{Error, ErrorKind, Result};
use ondisk::ObjType;
use ondisk::zap::ZapValue;

use super::props::{self, Change, Target};
use super::{MosRead, SyncCx, features};
use crate::stored::Stored;

/// Attribute of a directory: the object with its keys.
pub const KEY_OBJECT: &str = "com.datto:crypto_key_obj";
/// Attribute of a snapshot: the identity of its initialisation vectors.
pub const IVSET: &str = "com.datto:ivset_guid";
/// Attribute of a snapshot that a raw stream brought.
const RAW_RECEIVED: &str = "org.openzfs:raw_received";
const SUITE: &str = "DSL_CRYPTO_SUITE";
const ROOT: &str = "DSL_CRYPTO_ROOT_DDOBJ";
const GUID: &str = "DSL_CRYPTO_GUID";
const VERSION: &str = "DSL_CRYPTO_VERSION";
const REFCOUNT: &str = "DSL_CRYPTO_REFCOUNT";
const KEY_LOCATION: &str = "keylocation";
/// The only version of the format that is written.
const VERSION_NOW: u64 = 1;
/// Directories below one that an encryption root is sought for.
const DIRS_MAX: usize = 1 << 20;

/// A dataset's master keys, wrapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedKeys {
    /// Algorithm of the dataset, 3 to 8.
    pub suite: u64,
    /// Identity of the master key.
    pub guid: u64,
    /// Initialisation vector of the wrapping.
    pub iv: [u8; 12],
    /// Its MAC.
    pub mac: [u8; 16],
    /// The master key.
    pub master_key: [u8; 32],
    /// The key of HMACs.
    pub hmac_key: [u8; 64],
    /// How the wrapping key is given: 1 raw, 2 hex, 3 a passphrase.
    pub key_format: u64,
    /// Iterations that make a wrapping key from a passphrase.
    pub pbkdf2_iters: u64,
    /// Salt of the same.
    pub pbkdf2_salt: u64,
}

/// The object with the keys of the directory `dir`, if it is encrypted.
///
/// # Errors
/// Those of reading.
pub fn key_object(mos: &dyn MosRead, dir: u64) -> Result<Option<u64>> {
    mos.attribute_u64(dir, KEY_OBJECT)
}

/// The identity of a snapshot's initialisation vectors.
///
/// # Errors
/// Those of reading.
pub fn ivset_guid(mos: &dyn MosRead, snapshot: u64) -> Result<Option<u64>> {
    mos.attribute_u64(snapshot, IVSET)
}

/// Whether an incremental raw stream with these keys fits the directory.
///
/// # Errors
/// `Invalid` if it is not encrypted; `Locked` for other keys; `Unsupported` for keys of an
/// older format; those of reading.
pub fn check_same(mos: &dyn MosRead, dir: u64, keys: &WrappedKeys) -> Result<()> {
    let key = key_object(mos, dir)?;
    let key = key.ok_or_else(|| Error::invalid("the destination is not encrypted"))?;
    if mos.number(key, VERSION)?.unwrap_or(0) != VERSION_NOW {
        return Err(Error::unsupported("the destination's encryption has an older format"));
    }
    let same =
        mos.number(key, GUID)? == Some(keys.guid) && mos.number(key, SUITE)? == Some(keys.suite);
    if !same {
        let text = "encryption key does not match existing key";
        return Err(Error::new(ErrorKind::Locked, text));
    }
    Ok(())
}

fn put_keys(cx: &SyncCx<'_>, key: u64, keys: &WrappedKeys) -> Result<()> {
    let bytes: [(&str, &[u8]); 4] = [
        ("DSL_CRYPTO_IV", &keys.iv),
        ("DSL_CRYPTO_MAC", &keys.mac),
        ("DSL_CRYPTO_MASTER_KEY_1", &keys.master_key),
        ("DSL_CRYPTO_HMAC_KEY_1", &keys.hmac_key),
    ];
    for (name, bytes) in bytes {
        let value = ZapValue::from_bytes(bytes).ok_or_else(|| base::bug!("a key is a value"))?;
        cx.mos.zap_update(key, name.as_bytes(), &value)?;
    }
    cx.put_number(key, SUITE, keys.suite)?;
    cx.put_number(key, GUID, keys.guid)?;
    cx.put_number(key, VERSION, VERSION_NOW)?;
    cx.put_number(key, "keyformat", keys.key_format)?;
    cx.put_number(key, "pbkdf2iters", keys.pbkdf2_iters)?;
    cx.put_number(key, "pbkdf2salt", keys.pbkdf2_salt)
}

/// Makes a new dataset an encrypted one with these keys, which is its own encryption root. Its
/// key is asked for when it is loaded.
///
/// # Errors
/// `Unsupported` unless encryption is enabled; those of the store.
pub fn create(cx: &SyncCx<'_>, dir: u64, head: u64, keys: &WrappedKeys) -> Result<()> {
    let key = cx.new_zap(ObjType::OTN_ZAP_METADATA, 0)?;
    put_keys(cx, key, keys)?;
    cx.put_number(key, ROOT, dir)?;
    cx.put_number(key, REFCOUNT, 1)?;
    features::set_attribute(cx, dir, KEY_OBJECT, &ZapValue::from_u64(key))?;
    features::activate(cx, head, features::ENCRYPTION)?;
    set_location(cx, dir, Some("prompt"))
}

/// Gives a clone, whose directory is `dir`, the keys of its origin's directory, if that has any.
///
/// # Errors
/// Those of the store.
pub fn share(cx: &SyncCx<'_>, dir: u64, origin_dir: u64) -> Result<()> {
    let Some(key) = key_object(cx.read(), origin_dir)? else { return Ok(()) };
    let count = cx.read().number(key, REFCOUNT)?.unwrap_or(1);
    cx.put_number(key, REFCOUNT, count.saturating_add(1))?;
    features::set_attribute(cx, dir, KEY_OBJECT, &ZapValue::from_u64(key))
}

/// Replaces the wrapping of a directory's keys by the one that a raw stream brought; the
/// encryption root remains the same.
///
/// # Errors
/// As [`check_same`]; those of the store.
pub fn rewrap(cx: &SyncCx<'_>, dir: u64, keys: &WrappedKeys) -> Result<()> {
    check_same(cx.read(), dir, keys)?;
    let key = key_object(cx.read(), dir)?.ok_or_else(|| base::bug!("keys vanished"))?;
    put_keys(cx, key, keys)
}

/// Marks a snapshot as one that a raw stream brought, with the identity of its initialisation
/// vectors there.
///
/// # Errors
/// Those of the store.
pub fn received(cx: &SyncCx<'_>, snapshot: u64, ivset: u64) -> Result<()> {
    features::set_attribute(cx, snapshot, IVSET, &ZapValue::from_u64(ivset))?;
    features::set_attribute(cx, snapshot, RAW_RECEIVED, &ZapValue::from_u64(1))
}

fn set_location(cx: &SyncCx<'_>, dir: u64, value: Option<&str>) -> Result<()> {
    let change = match value {
        Some(text) => Change::Set(Stored::Text(text.to_owned())),
        None => Change::ClearAll,
    };
    props::change(cx, Target::Dir(dir), KEY_LOCATION, &change)
}

/// Whether the directory is an encryption root.
///
/// # Errors
/// Those of reading.
pub fn is_root(mos: &dyn MosRead, dir: u64) -> Result<bool> {
    match key_object(mos, dir)? {
        Some(key) => Ok(mos.number(key, ROOT)? == Some(dir)),
        None => Ok(false),
    }
}

/// Moves the encrypted directory `dir`, and those below it with the same encryption root, to the
/// root of its parent; or, unless `inherits`, to itself. Keys remain as they are: they are wrapped
/// by the new root's already, as the sender of a raw package has them.
///
/// # Errors
/// `Invalid` if it, or the parent whose root it gets, is not encrypted; `Limit`; those of the
/// store.
pub fn set_root(cx: &SyncCx<'_>, dir: u64, inherits: bool) -> Result<()> {
    let none = || Error::invalid("the dataset is not encrypted");
    let key = key_object(cx.read(), dir)?.ok_or_else(none)?;
    let old = cx.read().number(key, ROOT)?.unwrap_or(dir);
    let new = match inherits {
        false => dir,
        true => {
            let above = key_object(cx.read(), cx.dir(dir)?.parent_obj)?.ok_or_else(none)?;
            cx.read().number(above, ROOT)?.ok_or_else(none)?
        }
    };
    if old == new {
        return Ok(());
    }
    let (mut todo, mut seen) = (vec![dir], 0);
    while let Some(at) = todo.pop() {
        seen += 1;
        if seen > DIRS_MAX {
            return Err(Error::limit("too many datasets below an encryption root"));
        }
        let Some(key) = key_object(cx.read(), at)? else { continue };
        if cx.read().number(key, ROOT)? == Some(old) {
            cx.put_number(key, ROOT, new)?;
        }
        let below = cx.read().numbers(cx.dir(at)?.child_dir_zapobj)?;
        todo.extend(below.into_iter().map(|(_, child)| child));
    }
    set_location(cx, dir, if inherits { None } else { Some("prompt") })
}
