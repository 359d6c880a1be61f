//! From space maps to bitmaps (chapter 05 §4.2 I1), checkpoint included (§7).

use base::rt::Mutex;
use base::{Error, Result, VdevId};
use ondisk::config::VdevConfig;
use ondisk::spacemap::{Params, Range};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::bits::{MapErrors, Slab, SpaceBits, VdevBits};
use crate::import::Spa;
use crate::space::{PoolSpace, VdevSpace};

/// Maps read at once.
const LOADERS: usize = 16;
/// Sectors that bitmaps may cover: 2^36 is two bitmaps of 8 GiB.
const SECTORS_MAX: u64 = 1 << 36;

/// The result of replaying the maps.
#[derive(Debug, Default)]
pub struct Replayed {
    /// The bitmaps.
    pub bits: SpaceBits,
    /// Contradictions, by vdev and metaslab.
    pub contradictions: Vec<(VdevId, u64, MapErrors)>,
    /// Metaslabs whose map does not add up to its header: vdev, metaslab,
    /// bytes found, bytes claimed.
    pub sums: Vec<(VdevId, u64, u64, u64)>,
}

struct MetaslabJob<'a> {
    vdev: &'a VdevSpace,
    slab: Mutex<(Slab, MapErrors)>,
    metaslab: usize,
}

/// Replays every map, then the logs.
///
/// # Errors
/// Those of reading the maps; `Corrupt`; `Limit` for an impossible size.
pub fn replay(spa: &Spa, space: &PoolSpace) -> Result<Replayed> {
    replay_as(spa, space, true)
}

/// Replays the metaslabs' own maps, as if there were no logs (`zdb -mmm`).
///
/// # Errors
/// As [`replay`].
pub fn replay_own(spa: &Spa, space: &PoolSpace) -> Result<Replayed> {
    replay_as(spa, space, false)
}

fn replay_as(spa: &Spa, space: &PoolSpace, logs: bool) -> Result<Replayed> {
    let mut jobs: Vec<MetaslabJob<'_>> = Vec::new();
    let mut starts = Vec::new();
    let mut sectors = 0u64;
    for vdev in &space.vdevs {
        starts.push(jobs.len());
        for (i, m) in vdev.metaslabs.iter().enumerate() {
            if vdev.ashift >= 64 || m.size == 0 {
                return Err(Error::corrupt("impossible metaslab"));
            }
            if m.allocated() > 0 || m.unflushed_entries > 0 {
                sectors = sectors.saturating_add(m.size >> vdev.ashift);
            }
            let slab = Mutex::new((Slab::new(m.start, m.size, vdev.ashift), MapErrors::default()));
            jobs.push(MetaslabJob { vdev, slab, metaslab: i });
        }
    }
    if sectors > SECTORS_MAX {
        return Err(Error::limit("the pool has too many sectors to track; -L leaves leaks out"));
    }
    own_maps(spa, &jobs)?;
    let mut log = |vdev: VdevId, id: u64, range: Range| {
        let at = space.vdevs.iter().position(|v| v.vdev == vdev).and_then(|i| starts.get(i));
        let job = at.and_then(|s| jobs.get(s + id as usize)).filter(|j| j.vdev.vdev == vdev);
        if let Some(job) = job {
            let (slab, errors) = &mut *job.slab.lock();
            slab.replay(&range, errors);
        }
        Ok(())
    };
    if logs {
        spa.for_each_log_entry(space, &mut log)?;
    }
    Ok(gather(space, jobs))
}

fn own_maps(spa: &Spa, jobs: &[MetaslabJob<'_>]) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    base::rt::fan_out(LOADERS.min(jobs.len()), |_| {
        while let Some(job) = jobs.get(next.fetch_add(1, Relaxed)) {
            let Some(m) = job.vdev.metaslabs.get(job.metaslab) else { continue };
            let (slab, errors) = &mut *job.slab.lock();
            let mut entry = |range: Range| {
                slab.replay(&range, errors);
                Ok(())
            };
            if let Err(e) = spa.for_each_metaslab_entry(job.vdev, m, &mut entry) {
                failed.lock().get_or_insert(e);
            }
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

fn gather(space: &PoolSpace, jobs: Vec<MetaslabJob<'_>>) -> Replayed {
    let mut out = Replayed::default();
    let mut vdevs: Vec<VdevBits> = space
        .vdevs
        .iter()
        .map(|v| VdevBits { vdev: v.vdev, metaslab_shift: v.metaslab_shift, slabs: Vec::new() })
        .collect();
    for job in jobs {
        let (mut slab, errors) = job.slab.into_inner();
        let id = job.vdev.vdev;
        let Some(m) = job.vdev.metaslabs.get(job.metaslab) else { continue };
        if errors != MapErrors::default() {
            out.contradictions.push((id, m.id, errors));
        }
        let found = slab.allocated();
        if found != m.allocated() {
            out.sums.push((id, m.id, found, m.allocated()));
        }
        slab.finish();
        if let Some(v) = vdevs.iter_mut().find(|v| v.vdev == id) {
            v.slabs.push(slab);
        }
    }
    out.bits = SpaceBits::new(vdevs);
    out
}

/// A number in a top-level vdev's ZAP.
pub(crate) fn top_zap(spa: &Spa, config: &VdevConfig, key: &str) -> Result<Option<u64>> {
    let zap = config.top.as_ref().and_then(|t| t.zap).filter(|z| z.0 != 0);
    match zap {
        Some(zap) => spa.mos().zap(zap.0)?.lookup_u64(key),
        None => Ok(None),
    }
}

/// Calls `f` with every range that only the checkpoint keeps allocated.
///
/// # Errors
/// Those of reading the maps and of `f`; `Corrupt`.
pub(crate) fn for_each_checkpointed(
    spa: &Spa,
    space: &PoolSpace,
    mut f: impl FnMut(VdevId, u64, u64) -> Result<()>,
) -> Result<()> {
    for config in &spa.config().vdev_tree.children {
        let Some(object) = top_zap(spa, config, "com.delphix:pool_checkpoint_sm")? else {
            continue;
        };
        let vdev = VdevId(config.id);
        let Some(v) = space.vdev(vdev) else { continue };
        let asize = config.top.as_ref().map_or(0, |t| t.asize);
        let params = Params::checkpoint(asize, v.ashift);
        spa.for_each_entry(object, params, &mut |r| f(vdev, r.offset, r.len))?;
    }
    Ok(())
}
