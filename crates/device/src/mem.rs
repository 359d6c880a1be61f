//! A device in memory, for tests and models.
//!
//! Departure from files: a trimmed range reads as zero at once.

use base::rt::RwLock;
use base::{Error, Result};

use crate::op::{Caps, Completion, Device, FlushCost, Io, Op};
use crate::stats::DeviceStats;

/// A vector of bytes as a device. Operations complete inside `submit`.
pub struct MemDevice {
    name: String,
    size: u64,
    bytes: RwLock<Vec<u8>>,
    caps: Caps,
    stats: DeviceStats,
}

impl MemDevice {
    /// A device of `size` zero bytes with 512-byte sectors.
    pub fn new(name: impl Into<String>, size: usize) -> MemDevice {
        MemDevice::from_bytes(name, vec![0; size])
    }

    /// A device holding `bytes`.
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> MemDevice {
        MemDevice {
            name: name.into(),
            size: bytes.len() as u64,
            bytes: RwLock::new(bytes),
            caps: Caps {
                logical_sector: 512,
                preferred: 4096,
                rotational: Some(false),
                trim: true,
                overwrite: true,
                writable: true,
                direct: true,
                flush: FlushCost::Free,
            },
            stats: DeviceStats::default(),
        }
    }

    /// Changes bytes without an operation, as damage on the medium would.
    ///
    /// # Errors
    /// `Invalid` outside the device.
    pub fn poke(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.with(offset, data.len() as u64, |bytes| bytes.copy_from_slice(data))
    }

    /// A copy of bytes.
    ///
    /// # Errors
    /// `Invalid` outside the device.
    pub fn peek(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.with(offset, len as u64, |bytes| bytes.to_vec())
    }

    fn with<T>(&self, offset: u64, len: u64, f: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let mut bytes = self.bytes.write();
        let range = offset as usize..offset.saturating_add(len) as usize;
        let Some(part) = bytes.get_mut(range) else {
            return Err(Error::invalid("range outside the memory device"));
        };
        Ok(f(part))
    }

    fn serve(&self, io: &mut Io) -> Result<usize> {
        io.check(self.size, true)?;
        match io {
            Io::Read { offset, buf } => {
                let bytes = self.bytes.read();
                let from = *offset as usize;
                let Some(part) = bytes.get(from..from + buf.len()) else {
                    return Err(Error::bug("the range was checked"));
                };
                buf.copy_from_slice(part);
                Ok(buf.len())
            }
            Io::Write { offset, bufs } => {
                let mut at = *offset;
                for buf in bufs.iter() {
                    self.poke(at, buf)?;
                    at += buf.len() as u64;
                }
                Ok((at - *offset) as usize)
            }
            Io::Flush => Ok(0),
            Io::Trim { offset, len } => {
                self.with(*offset, *len, |bytes| bytes.fill(0))?;
                Ok(*len as usize)
            }
        }
    }
}

impl Device for MemDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn size(&self) -> u64 {
        self.size
    }
    fn submit(&self, batch: Vec<Op>) {
        for _ in &batch {
            self.stats.begin();
        }
        for mut op in batch {
            let result = self.serve(&mut op.io);
            self.stats.end(&op.io, result.is_ok());
            op.complete(result);
        }
    }
    fn describe(&self) -> String {
        format!("memory device {} of {} bytes", self.name, self.size)
    }
    fn stats(&self) -> &DeviceStats {
        &self.stats
    }
    fn run(&self, mut io: Io) -> Completion {
        self.stats.begin();
        let result = self.serve(&mut io);
        self.stats.end(&io, result.is_ok());
        Completion { io, result }
    }
}
