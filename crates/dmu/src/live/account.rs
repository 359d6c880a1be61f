//! Space by user, group and project (chapter 03 §6).
//!
//! The deltas of a txg are summed in memory and added to the three ZAPs before these are
//! written, in the same txg: only the final state matters.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{ObjectId, Result};
use ondisk::dnode::flags;
use ondisk::znode::ZFS_PROJID;
use ondisk::{Dnode, Endian, ObjType, ObjsetPhys};

use super::alloc::ObjectSpec;
use super::handle::Spill;
use super::sync::SyncCtx;
use super::work::Work;
use crate::objset::Objset;
use crate::tx::Tx;
use crate::zaps;

/// Bytes charged for a dnode besides its blocks, whatever its size.
const DNODE_CHARGE: i64 = 512;
const SA_MAGIC_SIZE: usize = 8;

/// The ids that are charged for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ObjectOwner {
    uid: u64,
    gid: u64,
    project: u64,
}

/// The ids in a system attribute buffer: at fixed offsets behind its header.
fn owner_in_sa(bytes: &[u8]) -> Option<ObjectOwner> {
    let endian = [Endian::Little, Endian::Big]
        .into_iter()
        .find(|e| e.u32(bytes, 0) == Some(ondisk::sa::SA_MAGIC))?;
    let info = endian.u16(bytes, 4)?;
    let header = usize::from(info >> 10) << 3;
    let body = bytes.get(header.max(SA_MAGIC_SIZE)..)?;
    let flags = endian.u64(body, 48)?;
    let project = if flags & ZFS_PROJID != 0 { endian.u64(body, 128)? } else { 0 };
    Some(ObjectOwner { uid: endian.u64(body, 24)?, gid: endian.u64(body, 32)?, project })
}

fn owner(
    os: &Arc<Objset>,
    id: ObjectId,
    dn: &Dnode,
    spill: Option<&[u8]>,
) -> Result<Option<ObjectOwner>> {
    match dn.bonus_type {
        ObjType::SA if !dn.bonus.is_empty() => Ok(owner_in_sa(&dn.bonus)),
        ObjType::SA => match spill {
            Some(bytes) => Ok(owner_in_sa(bytes)),
            None => {
                let Some(bp) = &dn.spill else { return Ok(None) };
                let buf = os.zio().read(bp, zio::Io::SYNC).map_err(|e| e.in_object(id))?;
                Ok(owner_in_sa(&buf))
            }
        },
        ObjType::ZNODE => {
            // A bonus of another type names no owner: a stream may have brought it.
            let attrs = ondisk::znode::ZnodeAttrs::from_legacy(&dn.bonus, dn.endian).ok();
            Ok(attrs.map(|attrs| ObjectOwner { uid: attrs.uid, gid: attrs.gid, project: 0 }))
        }
        _ => Ok(None),
    }
}

/// Modulo 2^64, like the sums.
fn charge(dn: &Dnode) -> i64 {
    (dn.used as i64).wrapping_add(DNODE_CHARGE)
}

/// Deltas of one of the three ZAPs.
type Deltas = BTreeMap<String, i64>;

#[derive(Default)]
struct All([Deltas; 3]);

impl All {
    fn charge(&mut self, owner: ObjectOwner, bytes: i64, objects: i64, projects: bool) {
        let ids = [owner.uid, owner.gid, owner.project];
        let used = if projects { 3 } else { 2 };
        for (deltas, id) in self.0.iter_mut().zip(ids).take(used) {
            let sum = deltas.entry(format!("{id:x}")).or_default();
            *sum = sum.wrapping_add(bytes);
            if objects != 0 {
                *deltas.entry(format!("obj-{id:x}")).or_default() += objects;
            }
        }
    }
}

/// Adds the changes that the txg made to these objects.
pub(crate) fn apply(
    os: &Arc<Objset>,
    ctx: &SyncCtx<'_>,
    phys: &mut ObjsetPhys,
    works: &mut [Work],
) -> Result<()> {
    let props = os.props()?;
    let mut all = All::default();
    for work in works.iter_mut() {
        if let Some(old) = &work.old
            && old.flags & flags::USERUSED_ACCOUNTED != 0
            && let Some(owner) = owner(os, work.id, old, None)?
        {
            let objects = -i64::from(old.flags & flags::USEROBJUSED_ACCOUNTED != 0);
            let bytes = charge(old);
            all.charge(owner, bytes.wrapping_neg(), objects, props.count_projects);
        }
        if !work.allocated {
            continue;
        }
        work.dn.flags |= flags::USERUSED_ACCOUNTED;
        if props.count_objects {
            work.dn.flags |= flags::USEROBJUSED_ACCOUNTED;
        }
        let spill = match &work.spill {
            Spill::Set(buf) => Some(&buf[..]),
            _ => None,
        };
        if let Some(owner) = owner(os, work.id, &work.dn, spill)? {
            let bytes = charge(&work.dn);
            all.charge(owner, bytes, i64::from(props.count_objects), props.count_projects);
        }
    }
    let tx = Tx::syncing(ctx.txg);
    let exist = [&phys.user_used, &phys.group_used, &phys.project_used].map(Option::is_some);
    for ((i, deltas), exists) in all.0.iter().enumerate().zip(exist) {
        let id = ObjectId(u64::MAX - i as u64);
        let mut exists = exists;
        for (name, &delta) in deltas.iter().filter(|(_, d)| **d != 0) {
            if !exists {
                let object_type = ObjType::USERGROUP_USED;
                let spec = ObjectSpec { object_type, ..ObjectSpec::default() };
                os.claim(&tx, id, &spec)?;
                zaps::init(os, &tx, id, 0)?;
                exists = true;
            }
            zaps::increment(os, &tx, id, name.as_bytes(), delta)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_lie_at_fixed_places() {
        let mut sa = vec![0u8; 8 + 136];
        sa[..4].copy_from_slice(&ondisk::sa::SA_MAGIC.to_le_bytes());
        sa[4..6].copy_from_slice(&(1u16 << 10 | 2).to_le_bytes());
        sa[8 + 24..8 + 32].copy_from_slice(&1000u64.to_le_bytes());
        sa[8 + 32..8 + 40].copy_from_slice(&100u64.to_le_bytes());
        assert_eq!(owner_in_sa(&sa), Some(ObjectOwner { uid: 1000, gid: 100, project: 0 }));
        sa[8 + 48..8 + 56].copy_from_slice(&ZFS_PROJID.to_le_bytes());
        sa[8 + 128..8 + 136].copy_from_slice(&7u64.to_le_bytes());
        assert_eq!(owner_in_sa(&sa), Some(ObjectOwner { uid: 1000, gid: 100, project: 7 }));
        assert_eq!(owner_in_sa(&sa[..100]), None);
    }
}
