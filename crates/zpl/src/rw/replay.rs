//! Doing again what a record of the intent log says (chapter 06 §19.2).
//!
//! # Theory
//! A record is a call that was made once: it is made again, by root, with what the record
//! fixes (number, generation, owners and time of what it makes). Where the call would tell
//! the log, the log notes the record as done, in the same transaction; a crash in between
//! finds all of it or nothing. What the log of another program says beyond what Cenote can
//! do is found out before anything is done ([`can_replay`]).
//!
//! # Departures from OpenZFS
//! * The bytes of a whole logged block beyond the write that it is for are written only as
//!   far as a later record has the file reach; the chapter's way is the same.

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::Io;
use ondisk::BlkPtr;
use ondisk::sa::ZplAttr;
use ondisk::zil::{Body, Create, RENAME_EXCHANGE, Record, SetAttr, Whiteout, Write, Xvattr};
use ondisk::znode::{FileType, Time, ZFS_PROJINHERIT, ZFS_XATTR};

use super::data::grown;
use super::journal::{AT_ATIME, AT_CTIME, AT_FILE, AT_GID, AT_MODE, AT_MTIME, AT_SIZE, AT_UID};
use super::journal::{AT_XVATTR, XAT_PROJID, XVATTR_FLAGS};
use super::make::{Birth, DNODE_BLOCK, Seed};
use super::node::{Do, Patch};
use super::types::{At, Caller, Falloc, Rename, RwProps, SETTABLE_FLAGS, SetAttrs, SetTime};
use super::xattr::LoggedDir;
use crate::fs::FileSystem;

/// All bits of a TX_SETATTR mask that Linux writes, without extended attributes.
const LINUX: u64 = AT_MODE | AT_UID | AT_GID | AT_SIZE | AT_ATIME | AT_MTIME | AT_CTIME | AT_FILE;
/// Bits that only illumos and FreeBSD write, and theirs for mode, owner, group, size,
/// times of access and modification (chapter 06 §17).
const OTHERS: u64 = 0x780;
const OTHER_BITS: [u64; 6] = [0x2, 0x4, 0x8, 0x80, 0x100, 0x200];
const LINUX_BITS: [u64; 6] = [AT_MODE, AT_UID, AT_GID, AT_SIZE, AT_ATIME, AT_MTIME];

/// Whether [`FileSystem::replay`] knows what the record says.
///
/// # Errors
/// `Unsupported`; `Corrupt` for a malformed record.
pub fn can_replay(record: &Record<'_>) -> Result<()> {
    let known = match record.body()? {
        Body::Create(c) => {
            let plain = c.xvattr.is_none() && c.acl.is_none() && c.domains.is_empty();
            plain && matches!(record.header.txtype, 1..=4)
        }
        Body::SetAttr(s) => {
            let known = XVATTR_FLAGS.iter().fold(XAT_PROJID, |m, (bit, _)| m | bit);
            let strange = |x: &Xvattr| x.requested != [x.requested[0] & known, 0, 0];
            let extended = s.xvattr.as_ref().is_some_and(strange) || !s.domains.is_empty();
            !extended && (s.mask & !(LINUX | AT_XVATTR) == 0 || s.mask & OTHERS != 0)
        }
        Body::Acl { .. } | Body::CloneRange(_) => false,
        _ => true,
    };
    if known {
        return Ok(());
    }
    let kind = record.header.txtype;
    let text = format!("records of type {kind} in an intent log cannot be replayed yet");
    Err(Error::unsupported(text))
}

fn time([seconds, nanoseconds]: [u64; 2]) -> Time {
    Time { seconds: seconds as i64, nanoseconds }
}

impl FileSystem {
    /// Does what a record says. The log is in replay, and was told the record's sequence.
    ///
    /// # Errors
    /// Those of the call that the record is of, and of [`can_replay`].
    pub fn replay(&self, record: &Record<'_>) -> Result<()> {
        can_replay(record)?;
        let root = Caller::root();
        match record.body()? {
            Body::Create(c) if record.header.txtype == 3 => self.replay_hidden(&c),
            Body::Create(create) => self.replay_create(record.header.txtype, &create),
            Body::Remove { directory, name } => match record.header.txtype {
                6 => self.rmdir(&root, directory, name).map(|_| ()),
                _ => self.unlink(&root, directory, name).map(|_| ()),
            },
            Body::Link { directory, object, name } => {
                self.link(&root, object, directory, name).map(|_| ())
            }
            Body::Rename(n) => {
                let exchange = record.header.txtype == RENAME_EXCHANGE;
                let how = if exchange { Rename::Exchange } else { Rename::Plain };
                self.rename(&root, (n.from_dir, n.from), (n.to_dir, n.to), how)
            }
            Body::RenameWhiteout(n, white) => {
                let (from, to) = ((n.from_dir, n.from), (n.to_dir, n.to));
                self.rename_as(&root, from, to, Rename::Whiteout, Some(white))
            }
            // The others may come late: after the object went.
            Body::Write(w) => absent_is_fine(self.replay_write(&root, &w)),
            Body::Write2(w) => absent_is_fine(self.replay_size(w.object, w.offset + w.length)),
            Body::Truncate { object, offset, length } => {
                absent_is_fine(self.replay_truncate(&root, object, offset, length))
            }
            Body::SetAttr(set) => absent_is_fine(self.replay_set(&root, &set)),
            Body::SetSaXattr { object, name, value } => {
                absent_is_fine(self.set_logged_xattr(object, name, value))
            }
            Body::Acl { .. } | Body::CloneRange(_) => {
                Err(Error::bug("a record that cannot be replayed"))
            }
        }
    }

    fn replay_create(&self, txtype: u8, create: &Create<'_>) -> Result<()> {
        let nibble = create.mode >> 12 & 15;
        let kind = match txtype {
            2 => FileType::Dir,
            4 => FileType::Symlink,
            _ => FileType::from_nibble(nibble),
        };
        let device = matches!(kind, FileType::Char | FileType::Block);
        let slots = u8::try_from(create.dnode_slots).unwrap_or(1);
        self.make_in(create.directory, create.name, |parent, props| {
            let hidden = parent.attrs.pflags & ZFS_XATTR;
            let inherits = parent.attrs.pflags & ZFS_PROJINHERIT != 0;
            let heir = matches!(kind, FileType::Dir | FileType::Regular);
            let seed = Seed {
                kind,
                mode: (create.mode & 0o7777) as u32,
                uid: create.uid,
                gid: create.gid,
                flags: hidden | if inherits && heir { ZFS_PROJINHERIT } else { 0 },
                project: if inherits || hidden != 0 { parent.attrs.project } else { 0 },
                rdev: if device { create.rdev } else { 0 },
                target: create.target.unwrap_or_default(),
                xattrs: Vec::new(),
                logged: Some((time(create.crtime), slots)),
            };
            Ok(self.conceive(seed, props)?.born_as(create.object, create.generation))
        })?;
        Ok(())
    }

    /// A file's directory of extended attributes.
    fn replay_hidden(&self, create: &Create<'_>) -> Result<()> {
        let logged = LoggedDir {
            id: create.object,
            generation: create.generation,
            mode: (create.mode & 0o7777) as u32,
            uid: create.uid,
            gid: create.gid,
            born: (time(create.crtime), u8::try_from(create.dnode_slots).unwrap_or(1)),
        };
        self.make_logged_dir(create.directory, logged)
    }

    /// What a rename left under the old name.
    pub(crate) fn conceive_logged_white(&self, white: &Whiteout, props: &RwProps) -> Result<Birth> {
        let seed = Seed {
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
        };
        Ok(self.conceive(seed, props)?.born_as(white.object, white.generation))
    }

    fn replay_write(&self, root: &Caller, write: &Write<'_>) -> Result<()> {
        match (write.data, &write.block) {
            (Some(data), _) => {
                // One that runs into a file's end of blocks is cut into transactions; the
                // last one notes the record as done.
                self.write(root, write.object, At::Offset(write.offset), data).map(|_| ())
            }
            (None, Some(bp)) => self.replay_block(write, bp),
            (None, None) => Ok(()),
        }
    }

    /// A whole block that was logged by its pointer, and the size that the write made.
    fn replay_block(&self, write: &Write<'_>, bp: &BlkPtr) -> Result<()> {
        let rw = self.rw_always()?;
        let len = bp.head().lsize.0;
        if len == 0 {
            return Ok(());
        }
        let data = self.os().zio().read(bp, Io::WAIT)?;
        let base = write.offset / len * len;
        let end = write.offset + write.length;
        let _lock = rw.locks.exclusive(write.object);
        let node = self.content(write.object, true)?;
        let record = rw.host.props().record_size.max(len as u32);
        let past = base.saturating_add(data.len() as u64);
        let grows = grown(&node.object, node.attrs.size, past, record, true);
        let now = rw.host.now();
        let tx = rw.host.begin(data.len() as u64 * 2 + DNODE_BLOCK, false)?;
        if let Some(block) = grows {
            let _turn = rw.turns.take(write.object);
            self.os().set_block_size(&tx, write.object, block, 0)?;
        }
        self.os().write(&tx, write.object, base, &data)?;
        let patch = Patch::new().modified(now).and(ZplAttr::Size, Do::Max(end));
        self.patch(&tx, &node, &patch)?;
        self.log_nothing(&tx);
        Ok(())
    }

    fn replay_size(&self, id: ObjectId, end: u64) -> Result<()> {
        let rw = self.rw_always()?;
        let _lock = rw.locks.exclusive(id);
        let node = self.content(id, true)?;
        let tx = rw.host.begin(DNODE_BLOCK, true)?;
        self.patch(&tx, &node, &Patch::new().and(ZplAttr::Size, Do::Max(end)))?;
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
        let id = |field: u64| u32::try_from(field & 0xffff_ffff).unwrap_or(0);
        let has = |bit: u64| mask & bit != 0;
        let (mut flags, mut project) = (None, None);
        if let Some(x) = &set.xvattr {
            let now = self.attrs(set.object, Io::WAIT)?.pflags;
            let chosen = XVATTR_FLAGS.iter().filter(|(bit, _)| x.requested[0] & bit != 0);
            for (bit, flag) in chosen {
                let on = x.values & u64::from(*bit) != 0;
                let all = flags.unwrap_or(now & SETTABLE_FLAGS);
                flags = Some(if on { all | flag } else { all & !flag });
            }
            if x.requested[0] & XAT_PROJID != 0 {
                let word = x.scanstamp.first_chunk::<4>().copied().unwrap_or_default();
                project = Some(u32::from_le_bytes(word));
            }
        }
        let attrs = SetAttrs {
            flags,
            project,
            mode: has(AT_MODE).then_some((set.mode & 0o7777) as u32),
            uid: has(AT_UID).then(|| id(set.uid)),
            gid: has(AT_GID).then(|| id(set.gid)),
            size: has(AT_SIZE).then_some(set.size),
            atime: has(AT_ATIME).then(|| SetTime::Set(time(set.atime))),
            mtime: has(AT_MTIME).then(|| SetTime::Set(time(set.mtime))),
            ..SetAttrs::default()
        };
        self.set_attrs(root, set.object, &attrs).map(|_| ())
    }
}

fn absent_is_fine(done: Result<()>) -> Result<()> {
    match done {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
