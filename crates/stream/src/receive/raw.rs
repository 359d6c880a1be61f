//! Records of raw streams (chapter 07 §13.4, §13.6).
//!
//! # Theory
//! Everything is stored as it comes: blocks with their salts, IVs and MACs, bonus areas as a
//! whole, dnodes with the levels, block sizes and last blocks that the sender's have. The MACs
//! cover all of that, so nothing is adjusted, rounded or unpacked; what cannot be stored so is
//! refused. An object that has another shape here loses its data, which the stream then has.
//!
//! # Hostile streams
//! No MAC can be checked without the key. A stream that lies leaves a dataset that cannot be
//! read when its key is loaded, and nothing else.

use base::{Buf, Error, ErrorKind, ObjectId, Result};
use dmu::{ObjectShape, ObjectSpec, PackedForm, Reclaimed, StoredForm};
use ondisk::blkptr::Seal;
use ondisk::dnode::DNODES_PER_BLOCK;
use ondisk::{Endian, ObjType};

use super::{Receiver, bad, invalid_write, type_of, unknown};
use crate::record::{Free, Object, ObjectRange, Spill, TO_THE_END, Write, record_flags};

/// log2 of an indirect block, where a dnode does not say.
const INDIRECT_SHIFT: u8 = 17;

impl Receiver<'_> {
    /// The parameters of a block of dnodes, whose objects come next.
    pub(super) fn object_range(&mut self, r: &ObjectRange) {
        let endian = self.order_of(r.flags);
        self.range = Some((r.first, Seal { salt: r.salt, iv: r.iv, mac: r.mac, endian }));
    }

    /// The byte order of content with these flags: that of the sender's host, or the other one.
    fn order_of(&self, flags: u8) -> Endian {
        match (self.endian, flags & record_flags::RAW_BYTESWAP != 0) {
            (Endian::Little, false) | (Endian::Big, true) => Endian::Little,
            _ => Endian::Big,
        }
    }

    /// The parameters of the block with the dnode of an object.
    fn seal_of(&self, object: u64) -> Option<Seal> {
        let own = |first: u64| (first..first + DNODES_PER_BLOCK).contains(&object);
        self.range.filter(|(first, _)| own(*first)).map(|(_, seal)| seal)
    }

    pub(super) fn raw_object(&mut self, r: &Object, payload: &Buf) -> Result<()> {
        let (id, fail) = (ObjectId(r.object), |what| bad("OBJECT", what, r.object));
        let slots = r.slot_count();
        if r.object % DNODES_PER_BLOCK + slots > DNODES_PER_BLOCK {
            return Err(fail("dnode crosses its block"));
        }
        let seal = self.seal_of(r.object).ok_or_else(|| fail("no parameters"))?;
        let object_type = type_of(r.object_type).ok_or_else(|| fail("type of content"))?;
        let bonus_type = match r.bonus_type {
            0 => ObjType::NONE,
            other => type_of(other).ok_or_else(|| fail("type of bonus"))?,
        };
        let area =
            payload.get(..r.raw_bonus_len as usize).ok_or_else(|| fail("length of bonus"))?;
        let bonus = area.get(..r.bonus_len as usize).ok_or_else(|| fail("length of bonus"))?;
        let shift = if r.indirect_shift == 0 { INDIRECT_SHIFT } else { r.indirect_shift };
        let spec = ObjectSpec {
            object_type,
            block_size: r.block_size,
            indirect_shift: shift,
            bonus_type,
            bonus: bonus.to_vec(),
            slots: slots as u8,
        };
        let form =
            StoredForm { levels: r.levels, max_blkid: r.max_block, bonus_area: area.to_vec() };
        self.count_object(r.object);
        // Levels that the object does not need are written, too.
        self.node_bytes += u64::from(r.levels.saturating_sub(2)) << shift;
        self.highest = self.highest.max(r.object + slots - 1);
        let old = self.old_shape(id)?;
        if slots > u64::from(old.as_ref().map_or(1, |old| old.slots)) {
            self.free_interior(r.object, slots)?;
        }
        let new = old.map(|old| (reclaimed(r, &old, &spec), old.max_blkid > r.max_block));
        let functions = (r.checksum, r.compress);
        self.retried(|os, tx| {
            match &new {
                None => {
                    os.claim(tx, id, &spec)?;
                    os.set_functions(tx, id, functions)?;
                }
                Some((new, is_cut)) => {
                    if new.keeps_data && *is_cut {
                        os.free_sealed(tx, id, r.max_block.saturating_add(1), u64::MAX)?;
                    }
                    os.reclaim(tx, id, new)?;
                }
            }
            os.set_stored_form(tx, id, &form)?;
            os.seal_dnodes(tx, r.object / DNODES_PER_BLOCK, seal)
        })
    }

    pub(super) fn raw_write(&mut self, r: &Write, payload: &Buf) -> Result<()> {
        type_of(r.object_type).ok_or_else(|| bad("WRITE", "type of content", r.object))?;
        let shape = self.next_data("WRITE", r.object, r.offset)?;
        let size = u64::from(shape.block_size);
        if r.logical_size != size || !r.offset.is_multiple_of(size) {
            return Err(bad("WRITE", "size of block", r.object));
        }
        let seal = Seal { salt: r.salt, iv: r.iv, mac: r.mac, endian: self.order_of(r.flags) };
        let form = PackedForm {
            compression: r.compression,
            lsize: shape.block_size,
            embedded: false,
            redacted: false,
            seal: Some(seal),
        };
        let tx = self.tx()?;
        let (id, blkid) = (ObjectId(r.object), r.offset / size);
        self.into.objset.write_sealed(&tx, id, blkid, payload, form).map_err(invalid_write)
    }

    pub(super) fn raw_free(&mut self, r: &Free) -> Result<()> {
        let tx = self.tx()?;
        let (id, os) = (ObjectId(r.object), &self.into.objset);
        let shape = os.shape(&tx, id).map_err(unknown("FREE", r.object))?;
        let size = u64::from(shape.block_size);
        let past = match r.length {
            TO_THE_END => u64::MAX,
            length => {
                let end = r.offset.saturating_add(length);
                if !end.is_multiple_of(size) {
                    return Err(bad("FREE", "size of block", r.object));
                }
                end / size
            }
        };
        if !r.offset.is_multiple_of(size) {
            return Err(bad("FREE", "size of block", r.object));
        }
        let first = r.offset / size;
        if first > shape.max_blkid {
            return Ok(());
        }
        os.free_sealed(&tx, id, first, past)?;
        drop(tx);
        self.objects += 1;
        self.count_nodes(r.object, first);
        if past != u64::MAX {
            self.count_nodes(r.object, past);
        }
        Ok(())
    }

    pub(super) fn raw_spill(&mut self, r: &Spill, payload: &Buf) -> Result<()> {
        if r.flags & record_flags::SPILL_UNMODIFIED != 0 {
            return Ok(());
        }
        if !self.features.allows(r.compression) {
            return Err(bad("SPILL", "compression", r.object));
        }
        let lsize = u32::try_from(r.length).map_err(|_| bad("SPILL", "length", r.object))?;
        let seal = Seal { salt: r.salt, iv: r.iv, mac: r.mac, endian: self.order_of(r.flags) };
        let form = PackedForm {
            compression: r.compression,
            lsize,
            embedded: false,
            redacted: false,
            seal: Some(seal),
        };
        let tx = self.tx()?;
        let done = self.into.objset.set_sealed_spill(&tx, ObjectId(r.object), payload, form);
        done.map_err(unknown("SPILL", r.object)).map_err(|e| match e.kind() {
            ErrorKind::Invalid => bad("SPILL", "impossible spill block", r.object),
            _ => e,
        })
    }

    /// Freed objects, too, are parts of a block of dnodes with parameters of its own.
    pub(super) fn seal_freed(&mut self, object: u64) -> Result<()> {
        let Some(seal) = self.seal_of(object) else { return Ok(()) };
        let tx = self.tx()?;
        self.into.objset.seal_dnodes(&tx, object / DNODES_PER_BLOCK, seal)
    }
}

/// What an object becomes. Its data stays only in a tree of the same shape.
fn reclaimed(r: &Object, old: &ObjectShape, spec: &ObjectSpec) -> Reclaimed {
    let keeps_data = spec.block_size == old.block_size
        && spec.slots == old.slots
        && spec.indirect_shift == old.indirect_shift
        && r.levels >= old.levels
        && r.pointers_of() >= u64::from(old.nblkptr);
    Reclaimed {
        spec: spec.clone(),
        checksum: r.checksum,
        compression: r.compress,
        keeps_data,
        keeps_spill: r.flags & record_flags::OBJECT_SPILL != 0,
    }
}

/// Whether a raw stream can be received at all.
///
/// # Errors
/// In OpenZFS's words: `Invalid`.
pub(super) fn check_begin(features: crate::record::Features, flags: u32) -> Result<()> {
    use crate::record::{Features, begin_flags};
    if features.has(Features::EMBED_DATA) {
        return Err(Error::invalid(
            "incompatible embedded data stream feature with encrypted receive.",
        ));
    }
    if features.has(Features::REDACTED) {
        // A block that was left out has no MAC.
        return Err(Error::invalid("raw streams cannot be redacted."));
    }
    if flags & begin_flags::SPILL_BLOCK == 0 {
        return Err(Error::invalid(
            "Spill block flag missing for raw send.\nThe zfs software on the sending system must \
             be updated.",
        ));
    }
    Ok(())
}
