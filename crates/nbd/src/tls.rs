//! TLS below the protocol (`NBD_OPT_STARTTLS`).
//!
//! # Theory
//! A TCP address with certificates serves nothing before the client has asked for TLS: every
//! other option is answered with `NBD_REP_ERR_TLS_REQD`. After the answer to that option both
//! sides begin the handshake of TLS 1.3, and the options begin anew inside; what was agreed
//! before is forgotten. Bytes that came behind the option in the clear end the connection,
//! because an attacker could have inserted them. Sessions are not resumed: every connection
//! proves its certificate.
//!
//! A [`Session`] stands between the socket and the buffers of a connection. Receiving takes
//! records from the socket until there is plaintext, or no more bytes, or [`READS`] calls gave
//! none. Sending moves replies
//! into the session, as many as its buffer takes, and its records to the socket. Neither
//! waits.
//!
//! # Limits
//! A session holds one record that is incomplete, the plaintext of what one call received, and
//! [`BUFFER`] bytes that the client has not taken.
//!
//! # Keys
//! Certificates only: the library has no pre-shared keys from outside of TLS 1.3. A client
//! must have one of the server's authority, because encryption alone keeps nobody away from
//! the volumes.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use base::rt::Mutex;
use base::{Error, Result};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use crate::inbox::Arrived;

/// Bytes of records that wait until the client takes them.
const BUFFER: usize = 256 << 10;

/// Calls of the operating system in which records without plaintext are received; a client
/// that sends nothing else does not keep the session's lock.
const READS: usize = 64;

/// The identity of a server, and whom it serves.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

fn bad(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {why}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(path).map_err(|e| bad(path, e))?;
    let all: Vec<_> = all.collect::<std::result::Result<_, _>>().map_err(|e| bad(path, e))?;
    if all.is_empty() { Err(bad(path, "no certificate")) } else { Ok(all) }
}

impl Tls {
    /// The identity in a directory: `server-cert.pem`, with the certificates between it and
    /// the authority's, and `server-key.pem`. A client is served only if it has a certificate
    /// of the authority in `ca-cert.pem`, unless `anyone` is served.
    ///
    /// # Errors
    /// `Invalid` for files that are missing or not what they should be.
    pub fn from_dir(dir: &Path, anyone: bool) -> Result<Tls> {
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let (cert, key) = (dir.join("server-cert.pem"), dir.join("server-key.pem"));
        let chain = certificates(&cert)?;
        let secret = PrivateKeyDer::from_pem_file(&key).map_err(|e| bad(&key, e))?;
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| bad(dir, e))?;
        let config = if anyone {
            config.with_no_client_auth()
        } else {
            let ca = dir.join("ca-cert.pem");
            let mut roots = RootCertStore::empty();
            for cert in certificates(&ca)? {
                roots.add(cert).map_err(|e| bad(&ca, e))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            config.with_client_cert_verifier(verifier.build().map_err(|e| bad(&ca, e))?)
        };
        let mut config = config.with_single_cert(chain, secret).map_err(|e| bad(&cert, e))?;
        // Each connection proves its certificate again, which may have expired meanwhile.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Tls(Arc::new(config)))
    }

    /// A session that begins with the handshake.
    pub(crate) fn begin(&self) -> Option<Session> {
        let mut connection = ServerConnection::new(Arc::clone(&self.0)).ok()?;
        connection.set_buffer_limit(Some(BUFFER));
        Some(Session(Mutex::new(connection)))
    }
}

/// The encrypted half of a connection.
pub(crate) struct Session(Mutex<ServerConnection>);

/// A socket that never waits.
struct Socket<'a>(BorrowedFd<'a>);

impl Read for Socket<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        recv(self.0, &mut *room, RecvFlags::DONTWAIT).map(|(_, n)| n).map_err(Into::into)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What moving records to the socket has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pushed {
    /// It took some.
    pub(crate) moved: bool,
    /// Some wait until the client takes them.
    pub(crate) left: bool,
}

/// Moves records to the socket, as far as it takes them.
fn push(connection: &mut ServerConnection, socket: &mut Socket<'_>) -> io::Result<Pushed> {
    let mut moved = false;
    while connection.wants_write() {
        match connection.write_tls(socket) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => moved = true,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
    }
    Ok(Pushed { moved, left: connection.wants_write() })
}

impl Session {
    /// Plaintext that arrived, without waiting.
    pub(crate) fn receive(&self, socket: impl AsFd, room: &mut [u8]) -> Arrived {
        let (mut connection, mut socket) = (self.0.lock(), Socket(socket.as_fd()));
        let mut reads = 0;
        loop {
            match connection.reader().read(room) {
                Ok(0) => return Arrived::End,
                Ok(n) => return Arrived::Bytes(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Arrived::End,
            }
            // What is in the socket then is reported again.
            if reads == READS {
                return Arrived::Nothing;
            }
            reads += 1;
            match connection.read_tls(&mut socket) {
                Ok(0) => return Arrived::End,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Arrived::Nothing,
                Err(_) => return Arrived::End,
            }
            let valid = connection.process_new_packets().is_ok();
            // The handshake's answer, or an alert.
            let sent = push(&mut connection, &mut socket);
            if !valid || sent.is_err() {
                return Arrived::End;
            }
        }
    }

    /// Takes replies, and sends what the client takes now; returns how many bytes it took.
    ///
    /// # Errors
    /// `AGAIN` if it takes none before the client takes some; others end the connection.
    pub(crate) fn send(
        &self,
        socket: impl AsFd,
        slices: &[IoSlice<'_>],
    ) -> std::result::Result<usize, Errno> {
        let (mut connection, mut socket) = (self.0.lock(), Socket(socket.as_fd()));
        let failed = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        push(&mut connection, &mut socket).map_err(failed)?;
        let taken = connection.writer().write_vectored(slices).map_err(failed)?;
        push(&mut connection, &mut socket).map_err(failed)?;
        if taken == 0 && slices.iter().any(|s| !s.is_empty()) {
            Err(Errno::AGAIN)
        } else {
            Ok(taken)
        }
    }

    /// Whether plaintext is here that was not received yet.
    pub(crate) fn has_plaintext(&self) -> bool {
        let state = self.0.lock().process_new_packets();
        state.is_ok_and(|state| state.plaintext_bytes_to_read() > 0)
    }

    /// Tells the client that the connection ends, if it takes that now.
    pub(crate) fn close(&self, socket: impl AsFd) {
        let (mut connection, mut socket) = (self.0.lock(), Socket(socket.as_fd()));
        connection.send_close_notify();
        let _gone = push(&mut connection, &mut socket);
    }

    /// Moves records that were left to the socket.
    ///
    /// # Errors
    /// The client is gone.
    pub(crate) fn push(&self, socket: impl AsFd) -> io::Result<Pushed> {
        push(&mut self.0.lock(), &mut Socket(socket.as_fd()))
    }
}
