//! Receiving streams (chapter 07 §13, §14).
//!
//! # Theory
//! An [`IncomingStream`] yields the substreams of a stream: one, or those of a package. Each is
//! received into a hidden dataset until the substream is
//! complete and verified; then one txg gives the dataset its content and the snapshot
//! (`spa::engine`, `receive`). [`Pool::receive`] does this for a whole stream.
//!
//! # Invariants
//! * After an error, at whatever byte, the dataset is as it was. What was received is destroyed,
//!   or kept if the receive can be resumed ([`ReceiveOptions::resumable`]).
//! * Readers of the dataset get the state before or after a substream, never a mixture. Its open
//!   handles get `NotFound` after the switch, as after a rollback.

mod correct;
mod names;
mod package;
mod raw;
mod resume;

use std::io::Read;
use std::sync::Arc;

use base::{Error, ErrorKind, Result, Txg};
use dmu::{OutagePolicy, Tx};
use dsl::DslDir;
use dsl::props::PropData;
use dsl::write::MosRead;
use dsl::write::receive::{ReceivePosition, ReceivedSnapshot, ResumeState};
use nvlist::NvList;
use ondisk::objset::ObjsetType;
use spa::engine::{EndReceive, NewReceive, ReceiveTarget, SpaceAccount, Writer};
use stream::{
    Begin, Features, HeaderKind, PackageHeader, ReceiveHost, ReceiveInto, StreamReader,
    StreamRecord, begin_flags, receive_substream,
};

use crate::changes::stored;
use crate::pool::Pool;

pub use correct::CorrectedBlocks;
pub use names::ReceiveNames;

/// How a stream is received.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOptions {
    /// Changes and snapshots since the snapshot that the stream is incremental to are discarded;
    /// a full stream replaces a dataset without snapshots (`-F`).
    pub force: bool,
    /// Full name of the snapshot that the new dataset becomes a clone of (`-o origin=`).
    pub origin: Option<String>,
    /// Holds in a package are ignored (`-h`).
    pub ignore_holds: bool,
    /// If the stream is cut off, what came is kept, and the rest can be sent later (`-s`).
    pub resumable: bool,
    /// Properties set on the dataset, in stored form (`-o`).
    pub props: Vec<(String, PropData)>,
    /// Properties that the dataset inherits (`-x`).
    pub inherits: Vec<String>,
    /// Damaged blocks of the snapshot, which exists, are repaired from the stream (`-c`); nothing
    /// else changes, and the other options have no meaning.
    pub correct: bool,
    /// Only check (`-n`): the stream is read to its end, and nothing is changed.
    pub dry_run: bool,
    /// The command, for the pool's history.
    pub command: Option<String>,
}

/// A substream that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingSnapshot {
    /// Its full name on the sender.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// Guid of the snapshot that the substream is incremental to, or 0.
    pub from_guid: u64,
    /// The substream continues an interrupted one.
    pub resumes: bool,
    /// It is one of a volume, not of a file system.
    pub is_volume: bool,
    /// It has the blocks of an encrypted dataset as they are stored.
    pub is_raw: bool,
}

/// What was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedStream {
    /// The new snapshot, or the one that would be.
    pub snapshot: String,
    /// What was sent.
    pub sent: IncomingSnapshot,
    /// Bytes of the substream.
    pub bytes: u64,
    /// The dataset was made by this receive.
    pub is_new: bool,
    /// The snapshot was there already.
    pub skipped: bool,
    /// What was repaired, if that is what the stream was for.
    pub corrected: Option<CorrectedBlocks>,
}

/// Watches a receive, and takes part in it: the owner of mounts, a command that shows progress.
pub trait ReceiveObserver {
    /// Asked from time to time; `true` ends the receive.
    fn is_stopped(&self) -> bool {
        false
    }

    /// A substream begins, which is received as the snapshot `target`, a full name.
    ///
    /// # Errors
    /// Any; the receive then ends with it.
    fn begins(&mut self, _sent: &IncomingSnapshot, _target: &str) -> Result<()> {
        Ok(())
    }

    /// Performs the first change: `act` makes what the stream is received into. `dataset` is its
    /// full name, of a dataset that exists or will. The observer calls `act` once, or returns an
    /// error instead.
    ///
    /// # Errors
    /// Those of `act`, and any other; nothing has changed then.
    fn begin(&mut self, _dataset: &str, act: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        act()
    }

    /// Asked before a package changes anything else of a dataset or snapshot: whether the user who
    /// receives it has these permissions (`zfs allow`).
    ///
    /// # Errors
    /// `Permission`.
    fn allows(&mut self, _name: &str, _permissions: &[&str]) -> Result<()> {
        Ok(())
    }

    /// Performs the switch to a complete dataset. `dataset` is its present full name, and `act`
    /// makes the switch: the observer calls it once, or returns an error instead.
    ///
    /// # Errors
    /// Those of `act`, and any other; the dataset is as before then.
    fn switch(&mut self, _dataset: &str, act: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        act()
    }

    /// A substream was received, or skipped because its snapshot is there.
    fn ended(&mut self, _received: &ReceivedStream) {}

    /// Something of less weight did not work: a property of a package.
    fn remark(&mut self, _text: &str) {}
}

/// Observes nothing.
struct NoObserver;

impl ReceiveObserver for NoObserver {}

/// A stream that is being read.
pub struct IncomingStream<R> {
    reader: StreamReader<R>,
    /// The BEGIN of the substream that comes next, with its payload.
    next: Option<(Begin, Vec<u8>)>,
    /// The package's name, and its list of datasets if it has one.
    package: Option<(String, Option<PackageHeader>)>,
    /// Where the current substream begins.
    began_at: u64,
}

impl<R: Read> IncomingStream<R> {
    /// Reads the beginning of a stream.
    ///
    /// # Errors
    /// `Interrupted` for an empty one; `Corrupt` for what is no stream; those of reading.
    pub fn open(input: R) -> Result<IncomingStream<R>> {
        let mut reader = StreamReader::new(input);
        let read = reader.next_record()?;
        let empty = || Error::new(ErrorKind::Interrupted, "failed to read from stream");
        let read = read.ok_or_else(empty)?;
        let StreamRecord::Begin(begin) = read.record else {
            return Err(Error::corrupt("invalid stream (bad record type)"));
        };
        let payload = read.payload.to_vec();
        let (mut next, mut package) = (None, None);
        match begin.kind()? {
            HeaderKind::Substream => next = Some((begin, payload)),
            HeaderKind::Package => {
                let list = match payload.is_empty() {
                    true => None,
                    false => Some(PackageHeader::parse(&payload)?),
                };
                package = Some((begin.to_name()?.to_owned(), list));
                match reader.next_record()?.map(|read| read.record) {
                    Some(StreamRecord::End(_)) => {}
                    _ => return Err(Error::corrupt("invalid stream (bad package header)")),
                }
            }
        }
        Ok(IncomingStream { reader, next, package, began_at: 0 })
    }

    /// The name and the list of datasets of a package.
    pub fn package(&self) -> Option<(&str, Option<&PackageHeader>)> {
        self.package.as_ref().map(|(name, list)| (name.as_str(), list.as_ref()))
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.reader.offset()
    }

    /// The next substream; `None` behind the last. The caller receives or skips it before it
    /// calls this again.
    ///
    /// # Errors
    /// Those of reading; `Corrupt`.
    pub fn next_snapshot(&mut self) -> Result<Option<IncomingSnapshot>> {
        if self.next.is_none() && self.package.is_some() && !self.reader.is_complete() {
            self.began_at = self.reader.offset();
            let read = self.reader.next_record()?;
            match read.as_ref().map(|read| read.record) {
                Some(StreamRecord::Begin(begin)) => {
                    let payload = read.map(|read| read.payload.to_vec()).unwrap_or_default();
                    self.next = Some((begin, payload));
                }
                Some(StreamRecord::End(_)) => {}
                _ => return Err(Error::corrupt("invalid stream (bad record type)")),
            }
        }
        let Some((begin, _)) = &self.next else { return Ok(None) };
        let name = begin.to_name()?;
        if !name.contains('@') {
            return Err(Error::corrupt("invalid stream (the snapshot has no name)"));
        }
        Ok(Some(IncomingSnapshot {
            name: name.to_owned(),
            guid: begin.to_guid,
            from_guid: begin.from_guid,
            resumes: begin.features().has(Features::RESUMING),
            is_volume: begin.objset_type == 3,
            is_raw: begin.features().has(Features::RAW),
        }))
    }

    /// Reads the substream that comes next to its end, without receiving it.
    ///
    /// # Errors
    /// Those of reading; `Checksum`, `Corrupt`.
    pub fn skip(&mut self) -> Result<()> {
        if self.next.take().is_none() {
            return Ok(());
        }
        loop {
            match self.reader.next_record()?.map(|read| read.record) {
                Some(StreamRecord::End(_)) => return Ok(()),
                Some(_) => {}
                None => return Err(Error::new(ErrorKind::Interrupted, "incomplete stream")),
            }
        }
    }
}

/// The pool's side of a receive.
struct PoolReceive<'a> {
    writer: &'a Writer,
    target: &'a ReceiveTarget,
    account: SpaceAccount,
    /// Where the substream begins in its stream.
    began_at: u64,
    stopped: &'a dyn Fn() -> bool,
}

impl ReceiveHost for PoolReceive<'_> {
    fn begin(&self, bytes: u64, frees: bool) -> Result<Tx> {
        if (self.stopped)() {
            return Err(Error::new(ErrorKind::Interrupted, "the receive was stopped"));
        }
        let account = Some(&self.account);
        self.writer.begin_for(account, bytes, frees, OutagePolicy::WaitPerFailmode)
    }

    fn sync(&self) -> Result<()> {
        self.writer.sync().map(drop)
    }

    fn applied(&self, txg: Txg, object: u64, offset: u64, bytes: u64) {
        let bytes = self.target.bytes + bytes.saturating_sub(self.began_at);
        self.target.applied(txg, ReceivePosition { object, offset, bytes });
    }
}

/// A receive that is given up unless it ends.
struct ReceiveGuard<'a> {
    writer: &'a Writer,
    target: ReceiveTarget,
    ended: bool,
}

impl Drop for ReceiveGuard<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // A pool that is suspended destroys it at its next import.
            let _left = self.writer.abandon_receive(&self.target, true);
        }
    }
}

/// Features of the pool that a stream needs, and those that the dataset gets at once.
fn features_of(features: Features) -> (Vec<&'static str>, Vec<&'static str>) {
    use dsl::write::features as known;
    let table = [
        (Features::LZ4, "org.illumos:lz4_compress", false),
        (Features::ZSTD, "org.freebsd:zstd_compress", false),
        (Features::EMBED_DATA, "com.delphix:embedded_data", false),
        (Features::LARGE_BLOCKS, known::LARGE_BLOCKS, true),
        (Features::LARGE_DNODE, known::LARGE_DNODE, false),
        (Features::LONGNAME, "org.zfsonlinux:longname", true),
        (Features::LARGE_MICROZAP, "com.klarasystems:large_microzap", true),
        (Features::REDACTED, known::REDACTED_DATASETS, false),
        (Features::RAW, known::ENCRYPTION, false),
    ];
    let set = || table.iter().filter(|(feature, ..)| features.has(*feature));
    let needs = set().map(|(_, guid, _)| *guid).collect();
    (needs, set().filter(|(.., at_once)| *at_once).map(|(_, guid, _)| *guid).collect())
}

/// Refuses streams that Cenote, or OpenZFS, does not receive.
fn check_features(features: Features) -> Result<()> {
    let unknown = features.0 & !Features::ACCEPTED.0;
    if unknown != 0 {
        let text = format!(
            "stream has unsupported feature, feature flags = {:x} (unknown flags = {unknown:x})",
            features.0
        );
        return Err(Error::unsupported(text));
    }
    Ok(())
}

impl Pool {
    /// Receives a stream as `target`: the name of a dataset (`pool/fs`), of a snapshot
    /// (`pool/fs@snap`), or of the file system below which the sender's names are put (`names`).
    /// Returns what was received. The call ends with the stream's last record and reads nothing
    /// behind it. Memory is bounded whatever the stream holds.
    ///
    /// ```no_run
    /// # fn main() -> cenote::Result<()> {
    /// # let engine = cenote::Engine::new(cenote::EngineConfig::default())?;
    /// # let found = engine.discover(&cenote::Search::default())?;
    /// let pool = engine.import(&found.pools[0], &cenote::ImportOptions::default())?;
    /// let mut sent = Vec::new();
    /// let options = cenote::SendOptions::default();
    /// pool.dataset("tank/data@monday")?.send(None, options, &mut sent, &mut |_| true)?;
    /// let names = cenote::ReceiveNames::Whole;
    /// let options = cenote::ReceiveOptions::default();
    /// pool.receive("tank/copy", names, &options, sent.as_slice())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// In OpenZFS's words: `Exists` for a destination that a full stream may not replace, or a
    /// snapshot that exists; `NotFound` for one that an incremental stream needs; `Busy` if it was
    /// modified, is being received, or has partial state; `CrossDevice` if it lacks the snapshot
    /// that the stream is incremental to; `Checksum`, `Corrupt`, `Interrupted` for damaged and
    /// incomplete streams; `Unsupported`; `NoSpace`, `Quota`; `ReadOnly`; that of a suspension.
    pub fn receive(
        &self,
        target: &str,
        names: ReceiveNames,
        options: &ReceiveOptions,
        input: impl Read,
    ) -> Result<Vec<ReceivedStream>> {
        let mut stream = IncomingStream::open(input)?;
        self.receive_stream(&mut stream, target, names, options, &mut NoObserver)
    }

    /// As [`Pool::receive`], for a stream whose beginning was read, with an observer.
    ///
    /// # Errors
    /// As there; `Interrupted` if the observer stops it; those of the observer.
    pub fn receive_stream<R: Read>(
        &self,
        stream: &mut IncomingStream<R>,
        target: &str,
        names: ReceiveNames,
        options: &ReceiveOptions,
        observer: &mut dyn ReceiveObserver,
    ) -> Result<Vec<ReceivedStream>> {
        let mut out = Vec::new();
        let list = stream.package().and_then(|(name, list)| Some((name.to_owned(), list?.clone())));
        if let Some((name, list)) = list.as_ref().filter(|_| !options.correct) {
            self.reconcile(list, name, target, names, options, observer)?;
        }
        while let Some(sent) = stream.next_snapshot()? {
            let top = stream.package().map(|(name, _)| name.to_owned());
            let full = names.target(target, top.as_deref(), &sent.name)?;
            let there = top.is_some() && self.has_snapshot(&full, sent.guid)?;
            let received = match there {
                _ if options.correct => {
                    self.correct_one(stream, &sent, &full, options, observer)?
                }
                true => {
                    stream.skip()?;
                    let (snapshot, bytes) = (full, stream.bytes() - stream.began_at);
                    ReceivedStream {
                        snapshot,
                        sent,
                        bytes,
                        is_new: false,
                        skipped: true,
                        corrected: None,
                    }
                }
                false => {
                    let of = list.as_ref().and_then(|(_, list)| list.dataset_of(&sent.name));
                    let has_props = of.is_some_and(|of| of.props.is_some());
                    self.receive_one(stream, (&sent, has_props), &full, options, observer)?
                }
            };
            let of = list.as_ref().and_then(|(_, list)| list.dataset_of(&received.sent.name));
            if let Some(props) = of.and_then(|of| of.props.as_ref())
                && !options.dry_run
                && !options.correct
            {
                let dataset = received.snapshot.split('@').next().unwrap_or_default();
                self.receive_props(dataset, props, observer)?;
                if received.is_new
                    && received.sent.is_raw
                    && of.is_some_and(|of| of.is_encryption_root)
                {
                    self.receive_key_location(dataset, props)?;
                }
                self.after_receive(dataset, received.is_new, options)?;
            }
            if let Some(of) = of.filter(|_| !received.skipped)
                && !options.dry_run
                && !options.correct
            {
                self.receive_snapshot_extras(of, &received, options, observer)?;
            }
            observer.ended(&received);
            out.push(received);
        }
        if let Some((_, list)) = list.as_ref().filter(|_| !options.dry_run && !options.correct) {
            self.settle_roots(list, &out)?;
        }
        Ok(out)
    }

    /// Whether a snapshot of this name and identity is there.
    fn has_snapshot(&self, name: &str, guid: u64) -> Result<bool> {
        match self.dataset(name) {
            Ok(snapshot) => Ok(snapshot.guid() == guid),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Receives the substream that comes next as the snapshot `target`, a full name.
    fn receive_one<R: Read>(
        &self,
        stream: &mut IncomingStream<R>,
        (sent, has_props): (&IncomingSnapshot, bool),
        target: &str,
        options: &ReceiveOptions,
        observer: &mut dyn ReceiveObserver,
    ) -> Result<ReceivedStream> {
        let none = || base::bug!("there is no substream to receive");
        let (begin, payload) = stream.next.as_ref().ok_or_else(none)?;
        let begin = *begin;
        check_features(begin.features())?;
        let list = match payload.is_empty() {
            true => NvList::new(),
            false => NvList::unpack(payload)?,
        };
        let mut new = self.new_receive(&begin, &list, target, options)?;
        new.is_plain = raw::is_plain(options, has_props);
        let mut ivset = None;
        if sent.is_raw {
            let (of_dataset, of_snapshot) = raw::raw_receive(&list)?;
            (new.raw, ivset) = (Some(of_dataset), of_snapshot);
        }
        observer.begins(sent, target)?;
        let received = |bytes: u64, is_new: bool| ReceivedStream {
            snapshot: target.to_owned(),
            sent: sent.clone(),
            bytes,
            is_new,
            skipped: false,
            corrected: None,
        };
        let writer = Arc::clone(self.writer()?);
        if options.dry_run {
            writer.check_receive(new)?;
            stream.skip()?;
            return Ok(received(stream.bytes() - stream.began_at, false));
        }
        let (dataset, snapshot) = (new.dataset.clone(), new.snapshot.clone());
        let (resumes, keys) =
            (new.resumes_at.is_some(), new.raw.as_ref().map(|raw| raw.keys.clone()));
        let mut begun = None;
        let line = options.command.as_deref();
        observer.begin(&dataset, &mut || {
            begun = Some(writer.begin_receive(new.clone(), self.command(line))?);
            Ok(())
        })?;
        let begun = begun.ok_or_else(|| base::bug!("a receive did not begin"))?;
        let mut guard = ReceiveGuard { writer: &writer, target: begun, ended: false };
        let is_new = guard.target.into.is_none();
        stream.next = None;
        {
            let stopped = || observer.is_stopped();
            let host = PoolReceive {
                writer: &writer,
                target: &guard.target,
                account: SpaceAccount::new(guard.target.head),
                began_at: stream.began_at,
                stopped: &stopped,
            };
            let has_content = guard.target.has_content;
            let objset = writer.received_objset(&guard.target)?;
            let batch = stream::BATCH_BYTES;
            let into = ReceiveInto { objset, host: &host, has_content, resumes, batch };
            receive_substream(&mut stream.reader, &begin, into)?;
        }
        let raw = keys.map(|keys| raw::raw_snapshot(keys, ivset)).transpose()?;
        let end = EndReceive {
            snapshot: ReceivedSnapshot {
                name: snapshot,
                guid: begin.to_guid,
                creation_time: begin.creation_time,
                raw,
            },
            force: options.force,
        };
        let name = self.name_of_head(guard.target.into.unwrap_or(guard.target.head))?;
        let name = name.unwrap_or(dataset);
        observer.switch(&name, &mut || writer.end_receive(&guard.target, &end))?;
        guard.ended = true;
        self.after_receive(&name, is_new, options)?;
        Ok(received(stream.bytes() - stream.began_at, is_new))
    }

    /// The request for a substream.
    fn new_receive(
        &self,
        begin: &Begin,
        list: &NvList,
        target: &str,
        options: &ReceiveOptions,
    ) -> Result<NewReceive> {
        let features = begin.features();
        raw::check_props(options, features.has(Features::RAW), begin.from_guid != 0)?;
        let kind = match begin.objset_type {
            2 => ObjsetType::Zfs,
            3 => ObjsetType::Zvol,
            _ => return Err(Error::corrupt("invalid stream (unknown kind of dataset)")),
        };
        let missing = || Error::invalid("missing '@' delimiter in snapshot name");
        let (dataset, snapshot) = target.split_once('@').ok_or_else(missing)?;
        let mut resumes_at = None;
        if features.has(Features::RESUMING) {
            resumes_at = Some((list.need_u64("resume_object")?, list.need_u64("resume_offset")?));
        }
        let guids = |name: &str| list.u64s(name).map(<[u64]>::to_vec);
        let missing = || Error::corrupt("invalid stream (it lacks its redaction snapshots)");
        let redacted = match features.has(Features::REDACTED) {
            true => Some(guids("redact_snaps").ok_or_else(missing)?),
            false => None,
        };
        let from_redacted = guids("redact_from_snaps");
        let mut origin = options.origin.clone();
        if begin.flags & begin_flags::CLONE != 0 && origin.is_none() && resumes_at.is_none() {
            origin = Some(self.local_origin(begin.from_guid, target)?);
        }
        if origin.is_some() && begin.from_guid == 0 && begin.flags & begin_flags::FREE_RECORDS == 0
        {
            return Err(Error::invalid("the stream cannot be received as a clone"));
        }
        let mut of_new = options.props.clone();
        of_new.retain(|(name, _)| name != "encryption");
        let (mut needs, uses) = features_of(features);
        let resume = options.resumable.then(|| ResumeState {
            from_guid: Some(begin.from_guid).filter(|guid| *guid != 0),
            to_guid: begin.to_guid,
            to_name: begin.to_name().unwrap_or_default().to_owned(),
            position: ReceivePosition::BEGIN,
            large_blocks: features.has(Features::LARGE_BLOCKS),
            embedded: features.has(Features::EMBED_DATA),
            compressed: features.has(Features::COMPRESSED),
            raw: features.has(Features::RAW),
            from_redacted: from_redacted.clone(),
        });
        if resume.is_some() {
            needs.push("com.delphix:extensible_dataset");
        }
        Ok(NewReceive {
            dataset: dataset.to_owned(),
            snapshot: snapshot.to_owned(),
            kind,
            case_insensitive: begin.flags & begin_flags::CI_DATA != 0,
            from_guid: begin.from_guid,
            to_guid: begin.to_guid,
            origin,
            force: options.force,
            needs,
            uses,
            props: stored(&of_new),
            resume,
            resumes_at,
            redacted,
            from_redacted,
            is_plain: false,
            raw: None,
        })
    }

    /// The snapshot of this pool with a guid, of which a stream is a clone.
    fn local_origin(&self, guid: u64, target: &str) -> Result<String> {
        let mut found = None;
        self.for_each_dataset(&mut |dataset| {
            for snapshot in dataset.snapshots()? {
                if snapshot.guid() == guid {
                    found = Some(snapshot.name().to_owned());
                }
            }
            Ok(())
        })?;
        let text = format!("local origin for clone {target} does not exist");
        found.ok_or_else(|| Error::not_found(text))
    }

    /// The present name of a head.
    fn name_of_head(&self, head: u64) -> Result<Option<String>> {
        let writer = self.writer()?;
        let _names = writer.names();
        let mos = writer.mos();
        let dir = match (mos as &dyn MosRead).dataset(head) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                return Ok(None);
            }
            other => other?.dir_obj,
        };
        DslDir::name_of(mos, dir, self.name())
    }

    /// Sets the properties that the options name. A new dataset has them already.
    fn after_receive(&self, name: &str, made: bool, options: &ReceiveOptions) -> Result<()> {
        // Encryption is no property that is stored as one.
        let stays = |prop: &str| prop != "encryption";
        let mut props = options.props.clone();
        props.retain(|(prop, _)| stays(prop));
        if !made && !props.is_empty() {
            self.set_props(name, &props, None)?;
        }
        let list = options.inherits.iter().map(String::as_str);
        let list: Vec<&str> = list.filter(|prop| stays(prop)).collect();
        if !list.is_empty() {
            self.inherit(name, &list, None)?;
        }
        self.core.refresh_hosts()
    }
}
