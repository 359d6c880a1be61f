//! What must be the same before and after blocks have moved.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic, missing_docs)]
#![allow(clippy::disallowed_methods, reason = "zdb runs as a process")]

pub mod history;
pub mod tops;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base::{ObjectId, VdevId};
use cenote::inspect::spa::audit::{AuditOptions, Verify};
use cenote::{ImportOptions, Pool, SendOptions};
use dmu::{Io, Objset};
use dsl::write::{MosRead, Ratios, relocate};
use metaslab::MsKey;
use mover::{EmptyReport, MoveLimits, empty_metaslab};
use ondisk::BlkPtr;
use spa::Spa;
use spa::engine::{TaskCx, Writer};
use testkit::Rng;

pub fn import(dir: &Path) -> Arc<Pool> {
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let pool = testkit::import_from(&testkit::engine(), dir, &options).unwrap();
    assert_eq!(pool.read_only_because(), None);
    pool
}

pub fn ratios(w: &Writer) -> Ratios {
    let tree = w.zio().tree();
    let of = |id| tree.deflate_ratio(VdevId(id)).unwrap_or(512);
    Ratios::new((0..16).map(of).collect())
}

/// All sums of the DSL: of directories, datasets and deadlists, without roots and the space of
/// the MOS itself.
pub fn sums(pool: &Pool) -> Vec<String> {
    let w = pool.writer().unwrap();
    w.sync().unwrap();
    let mos: &dyn MosRead = w.mos();
    let mut out = Vec::new();
    for ds in relocate::datasets(mos).unwrap() {
        let mut phys = mos.dataset(ds.object).unwrap();
        phys.bp = BlkPtr::default();
        let dead = match phys.deadlist_obj {
            0 => None,
            list => Some(dsl::write::deadlist::total(mos, list).unwrap()),
        };
        out.push(format!("{} {phys:?} {dead:?}", ds.object));
        if ds.is_head {
            let dir = mos.dir(ds.dir).unwrap();
            let of_root = dir.parent_obj == 0;
            // The root counts the MOS, which every txg changes.
            let sizes = (dir.used_bytes, dir.compressed_bytes, dir.uncompressed_bytes);
            let sizes = if of_root { (0, 0, 0) } else { sizes };
            let mut breakdown = dir.used_breakdown;
            if of_root {
                breakdown = Default::default();
            }
            out.push(format!("{} {sizes:?} {breakdown:?}", ds.dir));
        }
    }
    out.sort();
    out
}

/// The rules of the DSL, on a pool that is open.
pub fn rules(pool: &Pool) {
    let w = pool.writer().unwrap();
    let ratios = ratios(w);
    let check = move |cx: &mut TaskCx<'_>| {
        let wrong = dsl::write::check(cx.read(), &ratios)?;
        let error = || base::Error::corrupt(format!("{wrong:#?}"));
        if wrong.is_empty() { Ok(()) } else { Err(error()) }
    };
    w.sync_task(check, |_, ()| Ok(())).unwrap();
}

pub fn digest(bytes: &[u8]) -> (usize, u64) {
    let mix = |hash: u64, byte: &u8| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(5)
    };
    (bytes.len(), bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix))
}

pub const SEND: SendOptions =
    SendOptions { large_blocks: true, embedded: true, compressed: true, raw: true };

/// The streams of all snapshots, whole and from the snapshot before.
pub fn streams(pool: &Pool) -> BTreeMap<String, (usize, u64)> {
    let mut out = BTreeMap::new();
    let mut names = Vec::new();
    pool.for_each_dataset(&mut |ds| {
        names.push(ds.name().to_owned());
        Ok(())
    })
    .unwrap();
    for name in names {
        let mut before = None;
        let mut all = pool.dataset(&name).unwrap().snapshots().unwrap();
        all.sort_by_key(|snap| snap.createtxg());
        for snap in all {
            let mut send = |from: Option<&cenote::Dataset>, how: &str| {
                let mut stream = Vec::new();
                let sent = snap.send(from, SEND, &mut stream, &mut |_| true);
                let what = match sent {
                    Ok(()) => digest(&stream),
                    // The same refusal before and after.
                    Err(e) => (0, digest(e.message().as_bytes()).1),
                };
                out.insert(format!("{} {how}", snap.name()), what);
            };
            send(None, "whole");
            if let Some(before) = &before {
                send(Some(before), "changes");
            }
            before = Some(snap);
        }
    }
    out
}

/// The metaslabs with data, those with the most bytes first.
pub fn full_metaslabs(w: &Writer) -> Vec<MsKey> {
    let mut all = Vec::new();
    for (vdev, _) in w.space().vdevs() {
        for ms in w.space().metaslabs(vdev).unwrap() {
            let used = ms.seg.len - ms.free;
            if used > 0 {
                all.push((used, ms.key));
            }
        }
    }
    all.sort_unstable_by_key(|(used, key)| (std::cmp::Reverse(*used), *key));
    all.into_iter().map(|(_, key)| key).collect()
}

/// Empties the fullest metaslabs one after the other.
pub fn empty_some(pool: &Pool, count: usize, limits: &MoveLimits) -> EmptyReport {
    let w = pool.writer().unwrap();
    let mut sum = EmptyReport::default();
    for key in full_metaslabs(w).into_iter().take(count) {
        let done = empty_metaslab(w, key, limits).unwrap();
        sum.batches += done.batches;
        sum.moved += done.moved;
        sum.metadata += done.metadata;
        sum.listed += done.listed;
        sum.kept += done.kept;
        sum.immovable += done.immovable;
        sum.moved_bytes += done.moved_bytes;
        sum.metadata_bytes += done.metadata_bytes;
    }
    sum
}

/// An exported pool is whole: the audit with all checksums, and no leak.
pub fn whole(dir: &Path, what: &str) {
    let pool = testkit::import_from(&testkit::engine(), dir, &testkit::readonly()).unwrap();
    let options = AuditOptions { verify: Verify::All, ..AuditOptions::default() };
    let report = pool.spa().audit(options, &()).unwrap();
    assert!(report.is_clean() && report.leaked == 0, "{what}: {:#?}", report.problems);
}

/// Keeps the pool of a test that fails, and says what is on its disks.
pub struct KeptPool<'a> {
    pub dir: &'a Path,
    pub what: String,
}

impl Drop for KeptPool<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let kept = self.dir.with_extension("kept");
        let moved = std::fs::rename(self.dir, &kept).is_ok();
        println!("{}: kept in {} ({moved})", self.what, kept.display());
        for entry in std::fs::read_dir(&kept).into_iter().flatten().flatten() {
            let disk = testkit::Disk::new(entry.path());
            let label = |n| disk.label(n).and_then(|label| label.u64("txg"));
            let labels: Vec<Option<u64>> = (0..4).map(label).collect();
            // The ring is read as the first label says.
            let ring = labels.first().is_some_and(Option::is_some).then(|| disk.uberblocks());
            let newest = ring.and_then(|ring| ring.iter().map(|u| u.2.txg).max());
            println!("{}: labels {labels:?}, uberblock {newest:?}", disk.path.display());
        }
    }
}

/// OpenZFS's zdb finds no error in an exported pool.
pub fn zdb(dir: &Path, name: &str) {
    let mut run = std::process::Command::new("zdb");
    let Ok(out) = run.args(["-e", "-p"]).arg(dir).args(["-bccd", name]).output() else {
        testkit::skip(testkit::Need::Zdb, "zdb is not installed");
        return;
    };
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("No leaks"), "{text}");
    let text = text.replace("verify nothing leaked", "");
    for bad in ["mismatch", "leaked", "ASSERT", "does not match"] {
        assert!(!text.contains(bad), "{bad}: {text}");
    }
}

/// Destroys everything below the root in a random order; whether nothing is left. Snapshots that are
/// held stay.
pub fn destroy_all(pool: &Pool, rng: &mut Rng) -> bool {
    loop {
        let (mut snaps, mut heads) = (Vec::new(), Vec::new());
        pool.for_each_dataset(&mut |ds| {
            snaps.extend(ds.snapshots()?.iter().map(|s| s.name().to_owned()));
            if ds.name().contains('/') {
                heads.push(ds.name().to_owned());
            }
            Ok(())
        })
        .unwrap();
        if snaps.is_empty() && heads.is_empty() {
            return true;
        }
        let mut all: Vec<String> = snaps.into_iter().chain(heads).collect();
        let mut gone = false;
        while !all.is_empty() {
            let name = all.swap_remove(rng.index(all.len()));
            gone |= match name.contains('@') {
                true => pool.writer().unwrap().destroy_snapshots(&[name], false, None).is_ok(),
                false => pool.destroy_dataset(&name, false, None).is_ok(),
            };
        }
        if !gone {
            return false;
        }
    }
}

/// The content of all objects of all datasets, and the places of their roots.
pub fn object_contents(spa: &Spa) -> (Vec<(u64, usize, u64)>, Vec<ondisk::BlkPtr>) {
    let (mut out, mut roots) = (Vec::new(), Vec::new());
    for ds in relocate::datasets(spa.mos()).unwrap() {
        if ds.root.is_hole() {
            continue;
        }
        roots.push(ds.root);
        let os = Objset::open(Arc::clone(spa.zio()), ds.object, ds.root, Io::WAIT).unwrap();
        let (mut at, mut all) = (ObjectId(0), Vec::new());
        while let Some(id) = os.next_object(at, Io::WAIT).unwrap() {
            at = id;
            let object = os.object(id, Io::WAIT).unwrap();
            all.extend_from_slice(&id.0.to_le_bytes());
            all.extend_from_slice(&object.dnode().bonus);
            for blkid in 0..=object.dnode().max_blkid {
                let (_, sum) = digest(&object.read_block(blkid, Io::WAIT).unwrap());
                all.extend_from_slice(&sum.to_le_bytes());
            }
        }
        let (len, sum) = digest(&all);
        out.push((ds.object, len, sum));
    }
    out.sort_unstable();
    (out, roots)
}
