//! Selection of the fastest implementation: feature detection, then a short
//! measurement.
//!
//! # Theory
//! Instruction sets alone do not determine which version is faster (wide vectors may be
//! split or reduce the clock). So on first use the available ones run alternately for
//! about a millisecond, and the one with the fastest single run is selected, which is
//! robust on a busy machine. The choice never changes a result, only its speed.
//!
//! Lock order: the `OnceLock`s are leaves; only kernels and the clock are called under
//! one.

use std::sync::OnceLock;
use std::time::Duration;

use crate::checksum::fletcher::{self, Fletcher};
use crate::raidz::{self, Raidz};

/// Size of the measured data, bytes: fits the second-level cache, as blocks mostly do.
const SAMPLE: usize = 128 << 10;
/// Rounds through all implementations; the fastest run counts.
const ROUNDS: usize = 24;

/// The available implementation with the fastest run. The rounds alternate, so that a
/// disturbance affects all of them.
fn fastest<T>(
    all: &'static [&'static T],
    available: impl Fn(&T) -> bool,
    mut run: impl FnMut(&T),
) -> &'static T {
    let mut best: Vec<(&'static T, Duration)> =
        all.iter().filter(|i| available(i)).map(|i| (*i, Duration::MAX)).collect();
    for _ in 0..ROUNDS {
        for (imp, shortest) in &mut best {
            *shortest = base::rt::real_time(|| run(imp)).min(*shortest);
        }
    }
    // The first of each list is the scalar one, which is always available.
    best.into_iter().min_by_key(|(_, time)| *time).map_or(all[0], |(imp, _)| imp)
}

fn sample() -> Vec<u8> {
    (0..SAMPLE).map(|i| ((i * 0x9e37) >> 7) as u8).collect()
}

fn fastest_fletcher(run: impl Fn(&Fletcher, &[u8])) -> &'static Fletcher {
    let data = sample();
    fastest(fletcher::IMPLEMENTATIONS, |i| (i.available)(), |i| run(i, &data))
}

/// The fastest fletcher-2 on this machine.
pub fn fletcher2() -> &'static Fletcher {
    static BEST: OnceLock<&Fletcher> = OnceLock::new();
    BEST.get_or_init(|| {
        fastest_fletcher(|i, d| {
            std::hint::black_box(i.fletcher2(std::hint::black_box(d), false));
        })
    })
}

/// The fastest fletcher-4 on this machine.
pub fn fletcher4() -> &'static Fletcher {
    static BEST: OnceLock<&Fletcher> = OnceLock::new();
    BEST.get_or_init(|| {
        fastest_fletcher(|i, d| {
            std::hint::black_box(i.fletcher4(std::hint::black_box(d), false));
        })
    })
}

/// The fastest RAID-Z implementation on this machine for `parity` rows (1 to 3; other
/// values are clamped).
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
    let mut rows: Vec<&mut [u8]> = rows.chunks_mut(SAMPLE / COLUMNS).collect();
    fastest(
        raidz::IMPLEMENTATIONS,
        |i| (i.available)(),
        |imp| {
            // The shapes are valid by construction.
            let _ = raidz::generate_with(imp, std::hint::black_box(&mut rows), &columns);
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections_are_available_and_stable() {
        assert!((fletcher2().available)() && (fletcher4().available)());
        assert!(std::ptr::eq(fletcher4(), fletcher4()));
        for parity in 0..5 {
            assert!((raidz(parity).available)());
        }
        assert!(std::ptr::eq(raidz(0), raidz(1)) && std::ptr::eq(raidz(9), raidz(3)));
    }
}
