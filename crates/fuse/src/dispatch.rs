//! One request, from its parsed form to its reply.
//!
//! # Invariants
//! * The kernel gets exactly one answer to each request that wants one. The receiving thread
//!   makes the request an [`Unanswered`] value, which only an answer consumes; dropping it
//!   answers too.
//! * A reply is never longer than the kernel requested (it would be refused, and the caller
//!   would get `EIO`).
//! * The effects of a reply (a lookup counted, a handle opened) are undone when the kernel
//!   does not accept it.

use std::io::IoSlice;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use base::Buf;

use crate::abi::request::{Opcode, RequestBody};
use crate::abi::structs::*;
use crate::abi::{Sink, Wire, consts};
use crate::errno::{Errno, Result};
use crate::fs::{BlockingMode, DirSink, Filesystem, Request};
use crate::transport::Channel;
use crate::types::*;

/// Largest listing made for one request, whatever the kernel has room for.
const LISTING_MAX: usize = 1 << 20;
/// More parts than this in one reply are copied together (`IOV_MAX` is 1024).
const PARTS_MAX: usize = 512;

/// The fixed part of a reply, header included.
pub(crate) struct ReplyHead {
    bytes: [u8; OutHeader::SIZE + StatxOut::SIZE],
    len: usize,
}

impl ReplyHead {
    fn new() -> ReplyHead {
        // `send_message` fills the header in when the lengths are known.
        ReplyHead { bytes: [0; OutHeader::SIZE + StatxOut::SIZE], len: OutHeader::SIZE }
    }

    fn with(value: &impl Wire) -> ReplyHead {
        let mut head = ReplyHead::new();
        value.put(&mut head);
        head
    }
}

impl Sink for ReplyHead {
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

/// The effects to undo if the kernel does not accept a reply.
enum Undo {
    Nothing,
    Lookup(u64),
    Lookups(Vec<u64>),
    Open { dir: bool, args: ReleaseArgs },
    Create { node: u64, args: ReleaseArgs },
}

/// A successful reply.
pub(crate) struct Reply {
    head: ReplyHead,
    data: Data,
    undo: Undo,
}

impl Reply {
    fn none() -> Reply {
        Reply { head: ReplyHead::new(), data: Data::empty(), undo: Undo::Nothing }
    }

    fn value(value: &impl Wire) -> Reply {
        Reply { head: ReplyHead::with(value), ..Reply::none() }
    }

    fn data(data: Data) -> Reply {
        Reply { data, ..Reply::none() }
    }

    fn entry(entry: LookupEntry) -> Reply {
        let undo = if entry.node == 0 { Undo::Nothing } else { Undo::Lookup(entry.node) };
        Reply { undo, ..Reply::value(&entry.to_wire()) }
    }

    fn attr((attr, ttl): (Attr, Duration)) -> Reply {
        Reply::value(&AttrOut {
            attr_valid: ttl.as_secs(),
            attr_valid_nsec: ttl.subsec_nanos(),
            dummy: 0,
            attr: attr.to_wire(),
        })
    }

    fn open(node: u64, flags: u32, dir: bool, opened: Opened) -> Reply {
        let args = ReleaseArgs { node, handle: opened.handle, flags, flock_unlock: None };
        Reply { undo: Undo::Open { dir, args }, ..Reply::value(&open_out(opened)) }
    }

    fn created(flags: u32, (entry, opened): (LookupEntry, Opened)) -> Reply {
        let node = entry.node;
        let args = ReleaseArgs { node, handle: opened.handle, flags, flock_unlock: None };
        let mut head = ReplyHead::with(&entry.to_wire());
        open_out(opened).put(&mut head);
        Reply { head, data: Data::empty(), undo: Undo::Create { node, args } }
    }
}

fn open_out(opened: Opened) -> OpenOut {
    OpenOut { fh: opened.handle, open_flags: opened.flags(), backing_id: 0 }
}

/// A parsed request.
#[derive(Clone)]
pub(crate) struct Call<'a> {
    pub(crate) header: InHeader,
    pub(crate) opcode: Opcode,
    pub(crate) body: RequestBody<'a>,
    /// The data of a WRITE.
    pub(crate) payload: Option<Buf>,
}

/// A request that the kernel waits for. [`Unanswered::answer`] consumes it; dropping it
/// sends an error, so no path can leave a caller waiting for ever.
///
/// `C` is the channel that the request came from, borrowed or shared.
pub(crate) struct Unanswered<C: Deref<Target = dyn Channel>> {
    channel: Option<C>,
    unique: u64,
    if_dropped: Errno,
}

impl<C: Deref<Target = dyn Channel>> Unanswered<C> {
    pub(crate) fn new(channel: C, unique: u64) -> Unanswered<C> {
        Unanswered { channel: Some(channel), unique, if_dropped: Errno::EIO }
    }

    /// The error that the caller gets if the value is dropped; `EIO` by default.
    pub(crate) fn if_dropped(mut self, errno: Errno) -> Unanswered<C> {
        self.if_dropped = errno;
        self
    }

    /// Sends the outcome of the request, and undoes its effects if the kernel does not
    /// accept the reply.
    pub(crate) fn answer(mut self, fs: &dyn Filesystem, req: &Request, outcome: Result<Reply>) {
        if let Some(channel) = self.channel.take() {
            send(fs, &*channel, req, outcome);
        }
    }

    /// Answers with an error.
    pub(crate) fn refuse(self, errno: Errno) {
        drop(self.if_dropped(errno));
    }
}

impl<C: Deref<Target = dyn Channel>> Drop for Unanswered<C> {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.take() {
            send_error(&*channel, self.unique, self.if_dropped);
        }
    }
}

/// Runs a request. A panic of the file system becomes `EIO`.
pub(crate) fn run(
    fs: &dyn Filesystem,
    req: &Request,
    call: Call<'_>,
    mode: BlockingMode,
) -> Result<Reply> {
    catch_unwind(AssertUnwindSafe(|| reading(fs, req, call, mode))).unwrap_or(Err(Errno::EIO))
}

/// The operations that take a mode; [`naming`] does the others.
fn reading(
    fs: &dyn Filesystem,
    req: &Request,
    call: Call<'_>,
    mode: BlockingMode,
) -> Result<Reply> {
    let node = call.header.nodeid;
    match call.body {
        RequestBody::Lookup(name) => fs.lookup(req, mode, node, name).map(Reply::entry),
        RequestBody::Getattr(a) => {
            let handle = (a.getattr_flags & consts::GETATTR_FH != 0).then_some(a.fh);
            fs.getattr(req, mode, node, handle).map(Reply::attr)
        }
        RequestBody::Statx(a) => {
            fs.statx(req, mode, node, a.sx_mask).map(|x| Reply::value(&statx_out(&x)))
        }
        RequestBody::Readlink => fs.readlink(req, mode, node).map(|mut target| {
            // PATH_MAX, less the NUL that the kernel adds.
            target.truncate(4095);
            Reply::data(target)
        }),
        RequestBody::Open(a) => fs
            .open(req, mode, node, a.flags)
            .map(|opened| Reply::open(node, a.flags, false, opened)),
        RequestBody::Opendir(a) => fs
            .opendir(req, mode, node, a.flags)
            .map(|opened| Reply::open(node, a.flags, true, opened)),
        RequestBody::Read(a) => {
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
                Reply::data(data)
            })
        }
        RequestBody::Readdir(a) => listing(fs, req, mode, node, &a, false),
        RequestBody::Readdirplus(a) => listing(fs, req, mode, node, &a, true),
        RequestBody::Statfs => fs.statfs(req, mode, node).map(|s| Reply::value(&statfs_out(&s))),
        RequestBody::Getxattr(a, name) => {
            fs.getxattr(req, mode, node, name, a.size).and_then(xattr(a))
        }
        RequestBody::Listxattr(a) => fs.listxattr(req, mode, node, a.size).and_then(xattr(a)),
        RequestBody::Access(a) => fs.access(req, mode, node, a.mask).map(|()| Reply::none()),
        RequestBody::Lseek(a) => {
            let whence = match a.whence {
                consts::SEEK_DATA => Whence::Data,
                consts::SEEK_HOLE => Whence::Hole,
                _ => return Err(Errno::EINVAL),
            };
            fs.lseek(req, mode, node, a.fh, a.offset, whence)
                .map(|offset| Reply::value(&LseekOut { offset }))
        }
        _ => naming(fs, req, call),
    }
}

/// The operations on names.
fn naming(fs: &dyn Filesystem, req: &Request, call: Call<'_>) -> Result<Reply> {
    let node = call.header.nodeid;
    match call.body {
        RequestBody::Symlink { name, target } => {
            fs.symlink(req, node, name, target).map(Reply::entry)
        }
        RequestBody::Mknod(a, name) => {
            let new = NewNode { mode: a.mode, umask: a.umask, rdev: a.rdev };
            fs.mknod(req, node, name, &new).map(Reply::entry)
        }
        RequestBody::Mkdir(a, name) => {
            let new = NewNode { mode: a.mode, umask: a.umask, rdev: 0 };
            fs.mkdir(req, node, name, &new).map(Reply::entry)
        }
        RequestBody::Unlink(name) => fs.unlink(req, node, name).map(|()| Reply::none()),
        RequestBody::Rmdir(name) => fs.rmdir(req, node, name).map(|()| Reply::none()),
        RequestBody::Rename { arg, from, to } => {
            fs.rename(req, node, from, arg.newdir, to, arg.flags).map(|()| Reply::none())
        }
        RequestBody::Link(a, name) => fs.link(req, a.oldnodeid, node, name).map(Reply::entry),
        RequestBody::Create(a, name) => {
            let new = NewNode { mode: a.mode, umask: a.umask, rdev: 0 };
            fs.create(req, node, name, &new, a.flags).map(|made| Reply::created(a.flags, made))
        }
        RequestBody::Tmpfile(a) => {
            let new = NewNode { mode: a.mode, umask: a.umask, rdev: 0 };
            fs.tmpfile(req, node, &new, a.flags).map(|made| Reply::created(a.flags, made))
        }
        RequestBody::Setattr(a) => fs.setattr(req, node, &set_attr(&a)).map(Reply::attr),
        RequestBody::Setxattr { arg, name, value } => {
            let kill = arg.setxattr_flags & consts::SETXATTR_ACL_KILL_SGID != 0;
            fs.setxattr(req, node, name, value, arg.flags, kill).map(|()| Reply::none())
        }
        RequestBody::Removexattr(name) => fs.removexattr(req, node, name).map(|()| Reply::none()),
        _ => handling(fs, req, call),
    }
}

/// The operations on open files, and the rest.
fn handling(fs: &dyn Filesystem, req: &Request, call: Call<'_>) -> Result<Reply> {
    let node = call.header.nodeid;
    let done = |()| Reply::none();
    match call.body {
        RequestBody::Write(a) => write(fs, req, node, &a, call.payload),
        RequestBody::Flush(a) => fs.flush(req, node, a.fh, a.lock_owner).map(done),
        RequestBody::Release(a) => fs.release(req, &release(node, &a)).map(done),
        RequestBody::Releasedir(a) => fs.releasedir(req, &release(node, &a)).map(done),
        RequestBody::Fsync(a) => fs.fsync(req, node, a.fh, data_only(&a)).map(done),
        RequestBody::Fsyncdir(a) => fs.fsyncdir(req, node, a.fh, data_only(&a)).map(done),
        RequestBody::Syncfs => fs.syncfs(req, node).map(done),
        RequestBody::Getlk(a) => fs.getlk(req, &lock(node, &a, false)).map(|l| {
            let lk = FileLock { start: l.start, end: l.end, kind: l.kind, pid: l.pid };
            Reply::value(&LkOut { lk })
        }),
        RequestBody::Setlk(a) => fs.setlk(req, &lock(node, &a, false)).map(done),
        RequestBody::Setlkw(a) => fs.setlk(req, &lock(node, &a, true)).map(done),
        RequestBody::Ioctl(a, input) => ioctl(fs, req, node, &a, input),
        RequestBody::Poll(a) => fs
            .poll(req, node, a.fh, a.events)
            .map(|revents| Reply::value(&PollOut { revents, padding: 0 })),
        RequestBody::Fallocate(a) => {
            fs.fallocate(req, node, a.fh, a.offset, a.length, a.mode).map(done)
        }
        RequestBody::CopyFileRange(mut a) => {
            // The older reply has 32 bits: a short copy is allowed, a wrapped count is not.
            a.len = a.len.min(u64::from(!0xfff_u32));
            let n = fs.copy_file_range(req, &copy_range(node, &a))?;
            let size = u32::try_from(n).map_err(|_| Errno::EOVERFLOW)?;
            Ok(Reply::value(&WriteOut { size, padding: 0 }))
        }
        RequestBody::CopyFileRange64(a) => fs
            .copy_file_range(req, &copy_range(node, &a))
            .map(|bytes_copied| Reply::value(&CopyFileRangeOut { bytes_copied })),
        RequestBody::Bmap(a) => fs
            .bmap(req, node, a.block, a.blocksize)
            .map(|unique| Reply::value(&InterruptIn { unique })),
        RequestBody::Destroy => Ok(Reply::none()),
        _ => Err(Errno::ENOSYS),
    }
}

fn listing(
    fs: &dyn Filesystem,
    req: &Request,
    mode: BlockingMode,
    node: u64,
    a: &ReadIn,
    plus: bool,
) -> Result<Reply> {
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
            Ok(Reply { undo: Undo::Lookups(granted), ..Reply::data(data) })
        }
    }
}

fn write(
    fs: &dyn Filesystem,
    req: &Request,
    node: u64,
    a: &WriteIn,
    payload: Option<Buf>,
) -> Result<Reply> {
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
        .map(|size| Reply::value(&WriteOut { size: size.min(a.size), padding: 0 }))
}

fn ioctl(
    fs: &dyn Filesystem,
    req: &Request,
    node: u64,
    a: &IoctlIn,
    input: &[u8],
) -> Result<Reply> {
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
        Reply { data, ..Reply::value(&out) }
    })
}

/// The reply to GETXATTR and LISTXATTR: the length if the caller gave no room, else the bytes
/// if they fit.
fn xattr(a: GetxattrIn) -> impl FnOnce(Data) -> Result<Reply> {
    move |data| {
        let len = u32::try_from(data.len()).map_err(|_| Errno::ERANGE)?;
        match a.size {
            0 => Ok(Reply::value(&GetxattrOut { size: len, padding: 0 })),
            room if len > room => Err(Errno::ERANGE),
            _ => Ok(Reply::data(data)),
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

/// Sends the outcome of a request, and undoes its effects if the kernel does not accept the
/// reply.
fn send(fs: &dyn Filesystem, channel: &dyn Channel, req: &Request, outcome: Result<Reply>) {
    match outcome {
        Ok(answer) => {
            let Reply { head, data, undo } = answer;
            if send_message(channel, req.unique, 0, head, &data).is_err() {
                // Whatever the reason, the kernel has no lookup or handle of it.
                let _ = catch_unwind(AssertUnwindSafe(|| undo_reply(fs, req, undo)));
            }
        }
        Err(errno) => send_error(channel, req.unique, errno),
    }
}

fn send_error(channel: &dyn Channel, unique: u64, errno: Errno) {
    // The kernel refuses it if the caller has gone.
    let _gone = send_message(channel, unique, -errno.raw(), ReplyHead::new(), &Data::empty());
}

fn send_message(
    channel: &dyn Channel,
    unique: u64,
    error: i32,
    head: ReplyHead,
    data: &Data,
) -> std::io::Result<()> {
    let joined;
    let mut bufs = data.bufs();
    if bufs.len() > PARTS_MAX {
        joined = [Buf::copy_of(&bufs.iter().flat_map(|b| b.iter().copied()).collect::<Vec<u8>>())];
        bufs = &joined;
    }
    let ReplyHead { mut bytes, len } = head;
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

fn undo_reply(fs: &dyn Filesystem, req: &Request, undo: Undo) {
    match undo {
        Undo::Nothing => {}
        Undo::Lookup(node) => fs.forget(node, 1),
        Undo::Lookups(nodes) => nodes.into_iter().for_each(|node| fs.forget(node, 1)),
        Undo::Open { dir: true, args } => drop(fs.releasedir(req, &args)),
        Undo::Open { dir: false, args } => drop(fs.release(req, &args)),
        Undo::Create { node, args } => {
            let _ignored = fs.release(req, &args);
            fs.forget(node, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::null::NullFs;
    use base::rt::Mutex;

    /// Keeps the error and the id of each reply.
    #[derive(Default)]
    struct ReplyRecorder(Mutex<Vec<(i32, u64)>>);

    impl Channel for ReplyRecorder {
        fn reply(&self, message: &[IoSlice<'_>]) -> std::io::Result<()> {
            let head = &message[0];
            let error = i32::from_ne_bytes(head[4..8].try_into().unwrap());
            let unique = u64::from_ne_bytes(head[8..16].try_into().unwrap());
            self.0.lock().push((error, unique));
            Ok(())
        }
    }

    /// Two branches returned without an answer, and their callers waited for ever: a WRITE
    /// without a header, and a wait for a lock that its own thread could not parse.
    #[test]
    fn a_request_is_answered_once_whatever_happens_to_it() {
        let recorder = ReplyRecorder::default();
        let new = |unique| Unanswered::new(&recorder as &dyn Channel, unique);
        let fs = NullFs::new(1 << 20);
        drop(new(1));
        new(2).refuse(Errno::EINVAL);
        drop(new(3).if_dropped(Errno::ENOLCK));
        let req = Request { unique: 4, ..Request::default() };
        new(4).answer(&fs, &req, Ok(Reply::none()));
        new(4).answer(&fs, &req, Err(Errno::ENOENT));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _unanswered = new(5);
            panic!("planted");
        }));
        assert!(panicked.is_err());
        let errno = |e: Errno| -e.raw();
        let expected = [
            (errno(Errno::EIO), 1),
            (errno(Errno::EINVAL), 2),
            (errno(Errno::ENOLCK), 3),
            (0, 4),
            (errno(Errno::ENOENT), 4),
            (errno(Errno::EIO), 5),
        ];
        assert_eq!(*recorder.0.lock(), expected);
    }
}
