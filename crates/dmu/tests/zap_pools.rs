//! Every ZAP of the golden pools, which OpenZFS wrote, is copied to memory, changed there,
//! and changed back.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base::{Buf, ObjectId};
use cenote::{Engine, EngineConfig, ImportOptions, Search};
use dmu::zap_write::Index;
use dmu::{Io, Objset, Zap, ZapLimits, ZapMut, ZapStore};
use ondisk::dslphys::DslDatasetPhys;
use ondisk::zap::ZapValue;
use ondisk::{Endian, ObjType};
use testkit::{Scratch, golden_pools};

#[allow(dead_code, unreachable_pub)]
#[path = "../src/zap_write/tests_store.rs"]
mod tests_store;

use tests_store::{AuditedEntry, MemStore, audit};

/// Every object set with content.
fn objsets(dir: &Path) -> Vec<Arc<Objset>> {
    let config = EngineConfig { cache_bytes: Some(64 << 20), ..EngineConfig::default() };
    let engine = Engine::new(config).unwrap();
    let search = Search { paths: vec![dir.to_owned()], ..Search::default() };
    let found = engine.discover(&search).unwrap();
    let pool = engine.inspect(&found.pools[0], &ImportOptions::default()).unwrap();
    let mos = Arc::clone(pool.spa().mos().objset());
    let mut all = vec![Arc::clone(&mos)];
    let mut at = ObjectId(0);
    while let Some(id) = mos.next_object(at, Io::WAIT).unwrap() {
        at = id;
        let object = mos.object(id, Io::WAIT).unwrap();
        let dnode = object.dnode();
        if dnode.bonus_type == ObjType::DSL_DATASET {
            let phys = DslDatasetPhys::parse(&dnode.bonus, dnode.endian).unwrap();
            if !phys.bp.is_hole() {
                // Encrypted ones whose key is not loaded cannot be read.
                all.extend(Objset::open(Arc::clone(mos.zio()), id.0, phys.bp, Io::WAIT));
            }
        }
    }
    all
}

/// The blocks and entries of a ZAP; `None` if it is encrypted or of another byte order.
fn load(zap: &Zap) -> Option<(MemStore, BTreeMap<Vec<u8>, AuditedEntry>)> {
    let object = zap.object();
    let store = MemStore::new(object.block_size() as u32);
    for blkid in 0..=object.dnode().max_blkid {
        let bp = object.block_pointer(0, blkid, Io::WAIT).ok()?;
        if bp.is_hole() {
            continue;
        }
        if bp.endian() != Endian::Little {
            return None;
        }
        let block = object.read_block(blkid, Io::WAIT).ok()?;
        store.blocks.borrow_mut().insert(blkid, Buf::copy_of(&block));
    }
    let entries = zap.entries().ok()?.into_iter();
    let entries =
        entries.map(|e| (e.name, AuditedEntry { value: e.value, hash: e.hash, cd: e.cd }));
    Some((store, entries.collect()))
}

/// Adds `many` entries and removes them again; 1 for a fat ZAP.
fn change(store: &MemStore, before: &BTreeMap<Vec<u8>, AuditedEntry>, many: u64) -> usize {
    let found = audit(store, false);
    assert_eq!(&found.entries, before);
    let zap = ZapMut::with_limits(store, ZapLimits { name_max: 1023, ..ZapLimits::default() });
    assert_eq!(zap.len().unwrap(), before.len() as u64);
    let name = |i: u64| format!("not there before {i}").into_bytes();
    for i in 0..many {
        zap.add(&name(i), &ZapValue::from_u64(i)).unwrap();
    }
    let full = audit(store, false);
    assert_eq!(full.entries.len(), before.len() + many as usize);
    assert!(before.iter().all(|(name, seen)| full.entries.get(name) == Some(seen)));
    for i in 0..many {
        zap.remove(&name(i)).unwrap();
    }
    assert_eq!(&audit(store, false).entries, before);
    // Each entry that was there is removed and added again.
    for (name, seen) in before {
        zap.remove(name).unwrap();
        zap.update(name, &seen.value).unwrap();
    }
    let after = audit(store, false).entries;
    assert_eq!(after.len(), before.len());
    assert!(before.iter().all(|(name, seen)| after[name].value == seen.value));
    usize::from(found.phys.is_some())
}

#[test]
fn zaps_of_golden_pools_are_changed() {
    let (mut zaps, mut fat) = (0, 0);
    for golden in golden_pools() {
        let scratch = Scratch::new(&golden.name);
        golden.unpack(scratch.path());
        for os in objsets(scratch.path()) {
            let mut at = ObjectId(0);

            let mut here = 0;
            while let Ok(Some(id)) = os.next_object(at, Io::WAIT) {
                at = id;
                let Ok(object) = os.object(id, Io::WAIT) else { continue };
                if !object.object_type().is_zap() || here == 12 {
                    continue;
                }
                let Ok(zap) = Zap::open(object, Io::WAIT) else { continue };
                // Keys of words are only read.
                if zap.has_word_keys().unwrap() {
                    continue;
                }
                if let Some((store, entries)) = load(&zap) {
                    // A microzap turns fat for the larger number.
                    let many = if zaps % 16 == 0 { 2100 } else { 50 };
                    fat += change(&store, &entries, many);
                    zaps += 1;
                    here += 1;
                }
            }
        }
    }
    println!("CHANGED {zaps} ZAPs, {fat} of them fat");
    assert!(zaps > 100 && fat > 10, "{zaps} {fat}");
}
