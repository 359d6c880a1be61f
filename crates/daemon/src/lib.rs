//! The daemon: one process that holds the imported pools and serves their mounts.
//!
//! # Theory
//! Commands connect to it over a Unix socket ([`proto`]); each connection has a thread. A
//! stored list has the imported pools, which the next start imports again. `daemon stop`
//! exports the pools; a signal (the system shuts down) only closes them. A killed daemon leaves
//! mounts behind that answer no request; the next start removes them first.
//!
//! # Invariants
//! * Only root and the daemon's own user are served, by the socket's peer credentials, not only
//!   by the directory's mode.
//! * One daemon for each runtime directory, by a lock on a file.
//! * A request whose client is gone stops at the next pool, dataset or mount.
//!
//! # A pool blocks only the requests that need it
//! Each pool has a slot with a state machine and a lock of its own (`registry`). Work on it
//! runs on a thread watched by the one that serves the client (`watched`). The watcher can be
//! interrupted, reports what it waits for, and abandons work that hangs. `importing` has how
//! pools become available, `closing` how they are exported and destroyed, `inspect` how their
//! state is read. A pool that is suspended, silent or being imported blocks no other pool, no
//! listing, and not the daemon's end: force gives it up, and the process ends by `_exit`,
//! whatever threads the kernel blocks.
//!
//! # What it must not know
//! The output of the commands that send requests. How a mount is made ([`mount::FuseMounter`]). The
//! table of mounts knows mounts as [`mount::MountedFs`], so it is tested without FUSE.
//!
//! Lock order: pool locks → the registry → a slot, `DaemonState::mounts`,
//! `DaemonState::saving`. Of these, only pool locks may be held in a call of the engine.

mod access;
mod change;
mod clients;
mod clones;
mod closing;
mod convert;
mod datasets;
mod delegation;
mod destroy;
mod diagnose;
mod diff;
mod handle;
mod heap;
mod holds;
mod importing;
mod inspect;
mod metrics;
mod mount_dirs;
mod mounts;
mod nbd_exports;
mod notify;
mod receiving;
mod recovery;
mod registry;
mod remount;
mod rename;
mod rollback;
mod sending;
mod server;
mod space;
mod spares;
mod state;
mod suspended;
mod vdev_history;
mod watched;
mod zedlets;

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
	CENOTE_NBD          address and port for NBD over TCP, with certificates or open to
	                    everyone: ADDRESS:PORT,tls=DIRECTORY or ADDRESS:PORT,open
	CENOTE_ZEDLETS      directory of programs to run on events (/etc/cenote/zed.d)
	CENOTE_KSTAT        off: no directory of kstats below the runtime directory
	CENOTE_USERS        off: root's daemon serves no other users
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
    // Only the lock file shows when the process has ended.
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
    if let Some(socket) = s.nbd {
        text.push_str(&format!("    nbd: {}, {} clients\n", socket.display(), s.nbd_clients));
    }
    if let Some(dir) = s.kstats {
        text.push_str(&format!(" kstats: {}\n", dir.display()));
    }
    ui::out(&text);
    Ok(Exit::OK)
}
