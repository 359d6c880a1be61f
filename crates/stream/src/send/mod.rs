//! Sending: the stream of one snapshot (chapter 07 §8).
//!
//! # Theory
//! A walk in order of objects and blocks ([`walk`]) says which records the stream has. It does
//! not wait for data: it puts a record, or the read that a record needs, into a queue
//! ([`queue`]) and goes on. Other threads make the reads; the calling thread takes the records
//! from the queue in order, joins neighbouring holes ([`emit`]) and writes. So as many reads are
//! under way as there are threads, and the queue bounds the memory.
//!
//! A snapshot does not change, so nothing here needs a lock of the pool. The caller keeps it
//! from being destroyed.
//!
//! # Invariants
//! * The stream depends on the snapshot and the options alone, not on the number of threads.
//! * Blocks of file contents do not get into the cache; metadata does.
//! * An error of reading or writing ends all threads; what was written is the beginning of a
//!   valid stream.

mod emit;
mod queue;
mod raw;
pub(crate) mod redact;
mod walk;

use std::sync::Arc;

use base::{Error, Result, Txg};
use nvlist::{NvList, Order};
use ondisk::BlkPtr;
use zio::Zio;

use super::record::{Begin, End, Features, HEADER_SIZE, HeaderKind, StreamRecord, begin_flags};
use super::writer::StreamWriter;
use emit::{Counter, Emitter};
use queue::Queue;
use redact::RedactionList;
use walk::SendWalk;

/// What the stream may contain (`zfs send -L -e -c -w`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Blocks above 128 KiB are not split.
    pub large_blocks: bool,
    /// Embedded blocks stay embedded.
    pub embedded: bool,
    /// Compressed blocks stay compressed.
    pub compressed: bool,
    /// Blocks of an encrypted dataset are sent as they are stored (`-w`); without a meaning for
    /// others.
    pub raw: bool,
}

/// The features of a dataset and its pool that a stream depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFeatures {
    /// The pool has `embedded_data` active.
    pub embedded_data: bool,
    /// The pool has `lz4_compress` active.
    pub lz4: bool,
    /// The dataset has `large_blocks`.
    pub large_blocks: bool,
    /// The dataset has `large_dnode`.
    pub large_dnode: bool,
    /// The dataset has `zstd_compress`.
    pub zstd: bool,
    /// The dataset has `longname`.
    pub longname: bool,
    /// The dataset has `large_microzap`.
    pub large_microzap: bool,
    /// It is a file system of version 5 or later.
    pub sa_spill: bool,
    /// The dataset is encrypted.
    pub encrypted: bool,
}

/// A snapshot to send.
#[derive(Clone)]
pub struct SendSnapshot {
    /// The pool.
    pub zio: Arc<Zio>,
    /// Id of the object set in bookmarks.
    pub objset: u64,
    /// Pointer to the object set.
    pub root: BlkPtr,
    /// Full name, `pool/dataset@snapshot`.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// When it was taken, seconds since 1970.
    pub creation_time: u64,
    /// Type of the object set: 2 file system, 3 volume.
    pub objset_type: u32,
    /// Names are looked up without regard to case.
    pub case_insensitive: bool,
    /// Features.
    pub features: SendFeatures,
}

/// The snapshot or bookmark to which a stream is incremental.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendSource {
    /// Its guid.
    pub guid: u64,
    /// The txg in which it was taken.
    pub txg: Txg,
    /// It belongs to another dataset, the origin of the one that is sent.
    pub is_origin: bool,
}

/// Where a receiver stopped: the next block to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePoint {
    /// Its object.
    pub object: u64,
    /// Its byte offset.
    pub offset: u64,
}

/// One stream of a snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SendRequest {
    /// What it is incremental to.
    pub source: Option<SendSource>,
    /// What it may contain.
    pub options: SendOptions,
    /// The stream goes on from here (§8.6).
    pub resume: Option<ResumePoint>,
    /// What is sent is the beginning of a snapshot, up to this object: the stream stops there,
    /// without an END (`zfs send -S`).
    pub until: Option<u64>,
    /// The keys of a raw stream, wrapped, with the shape of the meta-dnode (`crypt_keydata`,
    /// §3.1).
    pub keys: Option<NvList>,
    /// Blocks that are left out (`--redact`).
    pub redaction: Option<Arc<RedactionList>>,
    /// The list of the source, if that is a redaction bookmark: blocks that the receiver lacks.
    pub lacking: Option<Arc<RedactionList>>,
}

impl SendRequest {
    fn min_txg(&self) -> Txg {
        self.source.map_or(Txg::ZERO, |source| source.txg)
    }

    /// The payload of the BEGIN (§3.1).
    fn payload(&self) -> Vec<u8> {
        let mut list = NvList::new();
        if let Some(redaction) = &self.redaction {
            list.insert("redact_snaps", redaction.snaps.clone());
        }
        if let Some(lacking) = &self.lacking {
            list.insert("redact_from_snaps", lacking.snaps.clone());
        }
        if let Some(point) = self.resume {
            list.add_u64("resume_object", point.object).add_u64("resume_offset", point.offset);
        }
        if let Some(keys) = &self.keys {
            list.add_list("crypt_keydata", keys.clone());
        }
        if list.is_empty() {
            return Vec::new();
        }
        list.pack_native(Order::Little)
    }
}

impl std::fmt::Debug for SendSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SendSnapshot({})", self.name)
    }
}

/// Reads under way at most.
const THREADS: usize = 16;

impl SendSnapshot {
    /// The features of a stream with these options (§3).
    ///
    /// # Errors
    /// `Unsupported` for a dataset with large micro ZAPs without large blocks.
    pub fn stream_features(&self, options: SendOptions) -> Result<Features> {
        let of = self.features;
        let raw = options.raw && of.encrypted;
        let large = (options.large_blocks || raw) && of.large_blocks;
        let embedded = options.embedded && of.embedded_data && !of.encrypted;
        let compressed = options.compressed || raw;
        if of.large_microzap && !large {
            let message = "dataset contains large microzaps; use -L to send it";
            return Err(Error::unsupported(message));
        }
        Ok(Features::default()
            .with_if(Features::SA_SPILL, of.sa_spill)
            .with_if(Features::EMBED_DATA, embedded)
            .with_if(Features::LZ4, (embedded || compressed) && of.lz4)
            .with_if(Features::LARGE_BLOCKS, large)
            .with_if(Features::COMPRESSED, compressed)
            .with_if(Features::RAW, raw)
            .with_if(Features::LARGE_DNODE, of.large_dnode)
            .with_if(Features::ZSTD, compressed && of.zstd)
            .with_if(Features::LONGNAME, of.longname)
            .with_if(Features::LARGE_MICROZAP, of.large_microzap))
    }

    /// Writes the stream. `progress` gets the bytes written so far, after each record, and
    /// ends the stream with `false`.
    ///
    /// # Errors
    /// `Interrupted` by `progress`; `Locked` for encrypted datasets; those of reading blocks
    /// and of writing.
    pub fn send(
        &self,
        request: &SendRequest,
        output: &mut dyn std::io::Write,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let source = request.source;
        let resumes = request.resume.is_some();
        let features = self
            .stream_features(request.options)?
            .with_if(Features::RESUMING, resumes)
            .with_if(Features::REDACTED, request.redaction.is_some());
        let mut flags = begin_flags::FREE_RECORDS | begin_flags::SPILL_BLOCK;
        if source.is_some_and(|source| source.is_origin) {
            flags |= begin_flags::CLONE;
        }
        if self.case_insensitive {
            flags |= begin_flags::CI_DATA;
        }
        let begin = Begin {
            creation_time: self.creation_time,
            objset_type: self.objset_type,
            flags,
            to_guid: self.guid,
            from_guid: source.map_or(0, |source| source.guid),
            ..Begin::new(HeaderKind::Substream, features, &self.name)?
        };
        let mut writer = StreamWriter::new(output);
        let payload = request.payload();
        writer.write(&StreamRecord::Begin(begin), &payload)?;
        let queue = Arc::new(Queue::new());
        let sink = Arc::clone(&queue);
        let walk = self.walk(request, sink, features);
        let walker = base::rt::spawn("send walk", move || {
            let ends = walk.sink.ends_with_walk();
            ends.with(walk.walk());
        })?;
        let readers: Vec<_> = (0..THREADS)
            .map_while(|_| {
                let queue = Arc::clone(&queue);
                base::rt::spawn("send read", move || queue.serve()).ok()
            })
            .collect();
        let mut emitter = Emitter::new(writer, progress);
        let done = {
            let _ends = queue.ends_with_this();
            queue.drain(|record, payload| emitter.record(record, payload))
        };
        walker.join();
        for reader in readers {
            let _ended = reader.join();
        }
        done?;
        if request.until.is_some() {
            return emitter.stop();
        }
        emitter.finish(&StreamRecord::End(End { to_guid: self.guid, ..End::default() }))
    }

    fn walk<S>(&self, request: &SendRequest, sink: S, features: Features) -> SendWalk<S> {
        SendWalk {
            snapshot: self.clone(),
            sink,
            min_txg: request.min_txg(),
            features,
            resume: request.resume,
            until: request.until,
            redaction: request.redaction.clone(),
            lacking: request.lacking.clone(),
        }
    }

    /// Bytes of the stream that [`SendSnapshot::send`] writes, without reading data.
    ///
    /// # Errors
    /// As [`SendSnapshot::send`].
    pub fn size(&self, request: &SendRequest) -> Result<u64> {
        let features = self.stream_features(request.options)?;
        let walk = self.walk(request, Counter::default(), features);
        walk.walk()?;
        let payload = request.payload().len();
        let ends = if request.until.is_some() { 1 } else { 2 };
        Ok(walk.sink.bytes() + (ends * HEADER_SIZE + payload) as u64)
    }
}
