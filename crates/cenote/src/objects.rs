//! Objects of a dataset, read and written in process.
//!
//! # Theory
//! An [`Objects`] is the live content of a file system or volume: objects of bytes by id,
//! without names and attributes. An object made here has its size in its bonus, which
//! changes in the same transaction as the bytes, so that a crash never leaves one without
//! the other.
//!
//! # Invariants
//! * Every call of up to [`WRITE_MAX`] bytes is atomic with respect to crashes; longer
//!   writes are split there.
//! * Changes are durable after [`Objects::sync`], and not before.
//! * Objects of the file system itself cannot be changed here.

use std::sync::Arc;

use base::{Buf, Error, ErrorKind, ObjectId, Result, Txg};
use dmu::{Io, Object, ObjectSpec, Objset, OutagePolicy, Tx, Zap};
use dsl::stored::Stored;
use dsl::write::{MosRead, features};
use ondisk::ObjType;
use ondisk::dnode::DNODE_SIZE;
use ondisk::objset::ObjsetType;
use ondisk::uberblock::VERSION_FEATURES;
use spa::engine::{SpaceAccount, Writer, effective};

/// Bytes that one transaction writes at most, but at least one block.
pub const WRITE_MAX: u64 = 1 << 20;
/// Type of objects made here: bytes, stored as the dataset's properties say.
const BYTES: ObjType = ObjType::OTN_UINT8_DATA;
/// Type of their bonus: the size.
const SIZE: ObjType = ObjType::OTN_UINT64_METADATA;
/// The same in pools without feature flags: "other" bytes and numbers. Software of their
/// time would treat types unknown to it as metadata.
const OLD_BYTES: ObjType = ObjType(25);
const OLD_SIZE: ObjType = ObjType(26);
/// Block size without property `recordsize`.
const RECORD_DEFAULT: u64 = 128 << 10;
/// Largest block without feature large_blocks.
const BLOCK_SMALL: u64 = 128 << 10;
/// Bytes that a transaction changes besides data, for the reservation of space.
const OVERHEAD: u64 = 64 << 10;

/// Parameters of a new object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewObject {
    /// Bytes of a block, a multiple of 512; `None` is the dataset's `recordsize`.
    pub block_size: Option<u32>,
}

/// The objects of a dataset, open for writing.
///
/// ```no_run
/// # fn main() -> cenote::Result<()> {
/// # let engine = cenote::Engine::new(cenote::EngineConfig::default())?;
/// # let found = engine.discover(&cenote::Search::default())?;
/// let pool = engine.import(&found.pools[0], &cenote::ImportOptions::default())?;
/// let dataset = pool.create_filesystem("tank/data", &[], None)?;
/// let objects = dataset.open_rw()?;
/// let id = objects.create(&cenote::NewObject::default())?;
/// objects.write(id, 0, b"hello")?;
/// objects.truncate(id, 4)?;
/// pool.snapshot(&["tank/data@before".into()], &[], None)?;
/// objects.punch(id, 1, 2)?;
/// objects.sync()?;
/// assert_eq!(objects.read_vec(id, 0, 100)?, b"h\0\0l");
/// # Ok(())
/// # }
/// ```
pub struct Objects {
    os: Arc<Objset>,
    writer: Arc<Writer>,
    name: String,
    account: SpaceAccount,
}

fn size_of(bonus: &[u8]) -> u64 {
    bonus.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}

/// Whether the object was made here.
fn is_own(object: &Object) -> bool {
    let old = object.dnode().bonus_type == OLD_SIZE;
    object.object_type() == BYTES || old && object.object_type() == OLD_BYTES
}

fn foreign(id: ObjectId) -> Error {
    Error::invalid("the object belongs to the file system itself").in_object(id)
}

impl Objects {
    /// For the head of `name`.
    pub(crate) fn open(writer: &Arc<Writer>, name: &str) -> Result<Objects> {
        let os = writer.open_dataset(name)?;
        let account = SpaceAccount::new(os.id());
        Ok(Objects { os, writer: Arc::clone(writer), name: name.to_owned(), account })
    }

    /// The object set, for tools.
    pub fn objset(&self) -> &Arc<Objset> {
        &self.os
    }

    /// The block size of new objects: property `recordsize`, as far as the pool's features
    /// allow it.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn record_size(&self) -> Result<u64> {
        let mos: &dyn MosRead = self.writer.mos();
        let _names = self.writer.names();
        let dir = mos.dataset(self.os.id())?.dir_obj;
        let stored = effective(mos, dir, "recordsize")?;
        let size = stored.as_ref().and_then(Stored::number).unwrap_or(RECORD_DEFAULT);
        let large = features::is_enabled(mos, features::LARGE_BLOCKS)?;
        Ok(if large { size } else { size.min(BLOCK_SMALL) })
    }

    /// Slots of new dnodes: property `dnodesize`, as far as the pool's features allow it.
    fn dnode_slots(&self) -> Result<u8> {
        let mos: &dyn MosRead = self.writer.mos();
        let _names = self.writer.names();
        if !features::is_enabled(mos, features::LARGE_DNODE)? {
            return Ok(1);
        }
        let dir = mos.dataset(self.os.id())?.dir_obj;
        let stored = effective(mos, dir, "dnodesize")?;
        Ok(match stored.as_ref().and_then(Stored::number).unwrap_or(0) {
            0 => 1,
            // Property value auto.
            1 => 2,
            size => (size / DNODE_SIZE as u64).clamp(1, 32) as u8,
        })
    }

    fn begin(&self, bytes: u64, frees: bool) -> Result<Tx> {
        let (account, fail) = (Some(&self.account), OutagePolicy::Fail);
        let began = self.writer.begin_for(account, bytes + OVERHEAD, frees, fail);
        began.map_err(|e| e.in_dataset(&self.name))
    }

    /// Creates an object without bytes.
    ///
    /// # Errors
    /// `Invalid` for an impossible block size and in volumes; `NoSpace`; `NotFound` when
    /// the dataset was destroyed; that of a suspension.
    pub fn create(&self, new: &NewObject) -> Result<ObjectId> {
        if self.os.kind() == ObjsetType::Zvol {
            return Err(Error::invalid("a volume has one object").in_dataset(&self.name));
        }
        let record = self.record_size()?;
        let block = new.block_size.map_or(record, u64::from);
        if block > BLOCK_SMALL.max(record) && block > BLOCK_SMALL {
            let mos = self.writer.mos();
            if !features::is_enabled(mos, features::LARGE_BLOCKS)? {
                return Err(Error::invalid("the pool has no blocks above 128 KiB"));
            }
        }
        let old = self.writer.published().config.version != VERSION_FEATURES;
        let (object_type, bonus_type) = if old { (OLD_BYTES, OLD_SIZE) } else { (BYTES, SIZE) };
        let spec = ObjectSpec {
            object_type,
            block_size: u32::try_from(block).map_err(|_| Error::invalid("block too large"))?,
            bonus_type,
            bonus: vec![0; 8],
            slots: self.dnode_slots()?,
            ..ObjectSpec::default()
        };
        let tx = self.begin(0, false)?;
        self.os.allocate(&tx, &spec).map_err(|e| e.in_dataset(&self.name))
    }

    /// Frees an object.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for one of the file system itself; that of a suspension.
    pub fn remove(&self, id: ObjectId) -> Result<()> {
        let object = self.os.object(id, Io::WAIT)?;
        if !is_own(&object) {
            return Err(foreign(id));
        }
        let tx = self.begin(0, true)?;
        self.os.free_object(&tx, id)
    }

    /// Bytes of an object.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for an object of the file system itself.
    pub fn size(&self, id: ObjectId) -> Result<u64> {
        let object = self.os.object(id, Io::WAIT)?;
        match object.object_type() {
            _ if is_own(&object) => Ok(size_of(&object.dnode().bonus)),
            ObjType::ZVOL => {
                let props = self.os.object(ObjectId(2), Io::WAIT)?;
                Ok(Zap::open(props, Io::WAIT)?.lookup_u64("size")?.unwrap_or(0))
            }
            _ => Err(foreign(id)),
        }
    }

    /// Bytes of an object's blocks.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn block_size(&self, id: ObjectId) -> Result<u64> {
        Ok(self.os.object(id, Io::WAIT)?.block_size())
    }

    /// The block size, and whether it is fixed, after a check that `[offset, end)` may be
    /// written.
    fn check(&self, id: ObjectId, end: u64) -> Result<(u64, bool)> {
        let object = self.os.object(id, Io::WAIT)?;
        let fixed = object.object_type() == ObjType::ZVOL;
        if fixed && end > self.size(id)? {
            return Err(Error::invalid("write past the end of the volume").in_object(id));
        }
        if !fixed && !is_own(&object) {
            return Err(foreign(id));
        }
        Ok((object.block_size(), fixed))
    }

    fn grow(&self, tx: &Tx, id: ObjectId, end: u64) -> Result<()> {
        self.os.edit_bonus(tx, id, &mut |bonus| {
            let size = size_of(bonus).max(end);
            *bonus = size.to_le_bytes().to_vec();
        })
    }

    /// Writes bytes; the object grows as necessary. Waits while too much is dirty.
    ///
    /// # Errors
    /// `NotFound`; `NoSpace`; `Invalid` past 2^63 bytes or a volume's end, and for an
    /// object of the file system itself; those of reading blocks that are changed in part;
    /// that of a suspension.
    pub fn write(&self, id: ObjectId, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|&end| end < 1 << 63);
        let end = end.ok_or_else(|| Error::invalid("write past 2^63").in_object(id))?;
        let (block, fixed) = self.check(id, end)?;
        let piece = (WRITE_MAX / block).max(1) * block;
        let mut at = offset;
        while at < end {
            let next = (at / piece + 1).saturating_mul(piece).min(end);
            let part = &data[(at - offset) as usize..(next - offset) as usize];
            // A block changed in part is written whole.
            let blocks = next.div_ceil(block) - at / block;
            let tx = self.begin(blocks * block, false)?;
            self.os.write(&tx, id, at, part)?;
            if !fixed {
                self.grow(&tx, id, next)?;
            }
            at = next;
        }
        Ok(())
    }

    /// Reads up to `len` bytes, as slices of blocks.
    ///
    /// # Errors
    /// `NotFound`; those of reading.
    pub fn read(&self, id: ObjectId, offset: u64, len: usize) -> Result<Vec<Buf>> {
        let size = self.size(id)?;
        self.os.object(id, Io::WAIT)?.read_clipped(size, offset, len, Io::WAIT)
    }

    /// As [`Objects::read`], in one buffer.
    ///
    /// # Errors
    /// As [`Objects::read`].
    pub fn read_vec(&self, id: ObjectId, offset: u64, len: usize) -> Result<Vec<u8>> {
        Ok(self.read(id, offset, len)?.iter().flat_map(|b| b.iter().copied()).collect())
    }

    /// Truncates the object to `size` bytes, or extends it with zeros.
    ///
    /// # Errors
    /// As [`Objects::write`].
    pub fn truncate(&self, id: ObjectId, size: u64) -> Result<()> {
        let (block, fixed) = self.check(id, 0)?;
        if fixed || size >= 1 << 63 {
            return Err(Error::invalid("the size cannot be changed so").in_object(id));
        }
        let tx = self.begin(block, true)?;
        if size < self.size(id)? {
            self.os.free_range(&tx, id, size, u64::MAX)?;
        }
        self.os.edit_bonus(&tx, id, &mut |bonus| *bonus = size.to_le_bytes().to_vec())
    }

    /// Zeroes a range, and frees its whole blocks. The size stays.
    ///
    /// # Errors
    /// As [`Objects::write`].
    pub fn punch(&self, id: ObjectId, offset: u64, len: u64) -> Result<()> {
        let (block, _) = self.check(id, 0)?;
        let size = self.size(id)?;
        let end = offset.saturating_add(len).min(size);
        if offset >= end {
            return Ok(());
        }
        let tx = self.begin(2 * block, true)?;
        self.os.free_range(&tx, id, offset, end - offset)
    }

    /// Every object made here that is on disk, in order.
    ///
    /// # Errors
    /// Those of reading the object set.
    pub fn list(&self) -> Result<Vec<ObjectId>> {
        let (mut out, mut at) = (Vec::new(), ObjectId(0));
        while let Some(id) = self.os.next_object(at, Io::WAIT)? {
            match self.os.object(id, Io::WAIT) {
                Ok(object) if is_own(&object) => out.push(id),
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            at = id;
        }
        Ok(out)
    }

    /// Waits until all changes so far are on disk; returns the txg of the last one.
    ///
    /// # Errors
    /// That of a suspension.
    pub fn sync(&self) -> Result<Txg> {
        self.writer.sync()
    }
}
