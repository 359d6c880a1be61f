//! Audits against forged space maps: exactly the forged entry must be found.

use std::path::Path;
use std::sync::Arc;

use ondisk::spacemap::{Kind, Range};
use testkit::{Scratch, golden};

use super::*;
use crate::{ImportOptions, Search};

fn open(dir: &Path) -> Spa {
    let engine = device::Engine::new(device::EngineKind::default(), 32).unwrap();
    let cache = Arc::new(zio::BlockCache::of(64 << 20).unwrap());
    let search = Search { paths: vec![dir.to_owned()], ..Search::default() };
    let found = crate::discover(&search, &engine).unwrap();
    let options = ImportOptions { readonly: true, inspect: true, ..ImportOptions::default() };
    Spa::open(&found.pools[0], &options, &cache, &engine).map_err(|f| f.error).unwrap()
}

/// Audits a pool with one entry added to its maps in memory.
fn audit_with(spa: &Spa, range: Range) -> Report {
    let space = spa.load_space().unwrap();
    let mut replayed = maps::replay(spa, &space).unwrap();
    replayed.bits.edit(&range);
    spa.audit_against(&space, Some(replayed), AuditOptions::default(), &()).unwrap()
}

#[test]
fn one_lie_in_the_space_maps_is_one_finding() {
    for name in ["twomirrors", "basic", "snaps"] {
        let Some(pool) = golden(name) else { continue };
        let scratch = Scratch::new(name);
        pool.unpack(scratch.path());
        let spa = open(scratch.path());
        let root = *spa.mos().objset().root_bp().as_block().unwrap();
        let dva = root.dva();

        // The maps mark the root block's first copy as free.
        let freed =
            Range { kind: Kind::Free, offset: dva.offset, len: dva.asize.0, vdev: dva.vdev };
        let report = audit_with(&spa, freed);
        let claims: Vec<_> = report
            .problems
            .iter()
            .map(|p| match p {
                Problem::Claim { at, dva, claim, .. } => (at.objset, at.level, *dva, *claim),
                other => panic!("{other:?}"),
            })
            .collect();
        let claim = Claim { free: dva.asize.0, ..Claim::default() };
        assert_eq!(claims, [(0, -1, dva, claim)], "{name}");
        assert_eq!((report.leaked, report.unreadable), (0, 0));
        assert!(!report.is_clean());

        // The maps mark one more sector as allocated, in front of the last free one.
        let space = spa.load_space().unwrap();
        let (vdev, metaslab) = (&space.vdevs[0], space.vdevs[0].metaslabs.last().unwrap());
        assert_eq!(metaslab.allocated(), 0, "the last metaslab is empty");
        let sector = 1 << vdev.ashift;
        let offset = metaslab.start + 7 * sector;
        let extra = Range { kind: Kind::Alloc, offset, len: 2 * sector, vdev: vdev.vdev };
        let report = audit_with(&spa, extra);
        let leaks: Vec<_> = report
            .problems
            .iter()
            .map(|p| match p {
                Problem::Leak(v, at, len) => (*v, *at, *len),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(leaks, [(vdev.vdev, offset, 2 * sector)], "{name}");
        assert_eq!(report.leaked, 2 * sector);
        assert_eq!(report.bad_claims, 0);
    }
}

#[test]
fn a_block_claimed_twice_is_found() {
    let Some(pool) = golden("twomirrors") else { return };
    let scratch = Scratch::new("twice");
    pool.unpack(scratch.path());
    let spa = open(scratch.path());
    let space = spa.load_space().unwrap();
    let replayed = maps::replay(&spa, &space).unwrap();
    let dva = spa.mos().objset().root_bp().as_block().unwrap().dva();
    assert!(replayed.bits.claim(dva.vdev, dva.offset, 512).is_clean());
    let report = spa.audit_against(&space, Some(replayed), AuditOptions::default(), &()).unwrap();
    assert_eq!(report.bad_claims, 1);
    assert!(matches!(&report.problems[..], [Problem::Claim { claim, .. }] if claim.twice == 512));
}

#[test]
fn without_leak_checks_no_maps_are_needed() {
    let Some(pool) = golden("twomirrors") else { return };
    let scratch = Scratch::new("noleaks");
    pool.unpack(scratch.path());
    let spa = open(scratch.path());
    let report = spa.audit(AuditOptions { leaks: false, ..AuditOptions::default() }, &()).unwrap();
    assert!(report.is_clean() && !report.leaks_checked);
    let full = spa.audit(AuditOptions::default(), &()).unwrap();
    assert_eq!(report.stats.total(), full.stats.total());
    assert_eq!(full.found, full.allocated);
}
