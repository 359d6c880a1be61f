//! Shortening a failing sequence of operations.

use std::time::Duration;

use crate::ops::plan;
use crate::run::{Failure, run};
use crate::setup::Setup;

/// Leaves out operations of a failed run, halves first, as long as it still fails and
/// `time` lasts.
pub fn shrink(failure: Failure, more: u64, threads: usize, time: Duration) -> Failure {
    let start = base::rt::now();
    let numbers = |setup: &Setup| -> Vec<usize> {
        plan(setup).iter().flatten().map(|(number, _)| *number).collect()
    };
    let mut best = failure;
    let mut part = numbers(&best.setup).len().div_ceil(2);
    while part > 0 {
        let kept = numbers(&best.setup);
        let mut smaller = None;
        for left_out in kept.chunks(part) {
            if start.elapsed() > time {
                return best;
            }
            let keep: Vec<usize> = kept.iter().copied().filter(|n| !left_out.contains(n)).collect();
            let setup = Setup { keep: Some(keep), ..best.setup.clone() };
            if let Some(failure) = run(&setup, 1, more, threads).failure {
                smaller = Some(failure);
                break;
            }
        }
        match smaller {
            Some(failure) => {
                best = failure;
                part = part.min(numbers(&best.setup).len().div_ceil(2));
            }
            None if part == 1 => break,
            None => part = part.div_ceil(2),
        }
    }
    best
}
