//! Reading blocks ahead of a reader, several together.
//!
//! # Theory
//! A reader in order of a file of small records is served by read-ahead, and one device
//! operation for each record costs more than its bytes. [`Zio::read_ahead`] gets the pointers
//! of a run of blocks. It claims those that are neither in the cache nor being read, in one
//! pass ([`arc::Cache::claim`]): from then on every reader of one of them waits for it, as
//! for any read in flight. The vdev tree reads the claimed blocks together
//! ([`vdev::Tree::read_together`]); each is verified, decompressed and inserted by itself, in
//! the order of the run, which wakes its readers before the next block is looked at.
//!
//! A block that does not come whole and verified is read again in the ordinary way under the
//! same claim, behind the others. That read searches all copies, counts errors and heals, as
//! if there had been no batch, and the batch itself has counted nothing. If bytes were wrong, it
//! compares all copies: those of the other side of a mirror may be right.
//!
//! Only blocks of up to [`BATCHED_MAX`] bytes are read together. For larger ones the saved
//! operations do not matter, and one thread verifies a batch: with records of 128 KiB,
//! batches halved the rate of a sequential read (1266 to 640 MB/s). What cannot be planned
//! with others is read by itself after the batch: gang blocks, blocks on a cache device, and
//! blocks that are still being written.
//!
//! # Invariants
//! * A thread that holds claims waits for devices only, never for another thread's claim, so
//!   claims cannot wait for each other in a circle. All claims are resolved before a block is
//!   read by itself, because that may wait for one.
//! * A claim that is dropped (an error, a panic) wakes its readers, and they read the block
//!   themselves. No error of a batch reaches anyone else.
//! * A batch of [`BATCH_BYTES`] takes that much memory for blocks, of which one at a time is
//!   outside of the cache, and at most twice the stored bytes for device buffers.

use arc::{Access, Fill, LookupRequest};
use ondisk::blkptr::{BlkPtr, Block, Protection};
use vdev::{Priority, ReadApart, ReadReq};

use crate::read::{Verifier, expand_block, kind_of};
use crate::{BlockKey, Caching, Io, Mode, Zio};

/// The largest blocks that are read together with others, bytes.
pub const BATCHED_MAX: u64 = 16 << 10;
/// Most bytes of blocks that are read together, before compression.
pub const BATCH_BYTES: u64 = 1 << 20;

/// A block that this thread has to read.
type ClaimedBlock<'a> = (&'a Block, Fill<'a, BlockKey>);

impl Zio {
    /// Reads blocks into the cache that may be needed soon, small ones together; the caller
    /// bounds their number. Errors are left to the reader of the block. `io` must permit
    /// waiting.
    pub fn read_ahead(&self, bps: &[BlkPtr], io: Io) {
        if io.mode == Mode::MemoryOnly || crate::outage::check_context(io).is_err() {
            return;
        }
        let (mut claims, mut alone) = (Vec::new(), Vec::new());
        for bp in bps {
            let BlkPtr::Block(block) = bp else { continue };
            if !self.joins_batch(block, io) {
                alone.push(bp);
                continue;
            }
            let kind = kind_of(block);
            let keep = io.tiers.first.keeps(kind);
            let ask = LookupRequest { kind, access: io.access, copies: io.copies, keep };
            if let Some(claim) = self.cache.claim(self.key(block), ask) {
                claims.push((block, claim));
            }
        }
        self.read_claimed(claims, io);
        for bp in alone {
            let _ = self.read(bp, io);
        }
    }

    /// Whether a block may be read together with others.
    fn joins_batch(&self, block: &Block, io: Io) -> bool {
        block.psize.0 <= BATCHED_MAX
            && io.caching != Caching::Bypass
            && io.access != Access::Demand
            && block.protection != Protection::Encrypted
            && !block.dva().gang
            && self.in_flight.stored(&self.key(block)).is_none()
            && !self.on_cache_device(block)
            && Verifier::new(block, self.salt.get()).is_ok()
    }

    /// Reads the blocks together, and those that did not come by themselves.
    fn read_claimed<'a>(&self, claims: Vec<ClaimedBlock<'a>>, io: Io) {
        let request = |(block, _): &ClaimedBlock<'_>| {
            let (dva, birth) = (block.dva(), block.effective_physical_birth());
            ReadReq::new(dva.vdev, dva.offset, block.psize, birth)
                .with_priority(Priority::AsyncRead)
        };
        let reqs: Vec<ReadReq> = claims.iter().map(request).collect();
        let blocks: Vec<&Block> = claims.iter().map(|(block, _)| *block).collect();
        let verify = |i: usize, bytes: &[u8]| {
            Verifier::new(blocks[i], self.salt.get()).is_ok_and(|v| v.accepts(bytes))
        };
        let mut claims = claims.into_iter();
        let mut left: Vec<(ClaimedBlock<'a>, ReadApart)> = Vec::new();
        // The blocks come in the order of the requests.
        self.tree().read_together(&reqs, &verify, &mut |_, raw| {
            let Some((block, claim)) = claims.next() else { return };
            match raw {
                Ok(raw) => {
                    if let Ok(forms) = expand_block(block, raw) {
                        self.insert_read(claim, block, forms, false, io);
                    }
                }
                Err(why) => left.push(((block, claim), why)),
            }
        });
        for ((block, claim), why) in left {
            let suspect = why == ReadApart::Refused;
            let raw = self.read_copies(block, Priority::AsyncRead, io.origin, suspect);
            if let Some(forms) = raw.ok().and_then(|raw| expand_block(block, raw).ok()) {
                self.insert_read(claim, block, forms, false, io);
            }
        }
    }
}
