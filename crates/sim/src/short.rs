//! Every sequence of one to three operations from a list.
//!
//! # Theory
//! Sequences that begin with the same operations have the same setup, and a setup decides a
//! run. So they produce the same log up to the operation in which they differ. Therefore a
//! sequence is crashed only from the beginning of its last operation on; the events before
//! are covered by the sequence without it. Those of one operation are crashed from the
//! first event on.

use crate::ops::{Op, OpPlan};
use crate::run::{CrashTally, record_plan};
use crate::setup::{Layout, Setup, Workload};

/// The operations. Each uses objects of the setup or of earlier operations.
pub fn list() -> Vec<Op> {
    vec![
        Op::Create { ds: 0, block: 4, seed: 1 },
        Op::Write { object: 0, at: 0, len: 20_000, seed: 3 },
        Op::Write { object: 0, at: 1 << 33, len: 700, seed: 4 },
        Op::Punch { object: 0, at: 4096, len: 8192 },
        Op::Truncate { object: 0, at: 100 },
        Op::Free { object: 0 },
        Op::ZapPut { object: 0, count: 60, seed: 5 },
        Op::ZapRemove { object: 0, count: 50, seed: 5 },
        Op::Spill { object: 0, seed: 0x0503 },
        Op::Snapshot { ds: 0 },
        Op::DestroySnapshot { snap: 0 },
        Op::Dataset,
        Op::Clone { snap: 0 },
        Op::Destroy { ds: 1 },
        Op::Comment { seed: 9 },
        Op::Sync,
    ]
}

/// The number of sequences of up to `length` operations.
pub fn count(length: u32) -> usize {
    (1..=length).map(|n| list().len().pow(n)).sum()
}

/// The sequence with index `n`.
pub fn sequence(n: usize) -> Vec<Op> {
    let ops = list();
    indices(n).into_iter().map(|at| ops[at].clone()).collect()
}

/// The list indices of the operations of sequence `n`.
fn indices(mut n: usize) -> Vec<usize> {
    let ops = list().len();
    let mut length = 1;
    while n >= ops.pow(length) {
        n -= ops.pow(length);
        length += 1;
    }
    (0..length).map(|at| n / ops.pow(at) % ops).collect()
}

/// The list index of the first operation of sequence `n`.
pub fn first(n: usize) -> u64 {
    indices(n).first().map_or(0, |at| *at as u64)
}

/// The setup of sequence `n`.
pub fn setup(n: usize, layout: Layout) -> Setup {
    let (seed, workload) = (n as u64, Workload::Short);
    let (plant, fault, gangs, keep) = (None, None, false, None);
    Setup { seed, layout, workload, threads: 1, ops: 0, plant, fault, gangs, keep }
}

/// The plan of sequence `n`, without the operations left out.
pub fn plan(n: usize) -> OpPlan {
    vec![sequence(n).into_iter().enumerate().collect()]
}

/// Runs sequence `n`, and crashes it after every `stride`-th event, in `more` ways beyond the two
/// extremes.
pub fn run(n: usize, layout: Layout, (stride, more): (usize, u64), threads: usize) -> CrashTally {
    let recorded = record_plan(&setup(n, layout), plan(n));
    let from = if n < list().len() { 0 } else { recorded.prelude };
    recorded.crash_from(from, stride, more, threads)
}
