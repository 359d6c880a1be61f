//! A session's settings, and their negotiation with the kernel (INIT).

use std::sync::Arc;

use crate::abi::consts::*;
use crate::abi::structs::{InitIn, InitOut};
use crate::fs::Negotiated;
use crate::latency::CpuLatencyQos;

const PAGE: u32 = 4096;
/// Smallest and largest transfer of one request, in bytes.
const TRANSFER_MIN: u32 = 128 << 10;
const TRANSFER_MAX: u32 = 16 << 20;
/// Pages in one request that every kernel since 4.20 grants.
const DEFAULT_PAGES: u32 = 256;

/// When the kernel drops cached pages of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataInvalidation {
    /// On a notification ([`Notifier`](crate::Notifier)): for a file system that changes only
    /// through this mount, or that notifies.
    #[default]
    Explicit,
    /// Also when the size is found changed.
    OnSizeChange,
    /// Also when the time of the last change is found changed.
    OnTimeChange,
}

/// A session's settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most requests served at once, waits for locks apart; more wait in the kernel.
    pub concurrency: usize,
    /// Most threads waiting for locks; more get `ENOLCK`.
    pub lock_waiters: usize,
    /// Requests in the background (reads ahead, asynchronous direct I/O) that the
    /// kernel sends at once. Its own default of 12 would hide the devices' depth.
    pub max_background: u16,
    /// From this many on the kernel stops reading ahead; 0: three quarters of them.
    pub congestion_threshold: u16,
    /// Bytes in one read or write; 0: as many as `fs.fuse.max_pages_limit` allows.
    pub max_transfer: u32,
    /// Bytes the kernel reads ahead. Raising it above the kernel's 128 KiB needs
    /// the right to write `read_ahead_kb` in sysfs, and is left alone without.
    pub max_readahead: u32,
    /// `readdirplus` where the kernel finds it useful.
    pub readdirplus: bool,
    /// The kernel caches targets of symbolic links.
    pub cache_symlinks: bool,
    /// Lookup answers `.` and `..`, for file handles of NFS and
    /// `open_by_handle_at`.
    pub export: bool,
    /// `O_TRUNC` reaches `open`. Turn it off for a writable file system whose
    /// `open` is `ENOSYS`: its truncations would be lost.
    pub atomic_o_trunc: bool,
    /// POSIX ACLs in extended attributes, checked by the kernel; implies
    /// `default_permissions`.
    pub posix_acl: bool,
    /// The file system drops set-id bits on write, chown and truncation, and the
    /// kernel need not ask for `security.capability` before each write.
    pub killpriv_v2: bool,
    /// The umask is left to the file system.
    pub dont_mask: bool,
    /// `fcntl` locks reach the file system; else the kernel keeps them.
    pub posix_locks: bool,
    /// `flock` locks reach the file system; else the kernel keeps them.
    pub flock_locks: bool,
    /// Writes are gathered in the page cache. The kernel then decides sizes and
    /// times, and `O_APPEND` and quotas are late.
    pub writeback_cache: bool,
    /// When the kernel drops cached pages.
    pub invalidation: DataInvalidation,
    /// Resolution of timestamps in nanoseconds.
    pub time_gran: u32,
    /// Counts requests to keep idle cores from halting while they are dense.
    pub latency_qos: Option<Arc<CpuLatencyQos>>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            concurrency: 128,
            lock_waiters: 1024,
            max_background: 256,
            congestion_threshold: 0,
            max_transfer: 0,
            max_readahead: 1 << 20,
            readdirplus: true,
            cache_symlinks: true,
            export: true,
            atomic_o_trunc: true,
            posix_acl: false,
            killpriv_v2: false,
            dont_mask: false,
            posix_locks: false,
            flock_locks: false,
            writeback_cache: false,
            invalidation: DataInvalidation::Explicit,
            time_gran: 1,
            latency_qos: None,
        }
    }
}

impl Config {
    /// What is asked of a kernel, if it offers it.
    fn flags(&self) -> u64 {
        let always = ASYNC_READ
            | BIG_WRITES
            | ASYNC_DIO
            | PARALLEL_DIROPS
            | MAX_PAGES
            | NO_OPEN_SUPPORT
            | NO_OPENDIR_SUPPORT
            | HAS_IOCTL_DIR
            | SETXATTR_EXT
            | INIT_EXT
            | DIRECT_IO_ALLOW_MMAP;
        let options = [
            (self.readdirplus, DO_READDIRPLUS | READDIRPLUS_AUTO),
            (self.cache_symlinks, CACHE_SYMLINKS),
            (self.export, EXPORT_SUPPORT),
            (self.atomic_o_trunc, ATOMIC_O_TRUNC),
            (self.posix_acl, POSIX_ACL),
            (self.killpriv_v2, HANDLE_KILLPRIV_V2),
            (self.dont_mask, DONT_MASK),
            (self.posix_locks, POSIX_LOCKS),
            (self.flock_locks, FLOCK_LOCKS),
            (self.writeback_cache, WRITEBACK_CACHE),
            (self.invalidation == DataInvalidation::Explicit, EXPLICIT_INVAL_DATA),
            (self.invalidation == DataInvalidation::OnTimeChange, AUTO_INVAL_DATA),
        ];
        options.into_iter().filter(|&(on, _)| on).fold(always, |bits, (_, bit)| bits | bit)
    }

    /// The reply to INIT. `max_pages` is the kernel's limit for one request.
    pub(crate) fn negotiate(
        &self,
        offer: &InitIn,
        extra: u64,
        max_pages: u32,
    ) -> (InitOut, Negotiated) {
        let mut offered = u64::from(offer.flags);
        if offered & INIT_EXT != 0 {
            offered |= u64::from(offer.flags2) << 32;
        }
        let flags = (self.flags() | extra) & offered;
        let pages = if flags & MAX_PAGES != 0 { max_pages } else { 32 };
        let most = pages.saturating_mul(PAGE).clamp(TRANSFER_MIN, TRANSFER_MAX);
        let wanted = if self.max_transfer == 0 { most } else { self.max_transfer };
        let transfer = wanted.clamp(TRANSFER_MIN, most).next_multiple_of(PAGE);
        let threshold = match self.congestion_threshold {
            0 => self.max_background - self.max_background / 4,
            n => n,
        };
        let minor = offer.minor.min(MINOR_MAX);
        let negotiated = Negotiated {
            minor,
            flags,
            max_transfer: transfer,
            max_readahead: self.max_readahead,
            max_background: self.max_background,
        };
        let reply = InitOut {
            major: KERNEL_VERSION,
            minor,
            max_readahead: self.max_readahead,
            flags: (flags & u64::from(u32::MAX)) as u32,
            max_background: self.max_background,
            congestion_threshold: threshold,
            max_write: transfer,
            time_gran: self.time_gran.clamp(1, 1_000_000_000),
            // At most TRANSFER_MAX / PAGE = 4096.
            max_pages: (transfer / PAGE) as u16,
            flags2: (flags >> 32) as u32,
            ..Default::default()
        };
        (reply, negotiated)
    }
}

/// The administrator's limit on pages in one request.
pub(crate) fn max_pages_limit() -> u32 {
    std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(DEFAULT_PAGES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(flags: u64) -> InitIn {
        InitIn {
            major: 7,
            minor: 45,
            max_readahead: 131_072,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            unused: [0; 11],
        }
    }

    #[test]
    fn only_what_is_offered_is_taken() {
        let config = Config { posix_acl: true, ..Config::default() };
        let (reply, n) = config.negotiate(&offer(ASYNC_READ | MAX_PAGES), 0, 256);
        assert_eq!(n.flags, ASYNC_READ | MAX_PAGES);
        assert_eq!((reply.max_write, reply.max_pages), (1 << 20, 256));
        assert_eq!((reply.max_background, reply.congestion_threshold), (256, 192));
        let (_, n) = config.negotiate(&offer(!0), 0, 256);
        assert!(n.flags & POSIX_ACL != 0 && n.flags & WRITEBACK_CACHE == 0);
        assert!(n.flags & DIRECT_IO_ALLOW_MMAP != 0 && n.flags & OVER_IO_URING == 0);
    }

    #[test]
    fn the_upper_flags_need_init_ext() {
        let (reply, n) = Config::default().negotiate(&offer(!INIT_EXT), OVER_IO_URING, 256);
        assert_eq!((reply.flags2, n.flags >> 32), (0, 0));
        let (reply, _) = Config::default().negotiate(&offer(!0), OVER_IO_URING, 256);
        assert_ne!(reply.flags2 & (1 << 9), 0);
    }

    #[test]
    fn transfers_stay_within_limits() {
        for (wanted, pages, result) in [
            (0, 256, 1 << 20),
            (0, 65_535, TRANSFER_MAX),
            (1 << 30, 256, 1 << 20),
            (1, 256, TRANSFER_MIN),
            (300_001, 256, 303_104),
        ] {
            let config = Config { max_transfer: wanted, ..Config::default() };
            let (reply, n) = config.negotiate(&offer(!0), 0, pages);
            assert_eq!((n.max_transfer, u32::from(reply.max_pages) * PAGE), (result, result));
        }
    }
}
