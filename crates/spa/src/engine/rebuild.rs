//! The txg that replaces all space maps (`crate::rebuild` has theory and crash argument).

use std::collections::BTreeSet;

use base::{ObjectId, Result, Txg};
use dsl::write::features;
use dsl::write::store::DIRECTORY;
use ondisk::ObjType;
use ondisk::spacemap::HEADER_V0_SIZE;

use super::maps::{HISTOGRAM, LOG_SPACEMAP, LOGS_DIRECTORY, Maps, UNFLUSHED};
use super::sync::SyncPass;
use super::{SyncState, Writer};
use crate::audit::bits::SpaceBits;

impl Writer {
    /// Claims all space in use in txg `first`, before anything is allocated.
    ///
    /// # Errors
    /// Those of the metaslabs.
    pub(crate) fn claim_used(&self, used: &SpaceBits, first: Txg) -> Result<()> {
        let mut result = Ok(());
        used.claimed(&mut |vdev, offset, len| {
            if result.is_ok() {
                let asize = base::Asize(len);
                let dva = base::Dva { vdev, offset, asize, gang: false };
                result = self.space.claim(first, dva).and_then(|load| match load {
                    None => Ok(()),
                    Some(_) => Err(base::bug!("an empty metaslab has to be loaded")),
                });
            }
        });
        result
    }

    /// Makes the next txg replace all space maps: `drop` are the objects to free.
    pub(crate) fn replace_maps(&self, drop: BTreeSet<u64>) {
        self.state.lock().replaces = Some(drop);
    }

    /// Makes the next txg flush all logged changes.
    pub(crate) fn flush_all(&self) {
        self.state.lock().flush_all = true;
        self.touch();
    }

    /// Drops the old maps, logs and arrays; the passes of this txg make new ones.
    pub(super) fn drop_old_maps(
        &self,
        state: &mut SyncState,
        sync: &SyncPass<'_>,
        drop: &BTreeSet<u64>,
    ) -> Result<()> {
        let os = sync.mos.objset();
        for object in drop {
            os.free_damaged_object(sync.tx, ObjectId(*object))?;
        }
        for (_, zap) in &sync.zaps {
            if sync.cx.read().number(*zap, UNFLUSHED)?.is_some() {
                sync.cx.mos.zap_remove(*zap, UNFLUSHED.as_bytes())?;
            }
        }
        if sync.cx.read().directory(LOGS_DIRECTORY)?.is_some() {
            sync.cx.mos.zap_remove(DIRECTORY, LOGS_DIRECTORY.as_bytes())?;
        }
        if sync.flags.logs {
            // The feature is counted when the directory of logs is created.
            features::set_count(sync.cx, LOG_SPACEMAP, 0)?;
        }
        if sync.flags.histogram {
            features::set_count(sync.cx, HISTOGRAM, long_maps(sync, drop)?)?;
        }
        for top in &mut state.config.vdev_tree.children {
            if let Some(space) = top.top.as_mut().filter(|t| t.metaslab_array != 0) {
                space.metaslab_array = 0;
            }
        }
        state.maps = Maps::default();
        state.dirty = true;
        Ok(())
    }
}

/// The number of remaining space maps with the long header.
fn long_maps(sync: &SyncPass<'_>, drop: &BTreeSet<u64>) -> Result<u64> {
    let os = sync.mos.objset();
    let (mut count, mut at) = (0, ObjectId(0));
    while let Some(id) = os.next_object(at, sync.mos.io())? {
        at = id;
        if drop.contains(&id.0) {
            continue;
        }
        let Ok(info) = sync.cx.read().info(id.0) else { continue };
        let long = info.bonus.len() > HEADER_V0_SIZE;
        count += u64::from(info.object_type == ObjType::SPACE_MAP && long);
    }
    Ok(count)
}
