//! A device that damages what it returns, deterministically, for tests.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, RwLock};
use base::{Error, ErrorKind};

use crate::op::{Caps, Completion, Device, Io, Op};
use crate::stats::DeviceStats;

/// One kind of damage; ranges are device bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Reads that touch the range fail.
    FailReads(Range<u64>),
    /// Writes that touch the range fail.
    FailWrites(Range<u64>),
    /// Flushes fail.
    FailFlush,
    /// Bytes of the range read with the bits of the mask flipped.
    Flip(Range<u64>, u8),
    /// The range reads as zeros.
    Zero(Range<u64>),
    /// The device ends here: operations that touch a byte beyond fail.
    Truncate(u64),
    /// Each operation takes this much longer.
    Delay(Duration),
}

/// Wraps a device and applies a list of [`Fault`]s, which may change at any time.
pub struct FaultDevice {
    inner: Arc<dyn Device>,
    faults: Arc<RwLock<Vec<Fault>>>,
}

fn touches(range: &Range<u64>, io: &Io) -> bool {
    io.offset() < range.end && range.start < io.offset().saturating_add(io.len())
}

/// The error that an operation gets before it reaches the device.
fn refused(faults: &[Fault], io: &Io) -> Option<Error> {
    let hit = faults.iter().any(|fault| match (fault, io) {
        (Fault::FailReads(range), Io::Read { .. })
        | (Fault::FailWrites(range), Io::Write { .. }) => touches(range, io),
        (Fault::FailFlush, Io::Flush) => true,
        (Fault::Truncate(end), _) => io.offset().saturating_add(io.len()) > *end,
        _ => false,
    });
    hit.then(|| Error::new(ErrorKind::Io, "injected fault"))
}

fn damage(faults: &[Fault], io: &mut Io) {
    let Io::Read { offset, buf } = io else { return };
    let start = *offset;
    let len = buf.len() as u64;
    let part = |range: &Range<u64>| {
        let from = range.start.saturating_sub(start).min(len) as usize;
        let to = range.end.saturating_sub(start).min(len) as usize;
        from..to.max(from)
    };
    for fault in faults {
        match fault {
            Fault::Flip(range, mask) => buf[part(range)].iter_mut().for_each(|b| *b ^= mask),
            Fault::Zero(range) => buf[part(range)].fill(0),
            _ => {}
        }
    }
}

fn delay(faults: &[Fault]) -> Duration {
    faults.iter().map(|f| if let Fault::Delay(d) = f { *d } else { Duration::ZERO }).sum()
}

impl FaultDevice {
    /// Wraps `inner`, without faults yet.
    pub fn new(inner: Arc<dyn Device>) -> FaultDevice {
        FaultDevice { inner, faults: Arc::new(RwLock::new(Vec::new())) }
    }

    /// Adds a fault.
    pub fn inject(&self, fault: Fault) {
        self.faults.write().push(fault);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.faults.write().clear();
    }
}

impl Device for FaultDevice {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }
    fn size(&self) -> u64 {
        let cut = self
            .faults
            .read()
            .iter()
            .filter_map(|f| match f {
                Fault::Truncate(end) => Some(*end),
                _ => None,
            })
            .min();
        self.inner.size().min(cut.unwrap_or(u64::MAX))
    }
    fn submit(&self, batch: Vec<Op>) {
        let faults = self.faults.read().clone();
        let wait = delay(&faults);
        if !wait.is_zero() {
            rt::sleep(wait);
        }
        let mut passed = Vec::with_capacity(batch.len());
        for op in batch {
            if let Some(error) = refused(&faults, &op.io) {
                self.inner.stats().refused();
                op.complete(Err(error));
                continue;
            }
            let (faults, done) = (faults.clone(), op.done);
            passed.push(Op::new(op.io, move |mut completion: Completion| {
                damage(&faults, &mut completion.io);
                done(completion);
            }));
        }
        if !passed.is_empty() {
            self.inner.submit(passed);
        }
    }
    fn describe(&self) -> String {
        format!("{} with {} injected faults", self.inner.describe(), self.faults.read().len())
    }
    fn stats(&self) -> &DeviceStats {
        self.inner.stats()
    }
}
