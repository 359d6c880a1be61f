//! Object sets of encrypted datasets, written without their keys (chapter 08 §A.9-§A.11).
//!
//! # Theory
//! A raw stream has every block as its sender stores it, with the MACs that the sender's key
//! made. So the receiver needs no key, as long as it stores the same bytes under a tree of the
//! same shape: the MAC of a block of dnodes covers the shape of each dnode and the MACs in its
//! pointers, the MAC of an indirect block those below it. The latter needs no key and is
//! computed here; all others come with the stream:
//!
//! | block | MAC |
//! |---|---|
//! | data, spill block | of its record ([`zio::PackedForm::seal`]) |
//! | indirect block | [`node_seal`] |
//! | dnodes | of the record for its range ([`Objset::seal_dnodes`]) |
//! | object set | of the stream's beginning ([`Objset::seal_root`]) |
//!
//! Bonus areas may be encrypted as a whole, so they are kept as a whole ([`StoredForm`]).
//!
//! The MAC of a block of dnodes covers them in the byte order of the host that wrote them, so a
//! block of another host's order is stored in that order. The stream has all dnodes of a block
//! that it changes; bonus areas of both orders never meet in one.
//!
//! # Invariants
//! * A sealed object set has no plain change: all calls but those of this module, of freeing and
//!   of claiming fail with `Locked`.
//! * A block of dnodes keeps its parameters until the stream has others for it. Blocks that a txg
//!   writes while their objects are incomplete have MACs that do not match; the dataset is
//!   marked inconsistent as long as there are any.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::limits::DNODE_LEVELS_MAX;
use base::rt::Mutex;
use base::{Buf, Error, ErrorKind, ObjectId, Result, Txg};
use ondisk::blkptr::{BLKPTR_SIZE, Seal};
use ondisk::dnode::{DNODE_BLOCK_SIZE, DNODE_SIZE, Dnode};
use ondisk::objset::{
    FLAG_PROJECT_ACCOUNTED, FLAG_USER_ACCOUNTED, FLAG_USEROBJ_ACCOUNTED, OBJSET_MAC_SIZE,
    ObjsetType,
};
use ondisk::{Endian, ObjType, ObjsetPhys};
use zio::{PackedForm, Zio};

use super::handle::{DnodeHead, Spill};
use super::policy::ObjsetProps;
use super::{LiveObjset, TxgSlot};
use crate::objset::Objset;
use crate::tx::Tx;

/// Bytes of a dnode before its pointers.
const CORE: usize = 64;

/// What a raw stream says about the object set itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedRoot {
    /// MAC of the tree of dnodes.
    pub portable_mac: [u8; OBJSET_MAC_SIZE],
    /// Checksum function in the meta-dnode.
    pub checksum: u8,
    /// Compression function in it.
    pub compression: u8,
    /// Its levels.
    pub levels: u8,
    /// log2 of its indirect blocks.
    pub indirect_shift: u8,
    /// Its last block.
    pub max_blkid: u64,
}

/// The parts of an object that only a raw stream determines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredForm {
    /// Levels of its tree, or more than it has.
    pub levels: u8,
    /// Its last block.
    pub max_blkid: u64,
    /// The whole bonus area, as it is stored; empty if the object has no bonus.
    pub bonus_area: Vec<u8>,
}

/// The state of a sealed object set.
#[derive(Default)]
pub(crate) struct SealedState {
    root: Mutex<Option<SealedRoot>>,
    /// Parameters of blocks of dnodes that wait to be written, and the txg that writes them.
    dnodes: Mutex<BTreeMap<u64, (Txg, Seal)>>,
}

/// The seal of an indirect block with these pointers, in little-endian order.
pub(crate) fn node_seal(pointers: &[u8]) -> Seal {
    let mut text = Vec::with_capacity(pointers.len() / 4);
    for bp in pointers.chunks_exact(BLKPTR_SIZE) {
        let word = |i: usize| Endian::Little.u64(bp, i * 8).unwrap_or(0);
        let mut props = word(6);
        let (embedded, level) = (props >> 39 & 1 == 1, props >> 56 & 0x1f);
        if !embedded && word(0) == 0 && word(1) == 0 {
            props = 0;
        } else {
            // Neither deduplication nor the checksum function counts.
            props &= !(1 << 62 | 0xff << 40);
            if level != 0 {
                // Nor how the indirect block is stored.
                props &= !(1 << 63 | 0x7f << 32 | 0xffff << 16);
            }
        }
        text.extend_from_slice(&props.to_le_bytes());
        // The MAC's byte string is stored in the byte order of the content.
        let big = word(6) >> 63 == 0 && props != 0;
        for i in [14, 15] {
            let mac = if big { word(i).to_be_bytes() } else { word(i).to_le_bytes() };
            text.extend_from_slice(&mac);
        }
        text.extend_from_slice(&[0; 8]);
    }
    let mut seal = Seal::NONE;
    seal.mac.copy_from_slice(&codec::checksum::sha512(&text)[..16]);
    seal
}

/// The bonus area in the slots of a dnode of this shape.
pub(crate) fn bonus_area(dn: &Dnode) -> std::ops::Range<usize> {
    let from = CORE + dn.blkptrs.len() * BLKPTR_SIZE;
    let spill = if dn.spill.is_some() { BLKPTR_SIZE } else { 0 };
    from..(usize::from(dn.slots) * DNODE_SIZE - spill).max(from)
}

impl SealedState {
    /// Completes the object set that a txg writes.
    pub(crate) fn complete(&self, phys: &mut ObjsetPhys) {
        let Some(root) = *self.root.lock() else { return };
        (phys.portable_mac, phys.local_mac) = (root.portable_mac, [0; OBJSET_MAC_SIZE]);
        // Space is accounted to users when the key is known.
        phys.flags &= !(FLAG_USER_ACCOUNTED | FLAG_USEROBJ_ACCOUNTED | FLAG_PROJECT_ACCOUNTED);
    }

    /// Gives the meta-dnode the shape that the stream says.
    pub(crate) fn shape(&self, meta: &mut DnodeHead) {
        let Some(root) = *self.root.lock() else { return };
        (meta.checksum, meta.compression) = (root.checksum, root.compression);
        meta.levels = meta.levels.max(root.levels);
        meta.max_blkid = meta.max_blkid.max(root.max_blkid);
    }

    /// The parameters that wait for a block of dnodes, which `txg` writes.
    pub(crate) fn take(&self, blkid: u64, txg: Txg) -> Option<Seal> {
        let mut dnodes = self.dnodes.lock();
        let (of, seal) = *dnodes.get(&blkid)?;
        if of <= txg {
            dnodes.remove(&blkid);
        }
        Some(seal)
    }
}

impl LiveObjset {
    /// Whether changes of plain content are possible.
    pub(crate) fn check_plain(&self) -> Result<()> {
        if self.is_sealed() {
            let text = "the dataset is encrypted and its key is not loaded";
            return Err(Error::new(ErrorKind::Locked, text));
        }
        Ok(())
    }
}

impl Objset {
    /// Whether it is open for writing without the key of its encrypted dataset.
    pub fn is_sealed(&self) -> bool {
        self.live_part().is_some_and(LiveObjset::is_sealed)
    }

    /// As [`Objset::create`], for a raw stream.
    ///
    /// # Errors
    /// `Corrupt` for a shape that no object set has.
    pub fn create_sealed(
        zio: Arc<Zio>,
        id: u64,
        kind: ObjsetType,
        props: ObjsetProps,
        root: SealedRoot,
    ) -> Result<Arc<Objset>> {
        check_meta(&root)?;
        let os = Self::create_with(zio, id, kind, ObjsetProps { sealed: true, ..props }, &|phys| {
            let meta = &mut phys.meta_dnode;
            (meta.levels, meta.indirect_shift) = (root.levels, root.indirect_shift);
            phys.flags = 0;
        });
        os.live()?.sealed_state()?.root.lock().replace(root);
        Ok(os)
    }

    /// Sets what the txgs from the present one on store of the object set itself.
    ///
    /// # Errors
    /// `Corrupt` for a shape that does not continue the present one; `Locked` for an object set
    /// that is not sealed.
    pub fn seal_root(&self, root: SealedRoot) -> Result<()> {
        let live = self.live()?;
        if !live.is_sealed() {
            return Err(Error::new(ErrorKind::Locked, "the dataset is not encrypted"));
        }
        check_meta(&root)?;
        let meta = Arc::clone(&self.on_disk().meta);
        if root.levels < meta.levels || root.indirect_shift != meta.indirect_shift {
            let text = "invalid stream (the tree of dnodes has another shape)";
            return Err(Error::corrupt(text));
        }
        live.sealed_state()?.root.lock().replace(root);
        Ok(())
    }

    /// The block of dnodes `blkid`, which the transaction changes, gets these parameters.
    ///
    /// # Errors
    /// `Locked` for an object set that is not sealed.
    pub fn seal_dnodes(&self, tx: &Tx, blkid: u64, seal: Seal) -> Result<()> {
        self.live()?.sealed_state()?.dnodes.lock().insert(blkid, (tx.txg(), seal));
        Ok(())
    }

    /// Sets the parts of an object that only a raw stream determines. The object was claimed or
    /// reclaimed in the same transaction, with the first bytes of the bonus area as its bonus.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for an impossible shape.
    pub fn set_stored_form(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        form: &StoredForm,
    ) -> Result<()> {
        let bad = |what: &str| Err(Error::invalid(format!("no object has this {what}")));
        let area: Arc<[u8]> = form.bonus_area.as_slice().into();
        self.with(tx, id, |inner| {
            let spill = inner.has_spill(tx.txg());
            let head = &inner.slot(tx.txg())?.head;
            let pointers = usize::from(head.nblkptr) + usize::from(spill);
            let room = usize::from(head.slots) * DNODE_SIZE - CORE;
            if !area.starts_with(&head.bonus) || BLKPTR_SIZE * pointers + area.len() > room {
                return bad("bonus");
            }
            let several = form.max_blkid > 0 || form.levels > 1;
            let bytes = (u128::from(form.max_blkid) + 1) * u128::from(head.block_size);
            if several && !head.block_size.is_power_of_two() || bytes > 1 << 64 {
                return bad("number of blocks");
            }
            let mut shape = DnodeHead { levels: form.levels.max(1), ..head.clone() };
            shape.reach(form.max_blkid);
            if shape.levels > DNODE_LEVELS_MAX {
                return bad("tree");
            }
            inner.change(tx.txg(), |head| {
                head.levels = shape.levels;
                head.max_blkid = form.max_blkid;
                head.area = Some(Arc::clone(&area));
            })
        })
        .map_err(|e| e.in_object(id))
    }

    /// Replaces a data block of a sealed object set by one in its stored form.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a form without a seal, when its size is not the object's block
    /// size, and when the object cannot have the block.
    pub fn write_sealed(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        blkid: u64,
        bytes: &Buf,
        form: PackedForm,
    ) -> Result<()> {
        check_form(bytes, form).map_err(|e| e.at_block(0, blkid).in_object(id))?;
        self.change_blocks(tx, id, |inner| inner.put_packed(tx.txg(), blkid, bytes, form))
            .map_err(|e| e.at_block(0, blkid).in_object(id))
    }

    /// Sets the spill block of an object of a sealed object set.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a form without a seal, for a size that no spill block has, and
    /// when the bonus area leaves no room for the pointer.
    pub fn set_sealed_spill(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        bytes: &Buf,
        form: PackedForm,
    ) -> Result<()> {
        check_form(bytes, form).map_err(|e| e.in_object(id))?;
        if form.lsize > 128 << 10 {
            return Err(Error::invalid("no spill block has this size").in_object(id));
        }
        self.with(tx, id, |inner| {
            inner.slot(tx.txg())?;
            for TxgSlot { head, .. } in inner.from(tx.txg()) {
                let area = head.area.as_ref().map_or(head.bonus.len(), |area| area.len());
                head.check_bonus(area.max(head.bonus.len()), true)?;
            }
            inner.change(tx.txg(), |head| head.spill = Spill::Sealed(bytes.clone(), form))
        })
        .map_err(|e| e.in_object(id))
    }

    /// Frees blocks `[first, past)` of an object of a sealed object set; its last block stays the
    /// same.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn free_sealed(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        first: u64,
        past: u64,
    ) -> Result<()> {
        self.free_blocks(tx, id, first, past, false)
    }
}

fn check_form(bytes: &Buf, form: PackedForm) -> Result<()> {
    let fits = !bytes.is_empty() && bytes.len() <= form.lsize as usize;
    let whole =
        form.compression != ondisk::blkptr::COMPRESS_OFF || bytes.len() == form.lsize as usize;
    if form.seal.is_none() || form.embedded || !bytes.len().is_multiple_of(512) || !fits || !whole {
        return Err(Error::invalid("no block is stored in this form"));
    }
    Ok(())
}

impl SealedRoot {
    /// Whether an object set may have this shape.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn check(&self) -> Result<()> {
        check_meta(self)
    }
}

fn check_meta(root: &SealedRoot) -> Result<()> {
    let blocks = 1u64 << (ondisk::dnode::OBJECT_SHIFT_MAX - 5);
    let mut shape = DnodeHead {
        levels: root.levels,
        indirect_shift: root.indirect_shift,
        ..super::ObjectSpec {
            object_type: ObjType::DNODE,
            block_size: DNODE_BLOCK_SIZE as u32,
            ..super::ObjectSpec::default()
        }
        .head()?
    };
    let fits = (12..=17).contains(&root.indirect_shift)
        && (1..=DNODE_LEVELS_MAX).contains(&root.levels)
        && root.max_blkid < blocks;
    if fits {
        shape.reach(root.max_blkid);
    }
    if !fits || shape.levels != root.levels {
        return Err(Error::corrupt("invalid stream (shape of the tree of dnodes)"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chapter 08 §A.11: the pointer to the tree of dnodes, as it enters the MAC of the object set.
    #[test]
    fn pointers_are_authenticated_as_the_specification_says() {
        let mut bp = vec![0u8; 2 * BLKPTR_SIZE];
        let props = 0xa50a_070f_0007_00ff_u64;
        bp[0] = 8;
        bp[48..56].copy_from_slice(&props.to_le_bytes());
        let mac: Vec<u8> = (1..=16).collect();
        bp[112..128].copy_from_slice(&mac);
        let mut text = 0x250a_0000_0000_00ff_u64.to_le_bytes().to_vec();
        text.extend(&mac);
        text.extend([0; 8 + 32]);
        assert_eq!(node_seal(&bp).mac[..], codec::checksum::sha512(&text)[..16]);
        // A hole with a birth is like any hole.
        bp[BLKPTR_SIZE + 48..BLKPTR_SIZE + 56]
            .copy_from_slice(&0x0013_0000_0000_00ff_u64.to_le_bytes());
        bp[BLKPTR_SIZE + 80] = 9;
        assert_eq!(node_seal(&bp).mac[..], codec::checksum::sha512(&text)[..16]);
        // Of data, all but deduplication and checksum function counts.
        let props = props & !(0x1f << 56) | 1 << 62;
        bp[48..56].copy_from_slice(&props.to_le_bytes());
        text[..8].copy_from_slice(&(props & !(1 << 62 | 0xff << 40)).to_le_bytes());
        assert_eq!(node_seal(&bp).mac[..], codec::checksum::sha512(&text)[..16]);
    }

    #[test]
    fn shapes_of_the_meta_dnode() {
        let root = SealedRoot {
            portable_mac: [1; 32],
            checksum: 0,
            compression: 0,
            levels: 6,
            indirect_shift: 17,
            max_blkid: 5000,
        };
        assert!(check_meta(&root).is_ok());
        for bad in [
            SealedRoot { levels: 0, ..root },
            SealedRoot { levels: 13, ..root },
            SealedRoot { levels: 2, ..root },
            SealedRoot { indirect_shift: 18, ..root },
            SealedRoot { max_blkid: 1 << 43, ..root },
        ] {
            assert!(check_meta(&bad).is_err(), "{bad:?}");
        }
    }
}
