//! Opening a pool's unused spares (chapter 01 §4.7).
//!
//! A spare is listed in the MOS of each pool that may use it. Its label has only its guid. A
//! crash while a spare was taken or given back may have left the label of a member of the
//! pool, with the same guid.

use std::path::Path;
use std::sync::Arc;

use base::{Error, Guid, Result};
use device::Device;
use ondisk::config::VdevConfig;

use crate::labels::LeafLabels;
use crate::leaves::{Leaves, Purpose};
use crate::write::topology::LeafFacts;

/// The state of an unused spare in its label (chapter 01 §4.6).
const STATE_SPARE: u64 = 3;

/// An open spare.
pub struct OpenSpare {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Its size and sectors.
    pub facts: LeafFacts,
}

/// Opens a spare of the list of the pool `pool`.
///
/// # Errors
/// Those of opening it; `Corrupt` for a device with another label; `NotFound` for a spare
/// without a path.
pub fn open(
    spare: &VdevConfig,
    pool: Guid,
    source: &dyn Leaves,
    purpose: Purpose,
) -> Result<OpenSpare> {
    let path = spare.path.as_ref().and_then(|p| p.to_str());
    let path = path.ok_or_else(|| Error::not_found("the spare has no path"))?;
    let opened = source.open(Path::new(path), purpose)?;
    let labels = LeafLabels::read(&*opened.device)?;
    let label = labels.discovery_config().map(|(list, _)| list);
    let is_it = label.is_some_and(|list| {
        let unused = list.u64("state") == Some(STATE_SPARE);
        let own = list.u64("pool_guid") == Some(pool.0);
        list.u64("guid") == Some(spare.guid.0) && (unused || own)
    });
    if !is_it {
        return Err(Error::corrupt("the label is not that of this spare"));
    }
    let facts = LeafFacts::of(&*opened.device, opened.block_device);
    Ok(OpenSpare { device: opened.device, facts })
}
