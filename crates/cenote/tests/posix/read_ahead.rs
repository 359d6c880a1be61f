//! Cold reads in order of files with small records reach the devices in few requests.

use super::widths::make;
use super::*;

const RECORD: u64 = 8 << 10;
const SIZE: u64 = 2 * MB;
/// Passes, one of which must have few requests.
const TRIES: usize = 8;

fn read_requests(pool: &Pool) -> u64 {
    let tree = pool.spa().zio().tree();
    tree.leaves().filter_map(|(_, leaf)| leaf.device()).map(|d| d.stats().snapshot().reads).sum()
}

/// Reads the file in order in steps of `step` bytes from an empty cache. Returns the requests
/// for each MB.
fn cold(rig: &PosixFixture, id: ObjectId, step: usize, wanted: &[u8]) -> f64 {
    let zio = rig.pool.writer().unwrap().zio();
    zio.cache().clear();
    let (before, prefetch) = (read_requests(&rig.pool), rig.engine.prefetch());
    for (n, part) in wanted.chunks(step).enumerate() {
        let got = rig.fs.read(id, (n * step) as u64, part.len(), Io::WAIT).unwrap();
        assert!(got.iter().flat_map(|piece| piece.iter()).eq(part), "step {n} of {step}");
        // A reader that outruns the read-ahead reads its blocks itself.
        testkit::eventually("reads ahead end", || prefetch.stats().io_active == 0);
    }
    (read_requests(&rig.pool) - before) as f64 / (SIZE as f64 / 1e6)
}

fn few_requests(which: Option<usize>, ashift: u64, compressible: bool) {
    let (rig, what, disks) = match which {
        Some(which) => make("ahead", which, ashift).unwrap(),
        None => (PosixFixture::new("ahead", 64 * MB), "a disk".to_owned(), 1),
    };
    rig.set(&[("recordsize", RECORD), ("compression", 15)]);
    let file = rig.file(rig.root(), "file");
    let mut wanted = noise(7, SIZE as usize);
    if compressible {
        wanted.iter_mut().enumerate().for_each(|(i, b)| *b &= (i as u8 & 3) * 5);
    }
    for (n, part) in wanted.chunks(MB as usize).enumerate() {
        rig.write(file, n as u64 * MB, part);
    }
    rig.sync();
    for step in [RECORD as usize, 128 << 10, MB as usize] {
        // Each record by itself: 122 for each column with data.
        let most = (12.0 * disks as f64).max(40.0);
        // On a busy machine the reader may come before the threads that read ahead, and reads
        // record by record: that happens now and then, and must not be the rule.
        let tries: Vec<f64> = (0..TRIES)
            .map(|_| cold(&rig, file, step, &wanted))
            .take_while(|ops| *ops > most)
            .collect();
        let few = tries.len() < TRIES;
        assert!(few, "{what}, ashift {ashift}, steps of {step}: {tries:?} requests a MB");
    }
    rig.end();
}

#[test]
fn small_records_are_read_together() {
    // raidz1 of 5, raidz2 of 6, draid1, mirror of 3.
    let kinds = [Some(2), Some(10), Some(20), Some(22), None].into_iter();
    let cases: Vec<_> = kinds
        .flat_map(|which| [9, 12].map(|ashift| (which, ashift)))
        .filter(|(which, ashift)| which.is_some() || *ashift == 12)
        .enumerate()
        .collect();
    testkit::side_by_side(&cases, |&(n, (which, ashift))| few_requests(which, ashift, n % 2 == 0));
}
