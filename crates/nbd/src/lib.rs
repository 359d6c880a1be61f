//! Volumes as network block devices (NBD).
//!
//! # Theory
//! A [`Server`] serves the exports that an [`Exports`] names, to clients at a Unix socket or a
//! TCP address, by the protocol that the NBD project publishes (`doc/proto.md`): the fixed
//! newstyle handshake, simple, structured and extended replies, the metadata context
//! `base:allocation`. All connections to an export share one open volume, so a flush on one
//! covers the writes of all (`NBD_FLAG_CAN_MULTI_CONN`).
//!
//! Crate layout: `wire` has the numbers of the protocol, `handshake` the options, `inbox`
//! turns received bytes into options and requests, `request` performs requests, `outbox` holds
//! replies until the client takes them, `connection` is one client, `tls` its encryption,
//! `server` the threads.
//!
//! **Threads.** All connections are in one epoll instance, armed for one event at a time. The
//! thread that gets the event *receives* from the connection: it parses and performs one
//! request after the other until no more bytes are there, and sends the replies together. If
//! it is about to sleep in a request ([`base::rt::before_sleep`]), it hands the connection over
//! first, so that the next requests are received meanwhile, and makes sure that another thread
//! waits for events. So a request that needs no device costs no switch of threads, many
//! requests of one connection wait for devices together, and an idle client costs no thread.
//!
//! **Bytes.** A read is answered with slices of cached blocks, which are not copied. The
//! payload of a write is received into the buffer that the volume is written from.
//!
//! # Sizes
//! A volume may grow and shrink while clients use it. Each request is judged by the size at
//! that moment: behind the end, those that write are refused with `ENOSPC`, others with
//! `EINVAL`. A client is told the size in its handshake; another handshake (the option `INFO`
//! suffices) tells the new one. The protocol has no message for it: `NBD_CMD_RESIZE` is
//! reserved for an extension that was not published with it and that no client uses, so it is
//! not offered.
//!
//! # Limits
//! A connection has at most [`Limits::connection_bytes`] in requests and replies, or one larger
//! request; while it has more, nothing is received from it. A client that takes no reply for
//! [`Limits::patience`], or does not end its handshake in that time, is disconnected. Options
//! have at most 64 KiB, requests 32 MiB. Of [`Limits::connections`] clients the oldest that has
//! not ended its handshake gives way to a new one; if all have, the new one is disconnected.
//!
//! # Invariants
//! * At most one thread receives from a connection: it is armed, in the ready list, or owned.
//! * No lock is held while a request is performed, and no thread waits for a client.
//! * Whatever a client sends, its connection ends or is answered; no other is affected.
//!
//! Lock order: `inbox` → `outbox` → the TLS session; the server's lists are last. All are held
//! briefly.

mod connection;
mod handshake;
mod inbox;
mod outbox;
mod request;
mod server;
mod tls;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use base::Result;
use cenote::Volume;

pub use server::{NbdClient, Server};
pub use tls::Tls;

/// An export in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportEntry {
    /// Its name.
    pub name: String,
    /// A text for people.
    pub description: String,
}

/// The volumes that a server offers.
pub trait Exports: Send + Sync {
    /// All exports, for a client that asks.
    ///
    /// # Errors
    /// Those of reading the pools.
    fn list(&self) -> Result<Vec<ExportEntry>>;

    /// The volume of an export.
    ///
    /// # Errors
    /// `NotFound`; those of opening it.
    fn open(&self, name: &str) -> Result<Arc<Volume>>;
}

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Clients at a time.
    pub connections: usize,
    /// Bytes of requests and replies of a connection.
    pub connection_bytes: usize,
    /// Threads that perform requests.
    pub threads: usize,
    /// Time for a handshake, and without progress of replies.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 128,
            connection_bytes: 16 << 20,
            threads: 64,
            patience: Duration::from_secs(60),
        }
    }
}
