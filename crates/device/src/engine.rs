//! What drives file devices: io_uring, or a pool of blocking threads.
//!
//! One engine serves any number of devices; a pool usually has one. A [`Job`] is an
//! operation after the device has checked it and made it fit the sector size.

use std::sync::Arc;

use base::Result;

use crate::file::Target;
use crate::op::Op;
use crate::{pool, uring};

/// Which engine drives file devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EngineKind {
    /// io_uring where the kernel offers it, else threads.
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
    Uring(uring::Ring),
    Threads(pool::Pool),
}

/// An operation ready for the kernel.
pub(crate) struct Job {
    pub(crate) target: Arc<Target>,
    pub(crate) op: Op,
    /// Bytes of a read that must arrive; the rest is alignment behind the end.
    pub(crate) need: usize,
}

impl Job {
    /// Ends the job: counters, page cache, completion.
    pub(crate) fn finish(self, result: Result<usize>) {
        self.target.over(&self.op.io, result.is_ok());
        self.op.complete(result);
    }
}

impl Engine {
    /// Starts an engine that keeps at most `depth` operations with the kernel.
    ///
    /// # Errors
    /// `Unsupported` if io_uring was demanded and is not to be had; `Io` if no
    /// thread can be started.
    pub fn new(kind: EngineKind, depth: usize) -> Result<Arc<Engine>> {
        let depth = depth.clamp(1, 4096);
        let imp = match kind {
            EngineKind::Threads => Imp::Threads(pool::Pool::new(depth)),
            EngineKind::IoUring => Imp::Uring(uring::Ring::new(depth)?),
            EngineKind::Auto => match uring::Ring::new(depth) {
                Ok(ring) => Imp::Uring(ring),
                Err(_) => Imp::Threads(pool::Pool::new(depth)),
            },
        };
        Ok(Arc::new(Engine { imp }))
    }

    /// Which engine it became (never `Auto`).
    pub fn kind(&self) -> EngineKind {
        match self.imp {
            Imp::Uring(_) => EngineKind::IoUring,
            Imp::Threads(_) => EngineKind::Threads,
        }
    }

    pub(crate) fn submit(&self, jobs: Vec<Job>) {
        match &self.imp {
            Imp::Uring(ring) => ring.submit(jobs),
            Imp::Threads(pool) => pool.submit(jobs),
        }
    }
}
