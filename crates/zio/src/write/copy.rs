//! Copies of blocks at other places (chapter 02 §2.5): their bytes, or, for a block of
//! pointers, what becomes of them when blocks below it have moved.
//!
//! # Theory
//! A copy keeps both births of its block: it is the block, elsewhere (the relocation's module head
//! says why). So two blocks that were at one address, one after the other, may have the same key
//! in the cache, and what the cache has is dropped when a copy is placed. The copy takes exactly the space that the block takes, in the units of space accounting, so
//! that nothing that was ever counted changes: the same stored size, the same number of
//! addresses, and addresses that count as much, one for one ([`CopyPolicy::fits`]). So in a pool with
//! vdevs of several kinds each address stays on its kind.
//!
//! The bytes of a block without pointers are written as they are stored, so compression,
//! encryption, checksum and MAC stay. A block of pointers has new content, which is compressed
//! again and padded with zeros to the old stored size. If the block's own function leaves more than
//! that, gzip is tried: a pointer names its function, so any may be used. Physical births
//! make pointers a little harder to compress, and Huffman codes are worth more than that. A
//! block that does not fit all the same cannot be copied ([`Zio::prepare_changed`]).
//!
//! The MACs of blocks of pointers cover neither addresses nor births (chapter 08 §A.9), so
//! no key is needed.
//!
//! No copy is a gang. The addresses of a gang count its headers, so the copy of one is a plain
//! block with addresses as large as those: it wastes the space of the headers. An address that
//! was of a header alone adds to the first one of the copy.

use base::{Buf, BufMut, Dva, Error, ErrorKind, Psize, Result, Txg, VdevId};
use codec::checksum::Checksum;
use codec::compress::{Compression, compress};
use ondisk::Endian;
use ondisk::blkptr::{Block, COMPRESS_OFF, Protection};

use super::place::placed;
use super::{
    BlockContent, BlockLayout, Class, Outcome, Placed, Prepared, PreparedForm, ReadyBlock,
};
use super::{SpaceSource, Want};
use crate::{CacheTiers, DedupMode, OutagePolicy, Zio};

/// Compression functions that a block of pointers may get instead of its own. The first one mostly
/// serves; the last one takes ten times as long.
const DENSER: [Compression; 3] = [Compression::Gzip(1), Compression::Gzip(6), Compression::Gzip(9)];

/// How copies are placed.
#[derive(Clone, Copy)]
pub struct CopyPolicy<'a> {
    /// The txg that writes them.
    pub txg: Txg,
    /// Class of the addresses.
    pub class: Class,
    /// [`Want::hint`].
    pub hint: u64,
    /// Bytes that addresses count in space accounting (chapter 02 §13).
    pub dsize: &'a dyn Fn(&[Dva]) -> u64,
    /// Whether a vdev may take the copy at all.
    pub takes: &'a dyn Fn(VdevId) -> bool,
    /// Whether a vdev may take the copy, and it counts as much there as this address of the block
    /// does.
    pub fits: &'a dyn Fn(&Dva, VdevId) -> bool,
}

impl Zio {
    /// Prepares a copy of a block whose stored bytes are `stored`.
    ///
    /// # Errors
    /// `Invalid` if they do not have its size.
    pub fn prepare_copy(
        &self,
        old: &Block,
        stored: Buf,
        policy: &CopyPolicy<'_>,
    ) -> Result<Prepared> {
        if stored.len() as u64 != old.psize.0 {
            return Err(Error::invalid("a copy has another size than its block"));
        }
        Ok(copy_of(old, *old, stored, Buf::default(), policy))
    }

    /// Prepares the copy of a block of pointers, some of which have changed: `content` is all of
    /// it, in its byte order and not compressed. `None` if it does not fit into the stored size
    /// of the block.
    ///
    /// # Errors
    /// `Invalid` if `content` does not have its size; those of the checksum.
    pub fn prepare_changed(
        &self,
        old: &Block,
        content: &Buf,
        policy: &CopyPolicy<'_>,
    ) -> Result<Option<Prepared>> {
        if content.len() as u64 != old.head.lsize.0 {
            return Err(Error::invalid("the content has another size than its block"));
        }
        let Some((stored, compression)) = repack(old, content) else { return Ok(None) };
        let mut new = *old;
        new.compression = compression;
        let checksum = Checksum::from_id(old.checksum)
            .ok_or_else(|| Error::corrupt("a block of pointers has no checksum"))?;
        new.words = self.checksum_of(checksum, &stored, old.endian == Endian::Big)?;
        if old.protection != Protection::None {
            let seal = old.seal();
            if !checksum.is_dedup_strong() && old.head.object_type != ondisk::ObjType::OBJSET {
                new.words[0] ^= new.words[2];
                new.words[1] ^= new.words[3];
            }
            new = new.sealed(&seal);
        }
        Ok(Some(copy_of(old, new, stored, content.clone(), policy)))
    }

    /// Allocates the addresses of a copy of `old`. `None` if there are none that count as much
    /// as those of `old`, and then nothing is allocated.
    ///
    /// # Errors
    /// Those of the allocator but for a lack of space; `Bug` for what is no copy.
    pub fn place_copy(
        &self,
        old: &Block,
        prepared: Prepared,
        policy: &CopyPolicy<'_>,
    ) -> Result<Option<Placed>> {
        let PreparedForm::Block(mut ready) = prepared.form else {
            return Err(base::bug!("a copy without addresses"));
        };
        let space = self.space()?;
        let want = Want {
            psize: ready.block.psize.0,
            // Records of a file that are compressed differently stay together.
            record: if ready.metadata { 0 } else { old.head.lsize.0 },
            copies: ready.copies,
            class: ready.class,
            txg: policy.txg,
            hint: ready.hint,
            metadata: ready.metadata,
            gang_child: false,
            outage: ready.outage,
        };
        let before: Vec<Dva> = old.dvas().collect();
        let dvas = match old.is_gang() {
            true => self.allocate_joined(&*space, &want, &before, policy),
            false => self.places_of(old, &*space, &want, policy),
        };
        let dvas = match dvas {
            Err(e) if e.kind() == ErrorKind::NoSpace => return Ok(None),
            other => other?,
        };
        if (policy.dsize)(&dvas) != (policy.dsize)(&before) {
            SpaceSource::unallocate(&*space, policy.txg, &dvas);
            return Ok(None);
        }
        // The rows of an expanded raidz are as wide as at the block's birth.
        let (tree, birth) = (self.tree(), old.effective_physical_birth());
        let fits = |d: &Dva| tree.asize(d.vdev, old.psize, birth).is_ok_and(|n| n <= d.asize);
        if !dvas.iter().all(fits) {
            SpaceSource::unallocate(&*space, policy.txg, &dvas);
            return Ok(None);
        }
        ready.block = ready.block.with_dvas(&dvas);
        self.cache.remove(&self.key(&ready.block));
        let placed = placed(*ready, Outcome::Copied, BlockLayout::Plain(dvas));
        Ok(Some(Placed { allocated: Some(policy.txg), ..placed }))
    }

    /// Allocates addresses as large as those of a gang, for a plain block of `want.psize` bytes.
    fn allocate_joined(
        &self,
        space: &dyn SpaceSource,
        want: &Want,
        gang: &[Dva],
        policy: &CopyPolicy<'_>,
    ) -> Result<Vec<Dva>> {
        let tree = self.tree();
        let needs = |dva: &Dva| tree.asize(dva.vdev, Psize(want.psize), want.txg);
        let mut sizes = Vec::new();
        let mut headers = 0;
        for dva in gang {
            match dva.asize >= needs(dva)? {
                true => sizes.push((dva.vdev, dva.asize.0)),
                false => headers += dva.asize.0,
            }
        }
        if let Some((_, first)) = sizes.first_mut() {
            *first += headers;
        }
        let mut all = Vec::new();
        for (vdev, size) in sizes {
            // The most bytes whose asize is not larger; it grows with the bytes.
            let (mut low, mut high) = (want.psize >> 9, size >> 9);
            while low < high {
                let middle = (low + high).div_ceil(2);
                match tree.asize(vdev, Psize(middle << 9), want.txg)?.0 <= size {
                    true => low = middle,
                    false => high = middle - 1,
                }
            }
            let one = Want { psize: (low << 9).max(want.psize), copies: 1, ..*want };
            let asize = |of| tree.asize(of, Psize(one.psize), want.txg).ok();
            let ratio = |of| tree.deflate_ratio(of).ok();
            let same = |of| asize(of) == asize(vdev) && ratio(of) == ratio(vdev);
            let place = space.allocate_on(&one, &|of| (policy.takes)(of) && same(of));
            match place.and_then(|place| self.checked(space, &one, place)) {
                Ok(dvas) => all.extend(dvas),
                Err(e) => {
                    space.unallocate(want.txg, &all);
                    return Err(e);
                }
            }
        }
        Ok(all)
    }

    /// Addresses for a copy: all together if one kind of vdev serves, so that they are apart from
    /// each other; otherwise one after the other.
    fn places_of(
        &self,
        old: &Block,
        space: &dyn SpaceSource,
        want: &Want,
        policy: &CopyPolicy<'_>,
    ) -> Result<Vec<Dva>> {
        let fits_all = |vdev: VdevId| old.dvas().all(|dva| (policy.fits)(&dva, vdev));
        match space.allocate_on(want, &fits_all) {
            Err(e) if e.kind() == ErrorKind::NoSpace && want.copies > 1 => {}
            other => return self.checked(space, want, other?),
        }
        let one = Want { copies: 1, ..*want };
        let mut dvas = Vec::new();
        for before in old.dvas() {
            let place = space
                .allocate_on(&one, &|vdev| (policy.fits)(&before, vdev))
                .and_then(|place| self.checked(space, &one, place));
            match place {
                Ok(place) => dvas.extend(place),
                Err(e) => {
                    space.unallocate(want.txg, &dvas);
                    return Err(e);
                }
            }
        }
        Ok(dvas)
    }
}

/// Everything of a copy except its addresses.
fn copy_of(old: &Block, new: Block, stored: Buf, whole: Buf, policy: &CopyPolicy<'_>) -> Prepared {
    let block = new;
    // A key would be needed to read it through the cache.
    let cache = !whole.is_empty() && block.protection != Protection::Encrypted;
    let whole = if cache { whole } else { Buf::default() };
    let copies = old.dvas().len() as u8;
    let form = PreparedForm::Block(Box::new(ReadyBlock {
        block,
        rewrite: None,
        gangs: None,
        copies,
        header_copies: copies,
        class: policy.class,
        dedup: DedupMode::Off,
        hint: policy.hint,
        in_run: false,
        metadata: block.head.level > 0 || block.head.object_type.is_metadata(),
        outage: OutagePolicy::WaitAlways,
        content: BlockContent { whole, stored, cache, tiers: CacheTiers::ALL },
    }));
    Prepared { form }
}

/// The stored form of new content of a block, as long as the old one, and its compression.
fn repack(old: &Block, content: &Buf) -> Option<(Buf, u8)> {
    let size = old.psize.0 as usize;
    if old.compression == COMPRESS_OFF {
        return Some((content.clone(), COMPRESS_OFF));
    }
    // A block that got gzip in an earlier move may not need as much of it now.
    let is_plain = |c: &Compression| !matches!(c, Compression::Off | Compression::Gzip(_));
    let own = Compression::from_id(old.compression).filter(is_plain);
    own.into_iter().chain(DENSER).find_map(|function| {
        let mut out = BufMut::zeroed(size);
        let len = compress(function, content, &mut out)?;
        out[len..].fill(0);
        Some((out.freeze(), function.id()))
    })
}
