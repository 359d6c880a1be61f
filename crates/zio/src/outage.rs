//! Policy for devices that do not answer: which reads wait, and which get an error.
//!
//! # Theory
//! A txg that is being written can be neither abandoned nor finished while its devices
//! are absent. So writes that failed, and reads of the sync thread that failed, are
//! kept and repeated after the pool's owner has reopened the devices ([`Outage`]).
//!
//! Each read carries its policy in [`Io::outage`]. The sync thread and its helpers read
//! with [`Io::SYNC`] and wait without limit. Requests of a mount wait as `failmode` says,
//! at any point of their work: a system call that met the outage half-way continues from
//! that point. All other reads get the error at once. Code below the caller gets the
//! policy in an [`Io`], or from a handle that was made with a policy: a transaction, the
//! MOS, a file system.
//!
//! # Invariants
//! * No thread waits here while it holds a lock of this crate or a fill ticket of the
//!   cache.
//! * The sync thread never reads with another policy than [`OutagePolicy::WaitAlways`]:
//!   an error that goes away would end the pool. Debug builds check it
//!   ([`enter_sync_context`]).
//!
//! Lock order: none.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};

use crate::{Io, Mode, Zio};

/// How a pool reacts to absent devices.
pub trait Outage: Send + Sync {
    /// Waits until an operation that must succeed, and failed with `why`, may be
    /// repeated. Returns false if it never will be.
    fn wait(&self, why: &Error) -> bool;

    /// Handles the error `why` of a user's call. Waits if the pool is suspended, or
    /// becomes so now because its devices are absent, and its users are to wait.
    /// Returns false if the call is to fail.
    fn wait_per_failmode(&self, why: &Error) -> bool;

    /// Whether the pool is suspended now.
    fn is_suspended(&self) -> bool {
        false
    }
}

/// What a read does when devices are absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OutagePolicy {
    /// It fails at once.
    #[default]
    Fail,
    /// It waits for the resumption of the suspended pool, as property `failmode` says.
    WaitPerFailmode,
    /// It waits without limit, as the sync thread must.
    WaitAlways,
}

/// Whether an error may disappear when the device returns.
fn is_device_error(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::DevicesMissing)
}

impl Zio {
    /// Sets the handler of outages.
    pub fn set_outage(&self, outage: Arc<dyn Outage>) {
        *self.outage.write() = Some(outage);
    }

    /// Whether the pool is suspended, so that errors of its devices may be temporary.
    pub fn is_suspended(&self) -> bool {
        self.outage.read().as_ref().is_some_and(|o| o.is_suspended())
    }

    pub(crate) fn waits_for_devices(&self) -> bool {
        self.outage.read().is_some()
    }

    /// Whether a failed read with this policy is to be repeated; waits until it can be.
    pub(crate) fn retries(&self, error: &Error, policy: OutagePolicy) -> bool {
        match policy {
            OutagePolicy::Fail => false,
            OutagePolicy::WaitAlways => self.wait_for_retry(error),
            OutagePolicy::WaitPerFailmode => {
                let outage = self.outage.read().clone();
                is_device_error(error) && outage.is_some_and(|o| o.wait_per_failmode(error))
            }
        }
    }

    /// Waits until a failed operation may be repeated; false if it is not to be.
    pub fn wait_for_retry(&self, error: &Error) -> bool {
        let outage = self.outage.read().clone();
        is_device_error(error) && outage.is_some_and(|o| o.wait(error))
    }
}

#[cfg(debug_assertions)]
thread_local! {
    static IN_SYNC_CONTEXT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Marks the calling thread as a sync thread until it ends. In debug builds its reads with
/// another policy than [`OutagePolicy::WaitAlways`] are bugs from then on; the mark has no
/// other effect.
pub fn enter_sync_context() {
    #[cfg(debug_assertions)]
    IN_SYNC_CONTEXT.set(true);
}

/// Whether the calling thread is marked as a sync thread; always false in release builds.
fn in_sync_context() -> bool {
    #[cfg(debug_assertions)]
    return IN_SYNC_CONTEXT.get();
    #[cfg(not(debug_assertions))]
    false
}

/// Checks that a read of a sync thread waits for devices. A read from memory needs none.
pub(crate) fn check_context(io: Io) -> Result<()> {
    let waits = io.mode == Mode::MemoryOnly || io.outage == OutagePolicy::WaitAlways;
    if !waits && in_sync_context() {
        return Err(base::bug!("the sync thread reads with policy {:?}", io.outage));
    }
    Ok(())
}
