//! What passes between a session and a file system: requests' arguments and
//! their answers.

use std::time::Duration;

use base::Buf;

use crate::abi::structs::{AttrWire, EntryOut, SxTime};

/// The node id of the root directory; file systems choose the others.
pub const ROOT_ID: u64 = 1;

/// How long the kernel may believe something: for ever, until told otherwise.
pub const FOREVER: Duration = Duration::from_secs(1 << 30);

/// A point in time: seconds since 1970 (negative before), nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 UTC.
    pub sec: i64,
    /// Nanoseconds, below 10^9.
    pub nsec: u32,
}

/// A file's attributes, as `stat(2)` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// Inode number shown to users; may differ from the node id.
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// File type and permissions (`st_mode`).
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for device files, in the kernel's 32-bit encoding.
    pub rdev: u32,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
}

impl Attr {
    pub(crate) fn to_wire(self) -> AttrWire {
        AttrWire {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            // The kernel reads the seconds back as signed.
            atime: self.atime.sec.cast_unsigned(),
            mtime: self.mtime.sec.cast_unsigned(),
            ctime: self.ctime.sec.cast_unsigned(),
            atimensec: self.atime.nsec,
            mtimensec: self.mtime.nsec,
            ctimensec: self.ctime.nsec,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: 0,
        }
    }
}

impl Timestamp {
    pub(crate) fn to_statx(self) -> SxTime {
        SxTime { tv_sec: self.sec, tv_nsec: self.nsec, reserved: 0 }
    }
}

/// The answer to a lookup, or to the creation of a name.
///
/// Each entry given to the kernel counts one lookup of `node`, which a later
/// forget takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupEntry {
    /// The node's id; 0 says "no such name, and you may remember that".
    pub node: u64,
    /// Tells apart successive uses of one id.
    pub generation: u64,
    /// Attributes.
    pub attr: Attr,
    /// How long the name may be believed.
    pub entry_ttl: Duration,
    /// How long the attributes may be believed.
    pub attr_ttl: Duration,
}

impl LookupEntry {
    /// "No such name", to be remembered for `ttl`.
    pub fn negative(ttl: Duration) -> LookupEntry {
        let attr = Attr::default();
        LookupEntry { node: 0, generation: 0, attr, entry_ttl: ttl, attr_ttl: Duration::ZERO }
    }

    pub(crate) fn to_wire(self) -> EntryOut {
        EntryOut {
            nodeid: self.node,
            generation: self.generation,
            entry_valid: self.entry_ttl.as_secs(),
            attr_valid: self.attr_ttl.as_secs(),
            entry_valid_nsec: self.entry_ttl.subsec_nanos(),
            attr_valid_nsec: self.attr_ttl.subsec_nanos(),
            attr: self.attr.to_wire(),
        }
    }
}

/// An open file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// The file system's own number for it.
    pub handle: u64,
    /// Bypass the kernel's page cache.
    pub direct_io: bool,
    /// Keep what the page cache holds of this file from before.
    pub keep_cache: bool,
    /// The file has no position.
    pub nonseekable: bool,
    /// The kernel may cache this directory's listing.
    pub cache_dir: bool,
    /// No flush when a descriptor is closed.
    pub no_flush: bool,
    /// Direct writes to one file may run side by side.
    pub parallel_direct_writes: bool,
}

impl Opened {
    /// An open handle with the kernel's default caching.
    pub fn new(handle: u64) -> Opened {
        Opened { handle, ..Opened::default() }
    }

    pub(crate) fn flags(self) -> u32 {
        [
            self.direct_io,
            self.keep_cache,
            self.nonseekable,
            self.cache_dir,
            false,
            self.no_flush,
            self.parallel_direct_writes,
        ]
        .into_iter()
        .enumerate()
        .fold(0, |bits, (i, on)| bits | (u32::from(on) << i))
    }
}

/// Bytes for the kernel: the buffers in order, written without copying.
#[derive(Clone, Debug, Default)]
pub struct Data(Parts);

#[derive(Clone, Debug)]
enum Parts {
    One(Buf),
    Many(Vec<Buf>),
}

impl Default for Parts {
    fn default() -> Self {
        Parts::One(Buf::default())
    }
}

impl Data {
    /// No bytes: the end of a file.
    pub fn empty() -> Data {
        Data::default()
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Data {
        if bytes.is_empty() { Data::empty() } else { Buf::copy_of(bytes).into() }
    }

    /// The buffers in order.
    pub fn bufs(&self) -> &[Buf] {
        match &self.0 {
            Parts::One(buf) => std::slice::from_ref(buf),
            Parts::Many(bufs) => bufs,
        }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.bufs().iter().map(|b| b.len()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts off what exceeds `max` bytes.
    pub(crate) fn truncate(&mut self, max: usize) {
        match &mut self.0 {
            Parts::One(buf) if buf.len() > max => *buf = buf.slice(0..max),
            Parts::One(_) => {}
            Parts::Many(bufs) => {
                let mut left = max;
                for buf in bufs.iter_mut() {
                    let keep = buf.len().min(left);
                    if keep < buf.len() {
                        *buf = buf.slice(0..keep);
                    }
                    left -= keep;
                }
                bufs.retain(|b| !b.is_empty());
            }
        }
    }
}

impl From<Buf> for Data {
    fn from(buf: Buf) -> Data {
        Data(Parts::One(buf))
    }
}

impl From<&[Buf]> for Data {
    fn from(bufs: &[Buf]) -> Data {
        Data(Parts::Many(bufs.to_vec()))
    }
}

impl From<Vec<Buf>> for Data {
    fn from(bufs: Vec<Buf>) -> Data {
        Data(Parts::Many(bufs))
    }
}

impl FromIterator<Buf> for Data {
    fn from_iter<I: IntoIterator<Item = Buf>>(bufs: I) -> Data {
        let mut bufs = bufs.into_iter();
        match (bufs.next(), bufs.next()) {
            (None, _) => Data::empty(),
            (Some(one), None) => one.into(),
            (Some(one), Some(two)) => {
                Data(Parts::Many([one, two].into_iter().chain(bufs).collect()))
            }
        }
    }
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The file system's present time.
    Now,
    /// This time.
    At(Timestamp),
}

/// What a setattr changes; `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permissions (type bits included, to be ignored).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// Last change of attributes (writeback cache only).
    pub ctime: Option<Timestamp>,
    /// The open handle it comes through.
    pub handle: Option<u64>,
    /// Owner of locks, of a truncation through a handle.
    pub lock_owner: Option<u64>,
    /// Drop set-user-id and set-group-id bits.
    pub kill_suidgid: bool,
}

/// A read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadArgs {
    /// Node.
    pub node: u64,
    /// Open handle, 0 if files are not opened.
    pub handle: u64,
    /// Byte offset.
    pub offset: u64,
    /// Bytes wanted; fewer mean the end of the file.
    pub size: u32,
    /// The file's `open(2)` flags.
    pub flags: u32,
    /// Owner of locks.
    pub lock_owner: Option<u64>,
}

/// A write; the bytes come beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteArgs {
    /// Node.
    pub node: u64,
    /// Open handle, 0 if files are not opened.
    pub handle: u64,
    /// Byte offset.
    pub offset: u64,
    /// The file's `open(2)` flags.
    pub flags: u32,
    /// Owner of locks.
    pub lock_owner: Option<u64>,
    /// A delayed write from the page cache: `handle` and the caller are guesses.
    pub from_cache: bool,
    /// Drop set-user-id and set-group-id bits.
    pub kill_suidgid: bool,
}

/// The mode of a new file, directory or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Type and permissions; the umask is applied already unless `dont_mask` was
    /// agreed.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
    /// Device number, for device files.
    pub rdev: u32,
}

/// The end of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseArgs {
    /// Node.
    pub node: u64,
    /// The handle, not used hereafter.
    pub handle: u64,
    /// The file's `open(2)` flags.
    pub flags: u32,
    /// Drop this owner's `flock` locks.
    pub flock_unlock: Option<u64>,
}

/// `fcntl` or `flock` lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// First byte.
    pub start: u64,
    /// Last byte, included; `i64::MAX` is the end of the file.
    pub end: u64,
    /// `F_RDLCK` (0), `F_WRLCK` (1) or `F_UNLCK` (2).
    pub kind: u32,
    /// Process that holds it.
    pub pid: u32,
}

/// A question about a lock, or its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockArgs {
    /// Node.
    pub node: u64,
    /// Open handle.
    pub handle: u64,
    /// The owner, a number that the kernel chose.
    pub owner: u64,
    /// The lock.
    pub lock: Lock,
    /// A `flock(2)` lock of the whole file.
    pub flock: bool,
    /// Wait for it (until [`Request::interrupted`](crate::Request::interrupted)).
    pub wait: bool,
}

/// File system totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// Size in units of `frsize`.
    pub blocks: u64,
    /// Free units.
    pub bfree: u64,
    /// Free units for ordinary users.
    pub bavail: u64,
    /// Nodes.
    pub files: u64,
    /// Free nodes.
    pub ffree: u64,
    /// Preferred I/O size in bytes.
    pub bsize: u32,
    /// Longest name in bytes.
    pub namelen: u32,
    /// Unit of the block counts in bytes.
    pub frsize: u32,
}

/// `lseek(2)` modes that only a file system can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The next byte that is not in a hole.
    Data,
    /// The next hole; the end of the file is one.
    Hole,
}

/// A range to be copied from file to file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// Source node.
    pub node_in: u64,
    /// Source handle.
    pub handle_in: u64,
    /// Source byte offset.
    pub offset_in: u64,
    /// Destination node.
    pub node_out: u64,
    /// Destination handle.
    pub handle_out: u64,
    /// Destination byte offset.
    pub offset_out: u64,
    /// Bytes.
    pub len: u64,
    /// Flags of `copy_file_range(2)`.
    pub flags: u64,
}

/// Attributes for `statx(2)`: those of [`Attr`] and the birth time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statx {
    /// The ordinary attributes.
    pub attr: Attr,
    /// Birth time, if known.
    pub btime: Option<Timestamp>,
    /// `STATX_ATTR_*` bits that are set.
    pub attributes: u64,
    /// `STATX_ATTR_*` bits that mean something here.
    pub attributes_mask: u64,
    /// How long the attributes may be believed.
    pub attr_ttl: Duration,
}

/// An ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoctlArgs<'a> {
    /// Node.
    pub node: u64,
    /// Open handle.
    pub handle: u64,
    /// `FUSE_IOCTL_*` flags.
    pub flags: u32,
    /// Command number.
    pub cmd: u32,
    /// The argument as passed, a number or an address in the caller.
    pub arg: u64,
    /// Bytes copied in from the caller.
    pub input: &'a [u8],
    /// Most bytes to be copied out.
    pub out_size: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn open_flags_have_the_kernels_bits() {
        let o = Opened { keep_cache: true, ..Opened::new(3) };
        assert_eq!(o.flags(), 2);
        let o = Opened { no_flush: true, parallel_direct_writes: true, ..Opened::new(3) };
        assert_eq!(o.flags(), 0x60);
    }

    #[test]
    fn times_before_1970_survive() {
        let attr = Attr { mtime: Timestamp { sec: -5, nsec: 7 }, ..Attr::default() };
        assert_eq!(attr.to_wire().mtime.cast_signed(), -5);
    }

    proptest! {
        /// Against the naive model: one flat vector.
        #[test]
        fn data_truncates_like_a_vector(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
            max in 0usize..200,
        ) {
            let mut model = parts.concat();
            let mut data: Data = parts.iter().map(|p| Buf::copy_of(p)).collect();
            prop_assert_eq!(data.len(), model.len());
            data.truncate(max);
            model.truncate(max);
            let flat: Vec<u8> = data.bufs().iter().flat_map(|b| b.to_vec()).collect();
            prop_assert_eq!(flat, model);
        }
    }
}
