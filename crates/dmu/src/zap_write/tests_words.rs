//! ZAPs whose keys are words, as block reference tables have them, against a map.

use std::collections::BTreeMap;

use base::ErrorKind;
use ondisk::zap::{FLAG_HASH64, FLAG_UINT64_KEY, ZapValue};
use proptest::prelude::*;

use super::ZapStore;
use super::tests_store::{MemStore, audit};

fn store(shift: u32) -> MemStore {
    let store = MemStore::new(1 << shift);
    store.zap().init(0x5a17_0001, 0, FLAG_HASH64 | FLAG_UINT64_KEY).unwrap();
    store
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn operations_against_a_map(
        shift in 9u32..=13,
        ops in prop::collection::vec((0u8..3, 0u64..200, any::<u64>(), any::<bool>()), 0..600),
    ) {
        let store = store(shift);
        let zap = store.zap();
        let mut model = BTreeMap::new();
        for (op, key, count, bytes) in ops {
            // Offsets of blocks: multiples of a sector, some of them far away.
            let key = if key % 7 == 0 { key << 44 } else { key << 12 };
            let value = match bytes {
                true => ZapValue::from_bytes(&count.to_le_bytes()).unwrap(),
                false => ZapValue::from_u64(count),
            };
            match op {
                0 | 1 => {
                    zap.update_words(&[key], &value).unwrap();
                    model.insert(key, value);
                }
                _ => {
                    let removed = zap.remove_words(&[key]).map_err(|e| e.kind());
                    let there = model.remove(&key);
                    prop_assert_eq!(removed.err(), there.is_none().then_some(ErrorKind::NotFound));
                }
            }
            prop_assert_eq!(zap.lookup_words(&[key]).unwrap(), model.get(&key).cloned());
        }
        let found = audit(&store, false).entries;
        let word = |name: &[u8]| u64::from_be_bytes(name.try_into().unwrap());
        let found: BTreeMap<u64, ZapValue> =
            found.iter().map(|(name, seen)| (word(name), seen.value.clone())).collect();
        prop_assert_eq!(found, model);
    }
}

#[test]
fn names_and_words_are_not_mixed() {
    let words = store(12);
    let value = ZapValue::from_u64(1);
    assert_eq!(words.zap().update(b"name", &value).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(words.zap().lookup(b"name").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(words.zap().update_words(&[], &value).unwrap_err().kind(), ErrorKind::Invalid);
    for flags in [0, FLAG_HASH64] {
        let names = MemStore::new(1 << 12);
        names.zap().init(7, 0, flags).unwrap();
        let zap = names.zap();
        assert_eq!(zap.update_words(&[1], &value).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(zap.remove_words(&[1]).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(zap.lookup_words(&[1]).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

/// A leaf that changes often is verified once, and again after a change by other means.
#[test]
fn a_leaf_is_verified_once() {
    let store = store(14);
    let zap = store.zap();
    let value = ZapValue::from_u64(1);
    for key in 0..20 {
        zap.update_words(&[key << 12], &value).unwrap();
    }
    for key in 0..5 {
        zap.remove_words(&[key << 12]).unwrap();
    }
    assert_eq!(store.checks.get(), 1);
    // A pointer that leads back: a walk of the free chunks never ends.
    let damage = |leaf: &mut [u8]| {
        let last = leaf.len() - 2;
        leaf[last..].copy_from_slice(&0u16.to_le_bytes());
        Ok(())
    };
    store.edit(1, &mut |leaf| damage(leaf)).unwrap();
    for _ in 0..2 {
        let refused = zap.update_words(&[99 << 12], &value).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
    }
    assert_eq!(store.checks.get(), 3);
}
