//! Live datasets: object sets open for writing.

use std::sync::Arc;

use base::{Error, Result};
use codec::checksum::Checksum;
use codec::compress::Compression;
use dmu::{CacheTiers, CacheUse, Events, Objset, ObjsetProps, RedundantMetadata};
use dsl::Mos;
use dsl::write::{Delta, Killed, MosRead, features};
use ondisk::BlkPtr;
use zio::{DedupMode, Zio};

use super::sync::Flags;
use super::{Writer, claim};

/// Handles the births and deaths of a dataset's blocks in a txg: accounts for them, and
/// frees blocks that no snapshot has.
pub(super) struct HeadEvents<'a> {
    pub(super) delta: Delta,
    pub(super) free: &'a mut dyn FnMut(&BlkPtr) -> Result<()>,
}

impl Events for HeadEvents<'_> {
    fn born(&mut self, bp: &BlkPtr) -> Result<()> {
        self.delta.born(bp);
        Ok(())
    }
    fn killed(&mut self, bp: &BlkPtr) -> Result<()> {
        match self.delta.killed(bp) {
            Killed::Free => (self.free)(bp),
            Killed::Dead | Killed::Nothing => Ok(()),
        }
    }
    fn wasted(&mut self, bp: &BlkPtr) -> Result<()> {
        (self.free)(bp)
    }
    fn large_dnode(&mut self) {
        self.delta.uses(features::LARGE_DNODE);
    }
}

/// Effective properties of a dataset, for its blocks; `get` gives a property's number.
pub fn objset_props(
    flags: &Flags,
    get: &dyn Fn(&str) -> Result<Option<u64>>,
) -> Result<ObjsetProps> {
    let metadata = if flags.lz4 { Compression::ON } else { Compression::Lzjb };
    let checksum = match get("checksum")?.unwrap_or(1) {
        1 => Checksum::Fletcher4,
        id => u8::try_from(id).ok().and_then(Checksum::from_id).unwrap_or(Checksum::Fletcher4),
    };
    let compression = match get("compression")?.unwrap_or(1) {
        1 => metadata,
        value => Compression::from_property(value).unwrap_or(metadata),
    };
    let redundant_metadata = match get("redundant_metadata")?.unwrap_or(0) {
        1 => RedundantMetadata::Most,
        2 => RedundantMetadata::Some,
        3 => RedundantMetadata::None,
        _ => RedundantMetadata::All,
    };
    let dedup = get("dedup")?.and_then(dedup_of);
    let small = get("special_small_blocks")?.unwrap_or(0);
    Ok(ObjsetProps {
        checksum,
        compression,
        metadata_compression: metadata,
        dedup,
        copies: get("copies")?.unwrap_or(1).clamp(1, 3) as u8,
        redundant_metadata,
        special_small_blocks: u32::try_from(small).unwrap_or(0),
        special: flags.special,
        embed: flags.embed,
        hole_birth: flags.hole_birth,
        count_owners: flags.owners,
        count_objects: flags.userobj,
        count_projects: flags.project,
        tiers: CacheTiers {
            first: CacheUse::of_property(get("primarycache")?.unwrap_or(2)),
            second: CacheUse::of_property(get("secondarycache")?.unwrap_or(2)),
        },
        sealed: false,
    })
}

/// Bit of the values of property `dedup` that demand a comparison (chapter 04 §12.3).
const DEDUP_VERIFY: u64 = 0x100;

/// The checksum of deduplicated blocks, and how equal ones are recognised; `None`: they are
/// not deduplicated.
pub(super) fn dedup_of(value: u64) -> Option<(Checksum, DedupMode)> {
    let checksum = match value & !DEDUP_VERIFY {
        1 => Checksum::Sha256,
        id => u8::try_from(id).ok().and_then(Checksum::from_id)?,
    };
    let verifies = value & DEDUP_VERIFY != 0 || !checksum.is_dedup_strong();
    let mode = if verifies { DedupMode::Verify } else { DedupMode::Trust };
    ondisk::ddt::CHECKSUMS.contains(&checksum).then_some((checksum, mode))
}

impl Writer {
    /// A dataset's object set, open for writing; shared by all callers.
    ///
    /// # Errors
    /// `ReadOnly` for a snapshot and for a dataset whose intent log has records, `Busy` while it
    /// is being sent, those of reading it.
    pub fn open_head(&self, object: u64, props: ObjsetProps) -> Result<Arc<Objset>> {
        let os = self.live_head(&self.mos, object, props)?;
        self.check_unused(object)?;
        // A later replay would undo new writes.
        let known = self.has_log(object) || self.idle_logs.contains(object);
        if !known && claim::holds_records(&os)? {
            return Err(claim::must_replay());
        }
        Ok(os)
    }

    /// The same for reading, with the caller's handle of the MOS: later writes are visible
    /// through it.
    ///
    /// # Errors
    /// `ReadOnly` for a snapshot, those of reading it.
    pub(crate) fn live_head(
        &self,
        mos: &Mos,
        object: u64,
        props: ObjsetProps,
    ) -> Result<Arc<Objset>> {
        if let Some(os) = self.heads.lock().get(&object) {
            return Ok(Arc::clone(os));
        }
        let read: &dyn MosRead = mos;
        let phys = read.dataset(object)?;
        if phys.is_snapshot() {
            return Err(Error::new(base::ErrorKind::ReadOnly, "a snapshot does not change"));
        }
        let zio: Arc<Zio> = Arc::clone(&self.zio);
        let mut heads = self.heads.lock();
        if let Some(os) = heads.get(&object) {
            return Ok(Arc::clone(os));
        }
        let phys = read.dataset(object)?;
        let props = Flags::load(mos)?.limit(props);
        let os = Objset::open_live(zio, object, phys.bp, props, mos.io())?;
        heads.insert(object, Arc::clone(&os));
        Ok(os)
    }

    /// The object set of a head, if it is open.
    pub fn head_in_use(&self, head: u64) -> Option<Arc<Objset>> {
        self.heads.lock().get(&head).cloned()
    }

    /// Feature states that determine how blocks are written.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn flags(&self) -> Result<Flags> {
        Flags::load(&self.mos)
    }
}
