//! The pool's history (chapter 04 §16).

use base::limits::NVLIST_SIZE_MAX;
use base::{Error, Result};
use dmu::{Io, Object};
use nvlist::NvList;

use crate::import::Spa;

/// Records returned at most; the ring holds no more than 1 GiB.
const RECORDS_MAX: usize = 1 << 20;

struct HistoryRing {
    object: Object,
    create_len: u64,
    size: u64,
}

impl HistoryRing {
    /// Reads `out.len()` bytes at logical offset `at`, wrapping at the end.
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let ring = self.size.saturating_sub(self.create_len).max(1);
        let mut done = 0;
        while done < out.len() {
            let logical = at + done as u64;
            let (physical, room) = if logical < self.create_len {
                (logical, self.create_len - logical)
            } else {
                let inside = (logical - self.create_len) % ring;
                (inside + self.create_len, ring - inside)
            };
            let take = room.min((out.len() - done) as u64) as usize;
            self.object.read_into(physical, &mut out[done..done + take], Io::WAIT)?;
            done += take;
        }
        Ok(())
    }
}

impl Spa {
    /// Every record in the pool's history, oldest first.
    ///
    /// # Errors
    /// Those of reading it; `Corrupt` when the ring is inconsistent.
    pub fn history(&self) -> Result<Vec<NvList>> {
        let Some(id) = self.mos().lookup("history")? else { return Ok(Vec::new()) };
        let object = self.mos().object(id)?;
        let dnode = object.dnode();
        let [create_len, size, begin, end, _lost] =
            dnode.endian.reader(&dnode.bonus, "history header").u64s()?;
        let bad = || Error::corrupt("the pool's history is damaged").in_object(object.id());
        // The capacity is bounded by the object's size, so no record is read twice.
        let capacity = (dnode.max_blkid + 1).saturating_mul(object.block_size());
        let ring = size.checked_sub(create_len).ok_or_else(bad)?;
        let stored = end.checked_sub(begin).ok_or_else(bad)?;
        if stored > ring || create_len.saturating_add(stored) > capacity || begin < create_len {
            return Err(bad());
        }
        let ring = HistoryRing { object: object.clone(), create_len, size };
        let mut out = Vec::new();
        for (from, to) in [(0, create_len), (begin, end)] {
            let mut at = from;
            while to - at >= 8 && out.len() < RECORDS_MAX {
                let mut len = [0; 8];
                ring.read(at, &mut len)?;
                let len = u64::from_le_bytes(len);
                if len == 0 || len > (to - at - 8).min(NVLIST_SIZE_MAX as u64) {
                    return Err(bad());
                }
                let mut bytes = vec![0; len as usize];
                ring.read(at + 8, &mut bytes)?;
                out.push(NvList::unpack(&bytes).map_err(|e| e.in_object(object.id()))?);
                at += 8 + len;
            }
        }
        Ok(out)
    }
}
