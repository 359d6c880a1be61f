//! How far a small pool can be filled.

use super::*;

/// Story: a pool of 40 MiB refused writes of 1 MiB with 7.9 MiB left: each needs eight
/// times its size in the worst case, and that had to be free.
#[test]
fn a_small_pool_is_filled_to_its_end() {
    for (size, step) in [(96 * MB, MB), (96 * MB, 128 << 10), (256 * MB, MB), (64 * MB, MB)] {
        let rig = PosixFixture::new(&format!("full{}-{step}", size / MB), size);
        let file = rig.file(rig.root(), "f");
        let room = rig.pool.dataset(DATASET).unwrap().available().unwrap();
        let mut rng = Rng::new(size ^ step);
        let mut at = 0;
        let refused = loop {
            let data: Vec<u8> = (0..step).map(|_| rng.below(256) as u8).collect();
            match rig.fs.write(&Caller::root(), file, WritePosition::Offset(at), &data) {
                Ok(done) => at += done.bytes,
                Err(e) => break e,
            }
            assert!(at < 2 * size);
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        rig.sync();
        let left = rig.pool.dataset(DATASET).unwrap().available().unwrap();
        println!("{size} in steps of {step}: {at} of {room} written, {left} left");
        assert!(left <= step + room / 50, "{left} of {room} left, written {at}");
        // Files can be removed from the full pool.
        rig.fs.unlink(&Caller::root(), rig.root(), b"f").unwrap();
        rig.fs.empty_delete_queue().unwrap();
        for _ in 0..4 {
            rig.pool.writer().unwrap().touch();
            rig.sync();
        }
        let free = rig.pool.dataset(DATASET).unwrap().available().unwrap();
        assert!(free + MB > room, "{free} of {room}");
        rig.end();
    }
}

/// Story: each record takes at least a sector, and three with `copies=3`. Transactions that
/// reserved by their bytes overran a small pool, and its txg could not be written (found by
/// the simulator, seed 301088).
#[test]
fn records_smaller_than_a_sector_fill_a_pool() {
    let (rig, _, _) = super::widths::make("small-records", 22, 12).unwrap();
    rig.set(&[("recordsize", 512), ("copies", 3)]);
    // A slop as small as a large pool's.
    rig.pool.writer().unwrap().plants.slop.store(2 * MB, std::sync::atomic::Ordering::Relaxed);
    let files: Vec<_> = (0..4).map(|i| rig.file(rig.root(), &format!("f{i}"))).collect();
    std::thread::scope(|scope| {
        for (i, &file) in files.iter().enumerate() {
            let fs = &rig.fs;
            scope.spawn(move || {
                let mut at = 0;
                let refused = loop {
                    match fs.write(
                        &Caller::root(),
                        file,
                        WritePosition::Offset(at),
                        &noise(i as u64, 1 << 19),
                    ) {
                        Ok(done) => at += done.bytes,
                        Err(e) => break e,
                    }
                    assert!(at < 64 * MB);
                };
                assert_eq!(refused.kind(), ErrorKind::NoSpace);
            });
        }
    });
    rig.sync();
    rig.end();
}

/// Story: on a pool of 64 MiB, half full, random overwrites of 8 KiB nearly stopped, at about one
/// txg a second. A txg that has reserved a quarter of the space should be written early. Its
/// allowance for indirect blocks alone is a quarter of a small pool's space, so that the step
/// above this share, for which the ledger waited, never came.
#[test]
fn a_small_pool_writes_txgs_early() {
    let rig = PosixFixture::new("early", 64 * MB);
    rig.set(&[("recordsize", 8 << 10)]);
    let file = rig.file(rig.root(), "f");
    let room = rig.pool.dataset(DATASET).unwrap().available().unwrap();
    let records = room / 2 / (8 << 10);
    (0..records).for_each(|n| rig.write(file, n * (8 << 10), &noise(n, 8 << 10)));
    rig.sync();
    let txgs = rig.pool.writer().unwrap().txgs();
    // The timer starts no txg.
    txgs.set_limits(&txg::Limits { timeout_s: 36_000, ..txgs.limits() });
    let before = txgs.synced_txg();
    // Above a quarter of what is free, and below the share at which writers are delayed.
    let mut rng = Rng::new(64);
    for n in 0..room / 2 * 2 / 7 / (8 << 10) {
        rig.write(file, rng.below(records) * (8 << 10), &noise(n, 8 << 10));
    }
    let limit = std::time::Duration::from_secs(60);
    assert!(base::rt::poll(limit, || txgs.synced_txg() > before), "the txg waits for its timer");
    txgs.set_limits(&txg::Limits { timeout_s: 5, ..txgs.limits() });
    rig.end();
}

/// Story: on an idle pool, `chmod` changed a dnode and no block, so no txg's timer was started, and
/// the change waited in memory until something else was written.
#[test]
fn a_change_of_attributes_alone_is_written_in_time() {
    let rig = PosixFixture::new("attrs", 64 * MB);
    let file = rig.file(rig.root(), "f");
    rig.sync();
    let txgs = rig.pool.writer().unwrap().txgs();
    txgs.set_limits(&txg::Limits { timeout_s: 1, ..txgs.limits() });
    let before = txgs.synced_txg();
    let mode = SetAttrs { mode: Some(0o600), ..SetAttrs::default() };
    rig.fs.set_attrs(&Caller::root(), file, &mode).unwrap();
    let limit = std::time::Duration::from_secs(60);
    assert!(
        base::rt::poll(limit, || txgs.synced_txg() > before),
        "the change waits for another one"
    );
    rig.end();
}
