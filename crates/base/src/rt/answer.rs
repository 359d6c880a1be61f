//! One-shot channels and completions whose reply cannot be lost.
//!
//! # Theory
//! A thread that waits for a reply depends on a chain of queues, devices and other
//! threads, each of which must pass the obligation to reply on. If one link forgets it,
//! the waiter sleeps for ever, and so does everything that waits for the waiter. So the
//! obligation is a value: a [`Sender`] or a [`Callback`]. It can be moved, and
//! fulfilling it consumes it. Dropping it instead, by mistake or because a panic
//! unwinds, also replies: the waiter gets [`Lost::lost`], an error of kind `Bug`.
//!
//! # Invariants
//! * Each sender and each callback replies exactly once.
//! * A waiter sleeps no longer than the obligation exists.
//!
//! Lock order: the slot's lock is a leaf. A callback runs where it is called or
//! dropped, so neither may happen under a lock that the callback takes.

use std::sync::Arc;

use super::OneShot;
use crate::{Error, Result};

/// A type with a value that stands for a lost reply.
pub trait Lost {
    /// The value that the waiter gets when the obligation was dropped.
    fn lost() -> Self;
}

impl<T> Lost for Result<T> {
    fn lost() -> Self {
        Err(Error::bug("a request was dropped without an answer"))
    }
}

/// A channel for one value.
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let slot = Arc::new(OneShot::new());
    (Sender { slot: Some(Arc::clone(&slot)) }, Receiver { slot })
}

type ReplySlot<T> = Arc<OneShot<Option<T>>>;

/// The obligation to send a value.
#[derive(Debug)]
#[must_use = "dropping it reports to the receiver that the value was lost"]
pub struct Sender<T> {
    slot: Option<ReplySlot<T>>,
}

impl<T> Sender<T> {
    /// Sends the value and wakes the receiver.
    #[track_caller]
    pub fn send(mut self, value: T) {
        if let Some(slot) = self.slot.take() {
            slot.set(Some(value));
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.set(None);
        }
    }
}

/// The right to receive the value.
#[derive(Debug)]
#[must_use = "the value is there to be received"]
pub struct Receiver<T> {
    slot: ReplySlot<T>,
}

impl<T> Receiver<T> {
    /// Waits for the value.
    ///
    /// # Errors
    /// `Bug` if the sender was dropped.
    #[track_caller]
    pub fn wait(self) -> Result<T> {
        self.slot.wait().map_or_else(Lost::lost, Ok)
    }
}

/// The obligation to report the outcome of an operation.
#[must_use = "dropping it reports that the request was lost"]
pub struct Callback<T: Lost> {
    call: Option<Box<dyn FnOnce(T) + Send>>,
}

impl<T: Lost> Callback<T> {
    /// `call` is called exactly once, on any thread.
    pub fn new(call: impl FnOnce(T) + Send + 'static) -> Callback<T> {
        Callback { call: Some(Box::new(call)) }
    }

    /// Reports the outcome.
    pub fn call(mut self, value: T) {
        if let Some(call) = self.call.take() {
            call(value);
        }
    }
}

impl<T: Lost> Drop for Callback<T> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            call(T::lost());
        }
    }
}

impl<T: Lost> std::fmt::Debug for Callback<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Callback").field("open", &self.call.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::rt::spawn;

    #[test]
    fn a_value_crosses_threads() {
        let (sender, receiver) = oneshot();
        let thread = spawn("sender", move || sender.send(7)).unwrap();
        assert_eq!(receiver.wait().unwrap(), 7);
        thread.join().unwrap();
    }

    /// A write was forgotten in a queue, and `fsync` waited for it for ever.
    #[test]
    fn a_dropped_obligation_is_answered() {
        let (sender, receiver) = oneshot::<()>();
        let thread = spawn("forgets", move || drop(sender)).unwrap();
        assert_eq!(receiver.wait().unwrap_err().kind(), ErrorKind::Bug);
        thread.join().unwrap();

        let (sender, receiver) = oneshot();
        let callback = Callback::new(move |result: Result<()>| sender.send(result));
        // Also when its thread unwinds.
        let thread = spawn("panics", move || {
            let _callback = callback;
            std::panic::resume_unwind(Box::new(()));
        });
        assert_eq!(receiver.wait().unwrap().unwrap_err().kind(), ErrorKind::Bug);
        let _ended = thread.unwrap().join();
    }

    #[test]
    fn a_callback_answers_once() {
        let (sender, receiver) = oneshot();
        Callback::new(move |result: Result<u32>| sender.send(result)).call(Ok(3));
        assert_eq!(receiver.wait().unwrap().unwrap(), 3);
    }
}
