//! The keys that a raw stream carries, wrapped as they are stored (chapter 07 §3.1, chapter 08).

use base::{Error, Result};
use dmu::Io;
use dsl::DslDataset;
use nvlist::{NvList, Value};
use ondisk::{BlkPtr, ObjsetPhys};
use stream::{SendOptions, SendSnapshot};

use super::{Dataset, DatasetOrBookmark};

/// Key of a snapshot's identity in raw streams.
const IVSET: &str = "com.datto:ivset_guid";
/// Where an object set has its portable MAC (chapter 08 §A.11).
const PORTABLE_MAC: std::ops::Range<usize> = 720..752;

impl Dataset {
    /// The object set as it is stored: nothing of it can be decrypted. Only what is in the
    /// clear may be read.
    pub(super) fn stored_objset(&self) -> Result<std::sync::Arc<dmu::Objset>> {
        let none = || Error::corrupt("the dataset has no content").in_dataset(self.name());
        self.ds().open_objset()?.ok_or_else(none)
    }

    /// The same, of a snapshot or a head; dnodes can be read.
    pub(crate) fn objset_as_stored(&self) -> Result<std::sync::Arc<dmu::Objset>> {
        if !self.is_locked() {
            return self.objset();
        }
        let none = || Error::corrupt("the dataset has no content").in_dataset(self.name());
        self.ds().open_stored_objset()?.ok_or_else(none)
    }

    /// Whether a block of the dataset can be read.
    pub(crate) fn can_read(&self, block: &ondisk::blkptr::Block) -> bool {
        self.dir().mos().objset().zio().read_physical(block).is_ok()
    }

    /// The list `crypt_keydata`; `None` for a stream that is not raw. `from_ivset` is the
    /// identity of what it is incremental to.
    ///
    /// # Errors
    /// `Corrupt` if a part of the key is missing; those of reading.
    pub(super) fn raw_keys(
        &self,
        from_ivset: u64,
        options: SendOptions,
        snapshot: &SendSnapshot,
    ) -> Result<Option<NvList>> {
        let Some(object) = self.dir().crypto_key_object()?.filter(|_| options.raw) else {
            return Ok(None);
        };
        let mos = self.dir().mos();
        let key = mos.zap(object)?;
        let missing = |name: &str| Error::corrupt(format!("the encryption key lacks '{name}'"));
        let mut list = NvList::new();
        for name in ["DSL_CRYPTO_SUITE", "DSL_CRYPTO_GUID", "DSL_CRYPTO_VERSION"] {
            list.add_u64(name, key.lookup_u64(name)?.ok_or_else(|| missing(name))?);
        }
        let bytes = [
            ("DSL_CRYPTO_MASTER_KEY_1", 32),
            ("DSL_CRYPTO_HMAC_KEY_1", 64),
            ("DSL_CRYPTO_IV", 12),
            ("DSL_CRYPTO_MAC", 16),
        ];
        for (name, len) in bytes {
            let value = key.lookup(name.as_bytes())?.filter(|value| value.data.len() == len);
            let value = value.ok_or_else(|| missing(name))?;
            list.insert(name, Value::Uint8Array(value.data));
        }
        let (phys, portable_mac) = read_objset(snapshot)?;
        list.insert("portable_mac", Value::Uint8Array(portable_mac));
        // Its encryption root says how the wrapping key is made.
        let root = match key.lookup_u64("DSL_CRYPTO_ROOT_DDOBJ")? {
            Some(root) => {
                let mut chain = std::iter::once(self.dir()).chain(self.dir().ancestors());
                match chain.find(|dir| dir.object() == root) {
                    Some(dir) => dir.crypto_key_object()?.unwrap_or(object),
                    None => object,
                }
            }
            None => object,
        };
        let root = mos.zap(root)?;
        for name in ["keyformat", "pbkdf2iters", "pbkdf2salt"] {
            list.add_u64(name, root.lookup_u64(name)?.unwrap_or(0));
        }
        let meta = &phys.meta_dnode;
        list.add_u64("mdn_checksum", meta.checksum.into());
        list.add_u64("mdn_compress", meta.compression.into());
        list.add_u64("mdn_nlevels", meta.levels.into());
        list.add_u64("mdn_blksz", meta.data_block_size.into());
        list.add_u64("mdn_indblkshift", meta.indirect_shift.into());
        list.add_u64("mdn_nblkptr", meta.blkptrs.len() as u64);
        list.add_u64("mdn_maxblkid", meta.max_blkid);
        list.add_u64("to_ivset_guid", self.ivset_guid()?);
        list.add_u64("from_ivset_guid", from_ivset);
        Ok(Some(list))
    }

    /// The identity of a snapshot or bookmark in raw streams; 0 if it has none.
    pub(super) fn ivset_guid(&self) -> Result<u64> {
        match &self.what {
            DatasetOrBookmark::Bookmark(mark) => Ok(mark.0.phys.ivset_guid),
            DatasetOrBookmark::Dataset(ds) => ivset_guid(ds),
        }
    }
}

/// The same of a snapshot.
pub(super) fn ivset_guid(ds: &DslDataset) -> Result<u64> {
    Ok(ds.attribute(IVSET)?.and_then(|value| value.first().copied()).unwrap_or(0))
}

/// The object set's block, parsed, and its portable MAC.
fn read_objset(snapshot: &SendSnapshot) -> Result<(ObjsetPhys, Vec<u8>)> {
    let none = || Error::corrupt("the object set is too short");
    let root: &BlkPtr = &snapshot.root;
    let block = snapshot.zio.read(root, Io::WAIT)?;
    let phys = ObjsetPhys::parse(&block, root.endian())?;
    let mac = block.get(PORTABLE_MAC).ok_or_else(none)?.to_vec();
    Ok((phys, mac))
}
