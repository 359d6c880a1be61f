//! An image as a device that is only read, and notes what was read.

use std::sync::Arc;

use base::rt::plain;
use base::{Error, ErrorKind, Result};
use device::sim::Image;
use device::{Caps, Completion, Device, DeviceStats, FlushCost, Io, Op};

/// A range of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// Which disk.
    pub disk: usize,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Notes what was read.
#[derive(Default)]
pub struct Tap(plain::Mutex<Vec<Range>>);

impl Tap {
    /// What was read since the last call.
    pub fn take(&self) -> Vec<Range> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// The device.
pub struct ImageDevice {
    disk: usize,
    image: Image,
    tap: Arc<Tap>,
    caps: Caps,
    stats: DeviceStats,
}

impl ImageDevice {
    /// A device that holds `image`.
    pub fn new(disk: usize, image: Image, tap: Arc<Tap>) -> ImageDevice {
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
        ImageDevice { disk, image, tap, caps, stats: DeviceStats::default() }
    }

    fn do_it(&self, io: &mut Io) -> Result<usize> {
        let Io::Read { offset, buf } = io else {
            return Err(Error::new(ErrorKind::ReadOnly, "the image is only read"));
        };
        let len = buf.len();
        self.tap.0.lock().push(Range { disk: self.disk, offset: *offset, len: len as u64 });
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
