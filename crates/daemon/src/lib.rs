//! The daemon: one process that holds the imported pools and serves their mounts.
//!
//! # Theory
//! Commands talk to it over a Unix socket ([`proto`]); each connection has a
//! thread. Pools are remembered in a list and imported again at the next start,
//! unless they were exported: `daemon stop` exports, a signal (the system going
//! down) only closes. A killed daemon leaves mounts behind that answer nothing;
//! the next start removes them before anything else.
//!
//! # Invariants
//! * Only root and the daemon's own user are served, by the socket's peer
//!   credentials, not only by the directory's mode.
//! * One daemon a runtime directory, by a lock on a file.
//! * A request whose client is gone stops at the next pool, dataset or mount.
//!
//! # Nothing waits for a pool but what asked for it
//! Each pool has a slot with a state machine and a turn of its own (`registry`); work on it
//! runs beside the thread that was asked (`beside`), which can be interrupted, tells what
//! it waits for, and leaves work behind that hangs. Pools come in `importing`, go in
//! `closing`, are looked at in `looking`. A pool that is suspended, silent or on its way
//! is in the way of no other pool, no listing, and not of the daemon's end: force gives it
//! up, and the process ends by `_exit`, whatever threads the kernel holds.
//!
//! # What it must not know
//! What the commands that ask it print. How a mount is made is behind [`mount::Mounter`], so
//! the table of mounts is tested without FUSE.
//!
//! Lock order: turns of pools → the registry → a slot, `State::mounts`, `State::saving`. The
//! engine is called under turns alone.

mod change;
mod clients;
mod closing;
mod convert;
mod datasets;
mod destroy;
mod handle;
mod heap;
mod importing;
mod inspect;
mod metrics;
mod mount_dirs;
mod mounts;
mod notify;
mod recovery;
mod registry;
mod remount;
mod server;
mod state;
mod vdev_history;
mod watched;

use std::ffi::OsString;

use base::Result;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{Reply, Request};
use ui::{Exit, time};

const USAGE: &str = "\
usage:
	daemon start [--foreground] [--metrics ADDRESS:PORT]
	daemon stop [-f]
	daemon status
environment:
	CENOTE_RUNTIME_DIR  where the socket, the log and the lists lie
	CENOTE_STATE_DIR    where the list of pools lies instead, to outlive the system
	CENOTE_ARC_MAX      most bytes of cached blocks, such as 512M
	CENOTE_METRICS      address and port for /metrics, such as 127.0.0.1:9134
	CENOTE_KSTAT        off: no directory of kstats below the runtime directory
";

/// `cenote daemon ...`
///
/// # Errors
/// The daemon cannot be started, reached or served.
pub fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match commands::find("cenote", "daemon").parse(argv) {
        Ok(parsed) => parsed,
        Err(bad) => {
            if let Some(message) = bad.message() {
                ui::err(&message);
            }
            ui::err(USAGE.trim_end());
            return Ok(Exit::USAGE);
        }
    };
    let words = parsed.words();
    let runtime = Runtime::from_env()?;
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["start"] if parsed.has('D') || parsed.has('F') => {
            server::run(&runtime, parsed.has('D'), parsed.last('m'))
        }
        ["start"] => {
            let metrics = parsed.last('m');
            if let Some(address) = &metrics {
                metrics::parse(address)?;
            }
            let known = Client::running(&runtime)?;
            if let (Some(client), Some(_)) = (&known, &metrics) {
                let pid = client.hello.pid;
                ui::err(&format!(
                    "cenote daemon is already running, pid {pid}: --metrics has no effect; stop \
                     it first"
                ));
                return Ok(Exit::FAILURE);
            }
            let known = known.is_some();
            let client = Client::connect_or_start(&runtime, metrics.as_deref())?;
            let word = if known { "already running" } else { "started" };
            ui::out(&format!("cenote daemon {word}, pid {}\n", client.hello.pid));
            Ok(Exit::OK)
        }
        ["stop"] => stop(&runtime, parsed.has('f')),
        ["status"] => status(&runtime),
        _ => {
            ui::err(USAGE.trim_end());
            Ok(Exit::USAGE)
        }
    }
}

fn stop(runtime: &Runtime, force: bool) -> Result<Exit> {
    let Some(mut client) = Client::running(runtime)? else {
        ui::err("no daemon is running");
        return Ok(Exit::OK);
    };
    client.request(&Request::Stop { force })?;
    // The lock tells when it is gone for good.
    let begin = base::rt::now();
    while runtime.lock().is_err() {
        if begin.elapsed().as_secs() > 60 {
            ui::err("the daemon said goodbye but does not end");
            return Ok(Exit::FAILURE);
        }
        base::rt::sleep(std::time::Duration::from_millis(10));
    }
    Ok(Exit::failed_if(client.failed))
}

fn status(runtime: &Runtime) -> Result<Exit> {
    let Some(mut client) = Client::running(runtime)? else {
        ui::out(&format!("no daemon is running in {}\n", runtime.dir().display()));
        return Ok(Exit::FAILURE);
    };
    let Reply::Status(s) = client.request(&Request::Status)? else {
        return Err(base::Error::corrupt("the daemon answered something else"));
    };
    let pools = if s.pools.is_empty() { "none".to_owned() } else { s.pools.join(" ") };
    let mut text = format!(
        "    pid: {}\n uptime: {}\nversion: {}\nruntime: {}\n  pools: {pools}\n mounts: {}\n",
        s.pid,
        time::duration(s.uptime),
        client.hello.program,
        runtime.dir().display(),
        s.mounts
    );
    if let Some(dir) = s.volumes {
        text.push_str(&format!("volumes: {}\n", dir.display()));
    }
    if let Some(dir) = s.kstats {
        text.push_str(&format!(" kstats: {}\n", dir.display()));
    }
    ui::out(&text);
    Ok(Exit::OK)
}
