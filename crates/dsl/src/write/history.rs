//! Appending to the pool's history (chapter 04 §16).

use base::{Error, ObjectId, Result};
use nvlist::NvList;
use ondisk::ObjType;
use ondisk::history::{HEADER_SIZE, HistoryHeader, encode_record};

use super::{MosRead, NewObject, SyncCx};

const HISTORY: ObjType = ObjType(29);
const HISTORY_OFFSETS: ObjType = ObjType(30);
const BLOCK: u32 = 128 << 10;
/// Limits of the ring's size.
const RING_MIN: u64 = 128 << 10;
const RING_MAX: u64 = 1 << 30;
/// Bytes of the length in front of a record.
const LENGTH: u64 = 8;

/// Makes an empty history for a pool of `dspace` bytes.
///
/// # Errors
/// Those of the store.
pub fn create(cx: &SyncCx<'_>, dspace: u64) -> Result<u64> {
    let header = HistoryHeader {
        pool_create_len: 0,
        phys_max_off: (dspace / 1000).clamp(RING_MIN, RING_MAX),
        bof: 0,
        eof: 0,
        records_lost: 0,
    };
    let object = NewObject::plain(HISTORY, BLOCK);
    cx.mos.allocate(&object.with_bonus(HISTORY_OFFSETS, header.encode().to_vec()))
}

fn header(mos: &dyn MosRead, object: u64) -> Result<HistoryHeader> {
    let info = mos.info(object)?;
    let bonus = info.bonus.get(..HEADER_SIZE).unwrap_or(&info.bonus);
    HistoryHeader::parse(bonus, info.endian).map_err(|e| e.in_object(ObjectId(object)))
}

/// Appends a record, if the pool has a history. The first record with a command ends the
/// part that is kept forever.
///
/// # Errors
/// `Limit` for a record longer than the ring; those of the store.
pub fn append(cx: &SyncCx<'_>, record: &NvList) -> Result<()> {
    let Some(object) = cx.read().directory("history")? else { return Ok(()) };
    let mut h = header(cx.read(), object)?;
    let raw = encode_record(record);
    let ring = h.phys_max_off.saturating_sub(h.pool_create_len);
    if raw.len() as u64 >= ring {
        return Err(Error::limit("the record is longer than the pool's history"));
    }
    let (length, body) = raw.split_at(LENGTH as usize);
    for bytes in [length, body] {
        make_room(cx, object, &mut h, bytes.len() as u64)?;
        write(cx, object, &h, bytes)?;
        h.eof += bytes.len() as u64;
    }
    if h.pool_create_len == 0 && record.str("history command").is_some() {
        (h.pool_create_len, h.bof) = (h.eof, h.eof);
    }
    cx.mos.set_bonus(object, &h.encode())
}

/// Drops the oldest records until there is room for `len` bytes and one more.
fn make_room(cx: &SyncCx<'_>, object: u64, h: &mut HistoryHeader, len: u64) -> Result<()> {
    let ring = h.phys_max_off.saturating_sub(h.pool_create_len);
    while ring.saturating_sub(h.eof - h.bof) <= len {
        let mut oldest = [0; LENGTH as usize];
        read(cx.read(), object, h, h.bof, &mut oldest)?;
        let next = h.bof.saturating_add(LENGTH).saturating_add(u64::from_le_bytes(oldest));
        if next > h.eof {
            return Err(Error::corrupt("the pool's history is damaged").in_object(ObjectId(object)));
        }
        h.bof = next;
        h.records_lost = h.records_lost.saturating_add(1);
    }
    Ok(())
}

/// Runs of `len` bytes at logical offset `at`, each in one block and without wrapping:
/// block, offset in it, bytes.
fn runs(h: &HistoryHeader, block: u64, at: u64, len: u64) -> Vec<(u64, usize, usize)> {
    let mut out = Vec::new();
    let mut done = 0;
    while done < len {
        let physical = h.physical(at + done);
        let to_end = h.phys_max_off.saturating_sub(physical).max(1);
        let to_block = block - physical % block;
        let take = (len - done).min(to_end).min(to_block);
        out.push((physical / block, (physical % block) as usize, take as usize));
        done += take;
    }
    out
}

fn write(cx: &SyncCx<'_>, object: u64, h: &HistoryHeader, bytes: &[u8]) -> Result<()> {
    let block = cx.mos.info(object)?.block_size.max(1);
    let mut rest = bytes;
    for (blkid, offset, take) in runs(h, block, h.eof, bytes.len() as u64) {
        let (now, later) = rest.split_at(take);
        cx.mos.edit_block(object, blkid, &mut |data| {
            if let Some(to) = data.get_mut(offset..offset + now.len()) {
                to.copy_from_slice(now);
            }
            Ok(())
        })?;
        rest = later;
    }
    Ok(())
}

fn read(mos: &dyn MosRead, object: u64, h: &HistoryHeader, at: u64, out: &mut [u8]) -> Result<()> {
    let block = mos.info(object)?.block_size.max(1);
    let mut rest = out;
    let len = rest.len() as u64;
    for (blkid, offset, take) in runs(h, block, at, len) {
        let (now, later) = rest.split_at_mut(take);
        let (data, _) = mos.read_block(object, blkid)?;
        let from = data.get(offset..offset + take);
        now.copy_from_slice(from.ok_or_else(|| Error::corrupt("history block too short"))?);
        rest = later;
    }
    Ok(())
}
