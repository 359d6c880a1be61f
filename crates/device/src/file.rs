//! Regular files and block devices.
//!
//! # Theory
//! O_DIRECT is tried first and probed with a read. Where a file system refuses it, the
//! file is opened buffered, and the pages of data that was read or flushed are dropped,
//! so that data is not cached twice. Under O_DIRECT a read that does not fit the sector
//! size is widened into an aligned bounce buffer. A write that does not fit is refused,
//! because widening it would overwrite neighbouring data.
//!
//! Space of a file is discarded as a hole, that of a block device with `BLKDISCARD`.
//!
//! # Invariants
//! * A device opened for writing is locked exclusively, one opened for reading is
//!   locked shared (`flock`, and O_EXCL on block devices opened for writing), so
//!   that no pool is open twice (decision 9). The lock lives as long as the
//!   descriptor.
//! * The size is read when the device is opened, and again on request; it only grows.
//! * An operation refers to the open file until its completion is called, and not beyond:
//!   a file whose last operation is over and whose device was dropped is not locked.

use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::limits::LEAF_SIZE_MIN;
use base::{Buf, BufMut, Error, ErrorKind, Result, rt};
use rustix::fs::{Advice, FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::engine::{Engine, EngineKind, IoJob};
use crate::op::{Caps, Completion, Device, FlushCost, Io, Op};
use crate::stats::DeviceStats;

/// How long to wait for a lock with another holder: udev probes new block devices under
/// a shared lock for some milliseconds.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// Which lock to take on a file or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Lock {
    /// Exclusive for writing, shared for reading.
    #[default]
    ByAccess,
    /// None: only for inspecting a pool that another process has imported.
    None,
}

/// How to open a file device.
#[derive(Clone)]
pub struct OpenOptions {
    /// Open for writing.
    pub write: bool,
    /// Try O_DIRECT.
    pub direct: bool,
    /// The lock to take.
    pub lock: Lock,
    /// Refuse anything smaller, in bytes.
    pub min_size: u64,
    /// The engine to use; `None` starts one for this device alone.
    pub engine: Option<Arc<Engine>>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            write: false,
            direct: true,
            lock: Lock::ByAccess,
            min_size: LEAF_SIZE_MIN,
            engine: None,
        }
    }
}

/// A file's descriptor with what an engine needs to use it.
pub(crate) struct OpenFile {
    pub(crate) fd: OwnedFd,
    pub(crate) stats: DeviceStats,
    direct: bool,
    pub(crate) block_device: bool,
    path: String,
}

impl OpenFile {
    /// Records that an operation returned from the kernel and left the in-flight gauge.
    pub(crate) fn over(&self, io: &Io, ok: bool) {
        if !self.direct {
            let (from, len) = match io {
                Io::Read { offset, buf } => (*offset, buf.len() as u64),
                // Dirty pages cannot be dropped; after a flush all are clean.
                Io::Flush => (0, 0),
                _ => (0, u64::MAX),
            };
            if len != u64::MAX {
                // Advice: a failure costs memory, not correctness.
                let _ = rustix::fs::fadvise(&self.fd, from, NonZeroU64::new(len), Advice::DontNeed);
            }
        }
        self.stats.count(io, ok);
    }

    pub(crate) fn error(&self, io: &Io, errno: Errno) -> Error {
        let doing = match io {
            Io::Read { .. } => "read",
            Io::Write { .. } => "write",
            Io::Flush => "flush",
            Io::Trim { .. } => "trim",
        };
        let message = match io {
            Io::Flush => "cannot flush the device".to_owned(),
            _ => format!("cannot {doing} {} bytes at offset {}", io.len(), io.offset()),
        };
        let kind = if errno == Errno::OPNOTSUPP { ErrorKind::Unsupported } else { ErrorKind::Io };
        Error::io(message, errno.into()).with_kind(kind).on_path(&*self.path)
    }

    pub(crate) fn short(&self, io: &Io, done: usize) -> Error {
        let message = format!("only {done} of {} bytes at offset {}", io.len(), io.offset());
        Error::new(ErrorKind::Io, message).on_path(&*self.path)
    }
}

/// Does an operation in the calling thread; `need` bytes of a read must arrive.
pub(crate) fn perform(target: &OpenFile, io: &mut Io, need: usize) -> Result<usize> {
    base::rt::may_sleep();
    let done = match io {
        Io::Read { offset, buf } => read_all(target, *offset, buf, need),
        Io::Write { offset, bufs } => write_all(target, *offset, bufs),
        Io::Flush => rustix::fs::fdatasync(&target.fd).map(|()| 0),
        Io::Trim { offset, len } if target.block_device => {
            discard(&target.fd, *offset, *len).map(|()| *len as usize)
        }
        Io::Trim { offset, len } => {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&target.fd, mode, *offset, *len).map(|()| *len as usize)
        }
    };
    match done {
        Err(errno) => Err(target.error(io, errno)),
        Ok(n) if matches!(io, Io::Read { .. }) && n < need => Err(target.short(io, n)),
        Ok(_) => Ok(io.len() as usize),
    }
}

/// Linux's ioctl `BLKDISCARD`.
const BLKDISCARD: rustix::ioctl::Opcode = 0x1277;

/// Discards a range of a block device. A hole would be zeros, which many devices that discard
/// cannot make.
fn discard(fd: &OwnedFd, offset: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: the ioctl reads two numbers of 64 bits, first byte and length, and keeps nothing.
    unsafe {
        let range = rustix::ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([offset, len]);
        rustix::ioctl::ioctl(fd, range)
    }
}

fn read_all(target: &OpenFile, offset: u64, buf: &mut [u8], need: usize) -> Result<usize, Errno> {
    let mut done = 0;
    while done < need {
        match rustix::io::pread(&target.fd, &mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

fn write_all(target: &OpenFile, offset: u64, bufs: &[Buf]) -> Result<usize, Errno> {
    let mut total = 0u64;
    for buf in bufs {
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pwrite(&target.fd, &buf[done..], offset + total + done as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(n) => done += n,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        total += done as u64;
    }
    Ok(total as usize)
}

/// A file or block device.
pub struct FileDevice {
    target: Arc<OpenFile>,
    engine: Arc<Engine>,
    caps: Caps,
    size: AtomicU64,
    block_device: bool,
}

impl FileDevice {
    /// Opens and locks `path`.
    ///
    /// # Errors
    /// `NotFound`, `Permission`, `Busy` (locked by another process or by another
    /// opening in this one), `Invalid` (neither file nor block device, or too
    /// small), `Io`; each names the path.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<FileDevice> {
        let name = path.display().to_string();
        let on_path = |e: Error| e.on_path(&*name);
        let stat = rustix::fs::stat(path).map_err(|e| on_path(open_error(e)))?;
        let block_device = file_kind(FileType::from_raw_mode(stat.st_mode)).map_err(on_path)?;
        let access = if options.write { OFlags::RDWR } else { OFlags::RDONLY };
        let mut flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        if block_device && options.write && options.lock == Lock::ByAccess {
            flags |= OFlags::EXCL;
        }
        let open = |flags| rustix::fs::open(path, flags, Mode::empty());
        let fd = match open(if options.direct { flags | OFlags::DIRECT } else { flags }) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) if options.direct => open(flags),
            other => other,
        };
        let fd = fd.map_err(|e| on_path(open_error(e)))?;
        // O_NONBLOCK prevents a hang in `open` if the path is a FIFO. With io_uring the
        // flag would make operations fail instead of wait, so it is cleared here.
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(|e| on_path(open_error(e)))?;
        rustix::fs::fcntl_setfl(&fd, flags - OFlags::NONBLOCK)
            .map_err(|e| on_path(open_error(e)))?;
        Self::set_up(fd, name, options)
    }

    fn set_up(fd: OwnedFd, name: String, options: &OpenOptions) -> Result<FileDevice> {
        let on_path = |e: Error| e.on_path(&*name);
        let stat = rustix::fs::fstat(&fd).map_err(|e| on_path(open_error(e)))?;
        let block_device = file_kind(FileType::from_raw_mode(stat.st_mode)).map_err(on_path)?;
        if options.lock == Lock::ByAccess {
            lock(&fd, options.write).map_err(on_path)?;
        }
        let size = size_of(&fd, block_device, stat.st_size).map_err(on_path)?;
        if size < options.min_size {
            return Err(on_path(Error::invalid(format!(
                "too small: {size} bytes, at least {} are needed",
                options.min_size
            ))));
        }
        let (direct, logical_sector) = probe(&fd, block_device).map_err(on_path)?;
        let caps = Caps {
            logical_sector,
            preferred: preferred(&fd, block_device, &stat).max(logical_sector),
            rotational: if block_device {
                queue_attribute(&stat, "rotational").map(|v| v != "0")
            } else {
                None
            },
            trim: !block_device
                || queue_attribute(&stat, "discard_max_bytes").is_some_and(|v| v != "0"),
            overwrite: true,
            writable: options.write,
            direct,
            flush: flush_cost(&stat, block_device),
        };
        let engine = match &options.engine {
            Some(engine) => Arc::clone(engine),
            None => Engine::new(EngineKind::Auto, 64)?,
        };
        let target = Arc::new(OpenFile {
            fd,
            stats: DeviceStats::default(),
            direct,
            block_device,
            path: name,
        });
        Ok(FileDevice { target, engine, caps, size: AtomicU64::new(size), block_device })
    }

    /// Whether the device is a block device rather than a file.
    pub fn is_block_device(&self) -> bool {
        self.block_device
    }

    /// The engine that drives the device.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn aligned(&self, offset: u64, bytes: &[u8]) -> bool {
        let sector = u64::from(self.caps.logical_sector);
        offset.is_multiple_of(sector)
            && (bytes.len() as u64).is_multiple_of(sector)
            && (bytes.as_ptr() as usize as u64).is_multiple_of(sector)
    }

    /// Adapts the operation to O_DIRECT; also returns how many bytes of a read must
    /// arrive.
    fn prepare(&self, op: Op) -> Result<(Op, usize), (Op, Error)> {
        if let Err(error) = op.io.check(self.size(), self.caps.writable) {
            let error = error.on_path(&*self.target.path);
            return Err((op, error));
        }
        let len = op.io.len() as usize;
        if !self.caps.direct {
            return Ok((op, len));
        }
        let Op { io, done } = op;
        match io {
            Io::Read { offset, buf } if !self.aligned(offset, &buf) => {
                Ok(self.widen(offset, buf, done))
            }
            Io::Write { offset, bufs } => {
                let mut at = offset;
                let fits = bufs.iter().all(|buf| {
                    let fits = self.aligned(at, buf);
                    at += buf.len() as u64;
                    fits
                });
                if fits {
                    return Ok((Op { io: Io::Write { offset, bufs }, done }, len));
                }
                self.gather(offset, bufs, done).map(|op| (op, len))
            }
            io => Ok((Op { io, done }, len)),
        }
    }

    fn widen(&self, offset: u64, mut buf: BufMut, done: crate::CompletionFn) -> (Op, usize) {
        let sector = u64::from(self.caps.logical_sector);
        let start = offset - offset % sector;
        let head = (offset - start) as usize;
        let need = head + buf.len();
        let bounce = BufMut::alloc(need.next_multiple_of(sector as usize));
        let op = Op::new(Io::Read { offset: start, buf: bounce }, move |completion| {
            let len = buf.len();
            let result = completion.result.map(|_| len);
            if let (Ok(_), Io::Read { buf: bounce, .. }) = (&result, &completion.io) {
                buf.copy_from_slice(&bounce[head..head + len]);
            }
            done(Completion { io: Io::Read { offset, buf }, result });
        });
        (op, need)
    }

    fn gather(
        &self,
        offset: u64,
        bufs: Vec<Buf>,
        done: crate::CompletionFn,
    ) -> Result<Op, (Op, Error)> {
        let sector = u64::from(self.caps.logical_sector);
        let len: usize = bufs.iter().map(|b| b.len()).sum();
        let whole = offset.is_multiple_of(sector) && (len as u64).is_multiple_of(sector);
        if !whole || len > base::limits::BUF_SIZE_MAX {
            let error = Error::invalid(format!(
                "a write of {len} bytes at offset {offset} does not fit the device's sectors of {sector} bytes"
            ));
            let error = error.on_path(&*self.target.path);
            return Err((Op { io: Io::Write { offset, bufs }, done }, error));
        }
        let mut bounce = BufMut::alloc(len);
        let mut at = 0;
        for buf in &bufs {
            bounce[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        let io = Io::Write { offset, bufs: vec![bounce.freeze()] };
        Ok(Op::new(io, move |completion| {
            done(Completion { io: Io::Write { offset, bufs }, result: completion.result });
        }))
    }
}

impl Device for FileDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn size(&self) -> u64 {
        self.size.load(Relaxed)
    }

    fn refresh_size(&self) -> Result<u64> {
        let fd = &self.target.fd;
        let stat = rustix::fs::fstat(fd).map_err(|e| open_error(e).on_path(&*self.target.path))?;
        let now = size_of(fd, self.block_device, stat.st_size);
        let now = now.map_err(|e| e.on_path(&*self.target.path))?;
        self.size.fetch_max(now, Relaxed);
        Ok(self.size())
    }

    fn submit(&self, batch: Vec<Op>) {
        let mut jobs = Vec::with_capacity(batch.len());
        for op in batch {
            match self.prepare(op) {
                Ok((op, need)) => jobs.push(IoJob { target: Arc::clone(&self.target), op, need }),
                Err((op, error)) => {
                    self.target.stats.refused();
                    op.complete(Err(error));
                }
            }
        }
        if !jobs.is_empty() {
            self.engine.submit(jobs);
        }
    }

    fn describe(&self) -> String {
        let kind = if self.block_device { "block device" } else { "file" };
        let mode = if self.caps.direct { "direct" } else { "buffered" };
        format!("{kind} {} ({mode})", self.target.path)
    }

    fn stats(&self) -> &DeviceStats {
        &self.target.stats
    }

    fn is_at(&self, path: &Path) -> bool {
        let (own, there) = (rustix::fs::fstat(&self.target.fd), rustix::fs::stat(path));
        match (own, there) {
            (Ok(a), Ok(b)) if self.block_device => a.st_rdev == b.st_rdev,
            (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
            // Opening the path will report the reason.
            _ => false,
        }
    }

    /// Runs in the calling thread: no context switch except the device's own.
    fn run(&self, io: Io) -> Completion {
        let slot = Arc::new(rt::OneShot::new());
        let filled = Arc::clone(&slot);
        match self.prepare(Op::new(io, move |completion| filled.set(completion))) {
            Ok((mut op, need)) => {
                self.target.stats.begin();
                let result = perform(&self.target, &mut op.io, need);
                self.target.stats.leave();
                self.target.over(&op.io, result.is_ok());
                op.complete(result);
            }
            Err((op, error)) => {
                self.target.stats.refused();
                op.complete(Err(error));
            }
        }
        slot.wait()
    }
}

fn open_error(errno: Errno) -> Error {
    let message = match errno {
        Errno::ACCESS | Errno::PERM => "permission denied; run as its owner or as root",
        Errno::BUSY => "in use: mounted, or opened exclusively by another program",
        Errno::NOENT => "no such file or device",
        Errno::ROFS => "on a read-only file system",
        _ => "cannot be opened",
    };
    Error::io(message, errno.into())
}

/// Bytes of an open file or block device.
fn size_of(fd: &OwnedFd, block_device: bool, st_size: i64) -> Result<u64> {
    if block_device {
        return rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0))
            .map_err(|e| Error::io("cannot learn the device's size", e.into()));
    }
    Ok(u64::try_from(st_size).unwrap_or(0))
}

/// True for a block device, false for a regular file.
fn file_kind(kind: FileType) -> Result<bool> {
    match kind {
        FileType::RegularFile => Ok(false),
        FileType::BlockDevice => Ok(true),
        FileType::Directory => Err(Error::new(
            ErrorKind::IsDir,
            "is a directory; a pool needs a regular file or a block device",
        )),
        _ => Err(Error::invalid("neither a regular file nor a block device")),
    }
}

fn lock(fd: &OwnedFd, write: bool) -> Result<()> {
    let operation = if write {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    let start = rt::now();
    loop {
        match rustix::fs::flock(fd, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if start.elapsed() < LOCK_PATIENCE => rt::sleep(LOCK_RETRY),
            Err(Errno::WOULDBLOCK) => {
                return Err(Error::busy(
                    "locked by another process that has this pool open; export it there first",
                ));
            }
            Err(errno) => return Err(Error::io("cannot lock", errno.into())),
        }
    }
}

/// Whether O_DIRECT is in force, and the smallest unit that it accepts.
fn probe(fd: &OwnedFd, block_device: bool) -> Result<(bool, u32)> {
    let flags = rustix::fs::fcntl_getfl(fd).map_err(open_error)?;
    let sector = if block_device { rustix::fs::ioctl_blksszget(fd).unwrap_or(512) } else { 512 };
    let sector = if sector.is_power_of_two() { sector.clamp(512, 65536) } else { 512 };
    if !flags.contains(OFlags::DIRECT) {
        return Ok((false, sector));
    }
    for unit in [sector, 4096, 65536] {
        let mut buf = BufMut::alloc(unit as usize);
        match rustix::io::pread(fd, &mut buf[..], u64::from(unit)) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
            // Other failures belong to the device and appear when it is read.
            _ => return Ok((true, unit)),
        }
    }
    rustix::fs::fcntl_setfl(fd, flags - OFlags::DIRECT)
        .map_err(|e| Error::io("cannot leave O_DIRECT", e.into()))?;
    Ok((false, sector))
}

fn preferred(fd: &impl AsFd, block_device: bool, stat: &rustix::fs::Stat) -> u32 {
    let size = if block_device {
        rustix::fs::ioctl_blkpbszget(fd).unwrap_or(512)
    } else {
        u32::try_from(stat.st_blksize).unwrap_or(4096)
    };
    if size.is_power_of_two() { size.clamp(512, 1 << 20) } else { 4096 }
}

/// A value from the block layer's queue directory; a partition has the value of its
/// disk.
fn queue_attribute(stat: &rustix::fs::Stat, name: &str) -> Option<String> {
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    ["queue", "../queue"].iter().find_map(|dir| {
        let path = format!("/sys/dev/block/{major}:{minor}/{dir}/{name}");
        std::fs::read_to_string(path).ok().map(|v| v.trim().to_owned())
    })
}

fn flush_cost(stat: &rustix::fs::Stat, block_device: bool) -> FlushCost {
    if !block_device {
        // The file system commits a journal.
        return FlushCost::Costly;
    }
    match queue_attribute(stat, "write_cache").as_deref() {
        Some("write through") => FlushCost::Free,
        Some(_) if queue_attribute(stat, "rotational").as_deref() == Some("1") => FlushCost::Costly,
        _ => FlushCost::Cheap,
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
