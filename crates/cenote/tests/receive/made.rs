//! Raw streams that are made up, of objects of any shape.

use cenote::inspect::nvlist::{NvList, Order, Value};
use cenote::stream::{
    Begin, End, Features, Free, HeaderKind, Object, ObjectRange, Spill, StreamRecord, TO_THE_END,
    Write, record_flags,
};

use super::hostile::{StreamPiece, assembled};
use super::noise;

/// An object of a stream that is made up. Nothing checks its MACs, which need the key.
#[derive(Clone, Copy)]
pub(crate) struct MadeObject {
    pub(crate) id: u64,
    pub(crate) slots: u8,
    pub(crate) block: u32,
    pub(crate) shift: u8,
    pub(crate) levels: u8,
    /// Every `stride`-th of `blocks` blocks is data.
    pub(crate) blocks: u64,
    pub(crate) stride: u64,
    pub(crate) bonus: u32,
    pub(crate) has_spill: bool,
    pub(crate) seed: u64,
}

pub(crate) const MADE: MadeObject = MadeObject {
    id: 2,
    slots: 1,
    block: 4096,
    shift: 17,
    levels: 1,
    blocks: 1,
    stride: 1,
    bonus: 176,
    has_spill: false,
    seed: 1,
};

/// Ids of snapshots and of their initialisation vectors.
pub(crate) type MadeId = (u64, u64);

fn fixed<const N: usize>(seed: u64) -> [u8; N] {
    noise(seed, N).try_into().unwrap()
}

fn beginning(to: MadeId, from: Option<MadeId>, max_blkid: u64) -> StreamPiece {
    let features = [
        Features::RAW,
        Features::COMPRESSED,
        Features::LZ4,
        Features::LARGE_BLOCKS,
        Features::LARGE_DNODE,
        Features::SA_SPILL,
    ];
    let features = Features(features.iter().fold(0, |all, one| all | one.0));
    let mut begin = Begin::new(HeaderKind::Substream, features, "tank/made@s").unwrap();
    (begin.creation_time, begin.objset_type, begin.flags) = (1_700_000_000, 2, 0xc);
    (begin.to_guid, begin.from_guid) = (to.0, from.map_or(0, |from| from.0));
    let mut keys = NvList::new();
    keys.add_u64("DSL_CRYPTO_SUITE", 8)
        .add_u64("DSL_CRYPTO_GUID", 4711)
        .add_u64("DSL_CRYPTO_VERSION", 1)
        .insert("DSL_CRYPTO_MASTER_KEY_1", Value::Uint8Array(noise(1, 32)))
        .insert("DSL_CRYPTO_HMAC_KEY_1", Value::Uint8Array(noise(2, 64)))
        .insert("DSL_CRYPTO_IV", Value::Uint8Array(noise(to.0, 12)))
        .insert("DSL_CRYPTO_MAC", Value::Uint8Array(noise(3, 16)))
        .insert("portable_mac", Value::Uint8Array(noise(to.0, 32)))
        .add_u64("keyformat", 1)
        .add_u64("pbkdf2iters", 0)
        .add_u64("pbkdf2salt", 0)
        .add_u64("mdn_checksum", 0)
        .add_u64("mdn_compress", 0)
        .add_u64("mdn_nlevels", 6)
        .add_u64("mdn_blksz", 16384)
        .add_u64("mdn_indblkshift", 17)
        .add_u64("mdn_nblkptr", 3)
        .add_u64("mdn_maxblkid", max_blkid)
        .add_u64("to_ivset_guid", to.1)
        .add_u64("from_ivset_guid", from.map_or(0, |from| from.1));
    let mut payload = NvList::new();
    payload.add_list("crypt_keydata", keys);
    let payload = payload.pack_native(Order::Little);
    begin.payload_len = payload.len() as u32;
    (StreamRecord::Begin(begin), payload)
}

/// A stream of these objects, in order.
pub(crate) fn made(to: MadeId, from: Option<MadeId>, objects: &[MadeObject]) -> Vec<u8> {
    let last = objects.last().unwrap().id / 32;
    let mut list = vec![beginning(to, from, last.max(9))];
    let (to_guid, mut range) = (to.0, u64::MAX);
    for of in objects {
        if of.id / 32 != range {
            range = of.id / 32;
            let record = ObjectRange {
                first: range * 32,
                slots: 32,
                to_guid,
                salt: fixed(range + to_guid),
                iv: fixed(range + to_guid + 1),
                mac: fixed(range + to_guid + 2),
                flags: 0,
            };
            list.push((StreamRecord::ObjectRange(record), vec![]));
        }
        let spill = if of.has_spill { 128 } else { 0 };
        let record = Object {
            object: of.id,
            object_type: 19,
            bonus_type: 44,
            block_size: of.block,
            bonus_len: of.bonus,
            checksum: 0,
            compress: 0,
            slots: of.slots,
            flags: if of.has_spill { record_flags::OBJECT_SPILL } else { 0 },
            raw_bonus_len: 512 * u32::from(of.slots) - 64 - 128 - spill,
            to_guid,
            indirect_shift: of.shift,
            levels: of.levels,
            pointers: 1,
            max_block: of.blocks - 1,
        };
        list.push((StreamRecord::Object(record), noise(of.seed, record.raw_bonus_len as usize)));
        let offset = of.blocks * u64::from(of.block);
        let tail = Free { object: of.id, offset, length: TO_THE_END, to_guid };
        list.push((StreamRecord::Free(tail), vec![]));
        for blkid in (0..of.blocks).filter(|blkid| blkid % of.stride == 0) {
            let seed = of.seed * 1000 + blkid;
            // Every third is compressed, to a size that is no multiple of large sectors.
            let packed = seed % 3 == 0 && of.block > 1024;
            let size = if packed { of.block / 2 + 512 } else { of.block };
            let record = Write {
                object: of.id,
                object_type: 19,
                offset: blkid * u64::from(of.block),
                logical_size: of.block.into(),
                to_guid,
                checksum_type: 7,
                flags: if seed % 5 == 0 { record_flags::RAW_BYTESWAP } else { 0 },
                compression: if packed { 15 } else { 2 },
                compressed_size: size.into(),
                salt: fixed(seed),
                iv: fixed(seed + 1),
                mac: fixed(seed + 2),
                ..Write::default()
            };
            list.push((StreamRecord::Write(record), noise(seed, size as usize)));
        }
        if of.has_spill {
            let record = Spill {
                object: of.id,
                length: 1024,
                to_guid,
                compression: 2,
                compressed_size: 1024,
                salt: fixed(of.seed),
                iv: fixed(of.seed + 1),
                mac: fixed(of.seed + 2),
                ..Spill::default()
            };
            list.push((StreamRecord::Spill(record), noise(of.seed, 1024)));
        }
    }
    list.push((StreamRecord::End(End { to_guid, ..End::default() }), vec![]));
    assembled(&list)
}

pub(crate) fn some_objects() -> Vec<MadeObject> {
    let mut list = vec![
        MADE,
        MadeObject { id: 3, blocks: 9, levels: 2, seed: 2, ..MADE },
        MadeObject { id: 4, blocks: 300, stride: 7, levels: 4, shift: 12, seed: 3, ..MADE },
        MadeObject { id: 5, slots: 3, bonus: 1000, has_spill: true, seed: 4, ..MADE },
        MadeObject { id: 8, block: 512, blocks: 40, levels: 2, shift: 14, seed: 5, ..MADE },
        MadeObject { id: 40, block: 1 << 20, blocks: 2, levels: 2, seed: 6, ..MADE },
        MadeObject { id: 64, block: 131_072, blocks: 5, stride: 4, levels: 3, seed: 7, ..MADE },
    ];
    list.extend((100..130).map(|id| MadeObject { id, seed: id, has_spill: id % 2 == 0, ..MADE }));
    list
}
