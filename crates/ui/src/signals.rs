//! The signals that end a process: `SIGTERM`, `SIGINT`, `SIGHUP`.

use base::{Error, ErrorKind, Result};

/// The signals that end the program, received by one thread instead of a handler.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks them in this thread and those it starts later.
    ///
    /// # Errors
    /// The system refuses.
    pub fn block() -> Result<Signals> {
        // SAFETY: all-zero bytes are a valid (empty) set.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a live local; the calls only write to it.
        unsafe {
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            libc::sigaddset(&raw mut set, libc::SIGHUP);
        }
        // SAFETY: the set was filled in above, and no old mask is asked for.
        let rc =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if rc != 0 {
            return Err(Error::new(ErrorKind::Io, "cannot block signals"));
        }
        Ok(Signals(set))
    }

    /// Waits for one of them, then calls `f`.
    pub fn wait_and(&self, f: impl FnOnce()) {
        let mut signal = 0;
        // SAFETY: both pointers are to live values.
        if unsafe { libc::sigwait(&raw const self.0, &raw mut signal) } == 0 {
            crate::err(&format!("signal {signal}"));
            f();
        }
    }
}
