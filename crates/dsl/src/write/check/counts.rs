//! The counts of features (chapter 04 §14.2).

use std::collections::BTreeMap;

use base::Result;
use ondisk::ObjType;

use super::super::{bookmark, deadlist, features, livelist, remap};
use super::Checker;

impl Checker<'_> {
    pub(super) fn feature_counts(&mut self) -> Result<()> {
        if self.mos.directory("features_for_read")?.is_none() {
            return Ok(());
        }
        let mut due: BTreeMap<&'static str, u64> = BTreeMap::new();
        for feature in ondisk::features::FEATURES.iter().filter(|f| f.is_per_dataset()) {
            due.insert(feature.guid, 0);
        }
        self.count_datasets(&mut due)?;
        self.count_livelists(&mut due)?;
        self.count_bookmarks(&mut due)?;
        due.insert(features::EMPTY_BPOBJ, self.empty_refs);
        let trees = self.mos.directory("bptree_obj")?.is_some();
        due.insert(features::ASYNC_DESTROY, u64::from(trees));
        let txgs = self.mos.directory("feature_enabled_txg")?;
        let txgs = txgs.map_or(Ok(0), |zap| self.mos.zap_entries(zap).map(|e| e.len() as u64))?;
        due.insert(features::ENABLED_TXG, txgs);
        for (guid, due) in due {
            let found = features::count(self.mos, guid)?.unwrap_or(0);
            // This count is too high in pools where OpenZFS destroyed heads (trap 10).
            if guid == features::BOOKMARK_V2 && found >= due {
                continue;
            }
            self.equal(0, &format!("count of {guid}"), found, due);
        }
        Ok(())
    }

    fn is_zapified(&self, object: u64) -> Result<bool> {
        Ok(self.mos.info(object)?.object_type == ObjType::OTN_ZAP_METADATA)
    }

    fn count_datasets(&self, due: &mut BTreeMap<&'static str, u64>) -> Result<()> {
        for object in self.dirs.keys() {
            let n = u64::from(self.is_zapified(*object)?);
            *due.entry(features::EXTENSIBLE_DATASET).or_default() += n;
        }
        for object in self.datasets.keys() {
            let n = u64::from(self.is_zapified(*object)?);
            *due.entry(features::EXTENSIBLE_DATASET).or_default() += n;
            for (feature, _) in features::of_dataset(self.mos, *object)? {
                *due.entry(feature.guid).or_default() += 1;
            }
        }
        Ok(())
    }

    fn count_livelists(&mut self, due: &mut BTreeMap<&'static str, u64>) -> Result<()> {
        let mut lists = Vec::new();
        let mut livelists = livelist::queued(self.mos)?.len() as u64;
        for object in self.dirs.keys() {
            livelists += u64::from(livelist::of_dir(self.mos, *object)?.is_some());
        }
        due.insert(features::LIVELIST, livelists);
        for object in self.datasets.keys() {
            lists.extend(self.mos.attribute_u64(*object, remap::KEY)?);
        }
        for list in lists {
            let keys = deadlist::keys(self.mos, list)?;
            let shared = keys.values().filter(|l| self.shared_empty == Some(**l));
            self.empty_refs += shared.count() as u64;
        }
        Ok(())
    }

    fn count_bookmarks(&self, due: &mut BTreeMap<&'static str, u64>) -> Result<()> {
        let mut n = [0u64; 4];
        for (object, ds) in &self.datasets {
            if ds.phys.is_snapshot() {
                continue;
            }
            n[0] += u64::from(self.mos.attribute_u64(*object, bookmark::KEY)?.is_some());
            for mark in bookmark::of_head(self.mos, *object)? {
                n[1] += u64::from(mark.long);
                n[2] += u64::from(mark.has_fbn());
                n[3] += u64::from(mark.phys.redaction_obj != 0);
            }
        }
        due.insert(features::BOOKMARKS, n[0]);
        due.insert(features::BOOKMARK_V2, n[1]);
        due.insert(features::BOOKMARK_WRITTEN, n[2]);
        due.insert(features::REDACTION_BOOKMARKS, n[3]);
        Ok(())
    }
}
