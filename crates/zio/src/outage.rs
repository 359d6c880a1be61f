//! Policy for devices that do not answer: which threads wait, and which get an error.
//!
//! # Theory
//! A txg that is being written can be neither abandoned nor finished while its devices
//! are absent. So writes that failed, and reads of the sync thread that failed, are
//! kept and repeated after the pool's owner has reopened the devices ([`Outage`]).
//! Threads that called [`wait_for_devices`] wait without limit. Threads that called
//! [`wait_for_resume`] wait as `failmode` says, at any point of their work: a system call
//! that met the outage half-way continues from that point. All other threads get the
//! error at once.
//!
//! # Invariants
//! * No thread waits here while it holds a lock of this crate or a fill ticket of the
//!   cache.
//!
//! Lock order: none.

use std::cell::Cell;
use std::sync::Arc;

use base::{Error, ErrorKind};

use crate::Zio;

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

/// What a thread does when devices are absent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OutagePolicy {
    Fail,
    WaitPerFailmode,
    WaitAlways,
}

thread_local! {
    static POLICY: Cell<OutagePolicy> = const { Cell::new(OutagePolicy::Fail) };
}

/// While the value lives, reads of this thread wait for absent devices.
pub struct WaitForDevices(OutagePolicy);

impl Drop for WaitForDevices {
    fn drop(&mut self) {
        POLICY.set(self.0);
    }
}

/// Lets this thread wait for absent devices if `insisting`, as long as the result
/// lives.
pub fn wait_for_devices(insisting: bool) -> WaitForDevices {
    let policy = if insisting { OutagePolicy::WaitAlways } else { OutagePolicy::Fail };
    WaitForDevices(POLICY.replace(policy))
}

/// Whether this thread waits for absent devices.
pub fn thread_waits_for_devices() -> bool {
    POLICY.get() == OutagePolicy::WaitAlways
}

/// From now on, reads of this thread wait for a suspended pool as `failmode` says.
pub fn wait_for_resume() {
    POLICY.set(OutagePolicy::WaitPerFailmode);
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

    /// Whether a failed read of this thread is to be repeated; waits until it can be.
    pub(crate) fn retries(&self, error: &Error) -> bool {
        match POLICY.get() {
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
