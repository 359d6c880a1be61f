//! Devices that are gone, and who waits for them.
//!
//! # Theory
//! A group that is being written can neither be given up nor finished while its devices
//! are away. So what its writes cannot reach, and what its thread cannot read, is kept
//! and tried again after the pool's owner had the devices opened anew ([`Outage`]).
//! Everybody else is told of the error at once: only threads that [`insist`] wait.
//!
//! # Invariants
//! * Nobody waits here with a lock of this crate or a ticket of the cache.
//!
//! Lock order: none.

use std::cell::Cell;
use std::sync::Arc;

use base::{Error, ErrorKind};

use crate::Zio;

/// What becomes of a pool whose devices are gone.
pub trait Outage: Send + Sync {
    /// What must be done cannot be, because of `why`: waits until it may be tried again.
    /// False: it never will be.
    fn wait(&self, why: &Error) -> bool;
}

thread_local! {
    static INSISTS: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, reads of this thread wait for devices that are gone.
pub struct Insist(bool);

impl Drop for Insist {
    fn drop(&mut self) {
        INSISTS.set(self.0);
    }
}

/// This thread waits for devices that are gone, if `insisting`.
pub fn insist(insisting: bool) -> Insist {
    Insist(INSISTS.replace(insisting))
}

/// Whether this thread waits for devices that are gone.
pub fn is_insisting() -> bool {
    INSISTS.get()
}

/// Whether an error may be gone when the device is back.
fn is_of_device(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Missing)
}

impl Zio {
    /// Who is asked when devices are gone.
    pub fn set_outage(&self, outage: Arc<dyn Outage>) {
        *self.outage.write() = Some(outage);
    }

    pub(crate) fn waits_for_devices(&self) -> bool {
        self.outage.read().is_some()
    }

    /// Waits until what failed may be tried again; false if it is not to be.
    pub fn wait_out(&self, error: &Error) -> bool {
        let outage = self.outage.read().clone();
        is_of_device(error) && outage.is_some_and(|o| o.wait(error))
    }
}
