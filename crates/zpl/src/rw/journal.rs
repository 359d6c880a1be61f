//! What each change tells the intent log (chapter 06 §17).
//!
//! # Theory
//! A record is given within the transaction that it describes, while the locks of what it
//! changes are held: so records are in the order of what was done. Changes of several
//! transactions give theirs in the last one; those before it are such that doing all of it
//! again does no harm.
//!
//! # Invariants
//! * Objects without a name are of no concern to the log.
//! * A change that no record says in full is a barrier ([`zil::Log::barrier`]).

use base::{ObjectId, Result, Txg, VdevId};
use dmu::{Early, Io, Tx};
use ondisk::BlkPtr;
use ondisk::zil::{Body, Create, Names, SetAttr};
use ondisk::znode::{FileType, Time};
use zil::Log;

use super::node::Node;
use super::types::{Rename, SetAttrs, SetTime};
use crate::fs::FileSystem;

const TX_CREATE: u8 = 1;
const TX_MKDIR: u8 = 2;
const TX_SYMLINK: u8 = 4;
const TX_REMOVE: u8 = 5;
const TX_RMDIR: u8 = 6;
const TX_LINK: u8 = 7;
const TX_RENAME: u8 = 8;
const TX_TRUNCATE: u8 = 10;
const TX_SETATTR: u8 = 11;

/// Bits of a TX_SETATTR mask as Linux has them.
pub(crate) const AT_MODE: u64 = 0x1;
pub(crate) const AT_UID: u64 = 0x2;
pub(crate) const AT_GID: u64 = 0x4;
pub(crate) const AT_SIZE: u64 = 0x8;
pub(crate) const AT_ATIME: u64 = 0x10;
pub(crate) const AT_MTIME: u64 = 0x20;
pub(crate) const AT_CTIME: u64 = 0x40;
pub(crate) const AT_FILE: u64 = 0x2000;

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
    /// With extended attributes, which no record says.
    pub(crate) adorned: bool,
}

/// Changed attributes.
pub(crate) struct Record {
    mask: u64,
    mode: u64,
    uid: u64,
    gid: u64,
    atime: Time,
    mtime: Time,
}

pub(crate) fn pair(time: Time) -> [u64; 2] {
    [time.seconds as u64, time.nanoseconds]
}

impl Record {
    /// What the log says of a change of attributes, the size apart; `None` if it cannot say
    /// all. `mode` is the new one.
    pub(crate) fn of(set: &SetAttrs, mode: Option<u32>, node: &Node, now: Time) -> Option<Record> {
        if set.flags.is_some() || set.project.is_some() || node.legacy {
            return None;
        }
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
                | AT_CTIME,
            mode: u64::from(mode.map_or(node.attrs.mode, |m| node.attrs.mode & !0o7777 | m)),
            uid: set.uid.map_or(node.attrs.owner_fuid, u64::from),
            gid: set.gid.map_or(node.attrs.group_fuid, u64::from),
            atime: atime.unwrap_or(node.attrs.atime),
            mtime: mtime.unwrap_or(node.attrs.mtime),
        })
    }
}

impl FileSystem {
    fn log(&self) -> Option<&Log> {
        self.rw_part().and_then(|rw| rw.log.as_deref())
    }

    /// With `sync=always`: waits until what was done is safe. No lock is held.
    pub(crate) fn promise(&self, id: ObjectId) -> Result<()> {
        match self.log() {
            Some(log) if log.mode() == zil::Mode::Always && !log.is_replaying() => {
                log.commit(self, Some(id))
            }
            _ => Ok(()),
        }
    }

    /// A change that no record says.
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
        if made.adorned {
            return log.barrier(tx.txg());
        }
        let create = Create {
            directory: made.dir,
            object: made.object,
            dnode_slots: u32::from(made.slots),
            mode: made.mode,
            uid: made.uid,
            gid: made.gid,
            generation: tx.txg().0,
            crtime: pair(made.time),
            rdev: made.rdev,
            xvattr: None,
            acl: None,
            domains: Vec::new(),
            name,
            target: (kind == FileType::Symlink).then_some(&made.target[..]),
        };
        log.name(tx.txg(), txtype, &Body::Create(create), None);
    }

    /// `unnamed`: it had no name before, and the log does not know it.
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
        log.name(tx.txg(), TX_LINK, &Body::Link { directory, object, name }, None);
    }

    /// `gone` has no name any more.
    pub(crate) fn log_removed(
        &self,
        tx: &Tx,
        directory: ObjectId,
        name: &[u8],
        dir: bool,
        gone: Option<ObjectId>,
    ) {
        let Some(log) = self.log() else { return };
        let txtype = if dir { TX_RMDIR } else { TX_REMOVE };
        log.name(tx.txg(), txtype, &Body::Remove { directory, name }, gone);
    }

    /// `how`: `None` for what no record says; `gone` has no name any more.
    pub(crate) fn log_renamed(
        &self,
        tx: &Tx,
        how: Option<Rename>,
        (from_dir, from, to_dir, to): (ObjectId, &[u8], ObjectId, &[u8]),
        moved: &[ObjectId],
        gone: Option<ObjectId>,
    ) {
        let Some(log) = self.log() else { return };
        // Their content first.
        moved.iter().for_each(|id| log.adopt(*id));
        let names = Body::Rename(Names { from_dir, to_dir, from, to });
        match how {
            None => log.barrier(tx.txg()),
            Some(Rename::Exchange) => {
                log.name(tx.txg(), ondisk::zil::RENAME_EXCHANGE, &names, None);
            }
            Some(_) => log.name(tx.txg(), TX_RENAME, &names, gone),
        }
    }

    /// `stripped`: set-id bits went, too; `last`: nothing of the write follows.
    pub(crate) fn log_written(
        &self,
        tx: &Tx,
        node: &Node,
        offset: u64,
        data: &[u8],
        stripped: bool,
        last: bool,
    ) {
        let Some(log) = self.log() else { return };
        if log.is_replaying() && !last || node.attrs.nlink == 0 {
            return;
        }
        if stripped {
            return log.barrier(tx.txg());
        }
        log.write(tx.txg(), node.id, offset, data);
    }

    /// The file ends at `offset`, or with `len` these bytes became zeros.
    pub(crate) fn log_truncated(&self, tx: &Tx, node: &Node, offset: u64, length: u64) {
        let Some(log) = self.log() else { return };
        if node.attrs.nlink > 0 {
            let body = Body::Truncate { object: node.id, offset, length };
            log.object(tx.txg(), node.id, TX_TRUNCATE, &body);
        }
    }

    /// `None`: no record says it.
    pub(crate) fn log_changed(&self, tx: &Tx, node: &Node, record: Option<&Record>) {
        let Some(log) = self.log().filter(|_| node.attrs.nlink > 0) else { return };
        let Some(record) = record else { return log.barrier(tx.txg()) };
        let body = SetAttr {
            object: node.id,
            mask: record.mask,
            mode: record.mode,
            uid: record.uid,
            gid: record.gid,
            size: node.attrs.size,
            atime: pair(record.atime),
            mtime: pair(record.mtime),
            xvattr: None,
            domains: Vec::new(),
        };
        log.object(tx.txg(), node.id, TX_SETATTR, &Body::SetAttr(body));
    }
}

impl zil::Source for FileSystem {
    fn read(&self, object: ObjectId, offset: u64, len: u64) -> Result<Option<Vec<u8>>> {
        let rw = self.rw_always()?;
        let _lock = rw.locks.range(object, offset..offset.saturating_add(len));
        let size = match self.attrs(object, Io::WAIT) {
            Ok(attrs) => attrs.size,
            Err(e) if e.kind() == base::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let len = len.min(size.saturating_sub(offset));
        if len == 0 {
            return Ok(Some(Vec::new()));
        }
        let pieces = FileSystem::read(self, object, offset, len as usize, Io::WAIT)?;
        let mut out = Vec::with_capacity(len as usize);
        pieces.iter().for_each(|piece| out.extend_from_slice(piece));
        Ok(Some(out))
    }

    fn block_size(&self, object: ObjectId) -> Option<u64> {
        self.object(object, Io::WAIT).ok().map(|o| o.block_size())
    }

    fn place(&self, txg: Txg) -> Option<Box<dyn zil::Place>> {
        Some(Box::new(Placing(self.os().early(txg))))
    }
}

/// Blocks of files that a commit writes.
struct Placing(Early);

impl zil::Place for Placing {
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
