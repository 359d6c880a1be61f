//! A small file system in memory, and what mounting it takes.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code outside test functions")]

#[path = "../../../testkit/src/need.rs"]
mod need;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use base::{Buf, BufMut};
use fuse::*;

pub(crate) use need::{Need, skip};

pub(crate) const BIG: u64 = 2;
pub(crate) const SPARSE: u64 = 3;
pub(crate) const LINK: u64 = 4;
pub(crate) const DIR: u64 = 5;
pub(crate) const SLOW: u64 = 6;
pub(crate) const STUCK: u64 = 7;
pub(crate) const RW: u64 = 8;
pub(crate) const PANIC: u64 = 9;
const NAMES: [(&str, u64); 8] = [
    ("big", BIG),
    ("sparse", SPARSE),
    ("link", LINK),
    ("dir", DIR),
    ("slow", SLOW),
    ("stuck", STUCK),
    ("rw", RW),
    ("panic", PANIC),
];
pub(crate) const BIG_SIZE: u64 = 24 << 20;
pub(crate) const DIR_FILES: u64 = 10_000;
const FIRST_FILE: u64 = 1000;

/// The byte of `big` at an offset.
pub(crate) fn pattern(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

#[derive(Default)]
pub(crate) struct MemFs {
    pub(crate) ttl: Duration,
    pub(crate) rw: Mutex<Vec<u8>>,
    /// Lookups that the kernel holds, by node.
    pub(crate) lookups: Mutex<HashMap<u64, i64>>,
    pub(crate) underflow: AtomicBool,
    pub(crate) blocking_reads: AtomicUsize,
    pub(crate) nonblocking_hits: AtomicUsize,
    pub(crate) waiting: AtomicUsize,
    pub(crate) gate: (Mutex<bool>, Condvar),
    pub(crate) interrupts: Mutex<Vec<u64>>,
    /// The number of a read of `stuck`, and of the flush after it.
    pub(crate) stuck_read: AtomicU64,
    pub(crate) flushes: Mutex<Vec<u64>>,
    pub(crate) interrupted_reads: AtomicUsize,
    pub(crate) plus_calls: AtomicUsize,
    pub(crate) lookup_calls: AtomicUsize,
    pub(crate) destroyed: AtomicBool,
    pub(crate) whole_writes: AtomicUsize,
    pub(crate) aligned_writes: AtomicUsize,
    pub(crate) flock_owner: Mutex<Option<u64>>,
    /// Requests that wait for a lock.
    pub(crate) lock_waiters: AtomicUsize,
    pub(crate) open_handles: AtomicI64,
    pub(crate) next_handle: AtomicU64,
}

impl MemFs {
    pub(crate) fn open_gate(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }

    fn attr(&self, node: u64) -> Attr {
        let (mode, size) = match node {
            ROOT_ID | DIR => (0o040_755, 2),
            LINK => (0o120_777, 3),
            BIG => (0o100_644, BIG_SIZE),
            SPARSE | SLOW | STUCK | PANIC => (0o100_644, 1 << 20),
            RW => (0o100_644, self.rw.lock().unwrap().len() as u64),
            n => (0o100_600, n),
        };
        let uid = rustix::process::geteuid().as_raw();
        let mtime = Timestamp { sec: 1_000_000_000 + node as i64, nsec: 7 };
        Attr { ino: node + 100, mode, size, nlink: 1, uid, mtime, blksize: 4096, ..Attr::default() }
    }

    fn entry(&self, node: u64) -> LookupEntry {
        LookupEntry {
            node,
            generation: 0,
            attr: self.attr(node),
            entry_ttl: self.ttl,
            attr_ttl: self.ttl,
        }
    }

    fn granted(&self, node: u64) -> LookupEntry {
        *self.lookups.lock().unwrap().entry(node).or_default() += 1;
        self.entry(node)
    }

    fn find(parent: u64, name: &[u8]) -> Option<u64> {
        let name = std::str::from_utf8(name).ok()?;
        match parent {
            ROOT_ID => NAMES.iter().find(|(n, _)| *n == name).map(|&(_, node)| node),
            DIR => {
                let i: u64 = name.strip_prefix("file-")?.parse().ok()?;
                (i < DIR_FILES).then_some(FIRST_FILE + i)
            }
            _ => None,
        }
    }

    fn children(parent: u64) -> Vec<(u64, String)> {
        let mut all = vec![(parent, ".".to_owned()), (ROOT_ID, "..".to_owned())];
        match parent {
            DIR => all.extend((0..DIR_FILES).map(|i| (FIRST_FILE + i, format!("file-{i:05}")))),
            _ => all.extend(NAMES.iter().map(|&(name, node)| (node, name.to_owned()))),
        }
        all
    }

    fn wait_for_gate(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut open = self.gate.0.lock().unwrap();
        while !*open {
            open = self.gate.1.wait(open).unwrap();
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Filesystem for MemFs {
    fn destroy(&self) {
        self.destroyed.store(true, Ordering::SeqCst);
    }

    fn interrupt(&self, unique: u64) {
        self.interrupts.lock().unwrap().push(unique);
    }

    fn lookup(
        &self,
        _: &Request,
        _: BlockingMode,
        parent: u64,
        name: &[u8],
    ) -> Result<LookupEntry> {
        self.lookup_calls.fetch_add(1, Ordering::SeqCst);
        Self::find(parent, name).map(|node| self.granted(node)).ok_or(Errno::ENOENT)
    }

    fn forget(&self, node: u64, count: u64) {
        let mut lookups = self.lookups.lock().unwrap();
        let held = lookups.entry(node).or_default();
        *held -= count as i64;
        if *held < 0 {
            self.underflow.store(true, Ordering::SeqCst);
        }
    }

    fn getattr(
        &self,
        _: &Request,
        mode: BlockingMode,
        node: u64,
        _: Option<u64>,
    ) -> Result<(Attr, Duration)> {
        // Attributes of some nodes are "on disk".
        if node == SPARSE && mode == BlockingMode::NonBlocking {
            return Err(Errno::WOULD_BLOCK);
        }
        Ok((self.attr(node), self.ttl))
    }

    fn setattr(&self, _: &Request, node: u64, set: &SetAttr) -> Result<(Attr, Duration)> {
        if node != RW {
            return Err(Errno::EROFS);
        }
        if let Some(size) = set.size {
            self.rw.lock().unwrap().resize(size as usize, 0);
        }
        Ok((self.attr(node), self.ttl))
    }

    fn readlink(&self, _: &Request, _: BlockingMode, node: u64) -> Result<Data> {
        if node == LINK { Ok(Data::copy_of(b"big")) } else { Err(Errno::EINVAL) }
    }

    fn open(&self, _: &Request, _: BlockingMode, node: u64, flags: u32) -> Result<Opened> {
        const O_TRUNC: u32 = 0o1000;
        if node == RW && flags & O_TRUNC != 0 {
            self.rw.lock().unwrap().clear();
        }
        self.open_handles.fetch_add(1, Ordering::SeqCst);
        let handle = self.next_handle.fetch_add(1, Ordering::SeqCst);
        let direct_io = matches!(node, SLOW | STUCK);
        Ok(Opened { direct_io, ..Opened::new(handle) })
    }

    fn flush(&self, req: &Request, _: u64, _: u64, _: u64) -> Result<()> {
        self.flushes.lock().unwrap().push(req.unique);
        Ok(())
    }

    fn release(&self, _: &Request, args: &ReleaseArgs) -> Result<()> {
        self.open_handles.fetch_sub(1, Ordering::SeqCst);
        if let Some(owner) = args.flock_unlock {
            let mut held = self.flock_owner.lock().unwrap();
            if *held == Some(owner) {
                *held = None;
            }
        }
        Ok(())
    }

    fn read(&self, req: &Request, mode: BlockingMode, args: &ReadArgs) -> Result<Data> {
        let end = (args.offset + u64::from(args.size)).min(self.attr(args.node).size);
        let len = end.saturating_sub(args.offset) as usize;
        if mode == BlockingMode::NonBlocking {
            // Every other 64 KiB are "on disk", and all of the odd files.
            if !matches!(args.node, BIG | RW | PANIC) || (args.offset >> 16) & 1 == 1 {
                return Err(Errno::WOULD_BLOCK);
            }
            self.nonblocking_hits.fetch_add(1, Ordering::SeqCst);
        } else {
            self.blocking_reads.fetch_add(1, Ordering::SeqCst);
        }
        match args.node {
            PANIC => std::panic::resume_unwind(Box::new("told to")),
            SLOW => self.wait_for_gate(),
            STUCK => {
                self.stuck_read.store(req.unique, Ordering::SeqCst);
                self.waiting.fetch_add(1, Ordering::SeqCst);
                eventually("the read is interrupted", || req.interrupted());
                self.interrupted_reads.fetch_add(1, Ordering::SeqCst);
                return Err(Errno::EINTR);
            }
            RW => {
                let rw = self.rw.lock().unwrap();
                let start = (args.offset as usize).min(rw.len());
                return Ok(Data::copy_of(&rw[start..start + len]));
            }
            BIG => {
                let mut buf = BufMut::alloc(len);
                for (i, byte) in buf.iter_mut().enumerate() {
                    *byte = pattern(args.offset + i as u64);
                }
                // In pieces, as a file of many blocks would be.
                let buf = buf.freeze();
                let cut = |at: usize| buf.slice(at..(at + 1000).min(len));
                return Ok((0..len).step_by(1000).map(cut).collect());
            }
            _ => {}
        }
        Ok(Buf::zeros(len).into())
    }

    fn write(&self, _: &Request, args: &WriteArgs, data: Buf) -> Result<u32> {
        if args.node != RW {
            return Err(Errno::EROFS);
        }
        if data.len() == 1 << 20 {
            self.whole_writes.fetch_add(1, Ordering::SeqCst);
        }
        if data.as_ptr().addr().is_multiple_of(4096) {
            self.aligned_writes.fetch_add(1, Ordering::SeqCst);
        }
        let mut rw = self.rw.lock().unwrap();
        let start = args.offset as usize;
        let end = start + data.len();
        if rw.len() < end {
            rw.resize(end, 0);
        }
        rw[start..end].copy_from_slice(&data);
        Ok(data.len() as u32)
    }

    fn readdir(
        &self,
        _: &Request,
        mode: BlockingMode,
        node: u64,
        _: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> Result<()> {
        if mode == BlockingMode::NonBlocking && offset == 0 {
            return Err(Errno::WOULD_BLOCK);
        }
        for (i, (node, name)) in Self::children(node).into_iter().enumerate().skip(offset as usize)
        {
            if !sink.add(node + 100, i as u64 + 1, self.attr(node).mode, name.as_bytes()) {
                break;
            }
        }
        Ok(())
    }

    fn readdirplus(
        &self,
        _: &Request,
        mode: BlockingMode,
        node: u64,
        _: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> Result<()> {
        self.plus_calls.fetch_add(1, Ordering::SeqCst);
        if mode == BlockingMode::NonBlocking && offset == 0 {
            return Err(Errno::WOULD_BLOCK);
        }
        for (i, (node, name)) in Self::children(node).into_iter().enumerate().skip(offset as usize)
        {
            let next = i as u64 + 1;
            let taken = if i < 2 {
                sink.add(node + 100, next, 0o040_755, name.as_bytes())
            } else {
                sink.add_plus(&self.entry(node), next, name.as_bytes())
            };
            if !taken {
                break;
            }
            if i >= 2 {
                self.granted(node);
            }
        }
        Ok(())
    }

    fn statfs(&self, _: &Request, _: BlockingMode, _: u64) -> Result<Statfs> {
        Ok(Statfs {
            blocks: 1000,
            bfree: 500,
            bavail: 400,
            files: 8,
            ffree: 3,
            bsize: 131_072,
            namelen: 255,
            frsize: 512,
        })
    }

    fn getxattr(
        &self,
        _: &Request,
        mode: BlockingMode,
        node: u64,
        name: &[u8],
        _: u32,
    ) -> Result<Data> {
        if mode == BlockingMode::NonBlocking {
            return Err(Errno::WOULD_BLOCK);
        }
        match (node, name) {
            (BIG, b"user.colour") => Ok(Data::copy_of(b"green")),
            _ => Err(Errno::ENODATA),
        }
    }

    fn listxattr(&self, _: &Request, _: BlockingMode, node: u64, _: u32) -> Result<Data> {
        Ok(if node == BIG { Data::copy_of(b"user.colour\0user.size\0") } else { Data::empty() })
    }

    fn lseek(
        &self,
        _: &Request,
        _: BlockingMode,
        node: u64,
        _: u64,
        offset: u64,
        whence: Whence,
    ) -> Result<u64> {
        let data = 256 << 10..512 << 10u64;
        match (node, whence) {
            (SPARSE, Whence::Data) if offset < data.end => Ok(offset.max(data.start)),
            (SPARSE, Whence::Hole) if data.contains(&offset) => Ok(data.end),
            (SPARSE, Whence::Hole) if offset < 1 << 20 => Ok(offset),
            _ => Err(Errno::ENXIO),
        }
    }

    fn setlk(&self, req: &Request, args: &LockArgs) -> Result<()> {
        struct LockWait<'a>(&'a AtomicUsize);
        impl Drop for LockWait<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let mut waits = None;
        // The kernel interrupts the request when its process ends.
        loop {
            {
                let mut held = self.flock_owner.lock().unwrap();
                if args.lock.kind == 2 {
                    if *held == Some(args.owner) {
                        *held = None;
                    }
                    return Ok(());
                }
                if held.is_none_or(|owner| owner == args.owner) {
                    *held = Some(args.owner);
                    return Ok(());
                }
            }
            if !args.wait {
                return Err(Errno::EAGAIN);
            }
            if req.interrupted() {
                return Err(Errno::EINTR);
            }
            waits.get_or_insert_with(|| {
                self.lock_waiters.fetch_add(1, Ordering::SeqCst);
                LockWait(&self.lock_waiters)
            });
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A mounted test file system in a directory of its own.
pub(crate) struct MountedTestFs {
    pub(crate) fs: Arc<MemFs>,
    pub(crate) session: Session,
    pub(crate) dir: PathBuf,
}

/// Mounts, or says why the test is skipped.
pub(crate) fn mount(fs: MemFs, config: &Config, options: &MountOptions) -> Option<MountedTestFs> {
    mount_by(fs, config, options, &DevTransport)
}

pub(crate) fn mount_by(
    fs: MemFs,
    config: &Config,
    options: &MountOptions,
    transport: &dyn Transport,
) -> Option<MountedTestFs> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    if !Path::new("/dev/fuse").exists() {
        skip(Need::Fuse, "there is no /dev/fuse");
        return None;
    }
    let n = COUNT.fetch_add(1, Ordering::SeqCst);
    let dir = std::env::temp_dir().join(format!("cenote-fuse-test-{}-{n}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let fs = Arc::new(fs);
    let server = Arc::clone(&fs) as Arc<dyn Filesystem>;
    match Session::mount_by(server, &dir, options, config, transport) {
        Ok(session) => Some(MountedTestFs { fs, session, dir }),
        Err(e) if e.kind() == base::ErrorKind::Permission => {
            skip(Need::Root, &format!("this user may not mount: {e}"));
            let _ = std::fs::remove_dir(&dir);
            None
        }
        Err(e) => panic!("cannot mount: {e}"),
    }
}

pub(crate) fn mount_default() -> Option<MountedTestFs> {
    mount(MemFs::default(), &Config::default(), &MountOptions::default())
}

impl MountedTestFs {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Unmounts in order and checks what must hold at the end.
    pub(crate) fn finish(self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        // Releases travel behind the close that causes them.
        while let Err(e) = self.session.unmount(UnmountOptions::default()) {
            assert!(Instant::now() < deadline, "{e}");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.session.join();
        assert!(!self.session.is_running());
        assert!(self.fs.destroyed.load(Ordering::SeqCst));
        assert!(!self.fs.underflow.load(Ordering::SeqCst), "a node forgotten more than looked up");
        std::fs::remove_dir(&self.dir).unwrap();
    }
}

/// Waits until `condition` holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
