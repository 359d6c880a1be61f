//! The records that a volume's log has.

use super::*;

/// The lines of zdb's list of records, without its sums.
fn records(text: &str) -> Vec<&str> {
    let named = text.lines().filter_map(|l| l.trim().strip_prefix("TX_"));
    named.filter(|l| l.contains(" len ")).collect()
}

#[test]
fn records_are_those_that_openzfs_replays() {
    for (bias, name) in [(0, "latency"), (1, "throughput")] {
        let props = [("logbias", bias), ("compression", 2)];
        let rig = VolumeRig::new(name, 128 * MB, 8 * MB, 64 << 10, &props);
        quiet(&rig.pool);
        let volume = rig.volume();
        volume.write(0, b"first").unwrap();
        volume.flush().unwrap();
        let before = rig.pool.writer().unwrap().txgs().synced_txg();
        // Several writes to the same large block: an indirect record for each.
        for at in 0..4u64 {
            volume.write(at * 40_000, &noise(at, 40_000)).unwrap();
            volume.write(MB + at * 100, &noise(at, 100)).unwrap();
        }
        volume.write(2 * MB, &noise(9, 200_000)).unwrap();
        volume.discard(2 * MB, 100_000).unwrap();
        volume.zero(MB + 50, 100).unwrap();
        volume.flush().unwrap();
        let after = rig.pool.writer().unwrap().txgs().synced_txg();
        assert_eq!(before, after, "a flush waited for a txg");
        let wanted = read(&volume);
        let scratch = rig.cut(name);
        if let Some(text) = zdb(&scratch, &["-ivv", VOLUME]) {
            let types = records(&text);
            assert!(types.iter().any(|t| t.starts_with("WRITE ")), "{text}");
            assert!(types.iter().any(|t| t.starts_with("TRUNCATE")), "{text}");
            let known = |t: &&&str| t.starts_with("WRITE ") || t.starts_with("TRUNCATE");
            assert!(types.iter().all(|t| known(&t)), "{text}");
            // Records without data, which name their block.
            let indirect = types.iter().filter(|t| t.contains("len    192,")).count();
            assert!(indirect >= 4 || bias == 0, "{text}");
        }
        let engine = testkit::engine();
        let pool = import(&engine, &scratch);
        assert!(read(&open(&pool)) == wanted, "{name}");
        pool.export().unwrap();
        drop(pool);
        judge(&engine, &scratch);
        drop(volume);
        rig.end();
    }
}

#[test]
fn sync_always_and_disabled_are_honoured() {
    let rig = VolumeRig::new("sync", 128 * MB, 2 * MB, 8 << 10, &[("sync", 1)]);
    quiet(&rig.pool);
    let volume = rig.volume();
    volume.write(0, b"first").unwrap();
    volume.write(100, &noise(1, 30_000)).unwrap();
    volume.discard(8 << 10, 8 << 10).unwrap();
    let wanted = read(&volume);
    let scratch = rig.cut("always");
    let engine = testkit::engine();
    let pool = import(&engine, &scratch);
    assert!(read(&open(&pool)) == wanted);
    pool.export().unwrap();
    drop(pool);
    rig.set(&[("sync", 2)]).unwrap();
    rig.pool.writer().unwrap().sync().unwrap();
    volume.write(0, &noise(2, 30_000)).unwrap();
    volume.flush().unwrap();
    let scratch = rig.cut("disabled");
    let pool = import(&engine, &scratch);
    assert!(read(&open(&pool)) == wanted, "with sync=disabled a flush wrote something");
    pool.export().unwrap();
    drop((pool, volume));
    rig.end();
}
