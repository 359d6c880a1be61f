//! What was flushed is there after a power cut, on every kind of vdev.

use super::*;

/// Blocks of the volumes that are tried, in turn.
const BLOCKS: [u32; 4] = [16 << 10, 4 << 10, 128 << 10, 8 << 10];

fn shapes() -> Vec<(usize, (&'static str, usize), u64)> {
    let of = |(i, kind)| [9, 12].map(|ashift| (i, kind, ashift));
    KINDS.into_iter().enumerate().flat_map(of).collect()
}

/// Imports a copy after a power cut, and compares the volume with the model: bytes that
/// changed after the last flush may be anything that was written.
fn check_cut(scratch: &Scratch, model: &[u8], loose: &[bool], what: &str) {
    let engine = testkit::engine();
    let pool = import(&engine, scratch);
    let volume = open(&pool);
    assert!(volume.is_writable(), "{what}");
    let seen = read(&volume);
    assert_eq!(seen.len(), model.len());
    let wrong = (0..model.len()).find(|&i| seen[i] != model[i] && !loose[i]);
    assert!(wrong.is_none(), "{what}: byte {wrong:?}");
    volume.write(7, b"goes on").unwrap();
    volume.flush().unwrap();
    drop(volume);
    pool.export().unwrap();
    drop(pool);
    judge(&engine, scratch);
}

#[test]
fn flushed_changes_survive_power_cuts_on_every_vdev() {
    testkit::side_by_side(&shapes(), |&(i, shape, ashift)| {
        let what = format!("{}-{ashift}", shape.0);
        let rig = VolumeRig::of(&what, shape, ashift, 256 * MB);
        // Sparse volumes, some without compression, some with data at its place at once.
        let props = [
            ("compression", if i.is_multiple_of(2) { 15 } else { 2 }),
            ("logbias", u64::from(i % 3 == 2)),
        ];
        // The smallest blocks where a sector is not larger.
        let block = if ashift == 9 && i == 0 { 512 } else { BLOCKS[i % 4] };
        let props = numbers(&props);
        rig.pool.create_volume(VOLUME, 4 * MB, Some(block), &props, None).unwrap();
        quiet(&rig.pool);
        let mut m = Modelled::new(rig.volume(), ashift * 100 + i as u64);
        // The first flush creates the log.
        m.step(0);
        m.flush();
        for step in 1..40 {
            m.step(step);
            if m.rng.below(5) == 0 {
                m.flush();
            }
        }
        m.flush();
        m.check();
        let writer = rig.pool.writer().unwrap();
        let log = writer.log(&writer.read_dataset(VOLUME).unwrap()).unwrap().unwrap();
        let batches = log.stats().batches.load(std::sync::atomic::Ordering::SeqCst);
        assert!(batches > 0, "{what}: nothing was logged");
        drop(log);
        let flushed = (rig.cut(&format!("{what}-all")), m.model.clone(), m.loose.clone());
        // More changes, a txg between them, and a cut without a flush.
        let mut loose = vec![false; m.model.len()];
        for step in 40..60 {
            if step == 50 {
                rig.pool.writer().unwrap().sync().unwrap();
                m.loose.fill(false);
            }
            m.step(step);
            if step == 55 {
                m.flush();
            }
        }
        loose.copy_from_slice(&m.loose);
        let later = (rig.cut(&format!("{what}-later")), m.model.clone(), loose);
        check_cut(&flushed.0, &flushed.1, &flushed.2, &format!("{what}, flushed"));
        if i == 2 && ashift == 12 {
            check_cut(&later.0, &later.1, &later.2, &format!("{what}, later"));
        }
        m.check();
        drop(m);
        rig.pool.export().unwrap();
    });
}

#[test]
fn a_replay_that_is_cut_begins_again() {
    let rig = VolumeRig::new("again", 128 * MB, 4 * MB, 8 << 10, &[]);
    quiet(&rig.pool);
    let mut m = Modelled::new(rig.volume(), 99);
    m.step(0);
    m.flush();
    for step in 1..30 {
        m.step(step);
    }
    m.flush();
    let mut scratch = rig.cut("again");
    for round in 0..3usize {
        let engine = testkit::engine();
        let pool = import(&engine, &scratch);
        quiet(&pool);
        let writer = Arc::clone(pool.writer().unwrap());
        let os = writer.read_dataset(VOLUME).unwrap();
        let log = writer.log(&os).unwrap().unwrap();
        assert!(log.is_replaying());
        let steps = StepHost { writer: Arc::clone(&writer), log: Arc::clone(&log) };
        let mode = dmu::PrefetchMode::None;
        let volume = Volume::open_rw(Arc::clone(&os), Arc::new(steps), mode, Io::WAIT).unwrap();
        let mut done = 0;
        writer
            .for_each_record(&os, &mut |record| {
                if done < 3 + round {
                    log.replaying(record.header.seq);
                    volume.replay(record)?;
                    log.replaying(0);
                    done += 1;
                }
                Ok(())
            })
            .unwrap();
        assert_eq!(done, 3 + round);
        if round != 1 {
            writer.sync().unwrap();
        }
        let copy = Scratch::new(&format!("volumes-again-{round}"));
        testkit::copy_file(&scratch.path().join("d0"), &copy.path().join("d0"));
        scratch = copy;
    }
    check_cut(&scratch, &m.model, &m.loose, "after three replays");
    drop(m);
    rig.end();
}

/// The host of a volume whose log is replayed step by step.
struct StepHost {
    writer: Arc<spa::engine::Writer>,
    log: Arc<zil::Log>,
}

impl zvol::VolumeHost for StepHost {
    fn begin(&self, bytes: u64, frees: bool, outage: dmu::OutagePolicy) -> base::Result<dmu::Tx> {
        Ok(self.writer.begin_wait(bytes, frees)?.with_outage(outage))
    }
    fn synced(&self, txg: base::Txg) -> base::Result<()> {
        self.writer.txgs().wait_synced(txg)
    }
    fn log(&self) -> Option<Arc<zil::Log>> {
        Some(Arc::clone(&self.log))
    }
    fn is_read_only(&self) -> bool {
        false
    }
}
