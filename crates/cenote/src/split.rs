//! Splitting a pool of mirrors in two (`zpool split`).
//!
//! # Theory
//! The engine takes a device out of each mirror and makes the new pool on them
//! (`spa::split`, `spa::engine`, module `topology::split`). Here the devices are found by name,
//! and the new pool's name is reserved meanwhile. It is exported afterwards.

use std::path::PathBuf;

use base::{Error, ErrorKind, Guid, Result};
use ondisk::config::VdevConfig;
use spa::engine::{WriterOptions, leaves_to_split};
use spa::split::{self, NewPool};

use crate::changes::command;
use crate::create::make::change_of;
use crate::create::{PoolSetting, check_pool_name};
use crate::engine::Engine;
use crate::opening::Opening;
use crate::pool::Pool;

/// A request to split a pool.
#[derive(Clone, Debug, Default)]
pub struct SplitRequest {
    /// The new pool's name.
    pub new_name: String,
    /// Devices of the new pool; of each mirror without one the last.
    pub devices: Vec<String>,
    /// Properties of the new pool.
    pub settings: Vec<PoolSetting>,
    /// Only check the request.
    pub dry_run: bool,
    /// The command, for the pool's history; `None` logs nothing.
    pub command: Option<String>,
}

/// The new pool of a split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitPool {
    /// Its guid; 0 for a dry run.
    pub guid: Guid,
    /// Guids and paths of its devices.
    pub devices: Vec<(Guid, PathBuf)>,
}

fn path_of(vdev: &VdevConfig) -> PathBuf {
    vdev.path.as_ref().and_then(|p| p.to_str()).unwrap_or_default().into()
}

impl Engine {
    /// Splits a pool; the new one is exported afterwards.
    ///
    /// # Errors
    /// In OpenZFS's words: `Invalid` for a name that cannot be, for a pool that does not consist
    /// of mirrors; `Exists`; `NotFound`; `Busy` for a device that misses something; `ReadOnly`;
    /// the devices'.
    pub fn split(&self, pool: &Pool, request: &SplitRequest) -> Result<SplitPool> {
        let writer = pool.writer()?;
        check_pool_name(&request.new_name).map_err(Error::invalid)?;
        let _name =
            self.names().reserve(&request.new_name, None, &Opening::new()).map_err(|e| match e
                .kind()
            {
                ErrorKind::Exists => Error::new(ErrorKind::Exists, "pool already exists"),
                _ => e,
            })?;
        let named = request.devices.iter().map(|name| pool.member_named(name));
        let named = named.collect::<Result<Vec<Guid>>>()?;
        let config = writer.published().config;
        let leaves = leaves_to_split(&config.vdev_tree, &named)?;
        let device = |guid: &Guid| {
            let leaf = config.vdev_tree.find(*guid);
            (*guid, leaf.map(path_of).unwrap_or_default())
        };
        let mut out = SplitPool { guid: Guid(0), devices: leaves.iter().map(device).collect() };
        if request.dry_run {
            return Ok(out);
        }
        out.guid = Guid(base::rt::random_u64()?.max(1));
        let new = NewPool { name: request.new_name.clone(), guid: out.guid };
        let shifts = config.vdev_tree.children.iter().filter_map(|v| Some(v.top.as_ref()?.ashift));
        let options = WriterOptions { max_ashift: shifts.max().unwrap_or(9), ..Default::default() };
        let devices = writer.begin_split(&leaves)?;
        let finish = |writer: &std::sync::Arc<spa::engine::Writer>| {
            let changes = request.settings.iter().filter_map(change_of).collect::<Vec<_>>();
            if changes.is_empty() { Ok(()) } else { writer.set_pool(changes, None) }
        };
        let made = split::make(pool.guid(), &new, &devices, options, self.block_cache(), &finish);
        if let Err(e) = made {
            // As far as they are still the old pool's.
            writer.cancel_split(&devices);
            return Err(e);
        }
        writer.end_split(&leaves, command(request.command.as_deref()))?;
        Ok(out)
    }
}
