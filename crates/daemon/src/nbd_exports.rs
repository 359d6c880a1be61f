//! Volumes of the imported pools as network block devices.
//!
//! # Theory
//! The names of exports are those of datasets. A volume without `volmode=none` is an export, a
//! snapshot of it with `snapdev=visible`. Clients connect to the socket `nbd` in the runtime
//! directory; only root and the daemon's user are served there.
//!
//! A TCP address is used only if the environment has it, together with words about its
//! security: `tls=DIRECTORY` with the certificates of the server and of the authority that
//! its clients' certificates are of; `tls=DIRECTORY,open` for encryption with any client;
//! `open` for neither encryption nor authentication.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Weak};

use base::{Error, Result};
use cenote::{Dataset, DatasetKind, Volume};
use mount::volumes::{is_shown, shows_snapshots};
use nbd::{ExportEntry, Exports, Limits, Server, Tls};

use super::state::DaemonState;

/// The environment's variable with the TCP address.
const TCP: &str = "CENOTE_NBD";
const OPEN: &str = "open";
const TLS: &str = "tls=";

struct PoolExports(Weak<DaemonState>);

impl PoolExports {
    fn state(&self) -> Result<Arc<DaemonState>> {
        let state = self.0.upgrade().filter(|s| !s.is_ending());
        state.ok_or_else(|| Error::busy("the daemon ends"))
    }
}

fn entry(dataset: &Dataset) -> ExportEntry {
    let description = match dataset.kind() {
        DatasetKind::Snapshot => "ZFS snapshot of a volume",
        _ => "ZFS volume",
    };
    ExportEntry { name: dataset.name().to_owned(), description: description.to_owned() }
}

impl Exports for PoolExports {
    fn list(&self) -> Result<Vec<ExportEntry>> {
        let state = self.state()?;
        let mut out = Vec::new();
        for pool in state.names().iter().filter_map(|name| state.pool(name)) {
            pool.for_each_dataset(&mut |dataset| {
                let volume = dataset.kind() == DatasetKind::Volume && !dataset.is_locked();
                if volume && is_shown(&dataset)? {
                    out.push(entry(&dataset));
                    if shows_snapshots(&dataset)? {
                        out.extend(dataset.snapshots()?.iter().map(entry));
                    }
                }
                Ok(())
            })?;
        }
        out.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(out)
    }

    fn open(&self, name: &str) -> Result<Arc<Volume>> {
        let state = self.state()?;
        let none = || Error::not_found("no such export");
        let (_, dataset) = state.open(name)?;
        let is_export = match (dataset.kind(), name.split_once('@')) {
            (DatasetKind::Volume, None) => is_shown(&dataset)?,
            (DatasetKind::Snapshot, Some((head, _))) => {
                let (_, head) = state.open(head)?;
                head.kind() == DatasetKind::Volume && is_shown(&head)? && shows_snapshots(&head)?
            }
            _ => false,
        };
        if is_export { dataset.open_volume() } else { Err(none()) }
    }
}

/// The address of `CENOTE_NBD`, and the identity for TLS unless it is open.
///
/// # Errors
/// `Invalid` for anything but an address and a port, and for a directory without certificate;
/// `Unsupported` without a word about security.
fn tcp_address(text: &str) -> Result<(SocketAddr, Option<Tls>)> {
    let (address, security) = text.split_once(',').unwrap_or((text, ""));
    let tls = if security == OPEN {
        None
    } else if let Some(dir) = security.strip_prefix(TLS) {
        let (dir, anyone) = match dir.rsplit_once(',') {
            Some((dir, OPEN)) => (dir, true),
            _ => (dir, false),
        };
        Some(Tls::from_dir(Path::new(dir), anyone)?)
    } else {
        let text = format!(
            "{TCP}={text}: add ',{TLS}DIRECTORY' with server-cert.pem, server-key.pem and \
             ca-cert.pem, or ',{OPEN}' if anyone who reaches the address may read and write \
             all volumes"
        );
        return Err(Error::unsupported(text));
    };
    Ok((super::metrics::parse(address)?, tls))
}

/// Starts the server; a failure affects nothing else.
///
/// # Errors
/// The operating system gives no descriptor or thread, or the socket cannot be made.
pub(super) fn start(state: &Arc<DaemonState>) -> Result<Arc<Server>> {
    let server = Server::start(Arc::new(PoolExports(Arc::downgrade(state))), Limits::default())?;
    server.listen_unix(&state.runtime().nbd())?;
    if let Some(text) = std::env::var_os(TCP).filter(|t| !t.is_empty()) {
        let listen = |(address, tls): (SocketAddr, Option<Tls>)| {
            let how = if tls.is_some() { "with TLS" } else { "open to everyone" };
            server.listen_tcp(address, tls).map(|address| (how, address))
        };
        match tcp_address(&text.to_string_lossy()).and_then(listen) {
            Ok((how, address)) => ui::err(&format!("NBD, {how}, at {address}")),
            Err(e) => ui::err(&format!("no NBD over TCP: {e}")),
        }
    }
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_needs_an_explicit_word() {
        let refused = |text: &str| tcp_address(text).unwrap_err().message().to_owned();
        assert!(refused("127.0.0.1:10809").contains("add ',tls=DIRECTORY'"));
        assert!(refused("127.0.0.1:10809,closed").contains("',open'"));
        assert!(refused("127.0.0.1:10809,tls=/none").contains("/none/server-cert.pem"));
        assert!(tcp_address("127.0.0.1:10809,open").is_ok_and(|(_, tls)| tls.is_none()));
        assert!(tcp_address("10809,open").is_err());
    }
}
