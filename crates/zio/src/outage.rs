//! Devices that are gone, and who waits for them.
//!
//! # Theory
//! A group that is being written can neither be given up nor finished while its devices
//! are away. So what its writes cannot reach, and what its thread cannot read, is kept
//! and tried again after the pool's owner had the devices opened anew ([`Outage`]).
//! Threads that [`insist`] wait, whatever it takes. Those that [`be_patient`] wait as
//! `failmode` says, wherever they are in what they do: somebody's system call that met the
//! outage half-way goes on where it was. Everybody else is told of the error at once.
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

    /// Somebody's call met `why`: waits if the pool is suspended, or is now because its
    /// devices are gone, and those who use it are to wait. False: the call fails.
    fn outlast(&self, why: &Error) -> bool;

    /// Whether the pool is suspended now.
    fn is_suspended(&self) -> bool {
        false
    }
}

/// What a thread does about devices that are gone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stance {
    Fails,
    Patient,
    Insists,
}

thread_local! {
    static STANCE: Cell<Stance> = const { Cell::new(Stance::Fails) };
}

/// While it lives, reads of this thread wait for devices that are gone.
pub struct Insist(Stance);

impl Drop for Insist {
    fn drop(&mut self) {
        STANCE.set(self.0);
    }
}

/// This thread waits for devices that are gone, if `insisting`.
pub fn insist(insisting: bool) -> Insist {
    let stance = if insisting { Stance::Insists } else { Stance::Fails };
    Insist(STANCE.replace(stance))
}

/// Whether this thread waits for devices that are gone.
pub fn is_insisting() -> bool {
    STANCE.get() == Stance::Insists
}

/// From now on, reads of this thread wait for a suspended pool as `failmode` says.
pub fn be_patient() {
    STANCE.set(Stance::Patient);
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

    /// Whether the pool is suspended: errors of its devices may be gone in a moment.
    pub fn is_suspended(&self) -> bool {
        self.outage.read().as_ref().is_some_and(|o| o.is_suspended())
    }

    pub(crate) fn waits_for_devices(&self) -> bool {
        self.outage.read().is_some()
    }

    /// Whether a read of this thread that failed is to be tried again; waits until then.
    pub(crate) fn tries_again(&self, error: &Error) -> bool {
        match STANCE.get() {
            Stance::Fails => false,
            Stance::Insists => self.wait_out(error),
            Stance::Patient => {
                let outage = self.outage.read().clone();
                is_of_device(error) && outage.is_some_and(|o| o.outlast(error))
            }
        }
    }

    /// Waits until what failed may be tried again; false if it is not to be.
    pub fn wait_out(&self, error: &Error) -> bool {
        let outage = self.outage.read().clone();
        is_of_device(error) && outage.is_some_and(|o| o.wait(error))
    }
}
