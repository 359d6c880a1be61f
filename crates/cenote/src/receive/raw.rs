//! What the beginning of a raw stream says (chapter 07 §3.1), and encryption roots (§11.3).

use base::{Error, Result};
use dmu::SealedRoot;
use dsl::props::PropData;
use dsl::stored::Stored;
use dsl::write::crypt::WrappedKeys;
use dsl::write::props::Change;
use dsl::write::receive::RawSnapshot;
use nvlist::{NvList, Value};
use ondisk::dnode::DNODE_BLOCK_SIZE;
use spa::engine::{PropChange, RawReceive};
use stream::PackageHeader;

use super::{ReceiveOptions, ReceivedStream};
use crate::pool::Pool;

/// Properties of a new dataset's encryption. The place of the key is none of them: it can be
/// changed at any time.
const KEY_PARAMETERS: [&str; 4] = ["encryption", "keyformat", "pbkdf2iters", "pbkdf2salt"];

/// The keys in a BEGIN's payload, and the identity of the received snapshot's initialisation
/// vectors. The stream of a partial state lacks the latter.
pub(super) fn raw_receive(payload: &NvList) -> Result<(RawReceive, Option<u64>)> {
    let bad = |what: &str| Error::corrupt(format!("invalid stream (encryption key: {what})"));
    let list = payload.need_list("crypt_keydata")?;
    if list.u64("DSL_CRYPTO_VERSION") != Some(1) {
        return Err(Error::unsupported("the stream's encryption has a format that is not known"));
    }
    let keys = WrappedKeys {
        suite: list.need_u64("DSL_CRYPTO_SUITE")?,
        guid: list.need_u64("DSL_CRYPTO_GUID")?,
        iv: bytes(list, "DSL_CRYPTO_IV")?,
        mac: bytes(list, "DSL_CRYPTO_MAC")?,
        master_key: bytes(list, "DSL_CRYPTO_MASTER_KEY_1")?,
        hmac_key: bytes(list, "DSL_CRYPTO_HMAC_KEY_1")?,
        key_format: list.need_u64("keyformat")?,
        pbkdf2_iters: list.need_u64("pbkdf2iters")?,
        pbkdf2_salt: list.need_u64("pbkdf2salt")?,
    };
    if !(3..=8).contains(&keys.suite) {
        return Err(bad("algorithm"));
    }
    if !(1..=3).contains(&keys.key_format) {
        return Err(bad("format"));
    }
    let small = |name: &str| -> Result<u8> {
        u8::try_from(list.need_u64(name)?).map_err(|_| bad("shape of the tree of dnodes"))
    };
    if list.need_u64("mdn_blksz")? != DNODE_BLOCK_SIZE as u64 || small("mdn_nblkptr")? != 3 {
        return Err(bad("shape of the tree of dnodes"));
    }
    let root = SealedRoot {
        portable_mac: bytes(list, "portable_mac")?,
        checksum: small("mdn_checksum")?,
        compression: small("mdn_compress")?,
        levels: small("mdn_nlevels")?,
        indirect_shift: small("mdn_indblkshift")?,
        max_blkid: list.need_u64("mdn_maxblkid")?,
    };
    root.check()?;
    let from_ivset = list.u64("from_ivset_guid").filter(|guid| *guid != 0);
    let to_ivset = list.u64("to_ivset_guid").filter(|guid| *guid != 0);
    Ok((RawReceive { keys, root, from_ivset }, to_ivset))
}

/// What the snapshot at the end of a raw stream gets.
///
/// # Errors
/// `Invalid` in OpenZFS's words without an identity.
pub(super) fn raw_snapshot(keys: WrappedKeys, ivset: Option<u64>) -> Result<RawSnapshot> {
    let missing = || {
        Error::invalid(
            "IV set guid missing. See errata 4 at \
             https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER.",
        )
    };
    Ok(RawSnapshot { keys, ivset: ivset.ok_or_else(missing)? })
}

fn bytes<const N: usize>(list: &NvList, name: &str) -> Result<[u8; N]> {
    match list.get(name) {
        Some(Value::Uint8Array(bytes)) => bytes.as_slice().try_into().ok(),
        _ => None,
    }
    .ok_or_else(|| Error::corrupt(format!("invalid stream (encryption key: {name})")))
}

/// Refuses properties that a stream's own encryption excludes.
pub(super) fn check_props(options: &ReceiveOptions, raw: bool, incremental: bool) -> Result<()> {
    let of_key = |name: &&String| KEY_PARAMETERS.contains(&name.as_str());
    let set = options.props.iter().map(|(name, _)| name).find(of_key);
    if let Some(name) = set.or(options.inherits.iter().find(of_key)).filter(|_| raw) {
        return Err(Error::invalid(format!(
            "encryption property '{name}' cannot be set or excluded for raw streams."
        )));
    }
    match set.filter(|_| incremental) {
        Some(name) => Err(Error::invalid(format!(
            "encryption property '{name}' cannot be set for incremental streams."
        ))),
        None => Ok(()),
    }
}

/// Whether a new dataset is meant to be unencrypted: the command says so, or the sender's
/// properties came with it, which are those of an unencrypted dataset.
pub(super) fn is_plain(options: &ReceiveOptions, has_props: bool) -> bool {
    let off =
        |(name, value): &(String, PropData)| name == "encryption" && *value == PropData::Num(2);
    options.props.iter().any(off)
        || has_props && !options.inherits.iter().any(|name| name == "encryption")
}

impl Pool {
    /// Gives the datasets of a raw package the encryption roots that they have at the sender. The
    /// topmost one stays its own.
    ///
    /// # Errors
    /// That of a suspension.
    pub(super) fn settle_roots(
        &self,
        list: &PackageHeader,
        received: &[ReceivedStream],
    ) -> Result<()> {
        let mut names: Vec<(&str, bool)> = Vec::new();
        for one in received.iter().filter(|one| one.sent.is_raw) {
            let (name, of) = (one.snapshot.split('@').next(), list.dataset_of(&one.sent.name));
            if let (Some(name), Some(of)) = (name, of) {
                names.push((name, of.is_encryption_root));
            }
        }
        names.sort_unstable();
        names.dedup();
        let Some(&(top, _)) = names.first() else { return Ok(()) };
        for (name, is_root) in names {
            if is_root || name != top {
                self.writer()?.set_encryption_root(name, !is_root)?;
            }
        }
        Ok(())
    }

    /// The place of the key of a new encryption root, as the stream's properties have it.
    pub(super) fn receive_key_location(&self, name: &str, props: &NvList) -> Result<()> {
        let Some(place) = props.str("keylocation") else { return Ok(()) };
        let change = Change::Set(Stored::Text(place.to_owned()));
        let change = PropChange { name: "keylocation".to_owned(), change };
        self.writer()?.set_props(name, vec![change], None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keydata() -> NvList {
        let mut list = NvList::new();
        for (name, value) in [
            ("DSL_CRYPTO_SUITE", 8),
            ("DSL_CRYPTO_GUID", 77),
            ("DSL_CRYPTO_VERSION", 1),
            ("keyformat", 3),
            ("pbkdf2iters", 350_000),
            ("pbkdf2salt", 9),
            ("mdn_checksum", 0),
            ("mdn_compress", 0),
            ("mdn_nlevels", 6),
            ("mdn_blksz", 16_384),
            ("mdn_indblkshift", 17),
            ("mdn_nblkptr", 3),
            ("mdn_maxblkid", 4),
            ("to_ivset_guid", 5),
            ("from_ivset_guid", 0),
        ] {
            list.add_u64(name, value);
        }
        for (name, len) in [
            ("DSL_CRYPTO_MASTER_KEY_1", 32),
            ("DSL_CRYPTO_HMAC_KEY_1", 64),
            ("DSL_CRYPTO_IV", 12),
            ("DSL_CRYPTO_MAC", 16),
            ("portable_mac", 32),
        ] {
            list.insert(name, Value::Uint8Array(vec![1; len]));
        }
        list
    }

    fn parsed(list: NvList) -> Result<(RawReceive, Option<u64>)> {
        let mut payload = NvList::new();
        payload.add_list("crypt_keydata", list);
        raw_receive(&payload)
    }

    #[test]
    fn keys_of_a_stream() {
        let (raw, to) = parsed(keydata()).unwrap();
        assert_eq!((raw.keys.suite, raw.from_ivset, to), (8, None, Some(5)));
        assert!(raw_receive(&NvList::new()).is_err());
        for (name, value) in [
            ("DSL_CRYPTO_SUITE", 2),
            ("DSL_CRYPTO_SUITE", 9),
            ("DSL_CRYPTO_VERSION", 0),
            ("keyformat", 0),
            ("mdn_nlevels", 300),
            ("mdn_nlevels", 1),
            ("mdn_maxblkid", u64::MAX),
            ("mdn_blksz", 512),
            ("mdn_indblkshift", 11),
            ("mdn_nblkptr", 1),
        ] {
            let mut list = keydata();
            list.remove(name);
            assert!(parsed(list.clone()).is_err(), "without {name}");
            list.add_u64(name, value);
            assert!(parsed(list).is_err(), "{name} {value}");
        }
        let mut list = keydata();
        list.add_u64("to_ivset_guid", 0);
        assert_eq!(parsed(list).unwrap().1, None);
        let mut list = keydata();
        list.remove("DSL_CRYPTO_IV");
        list.insert("DSL_CRYPTO_IV", Value::Uint8Array(vec![1; 13]));
        assert!(parsed(list).is_err());
    }

    #[test]
    fn properties_that_encryption_excludes() {
        let with = |name: &str| ReceiveOptions {
            props: vec![(name.to_owned(), PropData::Num(2))],
            ..ReceiveOptions::default()
        };
        let without = |name: &str| ReceiveOptions {
            inherits: vec![name.to_owned()],
            ..ReceiveOptions::default()
        };
        for name in KEY_PARAMETERS {
            assert!(check_props(&with(name), true, false).is_err());
            assert!(check_props(&without(name), true, true).is_err());
            assert!(check_props(&with(name), false, true).is_err());
            assert!(check_props(&without(name), false, true).is_ok());
            assert!(check_props(&with(name), false, false).is_ok());
        }
        assert!(check_props(&with("keylocation"), true, false).is_ok());
        assert!(is_plain(&with("encryption"), false) && is_plain(&with("quota"), true));
        assert!(!is_plain(&with("quota"), false) && !is_plain(&without("encryption"), true));
    }
}
