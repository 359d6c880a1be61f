//! The engines that drive file devices: io_uring, or a pool of blocking threads.
//!
//! One engine serves any number of devices; a pool usually has one. A [`IoJob`] is an
//! operation that the device has checked and adapted to the sector size.
//!
//! A discard of a block device is an ioctl, which io_uring does not have on all kernels. It runs
//! on threads of its own, so that it holds up no other operation. Their queue has no limit,
//! because a thread that completes operations must not wait for it; the callers limit how many
//! there are (`vdev::queue`).

use std::sync::Arc;

use base::Result;

use crate::file::OpenFile;
use crate::op::{Io, Op};
use crate::{pool, uring};

/// Threads that discard.
const DISCARDS: usize = 16;

/// Selects the engine that drives file devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EngineKind {
    /// io_uring where the kernel offers it, otherwise threads.
    #[default]
    Auto,
    /// io_uring; an error where the kernel refuses it.
    IoUring,
    /// A pool of threads calling pread and pwrite.
    Threads,
}

/// An engine; share it between the devices of a pool.
pub struct Engine {
    imp: Imp,
}

enum Imp {
    /// With the threads for discards.
    Uring(uring::UringEngine, pool::ThreadPool),
    Threads(pool::ThreadPool),
}

/// An operation ready for the kernel.
pub(crate) struct IoJob {
    pub(crate) target: Arc<OpenFile>,
    pub(crate) op: Op,
    /// Bytes of a read that must arrive; the rest is alignment beyond the end of the
    /// device.
    pub(crate) need: usize,
}

impl IoJob {
    /// Ends the job: counters, page cache, completion. The completion may wake the thread that
    /// closes the device and opens it again, so the job lets go of the file, and with it of
    /// the file's lock, before.
    pub(crate) fn finish(self, result: Result<usize>) {
        let IoJob { target, op, .. } = self;
        target.over(&op.io, result.is_ok());
        drop(target);
        op.complete(result);
    }
}

impl Engine {
    /// Starts an engine that keeps at most `depth` operations in the kernel.
    ///
    /// # Errors
    /// `Unsupported` if io_uring was required and is not available; `Io` if no thread
    /// can be started.
    pub fn new(kind: EngineKind, depth: usize) -> Result<Arc<Engine>> {
        let depth = depth.clamp(1, 4096);
        let with_ring = |ring| Imp::Uring(ring, pool::ThreadPool::unbounded(DISCARDS));
        let imp = match kind {
            EngineKind::Threads => Imp::Threads(pool::ThreadPool::new(depth)),
            EngineKind::IoUring => with_ring(uring::UringEngine::new(depth)?),
            EngineKind::Auto => match uring::UringEngine::new(depth) {
                Ok(ring) => with_ring(ring),
                Err(_) => Imp::Threads(pool::ThreadPool::new(depth)),
            },
        };
        Ok(Arc::new(Engine { imp }))
    }

    /// The engine in use (never `Auto`).
    pub fn kind(&self) -> EngineKind {
        match self.imp {
            Imp::Uring(..) => EngineKind::IoUring,
            Imp::Threads(_) => EngineKind::Threads,
        }
    }

    pub(crate) fn submit(&self, jobs: Vec<IoJob>) {
        match &self.imp {
            Imp::Uring(ring, discards) => {
                let slow =
                    |job: &IoJob| matches!(job.op.io, Io::Trim { .. }) && job.target.block_device;
                if jobs.iter().any(slow) {
                    let (slow, fast) = jobs.into_iter().partition(slow);
                    discards.submit(slow);
                    return ring.submit(fast);
                }
                ring.submit(jobs);
            }
            Imp::Threads(pool) => pool.submit(jobs),
        }
    }
}
