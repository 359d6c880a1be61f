//! Receiving: applying the records of a substream to an object set (chapter 07 §13.3, §13.4).
//!
//! # Theory
//! Records are read until a batch is full, checked one by one, and then applied under a
//! transaction. So no transaction is open while the stream is waited for, however slowly it
//! comes. The host begins transactions, which wait while too much is dirty, and knows what becomes
//! of the object set in the end. Nobody else changes the object set meanwhile.
//!
//! An object of the stream is claimed under its number. If the number is in use, the object is
//! turned into the stream's ([`dmu::Objset::reclaim`]), and the rules of §13.4 say whether its
//! data stays. Numbers that a txg freed can be claimed when that txg is on disk, so the receiver
//! waits for it where a stream wants that, which few do.
//!
//! Compressed and embedded blocks are stored as they come if they are whole blocks of their
//! object, and unpacked otherwise. All of them are unpacked once, to see whether they are valid.
//!
//! # Memory
//! A batch has [`BATCH_BYTES`], or one record. Dirty data is bounded by the transactions. What is
//! not dirty data is bounded here: indirect blocks that the txg writes ([`NODE_BYTES_MAX`]), and
//! objects ([`OBJECTS_MAX`]). A stream of sparse offsets or numbers would otherwise take 128 KiB
//! and more for each record.
//!
//! # Hostile streams
//! Each field is held against its limits before the record is applied ([`StreamRecord::check`]).
//! Types that the pool itself interprets when it walks over blocks (dnodes, object sets, intent
//! logs) are refused: their content would be taken for block pointers. Functions that need a
//! feature are used only if the stream declared it, and the host has checked that the pool has it.
//!
//! # Invariants
//! * An error leaves the object set as some prefix of the stream describes it.
//! * The position that the host is told belongs to the transaction's own txg.

mod raw;

use std::io::Read;
use std::rc::Rc;
use std::sync::Arc;

use base::{Buf, BufMut, Error, ErrorKind, ObjectId, Result, Txg};
use codec::compress::{Compression, decompress};
use dmu::live::to_little;
use dmu::{Io, ObjectShape, ObjectSpec, Objset, PackedForm, Reclaimed, Tx};
use ondisk::blkptr::Seal;
use ondisk::dnode::DNODES_PER_BLOCK;
use ondisk::{Endian, ObjType};

use super::reader::StreamReader;
use super::record::{
    Begin, Features, Free, FreeObjects, Object, Spill, StreamRecord, TO_THE_END, Write,
    WriteEmbedded, begin_flags, record_flags,
};

/// Payload of a batch, bytes.
pub const BATCH_BYTES: u64 = 1 << 20;
/// Records of a batch.
const BATCH_RECORDS: usize = 256;
/// Bytes that a record may dirty besides its payload.
const RECORD_BYTES: u64 = 2 << 10;
/// Memory of indirect blocks, and of blocks of dnodes, that are written before the receiver waits
/// for them to be on disk.
const NODE_BYTES_MAX: u64 = 64 << 20;
/// Memory of an indirect block.
const NODE_BYTES: u64 = 128 << 10;
/// log2 of the pointers in it.
const NODE_SHIFT: u32 = 10;
/// Objects, and ranges freed, that are written before the receiver waits.
const OBJECTS_MAX: u64 = 16 << 10;
/// The largest spill block.
const SPILL_MAX: u64 = 128 << 10;
/// Place of the generation in a znode, and in system attributes behind their header.
const GENERATION_IN_ZNODE: usize = 64;
const GENERATION_IN_SA: usize = 16;

/// What an object set that is received into needs.
pub trait ReceiveHost {
    /// Begins a transaction that writes `bytes` at most; `frees`: it only frees.
    ///
    /// # Errors
    /// `NoSpace`, `Quota`, `NotFound` when the dataset was destroyed, that of a suspension;
    /// `Interrupted` if the receive is to end.
    fn begin(&self, bytes: u64, frees: bool) -> Result<Tx>;
    /// Waits until all changes so far are on disk.
    ///
    /// # Errors
    /// That of a suspension.
    fn sync(&self) -> Result<()>;
    /// The txg, on which a hold exists, has all records up to this object and offset, which are
    /// the first `bytes` bytes of the stream.
    fn applied(&self, txg: Txg, object: u64, offset: u64, bytes: u64);
}

/// Where a substream goes.
pub struct ReceiveInto<'a> {
    /// The object set.
    pub objset: Arc<Objset>,
    /// Its host.
    pub host: &'a dyn ReceiveHost,
    /// It had content before the receive began.
    pub has_content: bool,
    /// The substream continues an interrupted one.
    pub resumes: bool,
    /// Payload that one transaction applies, bytes, of at most 256 records: the tunable
    /// `zfs_recv_write_batch_size` (§16), [`BATCH_BYTES`] unless set.
    pub batch: u64,
}

/// A record that waits to be applied.
struct WaitingRecord {
    record: StreamRecord,
    payload: Buf,
    /// Bytes of the stream up to its end.
    end: u64,
}

impl WaitingRecord {
    /// Bytes that it may dirty.
    fn cost(&self) -> u64 {
        let own = match &self.record {
            StreamRecord::Write(r) => r.logical_size,
            StreamRecord::WriteEmbedded(r) => r.length,
            StreamRecord::Spill(r) => r.length,
            _ => 0,
        };
        own + RECORD_BYTES
    }

    fn only_frees(&self) -> bool {
        let record = &self.record;
        matches!(record, StreamRecord::Free(_) | StreamRecord::FreeObjects(_))
    }
}

/// The state of a receive.
struct Receiver<'a> {
    into: ReceiveInto<'a>,
    features: Features,
    flags: u32,
    endian: Endian,
    /// The stream is full.
    full: bool,
    /// Object and offset of the last WRITE.
    last: (u64, u64),
    /// The largest number that an OBJECT or FREEOBJECTS record had.
    highest: u64,
    tx: Option<Rc<Tx>>,
    /// Bytes that the records of the batch may still dirty.
    planned: u64,
    only_frees: bool,
    /// Object and data block that were written last, for [`Receiver::count_nodes`].
    node: (u64, u64),
    node_bytes: u64,
    objects: u64,
    /// The first object of the last OBJECT_RANGE, and its parameters.
    range: Option<(u64, Seal)>,
}

fn bad(record: &str, what: &str, object: u64) -> Error {
    let text = format!("invalid stream ({record} record: {what})");
    Error::corrupt(text).in_object(ObjectId(object))
}

fn unknown(record: &str, object: u64) -> impl Fn(Error) -> Error {
    let record = record.to_owned();
    move |e| match e.kind() {
        ErrorKind::NotFound if e.message() == "no such object" => {
            bad(&record, "no such object", object)
        }
        _ => e,
    }
}

/// Reads the rest of a substream, up to and with its END, and applies it. `begin` is its BEGIN.
/// Returns the bytes read by `reader` in all.
///
/// # Errors
/// Those of reading the stream (`Checksum`, `Corrupt`, `Interrupted` if it is cut off); those of
/// the host; `Invalid` for raw streams that cannot be received.
pub fn receive_substream<R: Read>(
    reader: &mut StreamReader<R>,
    begin: &Begin,
    into: ReceiveInto<'_>,
) -> Result<u64> {
    let features = begin.features();
    if features.has(Features::RAW) {
        raw::check_begin(features, begin.flags)?;
    }
    let mut receiver = Receiver {
        into,
        features,
        flags: begin.flags,
        endian: reader.endian(),
        full: begin.from_guid == 0,
        last: (0, 0),
        highest: 0,
        tx: None,
        planned: 0,
        only_frees: false,
        node: (0, 0),
        node_bytes: 0,
        objects: 0,
        range: None,
    };
    let mut batch: Vec<WaitingRecord> = Vec::new();
    let mut bytes = 0;
    loop {
        let read = match reader.next_record() {
            Ok(Some(read)) => Ok((read.record, Buf::copy_of(read.payload))),
            Ok(None) => Err(Error::new(ErrorKind::Interrupted, "the stream ends too early")),
            Err(e) => Err(e),
        };
        let (record, payload) = match read {
            Ok(read) => read,
            Err(e) => {
                // What came completely counts, if the receive is resumed later.
                receiver.apply(&mut batch)?;
                return Err(e);
            }
        };
        let end = reader.offset();
        if matches!(record, StreamRecord::End(_)) {
            receiver.apply(&mut batch)?;
            receiver.finish()?;
            return Ok(end);
        }
        if let Err(e) = record.check(features, begin.flags) {
            receiver.apply(&mut batch)?;
            return Err(e);
        }
        let waiting = WaitingRecord { record, payload, end };
        bytes += waiting.cost();
        batch.push(waiting);
        if bytes >= receiver.into.batch || batch.len() >= BATCH_RECORDS {
            receiver.apply(&mut batch)?;
            bytes = 0;
        }
    }
}

impl Receiver<'_> {
    /// Applies a batch, which is empty afterwards.
    fn apply(&mut self, batch: &mut Vec<WaitingRecord>) -> Result<()> {
        self.planned = batch.iter().map(WaitingRecord::cost).sum();
        self.only_frees = batch.iter().all(WaitingRecord::only_frees);
        for waiting in batch.drain(..) {
            let cost = waiting.cost();
            self.apply_one(&waiting)?;
            self.planned = self.planned.saturating_sub(cost);
        }
        self.tx = None;
        if self.node_bytes > NODE_BYTES_MAX || self.objects > OBJECTS_MAX {
            self.settle()?;
        }
        Ok(())
    }

    /// The transaction, which is begun if there is none.
    fn tx(&mut self) -> Result<Rc<Tx>> {
        if let Some(tx) = &self.tx {
            return Ok(Rc::clone(tx));
        }
        let bytes = self.planned.max(RECORD_BYTES);
        let tx = Rc::new(self.into.host.begin(bytes, self.only_frees)?);
        self.tx = Some(Rc::clone(&tx));
        Ok(tx)
    }

    /// Ends the transaction and waits until everything is on disk. The caller has no transaction
    /// of its own.
    fn settle(&mut self) -> Result<()> {
        self.tx = None;
        self.into.host.sync()?;
        (self.node, self.node_bytes, self.objects) = ((0, 0), 0, 0);
        Ok(())
    }

    /// Counts the indirect blocks above a data block that the last one did not have above it.
    fn count_nodes(&mut self, object: u64, blkid: u64) {
        let (of, before) = self.node;
        self.node = (object, blkid);
        let mut level = 1;
        while let Some(node) = blkid.checked_shr(NODE_SHIFT * level).filter(|_| level < 7) {
            let same = of == object && before.checked_shr(NODE_SHIFT * level) == Some(node);
            if same || (node == 0 && level > 1) {
                break;
            }
            // The first block of an object has none above it.
            self.node_bytes += if blkid == 0 { 0 } else { NODE_BYTES };
            level += 1;
        }
    }

    /// Counts the blocks above an object's dnode.
    fn count_object(&mut self, object: u64) {
        self.objects += 1;
        let blkid = object / DNODES_PER_BLOCK;
        if blkid >> NODE_SHIFT != (self.highest / DNODES_PER_BLOCK) >> NODE_SHIFT {
            self.node_bytes += 5 * NODE_BYTES;
        }
    }

    fn apply_one(&mut self, waiting: &WaitingRecord) -> Result<()> {
        if self.node_bytes > NODE_BYTES_MAX || self.objects > OBJECTS_MAX {
            self.settle()?;
        }
        let payload = &waiting.payload;
        let raw = self.features.has(Features::RAW);
        let at = match &waiting.record {
            StreamRecord::Object(r) => {
                if raw {
                    self.raw_object(r, payload)?
                } else {
                    self.object(r, payload)?
                }
                Some((r.object, 0))
            }
            StreamRecord::FreeObjects(r) => self.free_objects(r).map(|()| None)?,
            StreamRecord::Write(r) => {
                if raw {
                    self.raw_write(r, payload)?
                } else {
                    self.write(r, payload)?
                }
                Some((r.object, r.offset))
            }
            StreamRecord::WriteEmbedded(r) if r.is_spill() => {
                self.embedded_spill(r, payload).map(|()| None)?
            }
            StreamRecord::WriteEmbedded(r) => {
                self.embedded(r, payload)?;
                Some((r.object, r.offset))
            }
            StreamRecord::Free(r) => {
                if raw {
                    self.raw_free(r)?
                } else {
                    self.free(r)?
                }
                None
            }
            StreamRecord::Redact(r) => self.redact(r).map(|()| None)?,
            StreamRecord::Spill(r) => {
                if raw {
                    self.raw_spill(r, payload)?
                } else {
                    self.spill(r, payload)?
                }
                None
            }
            StreamRecord::ObjectRange(r) => {
                self.object_range(r);
                None
            }
            StreamRecord::Begin(_) | StreamRecord::End(_) | StreamRecord::WriteByRef(_) => {
                return Err(bad(waiting.record.name(), "it must not be here", 0));
            }
        };
        if let (Some((object, offset)), Some(tx)) = (at, &self.tx) {
            self.into.host.applied(tx.txg(), object, offset, waiting.end);
        }
        Ok(())
    }

    fn object(&mut self, r: &Object, payload: &Buf) -> Result<()> {
        let (id, fail) = (ObjectId(r.object), |what| bad("OBJECT", what, r.object));
        let slots = r.slot_count();
        if r.object % DNODES_PER_BLOCK + slots > DNODES_PER_BLOCK {
            return Err(fail("dnode crosses its block"));
        }
        let object_type = type_of(r.object_type).ok_or_else(|| fail("type of content"))?;
        let bonus_type = match r.bonus_type {
            0 => ObjType::NONE,
            other => type_of(other).ok_or_else(|| fail("type of bonus"))?,
        };
        let bonus = payload.get(..r.bonus_len as usize).ok_or_else(|| fail("length of bonus"))?;
        let bonus = to_little(bonus_type, Buf::copy_of(bonus), self.endian)?.to_vec();
        let spec = ObjectSpec {
            object_type,
            block_size: r.block_size,
            indirect_shift: 0,
            bonus_type,
            bonus,
            slots: slots as u8,
        };
        let functions = (known_checksum(r.checksum), self.known_compression(r.compress));
        self.count_object(r.object);
        self.highest = self.highest.max(r.object + slots - 1);
        let old = self.old_shape(id)?;
        if slots > u64::from(old.as_ref().map_or(1, |old| old.slots)) {
            self.free_interior(r.object, slots)?;
        }
        match old {
            None => self.claim(id, &spec, functions),
            Some(old) => self.reclaim(r, &old, spec, functions),
        }
    }

    /// The object of this number that is there already.
    fn old_shape(&mut self, id: ObjectId) -> Result<Option<ObjectShape>> {
        let tx = self.tx()?;
        match self.into.objset.shape(&tx, id) {
            Ok(old) => Ok(Some(old)),
            Err(e) if e.kind() == ErrorKind::NotFound && e.message() == "no such object" => {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Frees objects whose numbers become slots of a larger dnode.
    fn free_interior(&mut self, object: u64, slots: u64) -> Result<()> {
        for number in object + 1..object + slots {
            let tx = self.tx()?;
            if self.into.objset.shape(&tx, ObjectId(number)).is_ok() {
                self.into.objset.free_object(&tx, ObjectId(number))?;
            }
        }
        Ok(())
    }

    /// Calls `f`. If a number or slot that it needs is in use, that may be because the txg that
    /// freed it is not on disk: then it is called once more.
    fn retried(&mut self, f: impl Fn(&Arc<Objset>, &Tx) -> Result<()>) -> Result<()> {
        let mut again = true;
        loop {
            let tx = self.tx()?;
            match f(&self.into.objset, &tx) {
                Err(e) if e.kind() == ErrorKind::Exists && again => {
                    drop(tx);
                    self.settle()?;
                    again = false;
                }
                Err(e) if e.kind() == ErrorKind::Exists => {
                    let text = "invalid stream (OBJECT record: its slots are in use)";
                    return Err(Error::corrupt(text).caused_by(e));
                }
                Err(e) if e.kind() == ErrorKind::Invalid => {
                    let text = "invalid stream (OBJECT record: impossible object)";
                    return Err(Error::corrupt(text).caused_by(e));
                }
                other => return other,
            }
        }
    }

    fn claim(&mut self, id: ObjectId, spec: &ObjectSpec, functions: (u8, u8)) -> Result<()> {
        self.retried(|os, tx| {
            os.claim(tx, id, spec)?;
            if functions == (0, 0) { Ok(()) } else { os.set_functions(tx, id, functions) }
        })
    }

    fn reclaim(
        &mut self,
        r: &Object,
        old: &ObjectShape,
        mut spec: ObjectSpec,
        (checksum, compression): (u8, u8),
    ) -> Result<()> {
        let mut keeps_data = true;
        if spec.block_size != old.block_size {
            let file = |of: ObjType| of == ObjType::PLAIN_FILE_CONTENTS;
            let other = self.full
                || !file(old.object_type)
                || !file(spec.object_type)
                || old.max_blkid == 0
                || generation(old.bonus_type, &old.bonus)
                    != generation(spec.bonus_type, &spec.bonus);
            if other {
                keeps_data = false;
            } else if spec.block_size < old.block_size {
                return Err(bad("OBJECT", "block size", r.object));
            } else {
                // Earlier streams were sent without large blocks (§13.4).
                spec.block_size = old.block_size;
            }
        }
        let pointers = r.pointers_of() as u8;
        if pointers < old.nblkptr || spec.slots != old.slots {
            keeps_data = false;
        }
        if !keeps_data {
            spec.block_size = r.block_size;
        }
        let has_spill = r.flags & record_flags::OBJECT_SPILL != 0;
        let differs = spec.object_type != old.object_type
            || spec.block_size != old.block_size
            || spec.bonus_type != old.bonus_type
            || spec.bonus.len() != old.bonus.len();
        let keeps_spill = match self.flags & begin_flags::SPILL_BLOCK != 0 {
            true => has_spill,
            false => !differs,
        };
        let new = Reclaimed { spec, checksum, compression, keeps_data, keeps_spill };
        let id = ObjectId(r.object);
        self.retried(|os, tx| os.reclaim(tx, id, &new))
    }

    fn free_objects(&mut self, r: &FreeObjects) -> Result<()> {
        let first = r.first.max(1);
        let end = r.first.saturating_add(r.count).min(1 << 48);
        if first >= end {
            return Ok(());
        }
        let beyond = first > self.highest;
        self.highest = self.highest.max(end - 1);
        if !self.into.has_content && beyond {
            return Ok(());
        }
        if !beyond {
            // Objects of this very stream: they are found when they are on disk.
            self.settle()?;
        }
        let mut at = ObjectId(first - 1);
        while let Some(id) = self.into.objset.next_object(at, Io::WAIT)?.filter(|id| id.0 < end) {
            let tx = self.tx()?;
            match self.into.objset.free_object(&tx, id) {
                // Freed already, by a txg that is not on disk.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                other => other?,
            }
            drop(tx);
            self.seal_freed(id.0)?;
            self.count_object(id.0);
            if self.objects.is_multiple_of(64) {
                self.tx = None;
            }
            if self.objects > OBJECTS_MAX {
                self.settle()?;
            }
            at = id;
        }
        Ok(())
    }

    /// Checks that data comes in order, and returns the shape of its object.
    fn next_data(&mut self, name: &str, object: u64, offset: u64) -> Result<ObjectShape> {
        if (object, offset) < self.last {
            return Err(bad(name, "out of order", object));
        }
        self.last = (object, offset);
        let tx = self.tx()?;
        let shape = self.into.objset.shape(&tx, ObjectId(object)).map_err(unknown(name, object))?;
        self.count_nodes(object, offset / u64::from(shape.block_size.max(1)));
        Ok(shape)
    }

    fn write(&mut self, r: &Write, payload: &Buf) -> Result<()> {
        let object_type = type_of(r.object_type);
        let object_type = object_type.ok_or_else(|| bad("WRITE", "type of content", r.object))?;
        let shape = self.next_data("WRITE", r.object, r.offset)?;
        let id = ObjectId(r.object);
        if r.compression == 0 {
            let plain = to_little(object_type, payload.clone(), self.endian)?;
            return self.put(id, r.offset, &plain);
        }
        let form = PackedForm {
            compression: r.compression,
            lsize: r.logical_size as u32,
            embedded: false,
            redacted: false,
            seal: None,
        };
        self.put_packed(id, &shape, r.offset, payload, form)
    }

    /// Writes plain bytes.
    fn put(&mut self, id: ObjectId, offset: u64, plain: &[u8]) -> Result<()> {
        let tx = self.tx()?;
        self.into.objset.write(&tx, id, offset, plain).map_err(invalid_write)
    }

    /// Writes compressed bytes, as they are if they are a block of the object.
    fn put_packed(
        &mut self,
        id: ObjectId,
        shape: &ObjectShape,
        offset: u64,
        bytes: &Buf,
        form: PackedForm,
    ) -> Result<()> {
        let size = u64::from(shape.block_size);
        let packs = !matches!(
            Compression::from_id(form.compression),
            None | Some(Compression::Off | Compression::Empty)
        );
        let swaps = self.endian == Endian::Big && shape.object_type.is_metadata();
        if packs && !swaps && form.lsize == shape.block_size && offset.is_multiple_of(size) {
            let tx = self.tx()?;
            let done = self.into.objset.write_packed(&tx, id, offset / size, bytes, form);
            return done.map_err(invalid_write);
        }
        let mut whole = BufMut::alloc(form.lsize as usize);
        decompress(form.compression, bytes, &mut whole).map_err(|e| e.in_object(id))?;
        let plain = to_little(shape.object_type, whole.freeze(), self.endian)?;
        self.put(id, offset, &plain)
    }

    fn embedded(&mut self, r: &WriteEmbedded, payload: &Buf) -> Result<()> {
        if r.embedded_type != 0 || r.logical_size == 0 {
            return Err(bad("WRITE_EMBEDDED", "kind of embedding", r.object));
        }
        let shape = self.next_data("WRITE_EMBEDDED", r.object, r.offset)?;
        let bytes = payload.slice(0..(r.physical_size as usize).min(payload.len()));
        let form = PackedForm {
            compression: r.compression,
            lsize: r.logical_size,
            embedded: true,
            redacted: false,
            seal: None,
        };
        self.put_packed(ObjectId(r.object), &shape, r.offset, &bytes, form)
    }

    fn free(&mut self, r: &Free) -> Result<()> {
        let tx = self.tx()?;
        let (id, os) = (ObjectId(r.object), &self.into.objset);
        let shape = os.shape(&tx, id).map_err(unknown("FREE", r.object))?;
        os.free_part(&tx, id, r.offset, r.length)?;
        drop(tx);
        let size = u64::from(shape.block_size.max(1));
        if r.offset / size <= shape.max_blkid {
            self.objects += 1;
            self.count_nodes(r.object, r.offset / size);
            if r.length != TO_THE_END {
                self.count_nodes(r.object, r.offset.saturating_add(r.length) / size);
            }
        }
        Ok(())
    }

    /// Whole blocks that the sender left out. Few at a time, because each counts as dirty data.
    fn redact(&mut self, r: &Free) -> Result<()> {
        if !self.features.has(Features::REDACTED) {
            return Err(bad("REDACT", "the stream is not redacted", r.object));
        }
        let id = ObjectId(r.object);
        let shape = {
            let tx = self.tx()?;
            self.into.objset.shape(&tx, id).map_err(unknown("REDACT", r.object))?
        };
        let size = u64::from(shape.block_size.max(1));
        let whole = r.offset.is_multiple_of(size) && r.length.is_multiple_of(size);
        if !whole || shape.object_type.is_metadata() {
            return Err(bad("REDACT", "no whole blocks of data", r.object));
        }
        let (mut first, last) = (r.offset / size, (r.offset + r.length) / size);
        let some = (BATCH_BYTES / size).max(1);
        while first < last {
            let count = some.min(last - first);
            self.count_nodes(r.object, first);
            if self.node_bytes > NODE_BYTES_MAX {
                self.settle()?;
            }
            self.tx = None;
            let tx = self.into.host.begin(count * size + RECORD_BYTES, false)?;
            self.into.objset.redact_blocks(&tx, id, first, count).map_err(invalid_write)?;
            first += count;
        }
        Ok(())
    }

    fn spill(&mut self, r: &Spill, payload: &Buf) -> Result<()> {
        let known = self.flags & begin_flags::SPILL_BLOCK != 0;
        if known && r.flags & record_flags::SPILL_UNMODIFIED != 0 {
            return Ok(());
        }
        self.set_spill(r.object, payload)
    }

    fn embedded_spill(&mut self, r: &WriteEmbedded, payload: &Buf) -> Result<()> {
        let size = u64::from(r.logical_size);
        if size > SPILL_MAX || size == 0 {
            return Err(bad("WRITE_EMBEDDED", "size of a spill block", r.object));
        }
        let bytes = payload.slice(0..(r.physical_size as usize).min(payload.len()));
        let mut whole = BufMut::alloc(size as usize);
        decompress(r.compression, &bytes, &mut whole)
            .map_err(|e| e.in_object(ObjectId(r.object)))?;
        self.set_spill(r.object, &whole.freeze())
    }

    fn set_spill(&mut self, object: u64, content: &Buf) -> Result<()> {
        let tx = self.tx()?;
        let (id, os) = (ObjectId(object), &self.into.objset);
        let shape = os.shape(&tx, id).map_err(unknown("SPILL", object))?;
        let content = to_little(shape.bonus_type, content.clone(), self.endian)?;
        os.set_spill(&tx, id, Some(&content)).map_err(|e| match e.kind() {
            ErrorKind::Invalid => bad("SPILL", "impossible spill block", object),
            _ => e,
        })
    }

    /// After the END: a full stream that is received as a clone says nothing of the numbers above
    /// its own (§13.4).
    fn finish(&mut self) -> Result<()> {
        if self.full && self.into.has_content && !self.into.resumes {
            let first = self.highest + 1;
            let rest = FreeObjects { first, count: (1 << 48) - first.min(1 << 48), to_guid: 0 };
            (self.planned, self.only_frees) = (0, true);
            self.free_objects(&rest)?;
        }
        self.tx = None;
        Ok(())
    }

    fn known_compression(&self, id: u8) -> u8 {
        match Compression::from_id(id) {
            Some(
                Compression::Off | Compression::Lzjb | Compression::Gzip(_) | Compression::Zle,
            ) => id,
            Some(Compression::Lz4) if self.features.has(Features::LZ4) => id,
            _ => 0,
        }
    }
}

fn invalid_write(e: Error) -> Error {
    match e.kind() {
        ErrorKind::Invalid => {
            Error::corrupt("invalid stream (WRITE record: impossible block)").caused_by(e)
        }
        _ => e,
    }
}

/// A type that objects of file systems and volumes may have.
fn type_of(number: u32) -> Option<ObjType> {
    let of = ObjType(u8::try_from(number).ok()?);
    let internal =
        matches!(of, ObjType::NONE | ObjType::INTENT_LOG | ObjType::DNODE | ObjType::OBJSET);
    (of.is_valid() && !internal).then_some(of)
}

/// Checksum functions that every pool has.
fn known_checksum(id: u8) -> u8 {
    const OFF: u8 = 2;
    const FLETCHER2: u8 = 6;
    const FLETCHER4: u8 = 7;
    const SHA256: u8 = 8;
    if matches!(id, OFF | FLETCHER2 | FLETCHER4 | SHA256) { id } else { 0 }
}

/// The generation of a file in its bonus: two files that had the same number differ in it.
fn generation(bonus_type: ObjType, bonus: &[u8]) -> Option<u64> {
    let at = match bonus_type {
        ObjType::ZNODE => GENERATION_IN_ZNODE,
        ObjType::SA => {
            let info = Endian::Little.u16(bonus, 4)?;
            (usize::from(info >> 10) << 3).max(8) + GENERATION_IN_SA
        }
        _ => return None,
    };
    Endian::Little.u64(bonus, at)
}
