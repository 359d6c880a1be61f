//! Compares both engines with a vector, also under load from many threads.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use base::rt::{self, Mutex, OneShot};
use base::{Buf, BufMut};
use device::{
    Completion, Device, Engine, EngineKind, Fault, FaultDevice, FileDevice, Io, MemDevice, Op,
    OpenOptions, read_blocking, submit_and_wait,
};
use proptest::prelude::*;

const SLOT: usize = 4096;
const SLOTS: usize = 64;

struct Temp(PathBuf);

impl Temp {
    fn new(name: &str) -> Temp {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, SeqCst);
        let path =
            std::env::temp_dir().join(format!("cenote-engines-{}-{n}-{name}", std::process::id()));
        std::fs::write(&path, vec![0; SLOT * SLOTS]).unwrap();
        Temp(path)
    }

    fn open(&self, engine: &Arc<Engine>, direct: bool) -> FileDevice {
        let options = OpenOptions {
            write: true,
            direct,
            min_size: 0,
            engine: Some(Arc::clone(engine)),
            ..OpenOptions::default()
        };
        FileDevice::open(&self.0, &options).unwrap()
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The engines available on this machine.
fn engines(depth: usize) -> Vec<Arc<Engine>> {
    let kinds = [EngineKind::Threads, EngineKind::IoUring];
    let got: Vec<_> = kinds.iter().filter_map(|k| Engine::new(*k, depth).ok()).collect();
    if got.len() < kinds.len() {
        println!("io_uring is not available here: only the thread engine is tested");
    }
    got
}

#[derive(Clone, Debug)]
enum EngineStep {
    Read { slot: usize, skip: usize, len: usize },
    Write { slot: usize, seed: u8, cut: usize },
    Trim { slot: usize },
}

fn step() -> impl Strategy<Value = EngineStep> {
    let slot = 0..SLOTS;
    prop_oneof![
        3 => (slot.clone(), 0..SLOT, 1..SLOT)
            .prop_map(|(slot, skip, len)| EngineStep::Read { slot, skip, len: len.min(SLOT - skip) }),
        3 => (slot.clone(), any::<u8>(), 0..=SLOT)
            .prop_map(|(slot, seed, cut)| EngineStep::Write { slot, seed, cut }),
        1 => slot.prop_map(|slot| EngineStep::Trim { slot }),
    ]
}

impl EngineStep {
    fn slot(&self) -> usize {
        match self {
            EngineStep::Read { slot, .. }
            | EngineStep::Write { slot, .. }
            | EngineStep::Trim { slot } => *slot,
        }
    }

    fn io(&self) -> Io {
        let offset = (self.slot() * SLOT) as u64;
        match self {
            EngineStep::Read { skip, len, .. } => Io::read(offset + *skip as u64, *len),
            EngineStep::Write { seed, cut, .. } => {
                let bytes = Buf::copy_of(&content(*seed));
                let bufs = vec![bytes.slice(0..*cut), bytes.slice(*cut..SLOT)];
                Io::Write { offset, bufs }
            }
            EngineStep::Trim { .. } => Io::Trim { offset, len: SLOT as u64 },
        }
    }
}

fn content(seed: u8) -> Vec<u8> {
    (0..SLOT).map(|i| (i as u8).wrapping_mul(seed) ^ (i >> 8) as u8).collect()
}

/// Runs batches of steps on different slots and compares with a vector.
fn follow_model(device: &dyn Device, batches: &[Vec<EngineStep>]) -> Result<(), TestCaseError> {
    let mut model = vec![0u8; SLOT * SLOTS];
    for batch in batches {
        let mut batch = batch.clone();
        let mut seen = [false; SLOTS];
        batch.retain(|s| !std::mem::replace(&mut seen[s.slot()], true));
        let done = submit_and_wait(device, batch.iter().map(EngineStep::io).collect());
        for (step, completion) in batch.iter().zip(done) {
            let at = step.slot() * SLOT;
            match step {
                EngineStep::Read { skip, len, .. } => {
                    let buf = completion.into_read().unwrap();
                    prop_assert_eq!(&buf[..], &model[at + skip..at + skip + len]);
                }
                EngineStep::Write { seed, .. } => {
                    prop_assert_eq!(completion.result.unwrap(), SLOT);
                    model[at..at + SLOT].copy_from_slice(&content(*seed));
                }
                EngineStep::Trim { .. } => {
                    completion.result.unwrap();
                    model[at..at + SLOT].fill(0);
                }
            }
        }
        let flushed = submit_and_wait(device, vec![Io::Flush, Io::Flush]);
        prop_assert!(flushed.iter().all(|c| c.result.is_ok()));
    }
    let all = read_blocking(device, 0, SLOT * SLOTS).unwrap();
    prop_assert!(all[..] == model[..], "the whole device");
    prop_assert_eq!(device.stats().snapshot().in_flight, 0);
    prop_assert_eq!(device.stats().snapshot().errors, 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_device_follows_the_model(
        batches in prop::collection::vec(prop::collection::vec(step(), 1..40), 1..8),
        depth in 1usize..9,
        direct in any::<bool>(),
    ) {
        follow_model(&MemDevice::new("model", SLOT * SLOTS), &batches)?;
        for engine in engines(depth) {
            let file = Temp::new("model");
            let device = file.open(&engine, direct);
            follow_model(&device, &batches)?;
            prop_assert!(device.stats().snapshot().max_in_flight <= depth as u64 + 1);
        }
    }
}

#[test]
fn many_threads_share_a_shallow_engine() {
    for engine in engines(4) {
        let file = Temp::new("stress");
        let device = Arc::new(file.open(&engine, true));
        let threads: Vec<_> = (0..8usize)
            .map(|t| {
                let device = Arc::clone(&device);
                rt::spawn("stress", move || {
                    for round in 0..50u8 {
                        let mine = (0..8).map(|i| t * 8 + i);
                        let write = |slot| EngineStep::Write { slot, seed: round, cut: 0 }.io();
                        let done = submit_and_wait(&*device, mine.clone().map(write).collect());
                        assert!(done.iter().all(|c| c.result.is_ok()));
                        let read = |slot: usize| Io::read((slot * SLOT) as u64, SLOT);
                        for done in submit_and_wait(&*device, mine.map(read).collect()) {
                            assert_eq!(done.into_read().unwrap()[..], content(round)[..]);
                        }
                    }
                })
                .unwrap()
            })
            .collect();
        assert!(threads.into_iter().all(|t| t.join().is_some()));
        let stats = device.stats().snapshot();
        assert_eq!((stats.reads, stats.writes, stats.errors), (3200, 3200, 0));
        // The engine's depth, plus one for each thread that does an operation itself.
        assert!((2..=4 + 8).contains(&stats.max_in_flight), "{stats:?}");
    }
}

/// Reads slot after slot; the completion of each read submits the next.
fn chain(device: Arc<FileDevice>, left: usize, over: Arc<OneShot<usize>>) {
    let next = Arc::clone(&device);
    let op = Op::new(Io::read(0, SLOT), move |completion: Completion| {
        assert!(completion.result.is_ok());
        if left == 0 {
            over.set(7);
        } else {
            chain(next, left - 1, over);
        }
    });
    device.submit(vec![op]);
}

#[test]
fn completions_may_submit_even_when_the_engine_is_full() {
    for engine in engines(1) {
        let file = Temp::new("chain");
        let device = Arc::new(file.open(&engine, true));
        let overs: Vec<_> = (0..6).map(|_| Arc::new(OneShot::new())).collect();
        for over in &overs {
            chain(Arc::clone(&device), 20, Arc::clone(over));
        }
        assert!(overs.iter().all(|o| o.wait() == 7));
        assert_eq!(device.stats().snapshot().max_in_flight, 1);
    }
}

#[test]
fn nothing_is_lost_when_submitter_and_engine_go() {
    for engine in engines(8) {
        for direct in [true, false] {
            let file = Temp::new("leave");
            let device = file.open(&engine, direct);
            let ends = Arc::new((Mutex::new(0usize), rt::Condvar::new()));
            let completed = Arc::clone(&ends);
            let submitter = rt::spawn("leaves", move || {
                let op = |i: usize| {
                    let completed = Arc::clone(&completed);
                    Op::new(Io::read((i % SLOTS * SLOT) as u64, SLOT), move |completion| {
                        assert!(completion.result.is_ok());
                        *completed.0.lock() += 1;
                        completed.1.notify_all();
                    })
                };
                device.submit((0..500).map(op).collect());
            });
            submitter.unwrap().join().unwrap();
            let mut count = ends.0.lock();
            while *count < 500 {
                assert!(
                    !ends.1.wait_timeout(&mut count, std::time::Duration::from_secs(30)),
                    "operations were lost"
                );
            }
        }
        drop(engine);
    }
}

#[test]
fn faults_have_their_effects() {
    let mem = Arc::new(MemDevice::from_bytes("faulty", vec![0xf0; 8192]));
    let device = FaultDevice::new(mem.clone());
    device.inject(Fault::FailReads(4096..4097));
    device.inject(Fault::Flip(10..12, 0xff));
    device.inject(Fault::Zero(20..30));
    let bytes = read_blocking(&device, 8, 16).unwrap();
    let expected = [[0xf0; 2], [0x0f; 2]].concat();
    assert_eq!(&bytes[..4], &expected[..]);
    assert_eq!(&bytes[4..], &[&[0xf0; 8][..], &[0; 4]].concat()[..]);
    assert!(read_blocking(&device, 4096, 1).is_err());
    assert!(read_blocking(&device, 4097, 1).is_ok());
    device.inject(Fault::Truncate(5000));
    assert_eq!(device.size(), 5000);
    assert!(read_blocking(&device, 4999, 2).is_err());
    device.inject(Fault::FailWrites(0..1));
    let write = |offset| Io::Write { offset, bufs: vec![BufMut::zeroed(512).freeze()] };
    assert!(device.run(write(0)).result.is_err());
    assert!(device.run(write(512)).result.is_ok());
    device.inject(Fault::FailFlush);
    assert!(device.run(Io::Flush).result.is_err());
    device.heal();
    assert!(device.run(Io::Flush).result.is_ok());
    assert_eq!(mem.peek(511, 2).unwrap(), [0xf0, 0]);
    assert!(mem.peek(8191, 2).is_err());
}
