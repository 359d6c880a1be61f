//! Properties of pools.

use base::{Error, Result};
use dsl::FeatureState;
use dsl::features::State;
use dsl::props::{self, PropData, PropValue, Source};
use ondisk::features::FEATURES;
use ondisk::zap::ZapValue;

use crate::pool::Pool;
use crate::values::{number, ratio, text, with_source};

impl Pool {
    /// The property `name`, `feature@X` and `unsupported@X` included; `None` when the pool
    /// has no such property.
    ///
    /// # Errors
    /// `Invalid` for a name that is no property's; those of reading.
    pub fn prop(&self, name: &str) -> Result<Option<PropValue>> {
        if let Some(feature) = name.strip_prefix("feature@") {
            return feature_prop(feature, &self.core.features()?);
        }
        if let Some(guid) = name.strip_prefix("unsupported@") {
            return unsupported_prop(guid, &self.core.features()?);
        }
        if props::is_user_prop(name) {
            let stored = self.stored(name)?;
            return Ok(stored.map(|value| PropValue {
                value,
                source: Source::Local,
                received: None,
            }));
        }
        let prop = props::pool_prop(name)
            .ok_or_else(|| Error::invalid(format!("invalid property '{name}'")))?;
        if let Some(value) = self.computed(name)? {
            return Ok(Some(value));
        }
        match self.stored(name)? {
            Some(value) => with_source(value, Source::Local),
            None => with_source(prop.default_value(), Source::Default),
        }
    }

    /// All properties as `zpool get all` lists them.
    ///
    /// # Errors
    /// Those of reading.
    pub fn props(&self) -> Result<Vec<(String, PropValue)>> {
        let mut out = Vec::new();
        for prop in props::pool_props().iter().filter(|p| p.visible) {
            if let Some(value) = self.prop(prop.name)? {
                out.push((prop.name.to_owned(), value));
            }
        }
        let features = self.core.features()?;
        for feature in FEATURES {
            // Features that Cenote cannot read are not offered.
            let disabled = features.state(feature) == State::Disabled;
            if disabled && !feature.is_readable() {
                continue;
            }
            if let Some(value) = feature_prop(feature.name(), &features)? {
                out.push((format!("feature@{}", feature.name()), value));
            }
        }
        for unknown in features.unsupported() {
            if let Some(value) = unsupported_prop(&unknown.guid, &features)? {
                out.push((format!("unsupported@{}", unknown.guid), value));
            }
        }
        Ok(out)
    }

    /// A property in the pool's own ZAP.
    pub(crate) fn stored(&self, name: &str) -> Result<Option<PropData>> {
        let mos = self.core.spa.mos();
        let Some(object) = mos.lookup("pool_props")? else { return Ok(None) };
        let value = mos.zap(object)?.lookup(name.as_bytes())?;
        Ok(value.as_ref().and_then(data_of))
    }

    fn computed(&self, name: &str) -> Result<Option<PropValue>> {
        let spa = &self.core.spa;
        let space = self.core.space()?;
        let (size, allocated) = (space.size(), space.allocated());
        match name {
            "name" => text(self.name()),
            "size" => number(size),
            "allocated" => number(allocated),
            "free" => number(size.saturating_sub(allocated)),
            "capacity" => {
                number((u128::from(allocated) * 100).checked_div(size.into()).unwrap_or(0) as u64)
            }
            "health" if self.is_suspended() => text("SUSPENDED".to_owned()),
            "health" => text(spa.vdev_status().state().to_string()),
            "guid" => number(self.guid().0),
            "load_guid" => number(self.core.load_guid),
            "version" if self.version() == 5000 => with_source(PropData::None, Source::Default),
            "version" => with_source(
                PropData::Num(self.version()),
                if self.version() == 28 { Source::Default } else { Source::Local },
            ),
            "altroot" => match self.altroot() {
                Some(path) => with_source(PropData::Str(path.display().to_string()), Source::Local),
                None => with_source(PropData::None, Source::Default),
            },
            "cachefile" if self.altroot().is_some() || spa.options().temporary_name => {
                with_source(PropData::Str("none".to_owned()), Source::Local)
            }
            "cachefile" => with_source(PropData::None, Source::Default),
            "comment" => {
                let config = self.core.config();
                self.config_text(config.comment.as_ref().and_then(|s| s.to_str()))
            }
            "compatibility" => match self.compatibility() {
                Some(list) => with_source(PropData::Str(list), Source::Local),
                None => with_source(PropData::Str("off".to_owned()), Source::Default),
            },
            "readonly" => number(u64::from(self.is_readonly())),
            "fragmentation" => match space.fragmentation() {
                Some(f) => number(f),
                None => with_source(PropData::None, Source::None),
            },
            "dedupratio" => number(self.dedup_ratio()?),
            "bcloneratio" => {
                let (used, saved) = self.core.clone_tally()?;
                number(ratio(used.saturating_add(saved), used))
            }
            "expandsize" | "freeing" | "leaked" | "checkpoint" | "bcloneused" | "bclonesaved"
            | "dedup_table_size" | "dedupcached" | "dedupused" | "dedupsaved" => self.tally(name),
            "bootfs" => self.bootfs(),
            "last_scrubbed_txg" => number(spa.mos().lookup("last_scrubbed_txg")?.unwrap_or(0)),
            "maxblocksize" => number(16 << 20),
            "maxdnodesize" => number(16 << 10),
            "tname" => Ok(None),
            _ => Ok(None),
        }
    }

    /// Property `compatibility`, if it is set.
    pub(crate) fn compatibility(&self) -> Option<String> {
        let config = self.core.config();
        config.compatibility.as_ref().and_then(|s| s.to_str()).map(str::to_owned)
    }

    fn config_text(&self, value: Option<&str>) -> Result<Option<PropValue>> {
        match value {
            Some(s) => with_source(PropData::Str(s.to_owned()), Source::Local),
            None => with_source(PropData::None, Source::Default),
        }
    }

    fn bootfs(&self) -> Result<Option<PropValue>> {
        match self.stored("bootfs")? {
            Some(PropData::Num(object)) if object != 0 => {
                let mut name = None;
                self.for_each_dataset(&mut |ds| {
                    if ds.object() == object {
                        name = Some(ds.name().to_owned());
                    }
                    Ok(())
                })?;
                self.config_text(name.as_deref()).map(|v| {
                    v.map(|mut v| {
                        v.source = Source::Local;
                        v
                    })
                })
            }
            _ => with_source(PropData::None, Source::Default),
        }
    }
}

fn feature_prop(name: &str, features: &FeatureState) -> Result<Option<PropValue>> {
    let Some(feature) = FEATURES.iter().find(|f| f.name() == name || f.guid == name) else {
        return Err(Error::invalid(format!("invalid property 'feature@{name}'")));
    };
    let state = features.state(feature);
    with_source(PropData::Str(state.word().to_owned()), Source::Local)
}

fn unsupported_prop(guid: &str, features: &FeatureState) -> Result<Option<PropValue>> {
    let Some(unknown) = features.unsupported().into_iter().find(|u| u.guid == guid) else {
        return Ok(None);
    };
    let word = match (features.state_of(guid), unknown.read_only_ok) {
        (State::Active, true) => "readonly",
        _ => "inactive",
    };
    with_source(PropData::Str(word.to_owned()), Source::Local)
}

fn data_of(value: &ZapValue) -> Option<PropData> {
    match value.as_u64() {
        Some(n) => Some(PropData::Num(n)),
        None => {
            let text = value.as_str_bytes()?;
            Some(PropData::Str(String::from_utf8_lossy(text).into_owned()))
        }
    }
}

impl Pool {
    /// Sums from special directories, dedup tables and reference tables.
    fn tally(&self, name: &str) -> Result<Option<PropValue>> {
        let spa = &self.core.spa;
        let special = |dir: &str| -> Result<u64> {
            Ok(spa.root_dir()?.child(dir)?.map_or(0, |d| d.phys().used_bytes))
        };
        match name {
            "expandsize" => number(0),
            "freeing" => number(special("$FREE")?),
            "leaked" => number(special("$LEAK")?),
            "checkpoint" => {
                let kept = self.core.space()?.vdevs.iter().map(|v| v.checkpoint).sum::<u64>();
                with_source(
                    if kept > 0 { PropData::Num(kept) } else { PropData::None },
                    Source::None,
                )
            }
            "bcloneused" => number(self.core.clone_tally()?.0),
            "bclonesaved" => number(self.core.clone_tally()?.1),
            "dedup_table_size" => number(spa.dedup_table_size()?),
            "dedupcached" => number(spa.dedup_cached()?),
            "dedupused" => number(self.core.dedup_tally()?.0),
            "dedupsaved" => number(self.core.dedup_tally()?.1),
            _ => Ok(None),
        }
    }

    fn dedup_ratio(&self) -> Result<u64> {
        let (used, saved) = self.core.dedup_tally()?;
        Ok(ratio(used.saturating_add(saved), used))
    }
}
