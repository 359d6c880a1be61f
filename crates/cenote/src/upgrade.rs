//! `zpool upgrade`: newer versions and more features for a pool (chapter 09 §4).
//!
//! # Theory
//! An upgrade without a version enables the features that a new pool would get, as far as the
//! property `compatibility` allows; pools of old versions become version 5000 first. With a
//! version nothing but that changes. A pool that has all of it already is left alone.
//! `compatibility=legacy` prevents every upgrade.
//!
//! # Departures from OpenZFS
//! * Everything is in one txg. OpenZFS takes one for the version and one for each feature.
//! * Features whose data Cenote does not write, and those that OpenZFS 2.3 does not know, are left
//!   out; `zpool set feature@NAME=enabled` enables the latter.

use base::{Error, Result};
use dsl::features::State;
use ondisk::features::Feature;
use ondisk::uberblock::VERSION_FEATURES;

use crate::changes::command;
use crate::create::compat::features_to_add;
use crate::create::{FeatureSet, feature_set};
use crate::pool::Pool;

/// The value of `compatibility` that prevents upgrades.
const LEGACY: &str = "legacy";

/// What an upgrade changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgraded {
    /// The version before.
    pub from: u64,
    /// The version now.
    pub to: u64,
    /// The features that were enabled.
    pub features: Vec<&'static Feature>,
}

impl Pool {
    /// The on-disk version: 1 to 28, or 5000.
    pub fn version(&self) -> u64 {
        match &self.core.writer {
            Some(writer) => writer.published().uberblock.version,
            None => self.core.spa.uberblock().version,
        }
    }

    /// The features that property `compatibility` allows.
    ///
    /// # Errors
    /// `Invalid` if a set cannot be read.
    pub(crate) fn requested_features(&self) -> Result<FeatureSet> {
        let value = self.compatibility().unwrap_or_default();
        feature_set(&value).map_err(|bad| {
            Error::invalid(format!("could not read/parse feature file(s): {}", bad.join(", ")))
        })
    }

    /// The features that an upgrade to version 5000 would enable.
    ///
    /// # Errors
    /// As [`Pool::upgrade`].
    pub fn features_to_add(&self) -> Result<Vec<&'static Feature>> {
        let features = self.core.features()?;
        let is_enabled = |f: &Feature| features.state(f) != State::Disabled;
        Ok(features_to_add(&self.requested_features()?, &is_enabled))
    }

    /// Brings the pool to `version`; without one, to version 5000 with all features. Does nothing
    /// if the pool has that, or if `compatibility` is `legacy`.
    ///
    /// # Errors
    /// `ReadOnly` for a pool that is only read; `Invalid` if a set of `compatibility` cannot be
    /// read; `Unsupported` for a version that is not known, and for an error log of the old form;
    /// those of a suspension.
    pub fn upgrade(&self, version: Option<u64>, line: Option<&str>) -> Result<Upgraded> {
        let writer = self.writer()?;
        writer.check_running()?;
        let from = self.version();
        let same = Upgraded { from, to: from, features: Vec::new() };
        if self.compatibility().as_deref() == Some(LEGACY) {
            return Ok(same);
        }
        let to = version.unwrap_or(VERSION_FEATURES).max(from);
        let features = if version.is_none() { self.features_to_add()? } else { Vec::new() };
        if to == from && features.is_empty() {
            return Ok(same);
        }
        writer.upgrade(to, features.clone(), command(line))?;
        Ok(Upgraded { from, to, features })
    }
}
