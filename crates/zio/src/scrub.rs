//! Verification of every copy of a block, for scrub and `zdb -cc`.

use base::limits::GANG_DEPTH_MAX;
use base::{Dva, Error, Result};
use codec::checksum::Checksum;
use ondisk::blkptr::Block;
use vdev::{BadKind, Priority, ReadReq};

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
