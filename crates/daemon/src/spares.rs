//! The thread that puts spares in the places of devices that failed, and takes devices back that
//! return.
//!
//! # Theory
//! It follows the log of events: each change of a device's state is one. Then it does what
//! [`Engine::look_after_devices`] says. While devices are missing it looks for them every few
//! seconds. A thread of its own does it, because a silent device may delay it; diagnosis must
//! not wait for that.

use std::sync::Arc;
use std::time::Duration;

use base::{Result, rt};
use cenote::Engine;

/// How long a wait for events takes while all is well.
const WAIT: Duration = Duration::from_secs(60);
/// How often missing devices are looked for.
const LOOK: Duration = Duration::from_secs(5);

/// Starts the thread; it ends with the log of events.
///
/// # Errors
/// When no thread can be started.
pub(crate) fn start(engine: &Arc<Engine>) -> Result<()> {
    let engine = Arc::clone(engine);
    rt::spawn("spares", move || follow(&engine)).map(drop)
}

fn follow(engine: &Engine) {
    let log = Arc::clone(engine.events());
    let (mut last, mut wait) = (0, LOOK);
    while !log.is_closed() {
        last = log.wait(last, wait).last;
        let done = engine.look_after_devices();
        done.lines.iter().for_each(|line| ui::err(line));
        wait = if done.missing { LOOK } else { WAIT };
    }
}
