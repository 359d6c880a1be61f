//! The intent log records of each change (chapter 06 §17).
//!
//! # Theory
//! A record is added within the transaction that it describes, while the locks of the
//! changed objects are held. So records are in the order of the changes. A change of
//! several transactions adds its record in the last one. Those before it can be repeated
//! without harm.
//!
//! # Invariants
//! * Objects without a name are not logged.
//! * A change that no record describes completely is a barrier ([`zil::Log::barrier`]).

use base::{ObjectId, Result, Txg, VdevId};
use dmu::{Early, Tx};
use ondisk::BlkPtr;
use ondisk::zil::{
    CloneRange, Create, Names, RENAME_EXCHANGE, RENAME_WHITEOUT, RecordBody, SetAttr, Whiteout,
    Write, XAT_PROJID, Xvattr,
};
use ondisk::znode::{self, FileType, Time};
use zil::{Bundle, Log};

use super::node::FileNode;
use super::types::{Caller, Rename, SetAttrs, SetTime};
use crate::fs::FileSystem;

const TX_CREATE: u8 = 1;
const TX_MKDIR: u8 = 2;
const TX_MKXATTR: u8 = 3;
const TX_SYMLINK: u8 = 4;
const TX_REMOVE: u8 = 5;
const TX_RMDIR: u8 = 6;
const TX_LINK: u8 = 7;
const TX_RENAME: u8 = 8;
const TX_WRITE: u8 = 9;
const TX_TRUNCATE: u8 = 10;
const TX_SETATTR: u8 = 11;
const TX_SETSAXATTR: u8 = 21;
const TX_CLONE_RANGE: u8 = 24;

/// Bits of a TX_SETATTR mask as Linux has them.
pub(crate) const AT_MODE: u64 = 0x1;
pub(crate) const AT_UID: u64 = 0x2;
pub(crate) const AT_GID: u64 = 0x4;
pub(crate) const AT_SIZE: u64 = 0x8;
pub(crate) const AT_ATIME: u64 = 0x10;
pub(crate) const AT_MTIME: u64 = 0x20;
pub(crate) const AT_CTIME: u64 = 0x40;
pub(crate) const AT_FILE: u64 = 0x2000;
pub(crate) const AT_XVATTR: u64 = 0x8000_0000;

/// Bits of an xvattr section, and the corresponding flags (chapter 06 §5.2, §17).
pub(crate) const XVATTR_FLAGS: [(u32, u64); 12] = [
    (0x2, znode::ZFS_ARCHIVE),
    (0x4, znode::ZFS_SYSTEM),
    (0x8, znode::ZFS_READONLY),
    (0x10, znode::ZFS_HIDDEN),
    (0x20, znode::ZFS_NOUNLINK),
    (0x40, znode::ZFS_IMMUTABLE),
    (0x80, znode::ZFS_APPENDONLY),
    (0x100, znode::ZFS_NODUMP),
    (0x2000, znode::ZFS_REPARSE),
    (0x8000, znode::ZFS_OFFLINE),
    (0x1_0000, znode::ZFS_SPARSE),
    (0x2_0000, znode::ZFS_PROJINHERIT),
];

/// A new object.
pub(crate) struct Made {
    pub(crate) dir: ObjectId,
    pub(crate) object: ObjectId,
    pub(crate) slots: u8,
    pub(crate) mode: u64,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) time: Time,
    pub(crate) rdev: u64,
    pub(crate) target: Vec<u8>,
    /// Extended attributes among the system attributes.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// It has other extended attributes, which no record describes.
    pub(crate) has_other_xattrs: bool,
}

impl Made {
    fn whiteout(&self, tx: &Tx) -> Whiteout {
        Whiteout {
            object: self.object,
            dnode_slots: u32::from(self.slots),
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            generation: tx.txg().0,
            crtime: pair(self.time),
            rdev: self.rdev,
        }
    }

    fn body<'a>(&'a self, txg: Txg, name: &'a [u8], symlink: bool) -> RecordBody<'a> {
        RecordBody::Create(Create {
            directory: self.dir,
            object: self.object,
            dnode_slots: u32::from(self.slots),
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            generation: txg.0,
            crtime: pair(self.time),
            rdev: self.rdev,
            xvattr: None,
            acl: None,
            domains: Vec::new(),
            name,
            target: symlink.then_some(&self.target[..]),
        })
    }
}

/// The log record of a change of attributes.
pub(crate) enum AttrRecord {
    /// None: the change waits for its txg.
    Nothing,
    /// Extended attributes changed.
    Xattrs,
    /// These attributes changed, and perhaps extended ones.
    Attrs(Record),
}

/// Names and values of extended attributes among the system attributes; `None`: removed.
pub(crate) type SaXattrs = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// The records of a hidden directory's changes in one transaction.
pub(crate) struct Script(Bundle);

impl Script {
    pub(crate) fn new(tx: &Tx) -> Script {
        Script(Bundle::new(tx.txg()))
    }

    pub(crate) fn hidden_dir(&mut self, tx: &Tx, made: &Made) {
        self.0.push(TX_MKXATTR, &made.body(tx.txg(), b"", false));
    }

    pub(crate) fn file(&mut self, tx: &Tx, made: &Made, name: &[u8], value: &[u8]) {
        self.0.push(TX_CREATE, &made.body(tx.txg(), name, false));
        if !value.is_empty() {
            let (object, length) = (made.object, value.len() as u64);
            let write = Write { object, offset: 0, length, block: None, data: Some(value) };
            self.0.push(TX_WRITE, &RecordBody::Write(write));
        }
    }

    pub(crate) fn removed(&mut self, directory: ObjectId, name: &[u8]) {
        self.0.push(TX_REMOVE, &RecordBody::Remove { directory, name });
    }
}

/// Changed attributes.
pub(crate) struct Record {
    mask: u64,
    mode: u64,
    uid: u64,
    gid: u64,
    atime: Time,
    mtime: Time,
    xvattr: Option<Xvattr>,
}

pub(crate) fn pair(time: Time) -> [u64; 2] {
    [time.seconds as u64, time.nanoseconds]
}

impl Record {
    /// The record of a change of attributes, except the size; `None` if a record cannot
    /// describe the whole change. `mode` is the new one.
    pub(crate) fn of(
        set: &SetAttrs,
        mode: Option<u32>,
        node: &FileNode,
        now: Time,
    ) -> Option<Record> {
        if node.legacy {
            return None;
        }
        let xvattr = xvattr_of(set, node);
        let time = |t: SetTime| match t {
            SetTime::Set(time) => time,
            SetTime::Now => now,
        };
        let mtime = set.mtime.map(time).or(set.size.map(|_| now));
        let atime = set.atime.map(time);
        let bit = |there: bool, bit: u64| if there { bit } else { 0 };
        Some(Record {
            mask: bit(mode.is_some(), AT_MODE)
                | bit(set.uid.is_some(), AT_UID)
                | bit(set.gid.is_some(), AT_GID)
                | bit(atime.is_some(), AT_ATIME)
                | bit(mtime.is_some(), AT_MTIME)
                | bit(xvattr.is_some(), AT_XVATTR)
                | AT_CTIME,
            mode: u64::from(mode.map_or(node.attrs.mode, |m| node.attrs.mode & !0o7777 | m)),
            uid: set.uid.map_or(node.attrs.owner_fuid, u64::from),
            gid: set.gid.map_or(node.attrs.group_fuid, u64::from),
            atime: atime.unwrap_or(node.attrs.atime),
            mtime: mtime.unwrap_or(node.attrs.mtime),
            xvattr,
        })
    }

    /// The record of a new mode alone.
    pub(crate) fn of_mode(node: &FileNode, mode: u32, now: Time) -> Option<Record> {
        Record::of(&SetAttrs::default(), Some(mode), node, now)
    }

    fn body(&self, node: &FileNode) -> RecordBody<'_> {
        RecordBody::SetAttr(SetAttr {
            object: node.id,
            mask: self.mask,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            size: node.attrs.size,
            atime: pair(self.atime),
            mtime: pair(self.mtime),
            xvattr: self.xvattr,
            domains: Vec::new(),
        })
    }
}

/// The flags that change, and the project.
fn xvattr_of(set: &SetAttrs, node: &FileNode) -> Option<Xvattr> {
    let (mut requested, mut values) = (0, 0);
    if let Some(flags) = set.flags {
        for (bit, flag) in XVATTR_FLAGS {
            if (flags ^ node.attrs.pflags) & flag != 0 {
                requested |= bit;
                values |= if flags & flag != 0 { u64::from(bit) } else { 0 };
            }
        }
    }
    let mut scanstamp = [0; 32];
    if let Some(project) = set.project {
        requested |= XAT_PROJID;
        scanstamp[..8].copy_from_slice(&u64::from(project).to_le_bytes());
    }
    let crtime = [0; 2];
    (requested != 0).then_some(Xvattr { requested: [requested, 0, 0], values, crtime, scanstamp })
}

impl FileSystem {
    fn log(&self) -> Option<&Log> {
        self.rw_part().and_then(|rw| rw.log.as_deref())
    }

    /// Whether the log is being replayed: a record may change what callers must not.
    pub(crate) fn is_replaying(&self) -> bool {
        self.log().is_some_and(Log::is_replaying)
    }

    /// The flags of a file that restrict changes. A replay ignores them: the change was
    /// allowed when the record was written, and records of one object's flags are not
    /// ordered with those of names below another.
    pub(crate) fn enforced_flags(&self, node: &FileNode) -> u64 {
        if self.is_replaying() { 0 } else { node.attrs.pflags }
    }

    /// With `sync=always`, waits until the changes of the object are durable. The caller
    /// holds no lock.
    pub(crate) fn commit_if_sync_always(&self, by: &Caller, id: ObjectId) -> Result<()> {
        match self.log() {
            Some(log) if log.mode() == zil::Mode::Always && !log.is_replaying() => {
                log.commit(self, Some(id), by.thread)
            }
            _ => Ok(()),
        }
    }

    /// Adds a barrier for a change that no record describes.
    pub(crate) fn log_nothing(&self, tx: &Tx) {
        if let Some(log) = self.log() {
            log.barrier(tx.txg());
        }
    }

    pub(crate) fn log_made(&self, tx: &Tx, name: &[u8], kind: FileType, made: &Made) {
        let Some(log) = self.log() else { return };
        let txtype = match kind {
            FileType::Dir => TX_MKDIR,
            FileType::Symlink => TX_SYMLINK,
            _ => TX_CREATE,
        };
        let mut bundle = Bundle::new(tx.txg());
        bundle.push(txtype, &made.body(tx.txg(), name, kind == FileType::Symlink));
        if made.has_other_xattrs || !made.xattrs.is_empty() && !log.takes_xattrs() {
            bundle.mark_incomplete();
        }
        for (name, value) in &made.xattrs {
            let value = Some(&value[..]);
            let body = RecordBody::SetSaXattr { object: made.object, name, value };
            bundle.push(TX_SETSAXATTR, &body);
        }
        log.names(bundle, None);
    }

    /// `unnamed`: the object had no name before, so the log has no record of it.
    pub(crate) fn log_linked(
        &self,
        tx: &Tx,
        directory: ObjectId,
        object: ObjectId,
        name: &[u8],
        unnamed: bool,
    ) {
        let Some(log) = self.log() else { return };
        if unnamed {
            return log.barrier(tx.txg());
        }
        log.name(tx.txg(), TX_LINK, &RecordBody::Link { directory, object, name }, None);
    }

    /// `unlinked`: the object lost its last name.
    pub(crate) fn log_removed(
        &self,
        tx: &Tx,
        directory: ObjectId,
        name: &[u8],
        dir: bool,
        unlinked: Option<ObjectId>,
    ) {
        let Some(log) = self.log() else { return };
        let txtype = if dir { TX_RMDIR } else { TX_REMOVE };
        log.name(tx.txg(), txtype, &RecordBody::Remove { directory, name }, unlinked);
    }

    /// `white`: the object left under the old name; `unlinked`: the object lost its last name.
    pub(crate) fn log_renamed(
        &self,
        tx: &Tx,
        how: Rename,
        white: Option<&Made>,
        (from_dir, from, to_dir, to): (ObjectId, &[u8], ObjectId, &[u8]),
        moved: &[ObjectId],
        unlinked: Option<ObjectId>,
    ) {
        let Some(log) = self.log() else { return };
        // Their content is logged first.
        moved.iter().for_each(|id| log.commit_with_names(*id));
        let names = Names { from_dir, to_dir, from, to };
        let (kind, body) = match (how, white) {
            (_, Some(made)) => {
                (RENAME_WHITEOUT, RecordBody::RenameWhiteout(names, made.whiteout(tx)))
            }
            (Rename::Exchange, _) => (RENAME_EXCHANGE, RecordBody::Rename(names)),
            _ => (TX_RENAME, RecordBody::Rename(names)),
        };
        let mut bundle = Bundle::new(tx.txg()).with(kind, &body);
        if white.is_some_and(|made| made.has_other_xattrs || !made.xattrs.is_empty()) {
            bundle.mark_incomplete();
        }
        log.names(bundle, unlinked);
    }

    /// `stripped`: set-id bits were cleared, and this is the new mode; `last`: this is the
    /// last piece of the write.
    pub(crate) fn log_written(
        &self,
        tx: &Tx,
        node: &FileNode,
        offset: u64,
        data: &[u8],
        stripped: Option<&Record>,
        last: bool,
    ) {
        let Some(log) = self.log() else { return };
        if log.is_replaying() && !last || node.attrs.nlink == 0 {
            return;
        }
        if let Some(record) = stripped {
            log.object(tx.txg(), node.id, TX_SETATTR, &record.body(node));
        }
        log.write(tx.txg(), node.id, offset, data);
    }

    /// The file ends at `offset`, or with `len` these bytes were zeroed.
    pub(crate) fn log_truncated(&self, tx: &Tx, node: &FileNode, offset: u64, length: u64) {
        let Some(log) = self.log() else { return };
        if node.attrs.nlink > 0 {
            let body = RecordBody::Truncate { object: node.id, offset, length };
            log.object(tx.txg(), node.id, TX_TRUNCATE, &body);
        }
    }

    /// Blocks of `block` bytes were cloned from these pointers, one for each block of the
    /// range. `stripped`: as for a write.
    pub(crate) fn log_cloned(
        &self,
        tx: &Tx,
        node: &FileNode,
        (range, block): ((u64, u64), u64),
        pointers: &[BlkPtr],
        stripped: Option<&Record>,
    ) {
        let Some(log) = self.log() else { return };
        if node.attrs.nlink == 0 {
            return;
        }
        if let Some(record) = stripped {
            log.object(tx.txg(), node.id, TX_SETATTR, &record.body(node));
        }
        let raw: Option<Vec<_>> = pointers.iter().map(BlkPtr::encode).collect();
        let raw = raw.unwrap_or_default().concat();
        match CloneRange::new(node.id, range, block, &raw) {
            Ok(clone) => {
                let body = RecordBody::CloneRange(clone);
                log.object(tx.txg(), node.id, TX_CLONE_RANGE, &body);
            }
            Err(_) => log.barrier(tx.txg()),
        }
    }

    /// Only attributes changed.
    pub(crate) fn log_attrs(&self, tx: &Tx, node: &FileNode, record: Record) {
        self.log_changed(node, &AttrRecord::Attrs(record), &Vec::new(), Script::new(tx));
    }

    /// Attributes changed, `xattrs` among them; `script` has the changes of the hidden
    /// directory.
    pub(crate) fn log_changed(
        &self,
        node: &FileNode,
        attr_record: &AttrRecord,
        xattrs: &SaXattrs,
        script: Script,
    ) {
        let Some(log) = self.log().filter(|_| node.attrs.nlink > 0) else { return };
        let by_name = !script.0.is_empty();
        let mut bundle = script.0;
        for (name, value) in xattrs {
            // A record without a value stands for a removal.
            if value.as_ref().is_some_and(Vec::is_empty) || !log.takes_xattrs() {
                bundle.mark_incomplete();
            }
            let body = RecordBody::SetSaXattr { object: node.id, name, value: value.as_deref() };
            bundle.push(TX_SETSAXATTR, &body);
        }
        match attr_record {
            AttrRecord::Nothing => bundle.mark_incomplete(),
            AttrRecord::Xattrs => {}
            AttrRecord::Attrs(record) => bundle.push(TX_SETATTR, &record.body(node)),
        }
        if by_name {
            log.commit_with_names(node.id);
            log.names(bundle, None);
        } else if !bundle.is_empty() || log.is_replaying() {
            log.objects(bundle, node.id);
        }
    }
}

impl zil::Source for FileSystem {
    fn read(&self, object: ObjectId, offset: u64, len: u64) -> Result<Option<Vec<u8>>> {
        let rw = self.rw_always()?;
        let _lock = rw.locks.range(object, offset..offset.saturating_add(len));
        let size = match self.attrs(object, self.io()) {
            Ok(attrs) => attrs.size,
            Err(e) if e.kind() == base::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let len = len.min(size.saturating_sub(offset));
        if len == 0 {
            return Ok(Some(Vec::new()));
        }
        let pieces = FileSystem::read(self, object, offset, len as usize, self.io())?;
        let mut out = Vec::with_capacity(len as usize);
        pieces.iter().for_each(|piece| out.extend_from_slice(piece));
        Ok(Some(out))
    }

    fn block_size(&self, object: ObjectId) -> Option<u64> {
        self.object(object, self.io()).ok().map(|o| o.block_size())
    }

    fn early_blocks(&self, txg: Txg) -> Option<Box<dyn zil::EarlyBlocks>> {
        Some(Box::new(EarlyWrites(self.os().early(txg, self.outage()))))
    }
}

/// Early writes of file blocks by a commit.
struct EarlyWrites(Early);

impl zil::EarlyBlocks for EarlyWrites {
    fn block_size(&self, object: ObjectId) -> Option<u64> {
        self.0.block_size(object)
    }

    fn block(&mut self, object: ObjectId, block: u64) -> Result<Option<BlkPtr>> {
        self.0.block(object, block)
    }

    fn wait(&mut self) -> Result<Vec<VdevId>> {
        self.0.wait()
    }

    fn keep(self: Box<Self>) {
        self.0.keep();
    }
}
