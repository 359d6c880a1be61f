//! Distributes the records of a batch over log blocks.
//!
//! # Invariants
//! * The data of a write is cut only between sectors of [`SECTOR`] bytes of its object: a crash
//!   may leave the block with one piece without that with the next, and users of a volume take
//!   for granted that a sector has its old content or its new one.

use base::{ObjectId, Txg};
use ondisk::BlkPtr;
use ondisk::zil::{RecordBody, WRITE_HEADER, Write};

use crate::pending::{Itx, ItxPayload};
use crate::size::{CHAIN, Plan, ROOM_MAX, block_size, waste};
use crate::stats::{Stats, bump};

/// Bytes that a block device writes at once.
const SECTOR: u64 = 512;
/// Record types.
const TX_WRITE: u8 = 9;
const TX_WRITE2: u8 = 20;

/// The record of a write whose block is in its final place, or was named before.
fn placed(object: ObjectId, offset: u64, length: u64, bp: Option<&BlkPtr>, txg: Txg) -> Vec<u8> {
    let write = Write { object, offset, length, block: bp.copied(), data: None };
    // Pointers that cannot be stored were excluded earlier.
    let record = match bp {
        Some(_) => RecordBody::Write(write).encode(TX_WRITE, txg),
        None => RecordBody::Write2(write).encode(TX_WRITE2, txg),
    };
    record.unwrap_or_default()
}

/// The records of a block.
pub(crate) struct Fill {
    pub(crate) size: u64,
    pub(crate) bytes: Vec<u8>,
    /// Start offset of each record.
    pub(crate) starts: Vec<usize>,
    pub(crate) newest: Txg,
}

impl Fill {
    fn new(size: u64) -> Fill {
        let bytes = Vec::with_capacity((size - CHAIN) as usize);
        Fill { size, bytes, starts: Vec::new(), newest: Txg::ZERO }
    }

    fn room(&self) -> usize {
        (self.size - CHAIN) as usize - self.bytes.len()
    }

    /// Counts its records by type, which is the first byte of each.
    pub(crate) fn count(&self, stats: &Stats) {
        for start in &self.starts {
            let kind = self.bytes.get(*start).map_or(0, |k| usize::from(*k));
            if let Some(counter) = stats.by_type.get(kind) {
                bump(counter, 1);
            }
        }
    }

    /// Adds a record, or several that belong together.
    fn put(&mut self, record: &[u8], txg: Txg) {
        let mut at = 0;
        while let Some(len) = record.get(at + 8..at + 16) {
            self.starts.push(self.bytes.len() + at);
            at += len.try_into().map_or(0, u64::from_le_bytes).max(16) as usize;
        }
        self.bytes.extend_from_slice(record);
        self.newest = self.newest.max(txg);
    }

    /// Adds the record of a write with its data, which is copied once.
    fn put_write(&mut self, write: Write<'_>, txg: Txg) {
        let start = self.bytes.len();
        // A write always has a record of its type.
        if RecordBody::Write(write).encode_into(&mut self.bytes, TX_WRITE, txg).is_ok() {
            self.starts.push(start);
            self.newest = self.newest.max(txg);
        }
    }
}

/// Bytes of the next piece of `len` bytes that begin at `offset` of an object, where there is
/// room for `room`.
fn piece(offset: u64, len: usize, room: usize) -> usize {
    let n = len.min(room / 8 * 8);
    let after = (offset + n as u64) % SECTOR;
    // A piece that ends inside its first sector cannot be shorter.
    if n == len || after >= n as u64 { n } else { n - after as usize }
}

/// Distributes records over blocks, the first of which has `first` bytes.
pub(crate) fn fill(records: &[Itx], first: u64) -> Vec<Fill> {
    let mut left: u64 = records.iter().map(Itx::size).sum();
    let largest = records.iter().map(Itx::largest).max().unwrap_or(0);
    let keep = waste(largest) as usize;
    let mut blocks = Vec::new();
    let mut now = Fill::new(first);
    let leader = |now: &mut Fill, blocks: &mut Vec<Fill>, left: u64, least: usize| {
        let size = block_size(Plan::of(left, largest).opt.max(least as u64));
        blocks.push(std::mem::replace(now, Fill::new(size)));
    };
    for itx in records {
        left = left.saturating_sub(itx.size());
        match &itx.payload {
            ItxPayload::Whole(record) | ItxPayload::Cut { record, .. } => {
                if record.len() > now.room() {
                    leader(&mut now, &mut blocks, left + record.len() as u64, record.len());
                }
                now.put(record, itx.txg);
            }
            ItxPayload::Placed { object, offset, len, block } => {
                let record = placed(*object, *offset, *len, block.as_deref(), itx.txg);
                if record.len() > now.room() {
                    leader(&mut now, &mut blocks, left + record.len() as u64, record.len());
                }
                now.put(&record, itx.txg);
            }
            ItxPayload::Data { object, offset, data } => {
                let mut at = 0;
                while at < data.len() {
                    let rest = WRITE_HEADER + (data.len() - at).next_multiple_of(8);
                    let room = now.room();
                    // A piece in the rest of a block is worth its header.
                    let least = WRITE_HEADER + SECTOR as usize;
                    let poor = room < keep && rest <= ROOM_MAX as usize;
                    // A stub that was predicted too small is used nevertheless.
                    if rest > room && (room < least || poor && !now.bytes.is_empty()) {
                        leader(&mut now, &mut blocks, left + rest as u64, least);
                        continue;
                    }
                    let n = piece(offset + at as u64, data.len() - at, room - WRITE_HEADER);
                    let write = Write {
                        object: *object,
                        offset: offset + at as u64,
                        length: n as u64,
                        block: None,
                        data: Some(&data[at..at + n]),
                    };
                    now.put_write(write, itx.txg);
                    at += n;
                }
            }
            // Its data was fetched before.
            ItxPayload::Range { .. } => {}
        }
    }
    blocks.push(now);
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: a volume got 17 sectors by one write, and the power failed while the two blocks
    /// of the log were written that had its data. Only the first arrived, and it ended in the
    /// middle of a sector. After the replay that sector had half of the old content and half of
    /// the new one.
    #[test]
    fn data_is_cut_between_sectors() {
        for offset in [0, 512, 3 * 512, 100, 5000] {
            for len in [1, 600, 5000, 17 * 512, 40_000] {
                for room in [512, 520, 3712, 3720, 7900] {
                    let (mut at, mut pieces) = (0, 0);
                    while at < len {
                        let n = piece(offset + at as u64, len - at, room);
                        assert!(n > 0 && n <= room && at + n <= len, "{offset} {len} {room} {at}");
                        at += n;
                        let end = offset + at as u64;
                        assert!(
                            at == len || end.is_multiple_of(SECTOR),
                            "{offset} {len} {room}: {end}"
                        );
                        pieces += 1;
                    }
                    assert!(pieces <= len / 512 + 2, "{offset} {len} {room}: {pieces}");
                }
            }
        }
    }
}
