//! Counters to which many threads add without contention.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Most cells of a counter.
const CELLS_MAX: usize = 64;

/// One cell. Two cache lines, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CounterCell(AtomicU64);

/// A number unique to this thread; its low bits select the cell.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Relaxed) & (usize::MAX >> 1));
        }
        mine.get()
    })
}

/// A sum that many threads add to.
#[derive(Debug)]
pub struct Counter {
    cells: Box<[CounterCell]>,
}

impl Default for Counter {
    fn default() -> Counter {
        Counter::new()
    }
}

impl Counter {
    /// Zero. It has a cell for each thread that can run at once, up to 64.
    pub fn new() -> Counter {
        let cells = base::rt::parallelism().next_power_of_two().min(CELLS_MAX);
        Counter { cells: (0..cells).map(|_| CounterCell::default()).collect() }
    }

    /// Adds; the sum wraps at 2^64.
    pub fn add(&self, n: u64) {
        // The number of cells is a power of two and not 0.
        let cell = &self.cells[thread_number() & (self.cells.len() - 1)];
        cell.0.fetch_add(n, Relaxed);
    }

    /// Adds one.
    pub fn bump(&self) {
        self.add(1);
    }

    /// The sum.
    pub fn get(&self) -> u64 {
        self.cells.iter().fold(0, |sum, cell| sum.wrapping_add(cell.0.load(Relaxed)))
    }
}

/// A histogram by powers of two: bucket `i` counts the values of `i` bits, so 0 is in
/// bucket 0, 1 in bucket 1, 2 and 3 in bucket 2.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; 65],
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: [const { AtomicU64::new(0) }; 65] }
    }
}

impl Histogram {
    /// The bucket of a value.
    pub fn bucket(value: u64) -> usize {
        (u64::BITS - value.leading_zeros()) as usize
    }

    /// Counts one value.
    pub fn add(&self, value: u64) {
        self.buckets[Histogram::bucket(value)].fetch_add(1, Relaxed);
    }

    /// The counts, from bucket 0 to the last that is not zero.
    pub fn get(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.buckets.iter().map(|b| b.load(Relaxed)).collect();
        all.truncate(all.iter().rposition(|&n| n > 0).map_or(0, |i| i + 1));
        all
    }
}

/// Calls and bytes of one dataset, for reads and writes.
#[derive(Debug, Default)]
pub struct IoCounters {
    /// Calls that read.
    pub reads: Counter,
    /// Bytes read.
    pub nread: Counter,
    /// Calls that wrote.
    pub writes: Counter,
    /// Bytes written.
    pub nwritten: Counter,
}

impl IoCounters {
    /// Counts one call that read `bytes` bytes.
    pub fn read(&self, bytes: u64) {
        self.reads.bump();
        self.nread.add(bytes);
    }

    /// Counts one call that wrote `bytes` bytes.
    pub fn wrote(&self, bytes: u64) {
        self.writes.bump();
        self.nwritten.add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_addition_is_lost() {
        let counter = Counter::new();
        base::rt::fan_out(8, |i| (0..10_000).for_each(|_| counter.add(i as u64)));
        assert_eq!(counter.get(), 10_000 * (0..8).sum::<u64>());
    }

    #[test]
    fn buckets_are_powers_of_two() {
        let histogram = Histogram::default();
        for value in [0, 1, 2, 3, 4, 1023, 1024] {
            histogram.add(value);
        }
        assert_eq!(histogram.get(), [1, 1, 2, 1, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(Histogram::bucket(u64::MAX), 64);
        assert!(Histogram::default().get().is_empty());
    }

    proptest! {
        #[test]
        fn a_value_lies_below_its_buckets_end(value: u64) {
            let bucket = Histogram::bucket(value);
            prop_assert!(u128::from(value) < 1 << bucket);
            prop_assert!(bucket == 0 || u128::from(value) >= 1 << (bucket - 1));
        }
    }
}
