//! From a configuration to the specification of the vdev tree.

use base::{Error, Guid, Result};
use ondisk::config::{VdevConfig, VdevType};
use vdev::{AllocClass, DraidParams, Persistent, Reflow, Spec, VdevKind};

use crate::assemble::FoundPool;

/// The values of `aux_state` (chapter 01 §4.2): faulted on request, and for its errors.
pub(crate) const AUX_EXTERNAL: &[u8] = b"external";
const AUX_ERRORS: &[u8] = b"err_exceeded";

/// Data that a configuration does not have: progress of an expansion (from the uberblock)
/// and allocation classes (from the vdevs' ZAPs).
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra {
    /// Progress of a running RAID-Z expansion; without it the beginning.
    pub reflow: Option<Reflow>,
}

/// The assembled, untrusted tree of a found pool.
pub(crate) fn untrusted(found: &FoundPool, extra: Extra) -> Result<Spec> {
    if found.vdev_children as usize > base::limits::VDEV_COUNT_MAX {
        return Err(Error::limit("the labels name too many vdevs"));
    }
    let children = (0..found.vdev_children).map(|id| match found.tops.get(&id) {
        Some(top) => spec_of(top, None, extra),
        None if found.holes.contains(&id) => Ok(Spec::new(VdevKind::Hole, id.into(), Guid(0))),
        None => Ok(Spec::new(VdevKind::Missing, id.into(), Guid(0))),
    });
    let children = children.collect::<Result<Vec<_>>>()?;
    Ok(Spec::new(VdevKind::Root, 0, found.guid).with_children(children))
}

/// The trusted tree of the MOS configuration.
pub fn trusted(root: &VdevConfig, extra: Extra) -> Result<Spec> {
    spec_of(root, None, extra)
}

fn spec_of(config: &VdevConfig, top: Option<&VdevConfig>, extra: Extra) -> Result<Spec> {
    let mut spec = Spec::new(kind_of(config, extra)?, config.id.into(), config.guid);
    let top = if config.kind == VdevType::Root { None } else { Some(top.unwrap_or(config)) };
    if let Some(space) = top.and_then(|t| t.top.as_ref()) {
        spec = spec.with_space(space.ashift, space.asize);
        let shift = space.metaslab_shift;
        spec.min_asize = space.asize.checked_shr(shift).unwrap_or(0) << shift.min(63);
        spec.is_log = space.is_log;
        if space.is_log {
            spec.class = AllocClass::Log;
        }
    }
    spec.path = config.path.as_ref().and_then(|p| p.to_str()).map(str::to_owned);
    let leaf = &config.leaf;
    spec.persistent = Persistent {
        offline: leaf.offline,
        faulted: leaf.faulted,
        degraded: leaf.degraded,
        removed: leaf.removed,
        not_present: leaf.not_present,
        external: leaf.aux_state.as_ref().is_some_and(|a| a.as_bytes() == AUX_EXTERNAL),
        err_exceeded: leaf.aux_state.as_ref().is_some_and(|a| a.as_bytes() == AUX_ERRORS),
    };
    let children = config.children.iter().map(|c| spec_of(c, top, extra));
    Ok(spec.with_children(children.collect::<Result<Vec<_>>>()?))
}

fn kind_of(config: &VdevConfig, extra: Extra) -> Result<VdevKind> {
    let lacks = |what: &str| Error::corrupt(format!("a {what} without its parameters"));
    Ok(match config.kind {
        VdevType::Root => VdevKind::Root,
        VdevType::Disk => VdevKind::Disk,
        VdevType::File => VdevKind::File,
        VdevType::Mirror => VdevKind::Mirror,
        VdevType::Replacing => VdevKind::Replacing,
        VdevType::Spare => VdevKind::Spare,
        VdevType::Missing => VdevKind::Missing,
        VdevType::Hole => VdevKind::Hole,
        VdevType::Indirect => VdevKind::Indirect,
        VdevType::Raidz => {
            let raidz = config.raidz.as_ref().ok_or_else(|| lacks("raidz"))?;
            VdevKind::Raidz {
                nparity: raidz.nparity as u8,
                expand_txgs: raidz.expand_txgs.clone(),
                reflow: raidz.expanding.then(|| extra.reflow.unwrap_or_default()),
            }
        }
        VdevType::Draid => {
            let d = config.draid.as_ref().ok_or_else(|| lacks("draid"))?;
            VdevKind::Draid(DraidParams {
                ndata: d.ndata,
                nparity: d.nparity,
                nspares: d.nspares,
                ngroups: d.ngroups,
                failure_group: d.nchildren.unwrap_or(0),
            })
        }
        VdevType::DraidSpare => {
            let d = config.dspare.as_ref().ok_or_else(|| lacks("distributed spare"))?;
            VdevKind::DraidSpare { draid: d.top_guid, spare_id: d.spare_id }
        }
    })
}

/// Every node of a configuration, depth first.
pub fn for_each<'a>(config: &'a VdevConfig, f: &mut impl FnMut(&'a VdevConfig)) {
    f(config);
    for child in &config.children {
        for_each(child, f);
    }
}
