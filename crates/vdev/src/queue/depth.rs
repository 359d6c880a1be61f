//! Adaptive queue depth: finds by trials the number of operations from which a device
//! gains.
//!
//! # Theory
//! A device has a service curve: its throughput X as a function of the number d of
//! operations that it has at once. Latency is d / X (Little's law), so any two of the
//! three determine the third. X grows with d as long as parts of the device are idle;
//! beyond that it stays constant or falls. From there on depth adds only latency, and
//! requests that wait inside the device can be neither merged nor overtaken by more
//! urgent ones. The goal is the smallest depth beyond which nothing is gained: where
//! the elasticity e = d(log X) / d(log d) falls below a small number. On a curve X =
//! Xmax d / (d + h) the elasticity is h / (d + h), so stopping at e costs the fraction
//! e of the throughput; on a curve with a corner it costs nothing.
//!
//! The curve is unknown, differs between classes of operations, and drifts (for a cloud
//! disk, tenfold within minutes). So neighbouring depths of a ladder are compared in
//! *trials* of windows A B, B A, A B, ...: any steady drift cancels. Each pair gives
//! the logarithm of a ratio. A trial ends when the mean of the pairs is farther from
//! the threshold than [`SURE`] standard errors, or without a verdict after
//! [`PAIRS_MAX`] pairs; then the depth stays as it was, so noise changes nothing. A
//! window counts the bytes that the device transfers for all classes, so that no class
//! grows by taking throughput from another. The first operations of a window were sent
//! under the former depth and are not counted.
//! * A step up is kept if the bytes grow by more than [`GAIN`] of the growth of the
//!   depth.
//! * A step down is kept if they shrink by less than half of that.
//! * Where the next rung up gives nothing, the depth at which no request would wait
//!   may: then no operation is handed from the thread that requests it to a thread that
//!   ends another one. So after a failed trial up, the next trial up is this *leap*, if
//!   it is not too far.
//! * A successful trial is followed by the next one in its direction, a failed one by a
//!   trial in the other direction. When both failed, the class rests, each time longer.
//!   At rest, trials cost less than 1 % of the throughput.
//! * A trial that succeeds is followed by the next one in its direction, one that fails by
//!   one in the other. When both failed, the class rests, each time longer: what trials
//!   cost at rest is below 1 % of the throughput.
//!
//! A window in which the class often had fewer requests than the shallower depth is
//! inconclusive: the trial ends without a verdict, so a depth that is not reached never
//! changes. (Not reaching the deeper depth is no objection, because the gain may come
//! from nothing having to wait.) Only one trial runs on a device at a time.
//!
//! # Invariants
//! * The caller passes the time in; the module never reads a clock. The same
//!   completions give the same depths.
//! * A limit is a rung of the ladder, and at least 1.

use std::time::Duration;

use super::limits::CLASSES;

/// The depths that are tried.
const LADDER: [u16; 17] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384];
/// Initial rungs, for devices without and with seeks.
const START: usize = 9;
const START_ROTATING: usize = 5;
/// The largest depth that a leap may try.
const LEAP_MAX: u16 = 64;
/// Elasticity below which depth is not worth its latency.
const GAIN: f64 = 0.05;
/// Minimum number of operations and minimum duration of a window.
const WINDOW_OPS: u32 = 64;
const WINDOW_TIME: Duration = Duration::from_millis(8);
/// Minimum and maximum number of window pairs in a trial, and the standard errors that
/// count as certain.
const PAIRS_MIN: u32 = 4;
const PAIRS_MAX: u32 = 24;
const SURE: f64 = 2.0;
/// A trial without progress for this long is abandoned, because its class has stopped.
const STALE: Duration = Duration::from_secs(2);
/// Operations between two trials at rest, in units of a trial's operations: initial and
/// maximum.
const REST: u64 = 4;
const REST_MAX: u64 = 64;

/// State of a class.
#[derive(Clone, Copy, Debug)]
struct Track {
    rung: usize,
    up: bool,
    /// The next trial up is to the depth at which no request waits.
    leap: bool,
    /// Failed trials since the last successful one.
    failed: u32,
    /// Operations until the next trial, and the length of the next rest in trials.
    rest: u64,
    pause: u64,
}

/// A comparison of two depths.
#[derive(Clone, Copy, Debug)]
struct Trial {
    class: usize,
    rung: usize,
    other: usize,
    window: u32,
    /// Operations that are still to be skipped.
    skip: u32,
    /// Operations counted in this window; and of those at the shallower depth, the ones
    /// after which the class had nothing waiting.
    ops: u32,
    short: u32,
    began: Duration,
    bytes: u64,
    /// Bytes per second of the pair's first window.
    rate: f64,
    /// Sum of the pairs' logarithms, and of their squares.
    sum: f64,
    squares: f64,
}

impl Trial {
    fn new(class: usize, rung: usize, other: usize, now: Duration) -> Trial {
        let mut trial = Trial {
            class,
            rung,
            other,
            window: 0,
            skip: 0,
            ops: 0,
            short: 0,
            began: now,
            bytes: 0,
            rate: 0.0,
            sum: 0.0,
            squares: 0.0,
        };
        trial.begin(now);
        trial
    }

    /// The deeper of the two depths.
    fn deepest(&self) -> u32 {
        LADDER[self.rung.max(self.other)].into()
    }

    fn window_ops(&self) -> u32 {
        WINDOW_OPS.max(8 * self.deepest())
    }

    fn begin(&mut self, now: Duration) {
        // The depth does not change between two pairs.
        let same = self.window > 0 && self.window.is_multiple_of(2);
        self.skip = if same { 0 } else { self.deepest() };
        (self.ops, self.bytes, self.began) = (0, 0, now);
    }

    /// Whether the shallower of the two depths is in force.
    fn shallow(&self) -> bool {
        self.present() == self.rung.min(self.other)
    }

    fn present(&self) -> usize {
        if matches!(self.window % 4, 1 | 2) { self.other } else { self.rung }
    }

    /// Ends a window. Returns whether the other depth is to be kept, once that is
    /// certain or no time is left to make it certain.
    fn window(&mut self, time: Duration) -> Option<bool> {
        let rate = (self.bytes as f64 / time.as_secs_f64().max(1e-9)).max(1.0);
        self.window += 1;
        if self.window % 2 == 1 {
            self.rate = rate;
            return None;
        }
        let ratio = (rate / self.rate).ln();
        // The pair either ended with the other depth or began with it.
        let gain = if self.window % 4 == 2 { ratio } else { -ratio };
        (self.sum, self.squares) = (self.sum + gain, self.squares + gain * gain);
        let pairs = self.window / 2;
        if pairs < PAIRS_MIN {
            return None;
        }
        let n = f64::from(pairs);
        let mean = self.sum / n;
        let error = ((self.squares / n - mean * mean).max(0.0) / (n - 1.0)).sqrt();
        let beyond = mean - self.wanted();
        if beyond.abs() > SURE * error {
            return Some(beyond > 0.0);
        }
        (pairs >= PAIRS_MAX).then_some(false)
    }

    /// The gain that the other depth must show.
    fn wanted(&self) -> f64 {
        let (from, to) = (f64::from(LADDER[self.rung]), f64::from(LADDER[self.other]));
        let wanted = GAIN * (to / from).ln();
        if to > from { wanted } else { wanted / 2.0 }
    }
}

/// The depths of one device.
#[derive(Clone, Debug)]
pub(super) struct Depths {
    tracks: [Track; CLASSES],
    trial: Option<Trial>,
    /// The device moves a head between places.
    pub(super) seeks: bool,
}

impl Default for Depths {
    fn default() -> Self {
        Depths::new(false)
    }
}

impl Depths {
    pub(super) fn new(rotating: bool) -> Depths {
        let rung = if rotating { START_ROTATING } else { START };
        let track = Track { rung, up: true, leap: false, failed: 0, rest: 0, pause: REST };
        Depths { tracks: [track; CLASSES], trial: None, seeks: rotating }
    }

    /// The number of operations of a class that may be in the device now.
    pub(super) fn limit(&self, class: usize) -> usize {
        let trial = self.trial.as_ref().filter(|t| t.class == class);
        LADDER[trial.map_or(self.tracks[class].rung, Trial::present)].into()
    }

    /// Records the end of an operation of a class. `waiting` requests of the class wait
    /// because its limit was reached. `may` means that the limit is adaptive rather
    /// than fixed.
    pub(super) fn done(
        &mut self,
        class: usize,
        bytes: u64,
        waiting: usize,
        may: bool,
        now: Duration,
    ) {
        let Some(trial) = &mut self.trial else {
            return self.consider(class, if may { waiting } else { 0 }, now);
        };
        trial.bytes += bytes;
        if trial.class != class {
            if now.saturating_sub(trial.began) > STALE {
                self.trial = None;
            }
            return;
        }
        if trial.skip > 0 {
            trial.skip -= 1;
            (trial.began, trial.bytes) = (now, 0);
            return;
        }
        trial.ops += 1;
        trial.short += u32::from(waiting == 0 && trial.shallow());
        let time = now.saturating_sub(trial.began);
        if !may || trial.short > trial.window_ops() / 4 || time > STALE {
            let track = &mut self.tracks[class];
            track.rest = u64::from(trial.window_ops()) * REST;
            self.trial = None;
        } else if trial.ops >= trial.window_ops() && time >= WINDOW_TIME {
            match trial.window(time) {
                None => trial.begin(now),
                Some(better) => {
                    let trial = *trial;
                    self.judge(&trial, better);
                }
            }
        }
    }

    fn judge(&mut self, trial: &Trial, better: bool) {
        self.trial = None;
        let track = &mut self.tracks[trial.class];
        if better {
            track.rung = trial.other;
            (track.failed, track.pause) = (0, REST);
            return;
        }
        if track.up {
            track.leap = !track.leap;
        }
        track.up = !track.up;
        track.failed += 1;
        if track.failed >= 2 {
            track.rest = track.pause * u64::from(trial.window_ops() * trial.window);
            track.pause = (track.pause * 2).min(REST_MAX);
        }
    }

    /// Starts a trial if one is due.
    fn consider(&mut self, class: usize, waiting: usize, now: Duration) {
        let track = &mut self.tracks[class];
        if track.rest > 0 {
            track.rest -= 1;
            return;
        }
        if waiting == 0 {
            return;
        }
        // At an end of the ladder only one direction is possible.
        if track.rung == 0 {
            track.up = true;
        } else if track.rung + 1 == LADDER.len() {
            track.up = false;
        }
        let wanted = usize::from(LADDER[track.rung]) + waiting;
        let enough = LADDER.iter().position(|depth| usize::from(*depth) >= wanted);
        let leap = enough.filter(|rung| track.leap && LADDER[*rung] <= LEAP_MAX);
        let other = if track.up { leap.unwrap_or(track.rung + 1) } else { track.rung - 1 };
        self.trial = Some(Trial::new(class, track.rung, other, now));
    }

    /// The depths in force apart from trials.
    pub(super) fn settled(&self) -> [usize; CLASSES] {
        self.tracks.map(|track| LADDER[track.rung].into())
    }
}

#[cfg(test)]
#[path = "depth_tests.rs"]
mod tests;
