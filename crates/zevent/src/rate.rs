//! How many errors are too many, and how many events are.

use std::collections::VecDeque;
use std::time::Duration;

/// Decides when errors of a device have become too many: `n` within `t` (soft error rate
/// discrimination, as `zed` has it). A pure state machine; times are those of one clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serd {
    n: usize,
    t: Duration,
    /// Times of the last errors, ascending, at most `n`.
    recent: VecDeque<Duration>,
}

/// Errors that one device is watched for at most; a larger `n` never fires.
const REMEMBERED_MAX: usize = 4096;

impl Serd {
    /// Fires at the `n`th error within `t`. With `n` 0 it never does.
    pub fn new(n: u64, t: Duration) -> Serd {
        Serd { n: usize::try_from(n).unwrap_or(usize::MAX), t, recent: VecDeque::new() }
    }

    /// Changes the limits; what was recorded counts under the new ones.
    pub fn set(&mut self, n: u64, t: Duration) {
        self.n = usize::try_from(n).unwrap_or(usize::MAX);
        self.t = t;
    }

    /// Records an error; returns whether there are too many now. It then starts again.
    pub fn record(&mut self, now: Duration) -> bool {
        if self.n == 0 || self.n > REMEMBERED_MAX {
            return false;
        }
        self.recent.push_back(now);
        while self.recent.front().is_some_and(|&at| at + self.t < now) || self.recent.len() > self.n
        {
            self.recent.pop_front();
        }
        let fires = self.recent.len() >= self.n;
        if fires {
            self.recent.clear();
        }
        fires
    }

    /// Forgets all errors.
    pub fn reset(&mut self) {
        self.recent.clear();
    }
}

/// Bounds how often a source posts: at most so many times a second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limiter {
    second: u64,
    count: u32,
}

impl Limiter {
    /// Whether one more may be posted at this time; 0 a second is no limit.
    pub fn allows(&mut self, now: Duration, a_second: u32) -> bool {
        if self.second != now.as_secs() {
            *self = Limiter { second: now.as_secs(), count: 0 };
        }
        self.count = self.count.saturating_add(1);
        a_second == 0 || self.count <= a_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn ten_errors_in_ten_minutes_are_too_many() {
        let mut serd = Serd::new(10, 600 * SECOND);
        let fired: Vec<u32> = (0..30).filter(|&i| serd.record(i * 60 * SECOND)).collect();
        assert_eq!(fired, [9, 19, 29]);
        let mut serd = Serd::new(10, 600 * SECOND);
        assert!(!(0..100).any(|i| serd.record(i * 70 * SECOND)));
        assert!(!(0..100).any(|_| Serd::new(0, SECOND).record(SECOND)));
    }

    #[test]
    fn a_source_is_limited_by_the_second() {
        let mut limiter = Limiter::default();
        let allowed = |limiter: &mut Limiter, ms| {
            (0..50).filter(|_| limiter.allows(Duration::from_millis(ms), 20)).count()
        };
        assert_eq!((allowed(&mut limiter, 10), allowed(&mut limiter, 999)), (20, 0));
        assert_eq!(allowed(&mut limiter, 1000), 20);
        assert!((0..50).all(|_| limiter.allows(SECOND, 0)));
    }

    proptest! {
        #[test]
        fn it_fires_as_a_naive_count_does(
            n in 1usize..6,
            t in 1u64..20,
            steps in prop::collection::vec(0u64..8, 0..60),
        ) {
            let mut serd = Serd::new(n as u64, Duration::from_secs(t));
            let mut all: Vec<u64> = Vec::new();
            let mut now = 0;
            for step in steps {
                now += step;
                all.push(now);
                let within = all.iter().filter(|&&at| at + t >= now).count();
                let fires = within >= n;
                prop_assert_eq!(serd.record(Duration::from_secs(now)), fires);
                if fires {
                    all.clear();
                }
            }
        }
    }
}
