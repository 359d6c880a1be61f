//! Replay of intent log records (chapter 06 §19.2).
//!
//! # Theory
//! A record describes a call. The replay makes the call again, as root, with the data of
//! the record (object id, generation, owners and time of what it creates), and with data
//! that no call has (`record_attrs`). Where the call would add a record to the log, the log notes
//! the record as done, in the same transaction. So after a crash it is complete or has no
//! effect. A call of several transactions is noted in the last one, and can be begun again
//! without harm.
//!
//! The change was allowed when the record was written, so flags, quotas and permissions are
//! not enforced. They could not decide it either: records of one object's attributes are
//! not ordered with names below another.
//!
//! Malformed records, and records beyond Cenote's abilities, are detected before anything
//! is done ([`can_replay`]): the log stays as it is then.
//!
//! # Cloned ranges
//! A record of cloned blocks (TX_CLONE_RANGE) states that the file has the content of the
//! blocks to which its pointers refer. The claim of the log keeps the blocks from being freed
//! meanwhile, by references that the end of the log drops. The file shares the blocks if it has
//! blocks of that size. Otherwise the content is copied: each block is read, verified like any
//! other, and written at its offset in the range; holes clear theirs. A block that cannot be
//! verified ends the replay with the error, and the log and the dataset stay as they were:
//! garbage is never written.
//!
//! # Departures from OpenZFS
//! * The bytes of a whole logged block beyond the write that it is for are written only as
//!   far as the file extends by a later record; the chapter's method is equivalent.
//! * New files inherit no NFSv4 entries of their directory.

use std::sync::atomic::Ordering::SeqCst;

use base::{Error, ErrorKind, ObjectId, Result};
use ondisk::BlkPtr;
use ondisk::sa::ZplAttr;
use ondisk::zil::{
    AclInfo, CloneRange, Create, RENAME_EXCHANGE, Record, RecordBody, SetAttr, Whiteout, Write,
};
use ondisk::znode::{FileType, Time, ZFS_PROJINHERIT, ZFS_XATTR};

use super::data::{WRITE_MAX, grown};
use super::journal::AT_XVATTR;
use super::journal::{AT_ATIME, AT_CTIME, AT_FILE, AT_GID, AT_MODE, AT_MTIME, AT_SIZE, AT_UID};
use super::make::{DNODE_BLOCK, NewFileSpec, PreparedFile, blocks_cost};
use super::node::{AttrOp, Patch};
use super::record_attrs::{Domains, RecordAttrs};
use super::types::{Caller, Falloc, Rename, RwProps, SetAttrs, SetTime, WritePosition};
use super::xattr::LoggedDir;
use crate::fs::FileSystem;

/// All bits of a TX_SETATTR mask that Linux writes, without extended attributes.
const LINUX: u64 = AT_MODE | AT_UID | AT_GID | AT_SIZE | AT_ATIME | AT_MTIME | AT_CTIME | AT_FILE;
/// Bits that only illumos and FreeBSD write (size, times, attributes beyond POSIX), and
/// their bits for mode, owner, group, size, times of access and modification
/// (chapter 06 §17).
const OTHERS: u64 = 0x1_0780;
const OTHER_BITS: [u64; 6] = [0x2, 0x4, 0x8, 0x80, 0x100, 0x200];
const LINUX_BITS: [u64; 6] = [AT_MODE, AT_UID, AT_GID, AT_SIZE, AT_ATIME, AT_MTIME];
/// Record types of new directories: without attributes, and with some.
const MKDIRS: [u8; 4] = [2, 17, 18, 19];

/// Whether [`FileSystem::replay`] supports everything in the record.
///
/// # Errors
/// `Unsupported`; `Corrupt` or `Limit` for a malformed record.
pub fn can_replay(record: &Record<'_>) -> Result<()> {
    match record.body()? {
        RecordBody::Create(c) => {
            let domains = Domains::unknown(&c.domains);
            record_attrs_of(record, &c, &domains)?;
            domains.fuid(c.uid).and(domains.fuid(c.gid)).map(drop)
        }
        RecordBody::SetAttr(s) => {
            if s.mask & !(LINUX | AT_XVATTR) != 0 && s.mask & OTHERS == 0 {
                let text = "a record of the intent log has unknown attributes";
                return Err(Error::unsupported(text));
            }
            s.xvattr.as_ref().map(RecordAttrs::of).transpose()?;
            let domains = Domains::unknown(&s.domains);
            domains.fuid(s.uid).and(domains.fuid(s.gid)).map(drop)
        }
        RecordBody::Acl { info, aces, domains, .. } => {
            record_acl(record, &info, aces, &Domains::unknown(&domains)).map(drop)
        }
        RecordBody::CloneRange(clone) => clone.pieces().try_for_each(|piece| {
            let (_, len, bp) = piece?;
            let whole = bp.is_hole() || bp.head().lsize.0 >= len;
            let text = "a record of the intent log has a block that is too short";
            whole.then_some(()).ok_or_else(|| Error::corrupt(text))
        }),
        _ => Ok(()),
    }
}

/// The ACL in a record, and its flags.
fn record_acl(
    record: &Record<'_>,
    info: &AclInfo,
    bytes: &[u8],
    domains: &Domains,
) -> Result<RecordAttrs> {
    let aces = record.acl(info, bytes)?.resolve(|id| domains.fuid(id))?;
    Ok(RecordAttrs { acl: Some((aces, info.flags)), ..RecordAttrs::default() })
}

/// The data of a new file's record beyond that of plain records.
fn record_attrs_of(
    record: &Record<'_>,
    create: &Create<'_>,
    domains: &Domains,
) -> Result<RecordAttrs> {
    let mut record_attrs = match &create.xvattr {
        Some(x) => RecordAttrs::of(x)?,
        None => RecordAttrs::default(),
    };
    if let Some((info, bytes)) = &create.acl {
        record_attrs.acl = record_acl(record, info, bytes, domains)?.acl;
    }
    Ok(record_attrs)
}

fn time([seconds, nanoseconds]: [u64; 2]) -> Time {
    Time { seconds: seconds as i64, nanoseconds }
}

impl FileSystem {
    /// Replays a record. The log is in replay, and has the record's sequence.
    ///
    /// # Errors
    /// Those of the call that the record describes, and of [`can_replay`].
    pub fn replay(&self, record: &Record<'_>) -> Result<()> {
        can_replay(record)?;
        self.rw_always()?.ignores_case.store(record.header.case_insensitive, SeqCst);
        let done = self.replay_body(record);
        self.rw_always()?.ignores_case.store(false, SeqCst);
        done
    }

    fn replay_body(&self, record: &Record<'_>) -> Result<()> {
        let root = Caller::root();
        match record.body()? {
            RecordBody::Create(c) if record.header.txtype == 3 => self.replay_hidden(&c),
            RecordBody::Create(create) => self.replay_create(record, &create),
            RecordBody::Remove { directory, name } => match record.header.txtype {
                6 => self.rmdir(&root, directory, name).map(|_| ()),
                _ => self.unlink(&root, directory, name).map(|_| ()),
            },
            RecordBody::Link { directory, object, name } => {
                self.link(&root, object, directory, name).map(|_| ())
            }
            RecordBody::Rename(n) => {
                let exchange = record.header.txtype == RENAME_EXCHANGE;
                let how = if exchange { Rename::Exchange } else { Rename::Plain };
                self.rename(&root, (n.from_dir, n.from), (n.to_dir, n.to), how)
            }
            RecordBody::RenameWhiteout(n, white) => {
                let (from, to) = ((n.from_dir, n.from), (n.to_dir, n.to));
                self.rename_as(&root, from, to, Rename::Whiteout, Some(white))
            }
            // The other records may follow the removal of their object.
            RecordBody::Write(w) => absent_is_fine(self.replay_write(&root, &w)),
            RecordBody::Write2(w) => {
                absent_is_fine(self.replay_size(w.object, w.offset + w.length))
            }
            RecordBody::Truncate { object, offset, length } => {
                absent_is_fine(self.replay_truncate(&root, object, offset, length))
            }
            RecordBody::SetAttr(set) => absent_is_fine(self.replay_set(&root, &set)),
            RecordBody::SetSaXattr { object, name, value } => {
                absent_is_fine(self.set_logged_xattr(object, name, value))
            }
            RecordBody::Acl { object, info, aces, domains } => {
                absent_is_fine(self.replay_acl(record, object, &info, (aces, &domains)))
            }
            RecordBody::CloneRange(clone) => absent_is_fine(self.replay_clone(&root, &clone)),
        }
    }

    fn replay_create(&self, record: &Record<'_>, create: &Create<'_>) -> Result<()> {
        let nibble = create.mode >> 12 & 15;
        let kind = match record.header.txtype {
            4 => FileType::Symlink,
            t if MKDIRS.contains(&t) => FileType::Dir,
            _ => FileType::from_nibble(nibble),
        };
        let device = matches!(kind, FileType::Char | FileType::Block);
        let slots = u8::try_from(create.dnode_slots).unwrap_or(1);
        let domains = self.domains(&create.domains)?;
        let record_attrs = record_attrs_of(record, create, &domains)?;
        let (uid, gid) = (domains.fuid(create.uid)?, domains.fuid(create.gid)?);
        self.make_in(create.directory, create.name, |parent, props| {
            let hidden = parent.attrs.pflags & ZFS_XATTR;
            let inherits = parent.attrs.pflags & ZFS_PROJINHERIT != 0;
            let heir = matches!(kind, FileType::Dir | FileType::Regular);
            let seed = NewFileSpec {
                kind,
                mode: (create.mode & 0o7777) as u32,
                uid,
                gid,
                flags: hidden | if inherits && heir { ZFS_PROJINHERIT } else { 0 },
                project: if inherits || hidden != 0 { parent.attrs.project } else { 0 },
                rdev: if device { create.rdev } else { 0 },
                target: create.target.unwrap_or_default(),
                xattrs: Vec::new(),
                logged: Some((time(create.crtime), slots)),
                record_attrs,
            };
            Ok(self.prepare_new(seed, props)?.with_identity(create.object, create.generation))
        })?;
        Ok(())
    }

    fn replay_acl(
        &self,
        record: &Record<'_>,
        id: ObjectId,
        info: &AclInfo,
        (aces, domains): (&[u8], &[&[u8]]),
    ) -> Result<()> {
        let record_attrs = record_acl(record, info, aces, &self.domains(domains)?)?;
        let (aces, flags) = record_attrs.acl.unwrap_or_default();
        self.set_logged_acl(id, &aces, flags)
    }

    /// Copies the content of other blocks into a file, piece by piece.
    fn replay_clone(&self, root: &Caller, clone: &CloneRange<'_>) -> Result<()> {
        let rw = self.rw_always()?;
        let (id, end) = (clone.object, clone.offset + clone.length);
        let _lock = rw.locks.exclusive(id);
        self.content(id, true)?;
        if clone.length == 0 || self.replay_shared(clone)? {
            return Ok(());
        }
        let props = rw.host.props();
        let mut noted = false;
        for piece in clone.pieces() {
            let (offset, len, bp) = piece?;
            if bp.is_hole() {
                let node = self.content(id, true)?;
                let size = node.attrs.size;
                self.zero(&node, offset.min(size)..(offset + len).min(size))?;
                noted = false;
                continue;
            }
            let block = self.os().zio().read(&bp, self.io())?;
            let short = || Error::corrupt("a cloned block is too short").in_object(id);
            let data = usize::try_from(len).ok().and_then(|n| block.get(..n)).ok_or_else(short)?;
            let mut done = 0;
            while done < data.len() {
                // The last transaction of the last piece notes the record as done.
                let from = offset + done as u64;
                let rest = &data[done..];
                let piece =
                    self.write_piece(root, id, from, rest, end, &props, true, false, WRITE_MAX)?;
                let (n, _) = piece.ok_or_else(|| base::bug!("a piece was not written"))?;
                done += n as usize;
            }
            noted = true;
        }
        if noted { Ok(()) } else { self.reach(id, end) }
    }

    /// Extends the file to `end` by a hole; the caller holds its lock.
    fn reach(&self, id: ObjectId, end: u64) -> Result<()> {
        let rw = self.rw_always()?;
        let node = self.content(id, true)?;
        let now = rw.host.now();
        let tail = self.dirty_tail(&node, end)?;
        let tx = self.begin_tx(node.object.block_size() + DNODE_BLOCK, true)?;
        self.clear_tail(&tx, id, tail)?;
        let patch = Patch::new().modified(now).and(ZplAttr::Size, AttrOp::Max(end));
        self.patch(&tx, &node, &patch)?;
        self.log_nothing(&tx);
        Ok(())
    }

    /// Creates a file's directory of extended attributes.
    fn replay_hidden(&self, create: &Create<'_>) -> Result<()> {
        let domains = self.domains(&create.domains)?;
        let logged = LoggedDir {
            id: create.object,
            generation: create.generation,
            mode: (create.mode & 0o7777) as u32,
            uid: domains.fuid(create.uid)?,
            gid: domains.fuid(create.gid)?,
            born: (time(create.crtime), u8::try_from(create.dnode_slots).unwrap_or(1)),
        };
        self.make_logged_dir(create.directory, logged)
    }

    /// Prepares the object that a rename left under the old name.
    pub(crate) fn prepare_whiteout(
        &self,
        white: &Whiteout,
        props: &RwProps,
    ) -> Result<PreparedFile> {
        let seed = NewFileSpec {
            kind: FileType::Char,
            mode: (white.mode & 0o7777) as u32,
            uid: white.uid,
            gid: white.gid,
            flags: 0,
            project: 0,
            rdev: white.rdev,
            target: b"",
            xattrs: Vec::new(),
            logged: Some((time(white.crtime), u8::try_from(white.dnode_slots).unwrap_or(1))),
            record_attrs: RecordAttrs::default(),
        };
        Ok(self.prepare_new(seed, props)?.with_identity(white.object, white.generation))
    }

    fn replay_write(&self, root: &Caller, write: &Write<'_>) -> Result<()> {
        match (write.data, &write.block) {
            (Some(data), _) => {
                // A write that extends beyond a file's blocks is split into transactions;
                // the last one notes the record as done.
                self.write(root, write.object, WritePosition::Offset(write.offset), data)
                    .map(|_| ())
            }
            (None, Some(bp)) => self.replay_block(write, bp),
            (None, None) => Ok(()),
        }
    }

    /// Replays a whole block that was logged by its pointer, and the size after the write.
    fn replay_block(&self, write: &Write<'_>, bp: &BlkPtr) -> Result<()> {
        let rw = self.rw_always()?;
        let len = bp.head().lsize.0;
        if len == 0 {
            return Ok(());
        }
        let data = self.os().zio().read(bp, self.io())?;
        let base = write.offset / len * len;
        let end = write.offset + write.length;
        let _lock = rw.locks.exclusive(write.object);
        let node = self.content(write.object, true)?;
        let record = rw.host.props().record_size.max(len as u32);
        let past = base.saturating_add(data.len() as u64);
        let grows = grown(&node.object, node.attrs.size, past, record, true);
        let now = rw.host.now();
        let block = grows.map_or(node.object.block_size(), u64::from);
        let blocks = blocks_cost(data.len() as u64 / block + 2, block);
        let tx = self.begin_tx(blocks.max(data.len() as u64 * 2) + DNODE_BLOCK, false)?;
        if let Some(block) = grows {
            let _turn = rw.seqlock.write(write.object);
            self.os().set_block_size(&tx, write.object, block, 0)?;
        }
        self.os().write(&tx, write.object, base, &data)?;
        let patch = Patch::new().modified(now).and(ZplAttr::Size, AttrOp::Max(end));
        self.patch(&tx, &node, &patch)?;
        self.log_nothing(&tx);
        Ok(())
    }

    fn replay_size(&self, id: ObjectId, end: u64) -> Result<()> {
        let rw = self.rw_always()?;
        let _lock = rw.locks.exclusive(id);
        let node = self.content(id, true)?;
        let tx = self.begin_tx(DNODE_BLOCK, true)?;
        self.patch(&tx, &node, &Patch::new().and(ZplAttr::Size, AttrOp::Max(end)))?;
        self.log_nothing(&tx);
        Ok(())
    }

    fn replay_truncate(&self, root: &Caller, id: ObjectId, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            let set = SetAttrs { size: Some(offset), ..SetAttrs::default() };
            return self.set_attrs(root, id, &set).map(|_| ());
        }
        self.allocate(root, id, Falloc::ZeroRange { keep_size: false }, offset, len)
    }

    fn replay_set(&self, root: &Caller, set: &SetAttr<'_>) -> Result<()> {
        let mut mask = set.mask;
        if mask & OTHERS != 0 {
            let pairs = OTHER_BITS.iter().zip(LINUX_BITS);
            mask = pairs.filter(|(other, _)| set.mask & **other != 0).fold(0, |m, (_, b)| m | b);
        }
        let has = |bit: u64| mask & bit != 0;
        let domains = self.domains(&set.domains)?;
        let mut record_attrs = match &set.xvattr {
            Some(x) => RecordAttrs::of(x)?,
            None => RecordAttrs::default(),
        };
        record_attrs.owner = has(AT_UID).then(|| domains.fuid(set.uid)).transpose()?;
        record_attrs.group = has(AT_GID).then(|| domains.fuid(set.gid)).transpose()?;
        let attrs = SetAttrs {
            project: record_attrs.project.map(|p| p as u32),
            mode: has(AT_MODE).then_some((set.mode & 0o7777) as u32),
            size: has(AT_SIZE).then_some(set.size),
            atime: has(AT_ATIME).then(|| SetTime::Set(time(set.atime))),
            mtime: has(AT_MTIME).then(|| SetTime::Set(time(set.mtime))),
            ..SetAttrs::default()
        };
        self.set_attrs_of(root, set.object, &attrs, &record_attrs)
    }
}

fn absent_is_fine(done: Result<()>) -> Result<()> {
    match done {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
