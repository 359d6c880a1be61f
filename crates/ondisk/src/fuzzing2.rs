//! Entry points for fuzzers and mutation tests: each takes any bytes and must return
//! without panic. The first byte selects the byte order.

use crate::endian::Endian;
use crate::zap::leafmut::{LeafMut, StoredKey};
use crate::zap::{Cursor, ZapBlock, ZapValue};

fn split(data: &[u8]) -> Option<(Endian, &[u8])> {
    let (&first, rest) = data.split_first()?;
    Some((if first & 1 == 0 { Endian::Little } else { Endian::Big }, rest))
}

/// Any ZAP block: every reader, then editing and byte-swapping of blocks that verify.
pub fn fuzz_zap(data: &[u8]) {
    let Some((endian, block)) = split(data) else { return };
    match ZapBlock::parse(block, endian) {
        Ok(ZapBlock::Micro(micro)) => {
            let index = micro.index(|name| crate::zap::hash(micro.salt, name, 28));
            for key in index.keys() {
                let _ = micro.slot(key.slot as usize);
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

/// A bonus buffer, then (if long) a spill block, under a typical registry; and
/// the same bytes as a legacy znode and as ACLs.
pub fn fuzz_sa(data: &[u8]) {
    use crate::acl::{encode_aces, is_trivial, mode_of_acl, parse_posix_acl};
    use crate::sa::{Sa, SaTables};
    use crate::znode::ZnodeAttrs;
    let Some((endian, bytes)) = split(data) else { return };
    let mut tables = SaTables::standard();
    let layout = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19, 17, 20];
    for (number, n) in [(2, 15), (3, 17), (4, 16)] {
        let _ = tables.add_layout(number, layout.get(..n).unwrap_or_default());
    }
    let _ = tables.add_layout(5, &[20]);
    let (bonus, spill) = bytes.split_at_checked(192).unwrap_or((bytes, &[]));
    let attrs = [
        Sa::parse(bytes, None, &tables).and_then(|sa| ZnodeAttrs::from_sa(&sa)),
        Sa::parse(bonus, Some(spill), &tables).and_then(|sa| ZnodeAttrs::from_sa(&sa)),
        ZnodeAttrs::from_legacy(bytes, endian),
    ];
    for z in attrs.into_iter().flatten() {
        if let Ok(aces) = z.acl.aces() {
            let _ =
                (is_trivial(&aces), mode_of_acl(&aces, z.mode, z.uid, z.gid), encode_aces(&aces));
        }
        if let Some(packed) = &z.dxattr {
            fuzz_xattr(packed);
        }
    }
    let _ = parse_posix_acl(bytes);
    // The registry and a layout, from the bytes themselves.
    let words: Vec<u64> = (0..bytes.len() / 8).filter_map(|i| endian.u64(bytes, 8 * i)).collect();
    let list: Vec<u16> = words.iter().map(|w| *w as u16 % 32).collect();
    let _ = SaTables::new(words.iter().map(|w| (&b"NAME"[..], *w)), [(&b"2"[..], list)]);
}

/// Every bonus buffer of the DSL, and bpobj entries.
pub fn fuzz_dslphys(data: &[u8]) {
    use crate::bpobj::{BpobjEntry, BpobjPhys, subobj_nth};
    use crate::dslphys::{
        BookmarkPhys, BptreeEntry, BptreePhys, DeadlistPhys, DslDatasetPhys, DslDirPhys,
        RedactBlock, RedactionListPhys, parse_txg_times,
    };
    let Some((endian, bytes)) = split(data) else { return };
    if let Ok(dir) = DslDirPhys::parse(bytes, endian) {
        assert_eq!(DslDirPhys::parse(&dir.encode(), Endian::Little).ok(), Some(dir));
    }
    if let Ok(ds) = DslDatasetPhys::parse(bytes, endian) {
        let _ = (ds.is_snapshot(), ds.encode());
    }
    if let Ok(phys) = BpobjPhys::parse(bytes, endian) {
        assert_eq!(BpobjPhys::parse(&phys.encode(), Endian::Little).ok(), Some(phys));
    }
    for i in [0, 1, usize::MAX] {
        let _ = (BpobjEntry::parse_nth(bytes, i, endian), subobj_nth(bytes, i, endian));
    }
    let _ = (DeadlistPhys::parse(bytes, endian), BptreePhys::parse(bytes, endian));
    let _ =
        (BptreeEntry::parse(bytes, endian).map(|e| e.encode()), RedactBlock::parse(bytes, endian));
    let _ = RedactionListPhys::parse(bytes, endian);
    let words: Vec<u64> = (0..bytes.len() / 8).filter_map(|i| endian.u64(bytes, 8 * i)).collect();
    let _ = parse_txg_times(&words);
    if let Ok(bookmark) = BookmarkPhys::from_words(&words) {
        let _ = bookmark.to_words(true);
    }
}

/// A packed list of extended attributes, a FUID table, and names.
pub fn fuzz_xattr(data: &[u8]) {
    use crate::{fuid::FuidTable, xattr};
    if let Ok(pairs) = xattr::parse_sa(data) {
        for (name, _) in &pairs {
            let _ = xattr::linux_name(name);
        }
        let _ = xattr::pack_sa(&pairs);
    }
    let _ = FuidTable::parse(data);
    for compat in [false, true] {
        if let Ok(names) = xattr::stored_names(data, compat) {
            assert_eq!(xattr::linux_name(&names.first).as_deref(), Some(data), "a name maps back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Target = fn(&[u8]);

    #[test]
    fn seeds_pass() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/");
        let targets: [(&str, Target); 5] = [
            ("zap", fuzz_zap),
            ("sa", fuzz_sa),
            ("dslphys", fuzz_dslphys),
            ("normalize", fuzz_normalize),
            ("xattr", fuzz_xattr),
        ];
        for (name, target) in targets {
            let mut seeds = 0;
            for file in std::fs::read_dir(format!("{root}{name}")).unwrap() {
                target(&std::fs::read(file.unwrap().path()).unwrap());
                seeds += 1;
            }
            assert!(seeds > 0, "{name}");
        }
    }
}
