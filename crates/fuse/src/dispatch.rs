//! One request, from its parsed form to its reply.
//!
//! # Invariants
//! * Exactly one answer comes out of a request that wants one, panics included.
//! * A reply is never longer than the kernel asked for (it would be refused, and
//!   the caller get `EIO`).
//! * What a reply promises the kernel (a lookup counted, a handle opened) is
//!   undone when the kernel does not take the reply.

use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use base::Buf;

use crate::abi::request::{Op, Opcode};
use crate::abi::structs::*;
use crate::abi::{Sink, Wire, consts};
use crate::errno::{Errno, Result};
use crate::fs::{DirSink, Filesystem, Mode, Request};
use crate::transport::Channel;
use crate::types::*;

/// Largest listing made for one request, whatever the kernel has room for.
const LISTING_MAX: usize = 1 << 20;
/// More parts than this in one reply are copied together (`IOV_MAX` is 1024).
const PARTS_MAX: usize = 512;

/// The fixed part of a reply, header included.
pub(crate) struct Head {
    bytes: [u8; OutHeader::SIZE + StatxOut::SIZE],
    len: usize,
}

impl Head {
    fn new() -> Head {
        // The header is put in front when the lengths are known.
        Head { bytes: [0; OutHeader::SIZE + StatxOut::SIZE], len: OutHeader::SIZE }
    }

    fn with(value: &impl Wire) -> Head {
        let mut head = Head::new();
        value.put(&mut head);
        head
    }
}

impl Sink for Head {
    fn bytes(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        let slot = self.bytes.get_mut(self.len..end);
        debug_assert!(slot.is_some(), "a reply's fixed part fits its head");
        if let Some(slot) = slot {
            slot.copy_from_slice(bytes);
            self.len = end;
        }
    }
}

/// What must be taken back if a reply does not arrive.
enum Promise {
    Nothing,
    Lookup(u64),
    Lookups(Vec<u64>),
    Open { dir: bool, args: ReleaseArgs },
    Create { node: u64, args: ReleaseArgs },
}

/// A successful reply.
pub(crate) struct Answer {
    head: Head,
    data: Data,
    promise: Promise,
}

impl Answer {
    fn none() -> Answer {
        Answer { head: Head::new(), data: Data::empty(), promise: Promise::Nothing }
    }

    fn value(value: &impl Wire) -> Answer {
        Answer { head: Head::with(value), ..Answer::none() }
    }

    fn data(data: Data) -> Answer {
        Answer { data, ..Answer::none() }
    }

    fn entry(entry: Entry) -> Answer {
        let promise = if entry.node == 0 { Promise::Nothing } else { Promise::Lookup(entry.node) };
        Answer { promise, ..Answer::value(&entry.to_wire()) }
    }

    fn attr((attr, ttl): (Attr, Duration)) -> Answer {
        Answer::value(&AttrOut {
            attr_valid: ttl.as_secs(),
            attr_valid_nsec: ttl.subsec_nanos(),
            dummy: 0,
            attr: attr.to_wire(),
        })
    }

    fn open(node: u64, flags: u32, dir: bool, opened: Opened) -> Answer {
        let args = ReleaseArgs { node, handle: opened.handle, flags, flock_unlock: None };
        Answer { promise: Promise::Open { dir, args }, ..Answer::value(&open_out(opened)) }
    }

    fn created(flags: u32, (entry, opened): (Entry, Opened)) -> Answer {
        let node = entry.node;
        let args = ReleaseArgs { node, handle: opened.handle, flags, flock_unlock: None };
        let mut head = Head::with(&entry.to_wire());
        open_out(opened).put(&mut head);
        Answer { head, data: Data::empty(), promise: Promise::Create { node, args } }
    }
}

fn open_out(opened: Opened) -> OpenOut {
    OpenOut { fh: opened.handle, open_flags: opened.flags(), backing_id: 0 }
}

/// One request on its way.
pub(crate) struct Call<'a> {
    pub(crate) header: InHeader,
    pub(crate) opcode: Opcode,
    pub(crate) op: Op<'a>,
    /// The data of a WRITE.
    pub(crate) payload: Option<Buf>,
}

/// Runs a request; a panic becomes `EIO`, so that nobody waits for ever.
pub(crate) fn run(
    fs: &dyn Filesystem,
    req: &Request,
    call: Call<'_>,
    mode: Mode,
) -> Result<Answer> {
    catch_unwind(AssertUnwindSafe(|| reading(fs, req, call, mode))).unwrap_or(Err(Errno::EIO))
}

/// The operations that take a mode; the others go on to [`naming`].
fn reading(fs: &dyn Filesystem, req: &Request, call: Call<'_>, mode: Mode) -> Result<Answer> {
    let node = call.header.nodeid;
    match call.op {
        Op::Lookup(name) => fs.lookup(req, mode, node, name).map(Answer::entry),
        Op::Getattr(a) => {
            let handle = (a.getattr_flags & consts::GETATTR_FH != 0).then_some(a.fh);
            fs.getattr(req, mode, node, handle).map(Answer::attr)
        }
        Op::Statx(a) => fs.statx(req, mode, node, a.sx_mask).map(|x| Answer::value(&statx_out(&x))),
        Op::Readlink => fs.readlink(req, mode, node).map(|mut target| {
            // PATH_MAX, less the NUL that the kernel adds.
            target.truncate(4095);
            Answer::data(target)
        }),
        Op::Open(a) => fs
            .open(req, mode, node, a.flags)
            .map(|opened| Answer::open(node, a.flags, false, opened)),
        Op::Opendir(a) => fs
            .opendir(req, mode, node, a.flags)
            .map(|opened| Answer::open(node, a.flags, true, opened)),
        Op::Read(a) => {
            let args = ReadArgs {
                node,
                handle: a.fh,
                offset: a.offset,
                size: a.size,
                flags: a.flags,
                lock_owner: (a.read_flags & consts::READ_LOCKOWNER != 0).then_some(a.lock_owner),
            };
            fs.read(req, mode, &args).map(|mut data| {
                data.truncate(usize::try_from(a.size).unwrap_or(usize::MAX));
                Answer::data(data)
            })
        }
        Op::Readdir(a) => listing(fs, req, mode, node, &a, false),
        Op::Readdirplus(a) => listing(fs, req, mode, node, &a, true),
        Op::Statfs => fs.statfs(req, mode, node).map(|s| Answer::value(&statfs_out(&s))),
        Op::Getxattr(a, name) => fs.getxattr(req, mode, node, name, a.size).and_then(xattr(a)),
        Op::Listxattr(a) => fs.listxattr(req, mode, node, a.size).and_then(xattr(a)),
        Op::Access(a) => fs.access(req, mode, node, a.mask).map(|()| Answer::none()),
        Op::Lseek(a) => {
            let whence = match a.whence {
                consts::SEEK_DATA => Whence::Data,
                consts::SEEK_HOLE => Whence::Hole,
                _ => return Err(Errno::EINVAL),
            };
            fs.lseek(req, mode, node, a.fh, a.offset, whence)
                .map(|offset| Answer::value(&LseekOut { offset }))
        }
        _ => naming(fs, req, call),
    }
}

/// The operations on names.
fn naming(fs: &dyn Filesystem, req: &Request, call: Call<'_>) -> Result<Answer> {
    let node = call.header.nodeid;
    match call.op {
        Op::Symlink { name, target } => fs.symlink(req, node, name, target).map(Answer::entry),
        Op::Mknod(a, name) => {
            let new = NewNode { mode: a.mode, umask: a.umask, rdev: a.rdev };
            fs.mknod(req, node, name, &new).map(Answer::entry)
        }
        Op::Mkdir(a, name) => {
            let new = NewNode { mode: a.mode, umask: a.umask, rdev: 0 };
            fs.mkdir(req, node, name, &new).map(Answer::entry)
        }
        Op::Unlink(name) => fs.unlink(req, node, name).map(|()| Answer::none()),
        Op::Rmdir(name) => fs.rmdir(req, node, name).map(|()| Answer::none()),
        Op::Rename { arg, from, to } => {
            fs.rename(req, node, from, arg.newdir, to, arg.flags).map(|()| Answer::none())
        }
        Op::Link(a, name) => fs.link(req, a.oldnodeid, node, name).map(Answer::entry),
        Op::Create(a, name) => {
            let new = NewNode { mode: a.mode, umask: a.umask, rdev: 0 };
            fs.create(req, node, name, &new, a.flags).map(|made| Answer::created(a.flags, made))
        }
        Op::Tmpfile(a) => {
            let new = NewNode { mode: a.mode, umask: a.umask, rdev: 0 };
            fs.tmpfile(req, node, &new, a.flags).map(|made| Answer::created(a.flags, made))
        }
        Op::Setattr(a) => fs.setattr(req, node, &set_attr(&a)).map(Answer::attr),
        Op::Setxattr { arg, name, value } => {
            let kill = arg.setxattr_flags & consts::SETXATTR_ACL_KILL_SGID != 0;
            fs.setxattr(req, node, name, value, arg.flags, kill).map(|()| Answer::none())
        }
        Op::Removexattr(name) => fs.removexattr(req, node, name).map(|()| Answer::none()),
        _ => handling(fs, req, call),
    }
}

/// The operations on open files, and the rest.
fn handling(fs: &dyn Filesystem, req: &Request, call: Call<'_>) -> Result<Answer> {
    let node = call.header.nodeid;
    let done = |()| Answer::none();
    match call.op {
        Op::Write(a) => write(fs, req, node, &a, call.payload),
        Op::Flush(a) => fs.flush(req, node, a.fh, a.lock_owner).map(done),
        Op::Release(a) => fs.release(req, &release(node, &a)).map(done),
        Op::Releasedir(a) => fs.releasedir(req, &release(node, &a)).map(done),
        Op::Fsync(a) => fs.fsync(req, node, a.fh, data_only(&a)).map(done),
        Op::Fsyncdir(a) => fs.fsyncdir(req, node, a.fh, data_only(&a)).map(done),
        Op::Syncfs => fs.syncfs(req, node).map(done),
        Op::Getlk(a) => fs.getlk(req, &lock(node, &a, false)).map(|l| {
            let lk = FileLock { start: l.start, end: l.end, kind: l.kind, pid: l.pid };
            Answer::value(&LkOut { lk })
        }),
        Op::Setlk(a) => fs.setlk(req, &lock(node, &a, false)).map(done),
        Op::Setlkw(a) => fs.setlk(req, &lock(node, &a, true)).map(done),
        Op::Ioctl(a, input) => ioctl(fs, req, node, &a, input),
        Op::Poll(a) => fs
            .poll(req, node, a.fh, a.events)
            .map(|revents| Answer::value(&PollOut { revents, padding: 0 })),
        Op::Fallocate(a) => fs.fallocate(req, node, a.fh, a.offset, a.length, a.mode).map(done),
        Op::CopyFileRange(mut a) => {
            // The older reply has 32 bits: a short copy is allowed, a wrapped count is not.
            a.len = a.len.min(u64::from(!0xfff_u32));
            let n = fs.copy_file_range(req, &copy_range(node, &a))?;
            let size = u32::try_from(n).map_err(|_| Errno::EOVERFLOW)?;
            Ok(Answer::value(&WriteOut { size, padding: 0 }))
        }
        Op::CopyFileRange64(a) => fs
            .copy_file_range(req, &copy_range(node, &a))
            .map(|bytes_copied| Answer::value(&CopyFileRangeOut { bytes_copied })),
        Op::Bmap(a) => fs
            .bmap(req, node, a.block, a.blocksize)
            .map(|unique| Answer::value(&InterruptIn { unique })),
        Op::Destroy => Ok(Answer::none()),
        _ => Err(Errno::ENOSYS),
    }
}

fn listing(
    fs: &dyn Filesystem,
    req: &Request,
    mode: Mode,
    node: u64,
    a: &ReadIn,
    plus: bool,
) -> Result<Answer> {
    let size = usize::try_from(a.size).unwrap_or(usize::MAX).min(LISTING_MAX);
    let mut sink = DirSink::new(size, plus);
    let done = if plus {
        fs.readdirplus(req, mode, node, a.fh, a.offset, &mut sink)
    } else {
        fs.readdir(req, mode, node, a.fh, a.offset, &mut sink)
    };
    match done {
        Err(e) if sink.is_empty() => Err(e),
        _ => {
            let (data, granted) = sink.finish();
            Ok(Answer { promise: Promise::Lookups(granted), ..Answer::data(data) })
        }
    }
}

fn write(
    fs: &dyn Filesystem,
    req: &Request,
    node: u64,
    a: &WriteIn,
    payload: Option<Buf>,
) -> Result<Answer> {
    let data = payload.ok_or(Errno::EINVAL)?;
    let args = WriteArgs {
        node,
        handle: a.fh,
        offset: a.offset,
        flags: a.flags,
        lock_owner: (a.write_flags & consts::WRITE_LOCKOWNER != 0).then_some(a.lock_owner),
        from_cache: a.write_flags & consts::WRITE_CACHE != 0,
        kill_suidgid: a.write_flags & consts::WRITE_KILL_SUIDGID != 0,
    };
    fs.write(req, &args, data)
        .map(|size| Answer::value(&WriteOut { size: size.min(a.size), padding: 0 }))
}

fn ioctl(
    fs: &dyn Filesystem,
    req: &Request,
    node: u64,
    a: &IoctlIn,
    input: &[u8],
) -> Result<Answer> {
    let args = IoctlArgs {
        node,
        handle: a.fh,
        flags: a.flags,
        cmd: a.cmd,
        arg: a.arg,
        input,
        out_size: a.out_size,
    };
    fs.ioctl(req, &args).map(|(result, mut data)| {
        data.truncate(usize::try_from(a.out_size).unwrap_or(usize::MAX));
        let out = IoctlOut { result, ..Default::default() };
        Answer { data, ..Answer::value(&out) }
    })
}

/// The reply to a question for an attribute or the list of them: the length if
/// no room was given, else the bytes if they fit.
fn xattr(a: GetxattrIn) -> impl FnOnce(Data) -> Result<Answer> {
    move |data| {
        let len = u32::try_from(data.len()).map_err(|_| Errno::ERANGE)?;
        match a.size {
            0 => Ok(Answer::value(&GetxattrOut { size: len, padding: 0 })),
            room if len > room => Err(Errno::ERANGE),
            _ => Ok(Answer::data(data)),
        }
    }
}

fn data_only(a: &FsyncIn) -> bool {
    a.fsync_flags & consts::FSYNC_FDATASYNC != 0
}

fn release(node: u64, a: &ReleaseIn) -> ReleaseArgs {
    let unlock = a.release_flags & consts::RELEASE_FLOCK_UNLOCK != 0;
    ReleaseArgs { node, handle: a.fh, flags: a.flags, flock_unlock: unlock.then_some(a.lock_owner) }
}

fn lock(node: u64, a: &LkIn, wait: bool) -> LockArgs {
    let lock = Lock { start: a.lk.start, end: a.lk.end, kind: a.lk.kind, pid: a.lk.pid };
    let flock = a.lk_flags & consts::LK_FLOCK != 0;
    LockArgs { node, handle: a.fh, owner: a.owner, lock, flock, wait }
}

fn copy_range(node: u64, a: &CopyFileRangeIn) -> CopyRange {
    CopyRange {
        node_in: node,
        handle_in: a.fh_in,
        offset_in: a.off_in,
        node_out: a.nodeid_out,
        handle_out: a.fh_out,
        offset_out: a.off_out,
        len: a.len,
        flags: a.flags,
    }
}

fn set_attr(a: &SetattrIn) -> SetAttr {
    let has = |bit: u32| a.valid & bit != 0;
    let time = |set, now, sec: u64, nsec| match (has(set), has(now)) {
        (_, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At(Timestamp { sec: sec.cast_signed(), nsec })),
        (false, false) => None,
    };
    SetAttr {
        mode: has(consts::FATTR_MODE).then_some(a.mode),
        uid: has(consts::FATTR_UID).then_some(a.uid),
        gid: has(consts::FATTR_GID).then_some(a.gid),
        size: has(consts::FATTR_SIZE).then_some(a.size),
        atime: time(consts::FATTR_ATIME, consts::FATTR_ATIME_NOW, a.atime, a.atimensec),
        mtime: time(consts::FATTR_MTIME, consts::FATTR_MTIME_NOW, a.mtime, a.mtimensec),
        ctime: has(consts::FATTR_CTIME)
            .then_some(Timestamp { sec: a.ctime.cast_signed(), nsec: a.ctimensec }),
        handle: has(consts::FATTR_FH).then_some(a.fh),
        lock_owner: has(consts::FATTR_LOCKOWNER).then_some(a.lock_owner),
        kill_suidgid: has(consts::FATTR_KILL_SUIDGID),
    }
}

fn statfs_out(s: &Statfs) -> KStatfs {
    KStatfs {
        blocks: s.blocks,
        bfree: s.bfree,
        bavail: s.bavail,
        files: s.files,
        ffree: s.ffree,
        bsize: s.bsize,
        namelen: s.namelen,
        frsize: s.frsize,
        ..Default::default()
    }
}

fn statx_out(x: &Statx) -> StatxOut {
    /// `STATX_BASIC_STATS` and `STATX_BTIME`.
    const BASIC: u32 = 0x7ff;
    const BTIME: u32 = 0x800;
    let a = &x.attr;
    let stat = StatxWire {
        mask: BASIC | if x.btime.is_some() { BTIME } else { 0 },
        blksize: a.blksize,
        attributes: x.attributes,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        mode: (a.mode & 0xffff) as u16,
        ino: a.ino,
        size: a.size,
        blocks: a.blocks,
        attributes_mask: x.attributes_mask,
        atime: a.atime.to_statx(),
        btime: x.btime.unwrap_or_default().to_statx(),
        ctime: a.ctime.to_statx(),
        mtime: a.mtime.to_statx(),
        // The kernel's 32-bit device encoding: minor in bits 0-7 and 20-31.
        rdev_major: (a.rdev >> 8) & 0xfff,
        rdev_minor: (a.rdev & 0xff) | ((a.rdev >> 12) & 0xf_ff00),
        ..Default::default()
    };
    StatxOut {
        attr_valid: x.attr_ttl.as_secs(),
        attr_valid_nsec: x.attr_ttl.subsec_nanos(),
        stat,
        ..Default::default()
    }
}

/// Sends the outcome of a request and takes back what it promised if the kernel
/// does not want it any more.
pub(crate) fn send(
    fs: &dyn Filesystem,
    channel: &dyn Channel,
    req: &Request,
    outcome: Result<Answer>,
) {
    match outcome {
        Ok(answer) => {
            let Answer { head, data, promise } = answer;
            if send_message(channel, req.unique, 0, head, &data).is_err() {
                // Whatever the reason, the kernel did not learn of it.
                let _ = catch_unwind(AssertUnwindSafe(|| take_back(fs, req, promise)));
            }
        }
        Err(errno) => {
            let _gone =
                send_message(channel, req.unique, -errno.raw(), Head::new(), &Data::empty());
        }
    }
}

fn send_message(
    channel: &dyn Channel,
    unique: u64,
    error: i32,
    head: Head,
    data: &Data,
) -> std::io::Result<()> {
    let joined;
    let mut bufs = data.bufs();
    if bufs.len() > PARTS_MAX {
        joined = [Buf::copy_of(&bufs.iter().flat_map(|b| b.iter().copied()).collect::<Vec<u8>>())];
        bufs = &joined;
    }
    let Head { mut bytes, len } = head;
    let total = len + bufs.iter().map(|b| b.len()).sum::<usize>();
    let Ok(total) = u32::try_from(total) else {
        return Err(std::io::Error::from_raw_os_error(Errno::EINVAL.raw()));
    };
    let (header, _) = bytes.split_at_mut(OutHeader::SIZE);
    header[..4].copy_from_slice(&total.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    let head = IoSlice::new(&bytes[..len]);
    match bufs {
        [] => channel.reply(&[head]),
        [one] if one.is_empty() => channel.reply(&[head]),
        [one] => channel.reply(&[head, IoSlice::new(one)]),
        many => {
            let parts: Vec<_> =
                std::iter::once(head).chain(many.iter().map(|b| IoSlice::new(b))).collect();
            channel.reply(&parts)
        }
    }
}

fn take_back(fs: &dyn Filesystem, req: &Request, promise: Promise) {
    match promise {
        Promise::Nothing => {}
        Promise::Lookup(node) => fs.forget(node, 1),
        Promise::Lookups(nodes) => nodes.into_iter().for_each(|node| fs.forget(node, 1)),
        Promise::Open { dir: true, args } => drop(fs.releasedir(req, &args)),
        Promise::Open { dir: false, args } => drop(fs.release(req, &args)),
        Promise::Create { node, args } => {
            let _ignored = fs.release(req, &args);
            fs.forget(node, 1);
        }
    }
}
