//! Entries for fuzzers and mutation tests: each takes any bytes, must return,
//! and must not panic. The first byte chooses the byte order.

use crate::endian::Endian;
use crate::zap::leafmut::{LeafMut, StoredKey};
use crate::zap::{Cursor, ZapBlock, ZapValue};

fn split(data: &[u8]) -> Option<(Endian, &[u8])> {
    let (&first, rest) = data.split_first()?;
    Some((if first & 1 == 0 { Endian::Little } else { Endian::Big }, rest))
}

/// Any ZAP block: every reader, then editing and byte-swapping what verifies.
pub fn fuzz_zap(data: &[u8]) {
    let Some((endian, block)) = split(data) else { return };
    match ZapBlock::parse(block, endian) {
        Ok(ZapBlock::Micro(micro)) => {
            let index = micro.index(|name| crate::zap::hash(micro.salt, name, 28));
            for key in index.keys() {
                let _ = micro.slot(key.slot);
                let _ = index.free_cd(key.hash);
            }
            let _ = micro.find(b"name");
        }
        Ok(ZapBlock::FatHeader(header)) => {
            for hash in [0, u64::MAX, 1 << 63, header.phys.salt] {
                let _ = header.pointer_location(hash);
            }
            let _ = header.read_pointer(block, header.phys.freeblk as usize, endian);
        }
        Ok(ZapBlock::Leaf(leaf)) => fuzz_leaf(block, &leaf),
        Err(_) => return,
    }
    let mut copy = block.to_vec();
    let _ = crate::zap::byteswap(&mut copy, endian);
}

fn fuzz_leaf(block: &[u8], leaf: &crate::zapleaf::Leaf<'_>) {
    for entry in leaf.entries().unwrap_or_default() {
        let _ = (entry.name(), entry.name_is(b"config"), entry.key_words());
        let _ = (entry.value(), entry.first_u64());
        let _ = leaf.lookup(entry.hash, |e| e.name_is(b"config"));
        let after = Cursor::after(entry.hash, entry.cd, 28).unwrap_or_default();
        let _ = leaf.first_from(after.hash, after.cd);
    }
    for key_size in [1, 8] {
        let mut copy = block.to_vec();
        let Ok(mut edit) = LeafMut::open(&mut copy, key_size) else { continue };
        let hash = edit.view().map_or(0, |l| match l.header().prefix_len {
            0 => 0,
            n => l.header().prefix << (64 - n),
        });
        let words = [1, 2];
        let key = if key_size == 8 { StoredKey::Words(&words) } else { StoredKey::Name(b"new") };
        let _ = edit.insert(hash, None, key, &ZapValue::from_u64(7));
        let chunks: Vec<u16> = edit
            .view()
            .and_then(|l| l.entries().map(|all| all.iter().map(|e| e.chunk).collect()))
            .unwrap_or_default();
        let mut sibling = vec![0; block.len()];
        let _ = edit.split_into(&mut sibling, 0);
        for chunk in chunks {
            let _ = edit.remove(chunk);
        }
    }
}

/// Any name under every combination of flags; forms are stable under their own flags.
pub fn fuzz_normalize(data: &[u8]) {
    use crate::normalize::{MatchType, NameKey, normalize};
    for flags in [0x02, 0x10, 0x12, 0x20, 0x22, 0x50, 0x52, 0x60, 0x62] {
        let _ = normalize(data, flags, usize::MAX);
        if let Ok(key) = NameKey::new(data, flags, MatchType::Normalize, 1023) {
            assert!(key.matches(data), "a name matches itself");
        }
    }
}
