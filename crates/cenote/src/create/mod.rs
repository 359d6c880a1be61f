//! Creating and changing pools: the requests, and the calls.
//!
//! # Theory
//! A front end turns a command line into a [`CreateRequest`] or [`AddRequest`]. The engine
//! itself examines the devices ([`check_devices`](crate::Engine::check_devices)), because
//! only it has the list of open pools. Names and properties are checked by pure functions,
//! which a front end may call before the request.
//!
//! # Departures from OpenZFS
//! * A dry run checks the name and the properties, too.
//! * Whole disks are used without partitioning them.

mod calls;
pub(crate) mod compat;
pub(crate) mod make;
mod names;
mod settings;

use std::path::PathBuf;

use dsl::props::PropData;
use ondisk::features::Feature;

pub use compat::{
    FeatureSet, FeatureWishes, feature_set, features_to_enable, is_upgraded, may_enable,
};
pub use names::{check_pool_name, check_temporary_name};
pub use settings::{
    Of, PoolSetting, When, check_mountpoint, dataset_setting, new_dataset_settings, pool_setting,
    root_fs_settings,
};
pub use spa::write::admit::Force;
pub use spa::write::topology::{ASHIFT_RANGE, NewKind, NewVdev, Role, check_shape, draid_layout};

/// A new pool.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// Its name, checked by [`check_pool_name`].
    pub name: String,
    /// Its name until it is exported.
    pub temporary_name: Option<String>,
    /// Its devices, in the order of their future ids.
    pub vdevs: Vec<NewVdev>,
    /// The checks to override.
    pub force: Force,
    /// Only check.
    pub dry_run: bool,
    /// 5000, or 1 to 28 for a pool without feature flags.
    pub version: u64,
    /// Features to enable, each behind those that it depends on; none for old versions.
    pub features: Vec<&'static Feature>,
    /// Pool properties; no features, version, altroot, cachefile or temporary name.
    pub settings: Vec<PoolSetting>,
    /// Properties of the root file system, as stored; the mountpoint is among them.
    pub fs_settings: Vec<(String, PropData)>,
    /// Prefix of all mountpoints until it is exported.
    pub altroot: Option<PathBuf>,
    /// The command, for the pool's history; `None` logs nothing.
    pub command: Option<String>,
}

impl CreateRequest {
    /// A pool of version 5000 with the default features, defaults otherwise and nothing
    /// forced.
    pub fn new(name: &str, vdevs: Vec<NewVdev>) -> CreateRequest {
        CreateRequest {
            name: name.to_owned(),
            temporary_name: None,
            vdevs,
            force: Force::default(),
            dry_run: false,
            version: 5000,
            features: compat::default_features(),
            settings: Vec::new(),
            fs_settings: Vec::new(),
            altroot: None,
            command: None,
        }
    }

    /// The `ashift` property, if it is set.
    pub fn ashift(&self) -> Option<u32> {
        self.settings.iter().find_map(|s| match s {
            PoolSetting::Stored("ashift", shift) => u32::try_from(*shift).ok().filter(|&a| a != 0),
            _ => None,
        })
    }
}

/// More vdevs for a pool.
#[derive(Clone, Debug)]
pub struct AddRequest {
    /// The devices.
    pub vdevs: Vec<NewVdev>,
    /// The checks to override.
    pub force: Force,
    /// Only check.
    pub dry_run: bool,
    /// log2 of their sectors; `None` derives it from the pool's property and the devices.
    pub ashift: Option<u32>,
    /// The command, for the pool's history; `None` logs nothing.
    pub command: Option<String>,
}
