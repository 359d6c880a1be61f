//! Compares `Space` with a naive map of sectors: random allocations, frees, txgs with
//! several passes, crashes and imports, with and without logs, on a disk of real space
//! map words. The planted bugs must be found.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use base::rt::atomic::Ordering;
use common::{ModelConfig, run};
use metaslab::{Plant, Space};
use proptest::prelude::*;

fn config() -> impl Strategy<Value = ModelConfig> {
    let shape =
        (1..4u32, 2..5u64, prop_oneof![Just(9u32), Just(12)], prop_oneof![Just(1u64), Just(3)]);
    let modes = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), 1..4usize);
    (shape, modes).prop_map(
        |((vdevs, metaslabs, ashift, row), (logs, v2, defer, full, streams))| ModelConfig {
            vdevs,
            metaslabs,
            ashift,
            row,
            logs,
            v2: v2 || logs,
            defer,
            full,
            streams,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn space_is_neither_lost_nor_given_twice(config in config(), seed: u64) {
        run(&config, seed, 40, &|_| ()).map_err(TestCaseError::fail)?;
    }
}

/// Number of the twenty runs in which the model finds a contradiction.
fn found(plant: impl Fn(&Plant)) -> usize {
    let config = ModelConfig {
        vdevs: 2,
        metaslabs: 3,
        ashift: 9,
        row: 1,
        logs: true,
        v2: true,
        defer: false,
        full: true,
        streams: 1,
    };
    let plant = |space: &Space| plant(&space.plant);
    (0..20).filter(|&seed| run(&config, seed, 40, &plant).is_err()).count()
}

#[test]
fn nothing_is_found_without_a_planted_bug() {
    assert_eq!(found(|_| ()), 0);
}

#[test]
fn reuse_in_the_same_group_is_found() {
    assert!(found(|p| p.reuse_same_group.store(true, Ordering::Relaxed)) > 15);
}

#[test]
fn reuse_before_the_uberblock_is_found() {
    assert!(found(|p| p.reuse_before_commit.store(true, Ordering::Relaxed)) > 15);
}

#[test]
fn a_lost_entry_is_found() {
    assert!(found(|p| p.lose_alloc_entry.store(true, Ordering::Relaxed)) > 15);
}
