//! Newer versions and more features for a pool (chapter 04 §14).
//!
//! # Theory
//! One sync task makes the objects that the new version needs ([`dsl::write::upgrade`]), changes
//! the version in the configuration and for the next uberblock, and enables the features. From
//! then on the same txg is written in the new form: the passes that follow load the features, and
//! make the vdev ZAPs of version 5000. Structures that exist keep their form, which the new
//! version allows, until they are written anew: space maps without histograms, plain deadlists,
//! object sets without counts of objects.
//!
//! # Crash argument
//! The uberblock of the txg has the new version and refers to a MOS with all that it needs; the
//! one before has the old version and its MOS. Labels of the txg may be on devices without its
//! uberblock. Then software for the old version may refuse the pool by its labels; others go by
//! the uberblock and the configuration in its MOS, and find the old version.

use base::rt::random_bytes;
use base::{Error, Result};
use dsl::write::features;
use dsl::write::upgrade::{VersionSteps, apply, plan};
use ondisk::features::Feature;
use ondisk::uberblock::VERSION_FEATURES;

use super::Writer;
use super::tasks::{Command, TaskCx};

/// What a checked upgrade changes.
struct Upgrade {
    /// The new version, if it is another one, and the steps to it.
    version: Option<(u64, VersionSteps)>,
    features: Vec<&'static Feature>,
}

impl Upgrade {
    /// `version`: `None` keeps the pool's.
    fn check(
        cx: &TaskCx<'_>,
        version: Option<u64>,
        list: Vec<&'static Feature>,
    ) -> Result<Upgrade> {
        let from = cx.state.config.version;
        let to = version.unwrap_or(from);
        if to < from {
            return Err(Error::invalid("a pool's version only grows"));
        }
        let known = to == VERSION_FEATURES || crate::VERSIONS_WRITTEN.contains(&to);
        if to > from && !known {
            return Err(Error::unsupported(format!("version {to} is not known")));
        }
        if !list.is_empty() && to != VERSION_FEATURES {
            return Err(Error::unsupported("the pool has no feature flags"));
        }
        if let Some(feature) = list.iter().find(|f| !features::is_maintained(f)) {
            let name = feature.name();
            return Err(Error::unsupported(format!(
                "feature '{name}' cannot be enabled: this version of Cenote does not write its \
                 data"
            )));
        }
        features::check_enable(cx.cx, &list)?;
        let steps = (to > from).then(|| plan(cx.read(), from, to)).transpose()?;
        Ok(Upgrade { version: steps.map(|steps| (to, steps)), features: list })
    }

    fn act(self, cx: &mut TaskCx<'_>, salt: &[u8; 32]) -> Result<()> {
        if let Some((version, steps)) = self.version {
            apply(cx.cx, &steps, salt)?;
            if version == VERSION_FEATURES {
                cx.writer.zio.set_salt(salt);
            }
            cx.config().version = version;
            cx.state.uberblock.version = version;
            cx.log_internal("set", None, &format!("version={version}"))?;
        }
        for feature in self.features {
            if !features::is_enabled(cx.read(), feature.guid)? {
                features::enable(cx.cx, feature)?;
                let text = format!("feature@{}=enabled", feature.name());
                cx.log_internal("set", None, &text)?;
            }
        }
        cx.config();
        cx.refresh_heads()
    }
}

impl Writer {
    /// Brings the pool to a version, and enables features there, each with those that it depends
    /// on. The version may be the pool's own.
    ///
    /// # Errors
    /// `Invalid` for an older version; `Unsupported` for one that is not known, for features in
    /// a version without them, for features that this version of Cenote does not maintain, and
    /// for an error log of the old form; those of a suspension.
    pub fn upgrade(
        &self,
        version: u64,
        list: Vec<&'static Feature>,
        command: Option<Command>,
    ) -> Result<()> {
        self.upgrade_to(Some(version), list, command)
    }

    /// Enables features, each with those that it depends on.
    ///
    /// # Errors
    /// As [`Writer::upgrade`].
    pub fn enable_features(
        &self,
        list: Vec<&'static Feature>,
        command: Option<Command>,
    ) -> Result<()> {
        self.upgrade_to(None, list, command)
    }

    fn upgrade_to(
        &self,
        version: Option<u64>,
        list: Vec<&'static Feature>,
        command: Option<Command>,
    ) -> Result<()> {
        let mut salt = [0; 32];
        random_bytes(&mut salt)?;
        let check = move |cx: &mut TaskCx<'_>| Upgrade::check(cx, version, list);
        let act = move |cx: &mut TaskCx<'_>, upgrade: Upgrade| {
            upgrade.act(cx, &salt)?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(check, act).map(|_| ())
    }
}
