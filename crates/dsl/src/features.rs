//! The features of a pool that are enabled and active (chapter 04 §14).

use std::collections::BTreeMap;

use base::{Error, Result};
use ondisk::features::{FEATURES, Feature};

use crate::mos::Mos;

/// Feature counts as the MOS stores them.
#[derive(Clone, Debug, Default)]
pub struct FeatureState {
    counts: BTreeMap<String, Count>,
    descriptions: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    refs: u64,
    for_write_only: bool,
}

/// State of one feature, as `zpool get feature@x` words it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not enabled.
    Disabled,
    /// Enabled, not in use.
    Enabled,
    /// In use.
    Active,
}

impl State {
    /// The word that users see.
    pub fn word(self) -> &'static str {
        match self {
            State::Disabled => "disabled",
            State::Enabled => "enabled",
            State::Active => "active",
        }
    }
}

/// A feature that this version does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Its globally unique name.
    pub guid: String,
    /// Its description from the pool.
    pub description: String,
    /// Read-only access is possible without supporting it.
    pub read_only_ok: bool,
    /// It is in use (not merely enabled).
    pub active: bool,
}

impl FeatureState {
    /// Reads the feature ZAPs. Pools older than version 5000 have none.
    ///
    /// # Errors
    /// Those of reading the MOS; `Corrupt` when a count is not a number.
    pub fn load(mos: &Mos) -> Result<FeatureState> {
        let mut state = FeatureState::default();
        for (name, for_write_only) in [("features_for_read", false), ("features_for_write", true)] {
            let Some(object) = mos.lookup(name)? else { continue };
            for entry in mos.zap_entries(object)? {
                let refs = entry
                    .value
                    .as_u64()
                    .ok_or_else(|| Error::corrupt("feature count is not a number"))?;
                let guid = String::from_utf8_lossy(&entry.name).into_owned();
                state.counts.insert(guid, Count { refs, for_write_only });
            }
        }
        if let Some(object) = mos.lookup("feature_descriptions")? {
            for entry in mos.zap_entries(object)? {
                let text = entry.value.as_str_bytes().unwrap_or_default();
                state.descriptions.insert(
                    String::from_utf8_lossy(&entry.name).into_owned(),
                    String::from_utf8_lossy(text).into_owned(),
                );
            }
        }
        Ok(state)
    }

    /// The state of a known feature.
    pub fn state(&self, feature: &Feature) -> State {
        self.state_of(feature.guid)
    }

    /// The state of a feature by its globally unique name.
    pub fn state_of(&self, guid: &str) -> State {
        match self.counts.get(guid) {
            None => State::Disabled,
            Some(Count { refs: 0, .. }) => State::Enabled,
            Some(_) => State::Active,
        }
    }

    /// Whether a feature is in use.
    pub fn is_active(&self, guid: &str) -> bool {
        self.state_of(guid) == State::Active
    }

    /// The stored count of a feature; 0 if it is not enabled.
    pub fn refs(&self, guid: &str) -> u64 {
        self.counts.get(guid).map_or(0, |c| c.refs)
    }

    /// Features of the pool that this version does not support. Those that are merely
    /// enabled are harmless.
    pub fn unsupported(&self) -> Vec<Unsupported> {
        let mut out = Vec::new();
        for (guid, count) in &self.counts {
            let known = FEATURES.iter().find(|f| f.guid == guid);
            if known.is_some_and(Feature::is_readable) {
                continue;
            }
            out.push(Unsupported {
                guid: guid.clone(),
                description: self.descriptions.get(guid).cloned().unwrap_or_default(),
                read_only_ok: count.for_write_only,
                active: count.refs > 0,
            });
        }
        out
    }
}
