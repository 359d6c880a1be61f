//! The new pool of a split, opened from the devices that left the old one
//! (`engine::topology::split`).

use std::sync::Arc;

use base::{Error, Guid, Result};
use ondisk::config::VdevConfig;
use vdev::{LeafSpec, Tree};
use zio::BlockCache;

use crate::discover::{Search, discover_in};
use crate::engine::{SplitDevice, Writer, WriterOptions, split_tree};
use crate::import::{ImportOptions, Spa};
use crate::leaves::Known;
use crate::specs::{self, Extra};

/// The new pool.
#[derive(Clone, Debug)]
pub struct NewPool {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: Guid,
}

impl Spa {
    /// Gives an open pool the identity of a new one, in memory: nothing of it was written yet.
    fn become_pool(&mut self, new: &NewPool, leaves: &[Guid]) -> Result<VdevConfig> {
        let former = self.config().vdev_tree.clone();
        let tree = split_tree(&former, leaves, new.guid)?;
        let old = self.zio().tree();
        let mut spec = specs::trusted(&tree, Extra::default())?;
        for spec in &mut spec.children {
            if let Ok(top) = old.top(base::VdevId(u32::try_from(spec.id).unwrap_or(u32::MAX))) {
                spec.class = top.class();
            }
        }
        let open = |leaf: &LeafSpec| {
            let device = old.find(leaf.guid).and_then(|node| node.device().cloned());
            device.ok_or_else(|| Error::not_found("no such device"))
        };
        let new_tree = Tree::build_from(Some(&old), &spec, &open)?;
        if leaves.iter().any(|guid| new_tree.find(*guid).is_none_or(|n| !n.readable())) {
            return Err(Error::not_found("one or more devices is currently unavailable"));
        }
        self.zio().set_tree(new_tree);
        (self.guid, self.config.pool_guid) = (new.guid, new.guid);
        self.config.vdev_tree = tree;
        self.name.clone_from(&new.name);
        self.stored_name.clone_from(&new.name);
        Ok(former)
    }
}

/// Makes the new pool on devices that were split off the pool `old`. `finish` is called with it
/// before it is closed; it is exported then.
///
/// # Errors
/// Those of opening and writing it; of `finish`.
pub fn make(
    old: Guid,
    new: &NewPool,
    devices: &[SplitDevice],
    options: WriterOptions,
    cache: &Arc<BlockCache>,
    finish: &dyn Fn(&Arc<Writer>) -> Result<()>,
) -> Result<()> {
    let known = devices.iter().map(|d| (d.path.clone(), Arc::clone(&d.device))).collect();
    let source = Known(known);
    let found = discover_in(&Search::default(), &source)?;
    let found = found.pools.into_iter().find(|pool| pool.guid == old);
    let found = found.ok_or_else(|| Error::not_found("the devices have no labels of the pool"))?;
    let import = ImportOptions { force: true, missing_log: true, ..ImportOptions::default() };
    let mut spa = Spa::open_in(&found, &import, cache, &source).map_err(|e| e.error)?;
    let leaves: Vec<Guid> = devices.iter().map(|d| d.guid).collect();
    let former = spa.become_pool(new, &leaves)?;
    let writer = spa.start_writer(options)?;
    let done = writer.complete_split(former).and_then(|()| finish(&writer));
    let ended = writer.export(ondisk::config::PoolState::Exported);
    if ended.is_err() {
        writer.abandon();
        writer.stop();
    }
    done.and(ended)
}
