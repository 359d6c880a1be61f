//! An image as a read-only device that records its reads.

use std::sync::Arc;

use base::rt::plain;
use base::rt::sim::Rng;
use base::{Error, ErrorKind, Result};
use device::sim::Image;
use device::{Caps, Completion, Device, DeviceStats, FlushCost, Io, Op};

/// A range of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// The disk.
    pub disk: usize,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Sectors that cannot be read, always the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSectors {
    /// The disk.
    pub disk: usize,
    /// One in so many runs of 4 KiB.
    pub often: u64,
    /// Seed that selects them.
    pub seed: u64,
}

/// Bytes of a bad run.
const BAD: u64 = 4096;

impl BadSectors {
    fn hit(&self, disk: usize, offset: u64, len: u64) -> bool {
        let bad = |n: u64| Rng::stream(self.seed, n ^ (1 << 40)).one_in(self.often);
        disk == self.disk && (offset / BAD..(offset + len).div_ceil(BAD)).any(bad)
    }
}

/// Records the ranges read.
#[derive(Default)]
pub struct Tap(plain::Mutex<Vec<Range>>);

impl Tap {
    /// The ranges read since the last call.
    pub fn take(&self) -> Vec<Range> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// The device.
pub struct ImageDevice {
    disk: usize,
    image: Image,
    tap: Arc<Tap>,
    bad: Option<BadSectors>,
    caps: Caps,
    stats: DeviceStats,
}

impl ImageDevice {
    /// A device with the content of `image`, except the bad sectors.
    pub fn new(disk: usize, image: Image, tap: Arc<Tap>, bad: Option<BadSectors>) -> ImageDevice {
        let caps = Caps {
            logical_sector: 512,
            preferred: 512,
            rotational: Some(false),
            trim: false,
            overwrite: true,
            writable: false,
            direct: true,
            flush: FlushCost::Cheap,
        };
        ImageDevice { disk, image, tap, bad, caps, stats: DeviceStats::default() }
    }

    fn do_it(&self, io: &mut Io) -> Result<usize> {
        let Io::Read { offset, buf } = io else {
            return Err(Error::new(ErrorKind::ReadOnly, "the image is only read"));
        };
        let len = buf.len();
        self.tap.0.lock().push(Range { disk: self.disk, offset: *offset, len: len as u64 });
        if self.bad.is_some_and(|bad| bad.hit(self.disk, *offset, len as u64)) {
            return Err(Error::new(ErrorKind::Io, "a bad sector"));
        }
        self.image.read(*offset, buf)?;
        Ok(len)
    }
}

impl Device for ImageDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn size(&self) -> u64 {
        self.image.size()
    }

    fn submit(&self, batch: Vec<Op>) {
        for mut op in batch {
            let result = self.do_it(&mut op.io);
            op.complete(result);
        }
    }

    fn describe(&self) -> String {
        format!("image of disk {}", self.disk)
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn run(&self, mut io: Io) -> Completion {
        let result = self.do_it(&mut io);
        Completion { io, result }
    }
}
