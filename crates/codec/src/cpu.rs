//! Which implementation to use: feature detection, then a short measurement.
//!
//! # Theory
//! Instruction sets alone do not tell which version is faster (wide vectors may be
//! split or clocked down), so each available one runs for about a tenth of a
//! millisecond on first use, and the fastest stays. The choice cannot change a
//! result, only its speed.
//!
//! Lock order: the `OnceLock`s are leaves; nothing is called under one but kernels
//! and the clock.

use std::sync::OnceLock;
use std::time::Duration;

use crate::checksum::fletcher::{self, Fletcher};
use crate::raidz::{self, Raidz};

/// Bytes measured with: within the second-level cache, as blocks mostly are.
const SAMPLE: usize = 128 << 10;
/// Rounds of which the quickest counts.
const ROUNDS: usize = 8;

/// The shortest of a few runs, the first of which warms up.
fn shortest(mut run: impl FnMut()) -> Duration {
    run();
    let time = |run: &mut dyn FnMut()| {
        let start = base::rt::now();
        run();
        start.elapsed()
    };
    (0..ROUNDS).map(|_| time(&mut run)).min().unwrap_or_default()
}

fn sample() -> Vec<u8> {
    (0..SAMPLE).map(|i| (i * 0x9e37 >> 7) as u8).collect()
}

fn fastest_fletcher(run: impl Fn(&Fletcher, &[u8])) -> &'static Fletcher {
    let data = sample();
    let available = fletcher::IMPLEMENTATIONS.iter().copied().filter(|i| (i.available)());
    available.min_by_key(|i| shortest(|| run(i, &data))).unwrap_or(&fletcher::SCALAR)
}

/// The fastest fletcher-2 here.
pub fn fletcher2() -> &'static Fletcher {
    static BEST: OnceLock<&Fletcher> = OnceLock::new();
    BEST.get_or_init(|| {
        fastest_fletcher(|i, d| {
            std::hint::black_box(i.fletcher2(std::hint::black_box(d), false));
        })
    })
}

/// The fastest fletcher-4 here.
pub fn fletcher4() -> &'static Fletcher {
    static BEST: OnceLock<&Fletcher> = OnceLock::new();
    BEST.get_or_init(|| {
        fastest_fletcher(|i, d| {
            std::hint::black_box(i.fletcher4(std::hint::black_box(d), false));
        })
    })
}

/// The fastest RAID-Z implementation here for `parity` rows (1 to 3; others are
/// taken as the nearest).
pub fn raidz(parity: usize) -> &'static Raidz {
    static BEST: [OnceLock<&Raidz>; 3] = [const { OnceLock::new() }; 3];
    let index = parity.clamp(1, 3) - 1;
    let best = BEST.get(index).unwrap_or(&BEST[0]);
    best.get_or_init(|| fastest_raidz(index + 1))
}

fn fastest_raidz(parity: usize) -> &'static Raidz {
    const COLUMNS: usize = 8;
    let data = sample();
    let columns: Vec<&[u8]> = data.chunks(SAMPLE / COLUMNS).collect();
    let mut rows = vec![0u8; parity * SAMPLE / COLUMNS];
    let mut time = |imp: &Raidz| {
        let mut rows: Vec<&mut [u8]> = rows.chunks_mut(SAMPLE / COLUMNS).collect();
        shortest(|| {
            // Shapes are right by construction.
            let _ = raidz::generate_with(imp, std::hint::black_box(&mut rows), &columns);
        })
    };
    let available = raidz::IMPLEMENTATIONS.iter().copied().filter(|i| (i.available)());
    available.min_by_key(|i| time(i)).unwrap_or(raidz::IMPLEMENTATIONS[0])
}
