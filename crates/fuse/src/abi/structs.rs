//! The structures of `linux/fuse.h`, field for field.

use super::wire;

wire! {
    /// Before every request.
    InHeader { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16 }
    /// Before every reply and notification.
    OutHeader { len: u32, error: i32, unique: u64 }
    /// A file's attributes.
    AttrWire { ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32 }
    EntryOut { nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32, attr: AttrWire }
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: AttrWire }
    KStatfs { blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6] }
    FileLock { start: u64, end: u64, kind: u32, pid: u32 }
    ForgetIn { nlookup: u64 }
    ForgetOne { nodeid: u64, nlookup: u64 }
    BatchForgetIn { count: u32, dummy: u32 }
    GetattrIn { getattr_flags: u32, dummy: u32, fh: u64 }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn { mode: u32, umask: u32 }
    RenameIn { newdir: u64 }
    Rename2In { newdir: u64, flags: u32, padding: u32 }
    LinkIn { oldnodeid: u64 }
    SetattrIn { valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32 }
    OpenIn { flags: u32, open_flags: u32 }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// `backing_id` is the former padding; it matters to passthrough only.
    OpenOut { fh: u64, open_flags: u32, backing_id: i32 }
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteOut { size: u32, padding: u32 }
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32 }
    /// The short form, used unless `SETXATTR_EXT` was negotiated.
    SetxattrCompatIn { size: u32, flags: u32 }
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    GetxattrIn { size: u32, padding: u32 }
    GetxattrOut { size: u32, padding: u32 }
    LkIn { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    LkOut { lk: FileLock }
    AccessIn { mask: u32, padding: u32 }
    /// Without `flags2`, which only comes with `INIT_EXT`.
    InitCompatIn { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    InitOut { major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11] }
    InterruptIn { unique: u64 }
    BmapIn { block: u64, blocksize: u32, padding: u32 }
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    PollIn { fh: u64, kh: u64, flags: u32, events: u32 }
    PollOut { revents: u32, padding: u32 }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut { offset: u64 }
    CopyFileRangeIn { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }
    CopyFileRangeOut { bytes_copied: u64 }
    SyncfsIn { padding: u64 }
    SxTime { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    StatxWire { mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: [u16; 1], ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14] }
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: StatxWire }
    /// Before the name of a directory entry.
    DirentHead { ino: u64, off: u64, namelen: u32, kind: u32 }
    NotifyInvalInode { ino: u64, off: i64, len: i64 }
    NotifyInvalEntry { parent: u64, namelen: u32, flags: u32 }
    NotifyDelete { parent: u64, child: u64, namelen: u32, padding: u32 }
    NotifyPrune { count: u32, padding: u32, spare: u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Wire;

    /// Sizes of the C structures on a 64-bit machine.
    #[test]
    fn sizes_are_the_kernels() {
        for (ours, theirs) in [
            (InHeader::SIZE, 40),
            (OutHeader::SIZE, 16),
            (AttrWire::SIZE, 88),
            (EntryOut::SIZE, 128),
            (AttrOut::SIZE, 104),
            (KStatfs::SIZE, 80),
            (SetattrIn::SIZE, 88),
            (ReadIn::SIZE, 40),
            (WriteIn::SIZE, 40),
            (OpenOut::SIZE, 16),
            (LkIn::SIZE, 48),
            (InitIn::SIZE, 64),
            (InitOut::SIZE, 64),
            (IoctlIn::SIZE, 32),
            (FallocateIn::SIZE, 32),
            (CopyFileRangeIn::SIZE, 56),
            (StatxWire::SIZE, 256),
            (StatxOut::SIZE, 288),
            (StatxIn::SIZE, 24),
            (DirentHead::SIZE, 24),
            (NotifyInvalInode::SIZE, 24),
            (NotifyPrune::SIZE, 16),
        ] {
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn values_survive_the_wire() {
        let x = ReadIn { fh: 1, offset: u64::MAX, size: 3, read_flags: 4, ..Default::default() };
        let mut bytes = Vec::new();
        x.put(&mut bytes);
        assert_eq!(bytes.len(), ReadIn::SIZE);
        assert_eq!(ReadIn::take(&mut &bytes[..]), Some(x));
        assert_eq!(ReadIn::take(&mut &bytes[..39]), None);
    }
}
