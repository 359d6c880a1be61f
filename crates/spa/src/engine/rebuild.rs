//! The group that replaces all space maps (`crate::rebuild` has theory and crash argument).

use std::collections::BTreeSet;

use base::{Error, ObjectId, Result, Txg};
use dmu::Io;
use dsl::write::features;
use dsl::write::store::DIRECTORY;
use ondisk::ObjType;
use ondisk::spacemap::HEADER_V0_SIZE;

use super::maps::{HISTOGRAM, LOG_SPACEMAP, LOGS_DIRECTORY, Maps, UNFLUSHED};
use super::sync::Group;
use super::{State, Writer};
use crate::audit::bits::SpaceBits;

impl Writer {
    /// Claims in group `first` everything that is in use; before anything is allocated.
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
                    Some(_) => Err(Error::bug("an empty metaslab has to be loaded")),
                });
            }
        });
        result
    }

    /// Replaces all space maps in the next group: `drop` are the objects that go.
    pub(crate) fn replace_maps(&self, drop: BTreeSet<u64>) {
        self.state.lock().replaces = Some(drop);
    }

    /// Flushes all logged changes in the next group.
    pub(crate) fn flush_all(&self) {
        self.state.lock().flush_all = true;
        self.touch();
    }

    /// Drops the old maps, logs and arrays; the passes of this group make new ones.
    pub(super) fn drop_old_maps(
        &self,
        state: &mut State,
        group: &Group<'_>,
        drop: &BTreeSet<u64>,
    ) -> Result<()> {
        let os = group.mos.objset();
        for object in drop {
            os.give_up_object(group.tx, ObjectId(*object))?;
        }
        for (_, zap) in &group.zaps {
            if group.cx.read().number(*zap, UNFLUSHED)?.is_some() {
                group.cx.mos.zap_remove(*zap, UNFLUSHED.as_bytes())?;
            }
        }
        if group.cx.read().directory(LOGS_DIRECTORY)?.is_some() {
            group.cx.mos.zap_remove(DIRECTORY, LOGS_DIRECTORY.as_bytes())?;
        }
        if group.flags.logs {
            // The directory of logs is counted when it is made.
            features::set_count(group.cx, LOG_SPACEMAP, 0)?;
        }
        if group.flags.histogram {
            features::set_count(group.cx, HISTOGRAM, long_maps(group, drop)?)?;
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

/// Space maps with the long header that stay.
fn long_maps(group: &Group<'_>, drop: &BTreeSet<u64>) -> Result<u64> {
    let os = group.mos.objset();
    let (mut count, mut at) = (0, ObjectId(0));
    while let Some(id) = os.next_object(at, Io::WAIT)? {
        at = id;
        if drop.contains(&id.0) {
            continue;
        }
        let Ok(info) = group.cx.read().info(id.0) else { continue };
        let long = info.bonus.len() > HEADER_V0_SIZE;
        count += u64::from(info.object_type == ObjType::SPACE_MAP && long);
    }
    Ok(count)
}
