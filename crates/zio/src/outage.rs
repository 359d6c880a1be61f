//! Policy for devices that do not answer: which reads wait, and which get an error.
//!
//! # Theory
//! A txg that is being written can be neither abandoned nor finished while its devices
//! are absent. So writes that failed, and reads of the sync thread that failed, are
//! kept and repeated after the pool's owner has reopened the devices ([`Outage`]).
//!
//! Each read carries its policy in [`Io::outage`]. The sync thread and its helpers read
//! with [`Io::SYNC`] and wait without limit. Requests of a mount wait as `failmode` says,
//! at any point of their work: a system call that met the outage half-way continues from
//! that point. All other reads get the error at once. Code below the caller gets the
//! policy in an [`Io`], or from a handle that was made with a policy: a transaction, the
//! MOS, a file system.
//!
//! # Invariants
//! * No thread waits here while it holds a lock of this crate or a fill ticket of the
//!   cache.
//! * The sync thread never reads with another policy than [`OutagePolicy::WaitAlways`]:
//!   an error that goes away would end the pool. Debug builds check it
//!   ([`enter_sync_context`]).
//!
//! Lock order: none.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};

use crate::{Io, Mode, Zio};

/// How a pool reacts to absent devices.
pub trait Outage: Send + Sync {
    /// Waits until an operation that must succeed, and failed with `why`, may be
    /// repeated. Returns false if it never will be.
    fn wait(&self, why: &Error) -> bool;

    /// Handles the error `why` of a user's call. Waits if the pool is suspended, or
    /// becomes so now because its devices are absent, and its users are to wait.
    /// Returns false if the call is to fail.
    fn wait_per_failmode(&self, why: &Error) -> bool;

    /// Whether the pool is suspended now.
    fn is_suspended(&self) -> bool {
        false
    }
}

/// What a read does when devices are absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OutagePolicy {
    /// It fails at once.
    #[default]
    Fail,
    /// It waits for the resumption of the suspended pool, as property `failmode` says.
    WaitPerFailmode,
    /// It waits without limit, as the sync thread must.
    WaitAlways,
}

/// Whether an error may disappear when the device returns.
fn is_device_error(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::DevicesMissing)
}

impl Zio {
    /// Sets the handler of outages.
    pub fn set_outage(&self, outage: Arc<dyn Outage>) {
        *self.outage.write() = Some(outage);
    }

    /// Whether the pool is suspended, so that errors of its devices may be temporary.
    pub fn is_suspended(&self) -> bool {
        self.outage.read().as_ref().is_some_and(|o| o.is_suspended())
    }

    pub(crate) fn waits_for_devices(&self) -> bool {
        self.outage.read().is_some()
    }

    /// Whether a failed read with this policy is to be repeated; waits until it can be.
    pub(crate) fn retries(&self, error: &Error, policy: OutagePolicy) -> bool {
        match policy {
            OutagePolicy::Fail => false,
            OutagePolicy::WaitAlways => self.wait_for_retry(error),
            OutagePolicy::WaitPerFailmode => {
                let outage = self.outage.read().clone();
                is_device_error(error) && outage.is_some_and(|o| o.wait_per_failmode(error))
            }
        }
    }

    /// Waits until a failed operation may be repeated; false if it is not to be.
    pub fn wait_for_retry(&self, error: &Error) -> bool {
        let outage = self.outage.read().clone();
        is_device_error(error) && outage.is_some_and(|o| o.wait(error))
    }
}

#[cfg(debug_assertions)]
thread_local! {
    static IN_SYNC_CONTEXT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Marks the calling thread as a sync thread until it ends. In debug builds its reads with
/// another policy than [`OutagePolicy::WaitAlways`] are bugs from then on; the mark has no
/// other effect.
pub fn enter_sync_context() {
    #[cfg(debug_assertions)]
    IN_SYNC_CONTEXT.set(true);
}

/// Whether the calling thread is marked as a sync thread; always false in release builds.
fn in_sync_context() -> bool {
    #[cfg(debug_assertions)]
    return IN_SYNC_CONTEXT.get();
    #[cfg(not(debug_assertions))]
    false
}

/// Checks that a read of a sync thread waits for devices. A read from memory needs none.
pub(crate) fn check_context(io: Io) -> Result<()> {
    let waits = io.mode == Mode::MemoryOnly || io.outage == OutagePolicy::WaitAlways;
    if !waits && in_sync_context() {
        return Err(base::bug!("the sync thread reads with policy {:?}", io.outage));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use base::rt::Mutex;
    use base::{Buf, Dva, Psize, Txg};
    use codec::compress::Compression;
    use ondisk::ObjType;
    use ondisk::blkptr::BlkPtr;

    use super::*;
    use crate::{BlockCache, SpaceSource, Want, Write, WriteProps};

    fn zio() -> Zio {
        let root = vdev::Spec::new(vdev::VdevKind::Root, 0, base::Guid(1));
        let tree = vdev::Tree::build(&root, &|_| Err(Error::not_found("no devices"))).unwrap();
        Zio::new(tree, Arc::new(BlockCache::of(64 << 20).unwrap()))
    }

    /// Counts calls; the devices return with each.
    #[derive(Default)]
    struct CountedWaits {
        always: AtomicU32,
        per_failmode: AtomicU32,
    }

    impl Outage for CountedWaits {
        fn wait(&self, _: &Error) -> bool {
            self.always.fetch_add(1, SeqCst);
            true
        }

        fn wait_per_failmode(&self, _: &Error) -> bool {
            self.per_failmode.fetch_add(1, SeqCst);
            true
        }
    }

    #[test]
    fn the_policy_of_a_read_selects_the_wait() {
        let (zio, waits) = (zio(), Arc::new(CountedWaits::default()));
        let gone = Error::new(ErrorKind::Io, "the device is gone");
        let all = [OutagePolicy::Fail, OutagePolicy::WaitPerFailmode, OutagePolicy::WaitAlways];
        // A pool without a handler has no outages.
        assert!(all.iter().all(|policy| !zio.retries(&gone, *policy)));
        zio.set_outage(Arc::clone(&waits) as _);
        let seen = || (waits.per_failmode.load(SeqCst), waits.always.load(SeqCst));
        for (policy, expected) in all.into_iter().zip([(0, 0), (1, 0), (1, 1)]) {
            assert_eq!(zio.retries(&gone, policy), policy != OutagePolicy::Fail);
            assert_eq!(seen(), expected, "{policy:?}");
        }
        // Damage does not disappear.
        assert!(all.iter().all(|policy| !zio.retries(&Error::corrupt("bytes"), *policy)));
        assert_eq!(seen(), (1, 1));
    }

    #[test]
    fn a_read_of_the_sync_thread_that_does_not_wait_is_a_bug() {
        let fails = |io| base::bug::is_met(|| check_context(io));
        let per_failmode = Io::WAIT.with_outage(OutagePolicy::WaitPerFailmode);
        assert!(![Io::WAIT, per_failmode, Io::SYNC, Io::MEMORY].into_iter().any(fails));
        let sync = base::rt::spawn("sync", move || {
            enter_sync_context();
            [Io::WAIT, per_failmode, Io::SCAN, Io::SYNC, Io::MEMORY].map(fails)
        });
        let [wait, per_failmode, scan, sync, memory] = sync.unwrap().join().unwrap();
        assert_eq!((sync, memory), (false, false));
        let checked = cfg!(debug_assertions);
        assert_eq!((wait, per_failmode, scan), (checked, checked, checked));
    }

    /// Has no space, and notes the policies of the requests.
    #[derive(Default)]
    struct NoSpace(Mutex<Vec<OutagePolicy>>);

    impl SpaceSource for NoSpace {
        fn allocate(&self, want: &Want) -> Result<Vec<Dva>> {
            self.0.lock().push(want.outage);
            Err(Error::new(ErrorKind::NoSpace, "no space"))
        }

        fn unallocate(&self, _: Txg, _: &[Dva]) {}

        fn is_allocated(&self, _: Dva) -> bool {
            true
        }

        fn limits(&self) -> (u64, u64) {
            (512, 512)
        }
    }

    /// Story: the policy was a property of the sync thread. Its helpers, which place most
    /// blocks of a large wave, failed to load a metaslab while the devices were absent, and
    /// the metaslab was not allocated from until the next import.
    #[test]
    fn an_allocation_has_the_policy_of_its_write() {
        let (zio, space) = (zio(), Arc::new(NoSpace::default()));
        zio.set_space(Arc::clone(&space) as _);
        let (data, old) = (Buf::copy_of(&[7; 8192]), BlkPtr::default());
        let props = WriteProps { compression: Compression::Off, ..WriteProps::default() };
        let write = Write {
            object_type: ObjType::PLAIN_FILE_CONTENTS,
            level: 0,
            data: &data,
            fill: 1,
            txg: Txg(7),
            props: &props,
            old: &old,
            change: crate::BlockChange::Content,
            in_place: false,
            gangs: None,
            hint: 0,
            packed: None,
            seal: None,
            in_run: false,
            cache: true,
            outage: OutagePolicy::WaitAlways,
        };
        let prepared = zio.prepare(&write).unwrap();
        assert_eq!(prepared.psize(), Psize(8192));
        assert!(zio.place(prepared).is_err());
        let policies = space.0.lock().clone();
        // The block, and parts of a gang.
        assert!(policies.len() > 1, "{policies:?}");
        assert!(policies.iter().all(|policy| *policy == OutagePolicy::WaitAlways), "{policies:?}");
    }
}
