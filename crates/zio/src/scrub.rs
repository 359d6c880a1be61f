//! Verification of every copy of a block, for scrub and `zdb -cc`.

use base::limits::GANG_DEPTH_MAX;
use base::{Buf, Dva, Error, Result, Txg};
use codec::checksum::Checksum;
use ondisk::blkptr::Block;
use vdev::{BadKind, Priority, ReadOutcome, ReadReq};

use crate::Zio;
use crate::heal::DamageList;
use crate::read::{BlockFault, Verifier};

/// The result of checking every copy of a block.
#[derive(Debug, Default)]
pub struct CopyCheck {
    /// Addresses from which the block can be read.
    pub readable: usize,
    /// Addresses from which it cannot.
    pub faults: Vec<BlockFault>,
    /// Copies or columns of readable addresses whose bytes are wrong.
    pub damaged: u64,
}

impl Zio {
    /// Reads every address of a block, every mirror copy and every parity column, and
    /// verifies them by the checksum. It neither uses the cache nor decompresses;
    /// encrypted blocks need no key.
    pub fn check_copies(&self, block: &Block) -> CopyCheck {
        let mut found = CopyCheck::default();
        for dva in block.dvas() {
            let checked = if dva.gang {
                self.check_gang(block, dva, 0, &mut found.damaged)
            } else {
                self.check_dva(block, dva, &mut found.damaged)
            };
            match checked {
                Ok(()) => found.readable += 1,
                Err(error) => found.faults.push(BlockFault { dva, error }),
            }
        }
        found
    }

    fn check_dva(&self, block: &Block, dva: Dva, damaged: &mut u64) -> Result<()> {
        let verifier = Verifier::new(block, self.salt.get())?;
        let birth = block.effective_physical_birth();
        let mut req =
            ReadReq::new(dva.vdev, dva.offset, block.psize, birth).with_priority(Priority::Scrub);
        req.no_parity = verifier.checksum == Checksum::NoParity;
        let outcome = self.tree().scrub(&req, &|bytes| verifier.accepts(bytes));
        outcome.data.map_err(|e| e.at_dva(dva))?;
        let wrong = outcome.report.bad.iter().filter(|b| b.kind == BadKind::Checksum);
        *damaged += wrong.count() as u64;
        Ok(())
    }

    /// Verifies the members one by one, and then the block that they make up.
    fn check_gang(&self, block: &Block, dva: Dva, depth: usize, damaged: &mut u64) -> Result<()> {
        if depth >= GANG_DEPTH_MAX {
            return Err(Error::limit("gang blocks nested too deep").at_dva(dva));
        }
        // Sizes are checked while reading, so they bound the following loop.
        let whole = self.read_gang(block, dva, depth, &mut DamageList::default())?;
        for member in self.gang_members(block, dva)? {
            let mut last = Ok(());
            for place in member.dvas() {
                last = if place.gang {
                    self.check_gang(&member, place, depth + 1, damaged)
                } else {
                    self.check_dva(&member, place, damaged)
                };
                if last.is_ok() {
                    break;
                }
            }
            last?;
        }
        if Verifier::new(block, self.salt.get())?.accepts(&whole) {
            return Ok(());
        }
        Err(Error::checksum("the members of a gang do not make up their block").at_dva(dva))
    }
}

/// What a scan found at an address of a gang: of the header, or of a member.
#[derive(Debug)]
pub struct GangPiece {
    /// The address.
    pub dva: Dva,
    /// Physical birth of the block.
    pub birth: Txg,
    /// The bytes there, and the leaves with wrong ones.
    pub outcome: ReadOutcome,
    /// The content from another address, if nothing can be read at this one.
    pub other: Option<Buf>,
}

impl Zio {
    /// The request with which a scan reads a plain address of a block. Wrong bytes are not
    /// counted: the scan counts them when it knows that the block is still in use
    /// ([`vdev::Tree::count_damage`]).
    pub fn scan_request(&self, block: &Block, dva: Dva) -> ReadReq {
        let birth = block.effective_physical_birth();
        let mut req =
            ReadReq::new(dva.vdev, dva.offset, block.psize, birth).with_priority(Priority::Scrub);
        req.no_parity = Checksum::from_id(block.checksum) == Some(Checksum::NoParity);
        req.speculative = true;
        req
    }

    /// Whether bytes have the checksum of a block; false for a block whose checksum is inside
    /// of it.
    pub fn is_right(&self, block: &Block, bytes: &[u8]) -> bool {
        Verifier::new(block, self.salt.get()).is_ok_and(|verifier| verifier.accepts(bytes))
    }

    /// Reads every copy and column of a gang: its header, its members, and theirs. Wrong
    /// bytes are not counted, as in [`Zio::scan_request`].
    ///
    /// # Errors
    /// Those of reading a header, or of a member none of whose addresses can be read;
    /// `Limit` if it is nested too deep.
    pub fn scan_gang(&self, block: &Block, dva: Dva) -> Result<Vec<GangPiece>> {
        let mut pieces = Vec::new();
        self.scan_gang_at(block, dva, 0, &mut pieces)?;
        Ok(pieces)
    }

    fn scan_gang_at(
        &self,
        block: &Block,
        dva: Dva,
        depth: usize,
        pieces: &mut Vec<GangPiece>,
    ) -> Result<()> {
        if depth >= GANG_DEPTH_MAX {
            return Err(Error::limit("gang blocks nested too deep").at_dva(dva));
        }
        let outcome = self.scan_gang_header(block, dva)?;
        pieces.push(GangPiece {
            dva,
            birth: block.effective_physical_birth(),
            outcome,
            other: None,
        });
        for member in self.gang_members(block, dva)? {
            let mut last = Err(Error::bug("gang member without addresses"));
            let own = pieces.len();
            for place in member.dvas() {
                if place.gang {
                    let scanned = self.scan_gang_at(&member, place, depth + 1, pieces);
                    last = if last.is_ok() { last } else { scanned };
                    continue;
                }
                let req = self.scan_request(&member, place);
                let right = |_: usize, bytes: &[u8]| self.is_right(&member, bytes);
                let Some(outcome) = self.tree().scan(&[req], &right).pop() else { continue };
                match &outcome.data {
                    Ok(_) => last = Ok(()),
                    Err(e) if last.is_err() => {
                        last = Err(Error::new(e.kind(), e.message()).at_dva(place));
                    }
                    Err(_) => {}
                }
                pieces.push(GangPiece { dva: place, birth: req.birth, outcome, other: None });
            }
            last?;
            // All plain pieces since `own` that are as long as the member are copies of it,
            // except those of a nested gang, which are shorter.
            let mut copies = pieces.iter().skip(own).filter_map(|p| p.outcome.data.as_ref().ok());
            let good = copies.find(|bytes| bytes.len() as u64 == member.psize.0).cloned();
            for piece in pieces.iter_mut().skip(own).filter(|p| p.outcome.data.is_err()) {
                piece.other = piece.other.take().or_else(|| good.clone());
            }
        }
        Ok(())
    }
}
