//! Replay of a volume's intent log (chapter 06 §17.1, §19.2).
//!
//! # Theory
//! The records of a volume are writes with their data, writes with a pointer to the whole
//! block, freed ranges, and cloned blocks. Each is repeated as it is; a transaction behind its
//! effects notes it as done. So after a crash during a replay it is done again, which is
//! without harm because no later record was.
//!
//! What a record would write behind the volume's end is left out. Cloned blocks are copied, as
//! in `zpl`. Records of other types are refused before anything is done ([`can_replay`]).

use base::{Error, Result};
use ondisk::BlkPtr;
use ondisk::zil::{Record, RecordBody};

use crate::{DATA, Volume};

/// Whether [`Volume::replay`] supports the record.
///
/// # Errors
/// `Unsupported`; `Corrupt` or `Limit` for a malformed record.
pub fn can_replay(record: &Record<'_>) -> Result<()> {
    let object = match record.body()? {
        RecordBody::Write(write) => write.object,
        RecordBody::Truncate { object, .. } => object,
        RecordBody::CloneRange(clone) => {
            clone.pieces().try_for_each(|piece| {
                let (_, len, bp) = piece?;
                let whole = bp.is_hole() || bp.head().lsize.0 >= len;
                let text = "a record of the intent log has a block that is too short";
                whole.then_some(()).ok_or_else(|| Error::corrupt(text))
            })?;
            clone.object
        }
        _ => return Err(Error::unsupported("a record of a volume's log has an unknown type")),
    };
    match object == DATA {
        true => Ok(()),
        false => Err(Error::corrupt("a record of a volume's log is for another object")),
    }
}

impl Volume {
    /// Replays a record. The log is in replay, and has the record's sequence.
    ///
    /// # Errors
    /// Those of reading and writing, and of [`can_replay`].
    pub fn replay(&self, record: &Record<'_>) -> Result<()> {
        can_replay(record)?;
        match record.body()? {
            RecordBody::Write(write) => match (write.data, &write.block) {
                (Some(data), _) => self.write_inside(write.offset, data)?,
                (None, Some(bp)) => self.write_block(write.offset, bp)?,
                (None, None) => {}
            },
            RecordBody::Truncate { offset, length, .. } => {
                let end = offset.saturating_add(length).min(self.size());
                self.free_range(offset.min(end)..end)?;
            }
            RecordBody::CloneRange(clone) => {
                for piece in clone.pieces() {
                    let (offset, len, bp) = piece?;
                    let end = offset.saturating_add(len).min(self.size());
                    if bp.is_hole() {
                        self.free_range(offset.min(end)..end)?;
                        continue;
                    }
                    let block = self.objset().zio().read(&bp, self.io())?;
                    let data = usize::try_from(len).ok().and_then(|n| block.get(..n));
                    let short = || Error::corrupt("a cloned block is too short");
                    self.write_inside(offset, data.ok_or_else(short)?)?;
                }
            }
            _ => return Err(base::bug!("a record was accepted that cannot be replayed")),
        }
        self.note_replayed()
    }

    /// Writes a whole block that was logged by its pointer.
    fn write_block(&self, offset: u64, bp: &BlkPtr) -> Result<()> {
        let len = bp.head().lsize.0;
        if len == 0 {
            return Ok(());
        }
        let data = self.objset().zio().read(bp, self.io())?;
        self.write_inside(offset / len * len, &data)
    }

    /// Writes the part of `data` that is inside the volume.
    fn write_inside(&self, offset: u64, data: &[u8]) -> Result<()> {
        let room = self.size().saturating_sub(offset);
        let len = usize::try_from(room).unwrap_or(usize::MAX).min(data.len());
        self.write_range(offset, &data[..len])
    }
}
