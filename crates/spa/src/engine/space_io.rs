//! The pool's space for the pipeline: allocation from the metaslabs, which are loaded on
//! demand.
//!
//! Lock order: one of `loading` is held while a space map is read; under it only locks of
//! reading are taken.

use std::sync::{Arc, OnceLock, Weak};

use base::rt::{self, Mutex, RwLock};
use base::{Dva, Error, ErrorKind, ObjectId, Psize, Result, Txg, VdevId};
use dmu::{Io, Objset, OutagePolicy};
use dsl::Mos;
use metaslab::{Denied, MsKey, Space};
use ondisk::spacemap::{Entries, Params, Range};
use zio::{SpaceSource, Want, Zio};

use super::exclusion::Exclusions;

/// How often a metaslab may change while it is read.
const LOADS_MAX: usize = 64;

/// Locks of metaslabs that are being loaded.
const LOADERS: usize = 8;
/// Metaslabs of a vdev that one txg loads ahead.
const PRELOADS_MAX: usize = 64;

/// [`SpaceSource`] of an open pool.
pub(crate) struct SpaceIo {
    pub(crate) space: Arc<Space>,
    zio: Weak<Zio>,
    /// Weak, because the MOS reads through the pipeline that allocates here.
    mos: OnceLock<Weak<Objset>>,
    /// One thread reads a space map; threads that need other ones do not wait for it.
    loading: [Mutex<()>; LOADERS],
    /// Metaslabs whose free space is being discarded or overwritten.
    pub(super) exclusions: Arc<Exclusions>,
    /// Valid until vdevs are added.
    limits: RwLock<Option<(u64, u64)>>,
}

pub(crate) fn class_of(class: zio::Class) -> metaslab::SpaceClass {
    match class {
        zio::Class::Normal => metaslab::SpaceClass::Normal,
        zio::Class::Special => metaslab::SpaceClass::Special,
        zio::Class::Dedup => metaslab::SpaceClass::Dedup,
        zio::Class::Log => metaslab::SpaceClass::Log,
    }
}

fn no_space() -> Error {
    Error::new(ErrorKind::NoSpace, "no space left in the pool")
}

impl SpaceIo {
    pub(crate) fn new(space: Arc<Space>, zio: &Arc<Zio>) -> SpaceIo {
        SpaceIo {
            space,
            zio: Arc::downgrade(zio),
            mos: OnceLock::new(),
            loading: Default::default(),
            exclusions: Default::default(),
            limits: RwLock::new(None),
        }
    }

    /// Called when the vdevs changed.
    pub(crate) fn forget_limits(&self) {
        *self.limits.write() = None;
    }

    /// Sets the MOS from which space maps are read.
    pub(crate) fn set_mos(&self, mos: &Mos) {
        let _ = self.mos.set(Arc::downgrade(mos.objset()));
    }

    fn zio(&self) -> Result<Arc<Zio>> {
        self.zio.upgrade().ok_or_else(|| Error::bug("the pool is closed"))
    }

    /// Loads a metaslab; one that contradicts itself, or that cannot be read, is not
    /// allocated from any more.
    pub(crate) fn load(&self, key: MsKey, outage: OutagePolicy) -> Result<()> {
        let _one = self.loading[key.ms as usize % LOADERS].lock();
        for _ in 0..LOADS_MAX {
            let Some(plan) = self.space.load_plan(key)? else { return Ok(()) };
            let params = Params::metaslab(plan.seg.start, plan.seg.len, plan.shift);
            let entries =
                self.entries(plan.object, plan.length, params, Io::WAIT.with_outage(outage));
            let loaded = entries.and_then(|e| self.space.load(&plan, e.into_iter().map(Ok)));
            match loaded {
                Err(e) if e.kind() == ErrorKind::Busy => {}
                Err(e) => {
                    self.space.disable(key, true)?;
                    return Err(e);
                }
                Ok(()) => return Ok(()),
            }
        }
        Err(Error::bug("a space map changes whenever it is read"))
    }

    /// Loads the metaslabs that the next txg will probably need, several at a time, so that its
    /// allocations do not wait for each of them in turn. One that cannot be loaded is not
    /// allocated from any more.
    pub(crate) fn preload(&self) {
        let keys = self.space.preloads(PRELOADS_MAX);
        if keys.is_empty() {
            return;
        }
        let threads = LOADERS.min(keys.len());
        rt::fan_out(threads, |thread| {
            for key in keys.iter().skip(thread).step_by(threads) {
                // The metaslab is disabled then, and an allocation that needs it says why.
                let _ = self.load(*key, OutagePolicy::WaitAlways);
            }
        });
    }

    /// The first `length` bytes of a space map.
    fn entries(&self, object: u64, length: u64, params: Params, io: Io) -> Result<Vec<Range>> {
        let mut out = Vec::new();
        if object == 0 {
            return Ok(out);
        }
        let mos = self.mos.get().and_then(Weak::upgrade);
        let mos = mos.ok_or_else(|| base::bug!("space maps without the MOS"))?;
        let map = mos.object(ObjectId(object), io)?;
        let (mut left, mut blkid) = (length, 0);
        while left > 0 {
            let (block, endian) = map.read_written(blkid, io)?;
            let here = left.min(block.len() as u64);
            let bytes = block.get(..here as usize).unwrap_or_default();
            for range in Entries::new(bytes, endian, params).ranges() {
                out.push(range.map_err(|e| e.in_object(map.id()))?);
            }
            left -= here;
            blkid += 1;
        }
        Ok(out)
    }
}

impl SpaceSource for SpaceIo {
    fn allocate(&self, want: &Want) -> Result<Vec<Dva>> {
        self.allocate_on(want, &|_| true)
    }

    fn allocate_on(&self, want: &Want, fits: &dyn Fn(VdevId) -> bool) -> Result<Vec<Dva>> {
        let tree = self.zio()?.tree();
        let psize = Psize(want.psize);
        // No space is allocated for blocks without a size.
        let asize_of = |vdev: VdevId| match fits(vdev) {
            true => tree.asize(vdev, psize, want.txg).map_or(u64::MAX >> 1, |a| a.0),
            false => 0,
        };
        let inner = metaslab::Want {
            psize: want.psize,
            record: want.record,
            copies: want.copies,
            class: class_of(want.class),
            txg: want.txg,
            hint: want.hint,
            metadata: want.metadata,
            gang_child: want.gang_child,
            avoid: None,
        };
        let mut retry = None;
        loop {
            match self.space.allocate(&inner, &asize_of) {
                Ok(dvas) => return Ok(dvas),
                Err(Denied::NoSpace) if retry.is_some() => return Err(no_space()),
                Err(Denied::NoSpace) => {
                    retry = self.exclusions.wait_for_end();
                    if retry.is_none() {
                        return Err(no_space());
                    }
                }
                // A metaslab that cannot be loaded is not used from then on.
                Err(Denied::Load(vdev, ms)) => match self.load(MsKey { vdev, ms }, want.outage) {
                    Err(e) if e.kind() == ErrorKind::Bug => return Err(e),
                    _ => {}
                },
            }
        }
    }

    fn unallocate(&self, txg: Txg, dvas: &[Dva]) {
        self.space.unallocate(txg, dvas);
    }

    fn is_allocated(&self, dva: Dva) -> bool {
        self.space.is_allocated(dva)
    }

    fn limits(&self) -> (u64, u64) {
        let compute = || {
            let Ok(zio) = self.zio() else { return (512, 512) };
            let tree = zio.tree();
            let tops = tree.top_ids().filter_map(|id| tree.top(id).ok());
            let data = tops.filter(|t| !t.is_log() && t.ashift() >= 9);
            let min = data
                .map(|t| 1u64 << t.ashift().min(24))
                .fold((u64::MAX, 512), |m, one| (m.0.min(one), m.1.max(1).min(one)));
            let (min, gcd) = min;
            if min == u64::MAX { (512, 512) } else { (min, gcd.max(min)) }
        };
        if let Some(known) = *self.limits.read() {
            return known;
        }
        *self.limits.write().get_or_insert_with(compute)
    }
}
