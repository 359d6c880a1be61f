//! The features of a new pool: the `compatibility` property (chapter 04 §14.4,
//! chapter 09 §2.4), `-d`, and `feature@X`.
//!
//! # Theory
//! A set is looked up as a file, in the administrator's directory first and then in
//! OpenZFS's; the sets of OpenZFS's releases are built in. Several sets mean their
//! intersection. Names of unknown features are ignored: they belong to some other
//! implementation.

use std::collections::BTreeSet;
use std::path::Path;

use ondisk::features::{ACTIVATE_ON_ENABLE, FEATURES, Feature, NO_UPGRADE, by_guid, by_name};

/// Directories of set files; the first match is used.
const DIRECTORIES: [&str; 2] = ["/etc/zfs/compatibility.d", "/usr/share/zfs/compatibility.d"];
/// Longest file that is read.
const FILE_MAX: u64 = 16 << 10;
/// Rows of chapter 04 §14.2 that OpenZFS 2.3 supports; later ones are newer.
const KNOWN_TO_2_3: usize = 44;

/// Features whose data Cenote does not write. A new pool has them only on request, and they
/// never become active.
const NOT_WRITTEN: [&str; 1] = ["com.delphix:redaction_list_spill"];

/// Features of the built-in sets.
const COMPAT_2018: [&str; 11] = [
    "async_destroy",
    "bookmarks",
    "embedded_data",
    "empty_bpobj",
    "enabled_txg",
    "extensible_dataset",
    "filesystem_limits",
    "hole_birth",
    "large_blocks",
    "lz4_compress",
    "spacemap_histogram",
];
const SINCE_2_2: [&str; 5] =
    ["zilsaxattr", "head_errlog", "blake3", "block_cloning", "vdev_zaps_v2"];
const SINCE_2_3: [&str; 5] =
    ["redaction_list_spill", "raidz_expansion", "fast_dedup", "longname", "large_microzap"];
const SINCE_2_4: [&str; 3] = ["dynamic_gang_header", "block_cloning_endian", "physical_rewrite"];
/// Rows of chapter 04 §14.2 that OpenZFS 2.0 supports.
const KNOWN_TO_2_0: usize = 33;

/// A set of features by name; `None` is every one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureSet(Option<BTreeSet<String>>);

impl FeatureSet {
    /// Every feature.
    pub fn all() -> FeatureSet {
        FeatureSet(None)
    }

    /// Whether the feature of this name is in it.
    pub fn has(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|set| set.contains(name))
    }
}

/// The built-in set of a release.
fn built_in(name: &str) -> Option<BTreeSet<String>> {
    let strings = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
    if matches!(name, "compat-2018" | "2018") {
        return Some(strings(&COMPAT_2018));
    }
    let release = name.strip_prefix("openzfs-2.")?;
    let release =
        release.strip_suffix("-linux").or(release.strip_suffix("-freebsd")).unwrap_or(release);
    let minor: u32 = release.parse().ok().filter(|m| *m <= 4)?;
    let mut set: BTreeSet<String> =
        FEATURES.iter().take(KNOWN_TO_2_0).map(|f| f.name().to_owned()).collect();
    let later: [(u32, &[&str]); 4] =
        [(1, &["draid"]), (2, &SINCE_2_2), (3, &SINCE_2_3), (4, &SINCE_2_4)];
    for (since, names) in later {
        if minor >= since {
            set.extend(strings(names) as BTreeSet<String>);
        }
    }
    Some(set)
}

/// One feature a word, `#` begins a comment.
fn parse_file(text: &str) -> BTreeSet<String> {
    let words = text.lines().flat_map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        line.split(|c: char| c.is_whitespace() || c == ',').filter(|w| !w.is_empty())
    });
    words.map(str::to_owned).collect()
}

/// Reads a set's file, or returns a built-in one.
fn read_set(name: &str) -> Option<BTreeSet<String>> {
    let places: Vec<std::path::PathBuf> = if name.starts_with('/') {
        vec![name.into()]
    } else if name.is_empty() || name.contains('/') {
        return None;
    } else {
        DIRECTORIES.iter().map(|d| Path::new(d).join(name)).collect()
    };
    let read = |path: &std::path::PathBuf| {
        let meta = std::fs::metadata(path).ok().filter(|m| m.is_file() && m.len() <= FILE_MAX)?;
        let _ = meta;
        std::fs::read_to_string(path).ok().map(|text| parse_file(&text))
    };
    places.iter().find_map(read).or_else(|| built_in(name))
}

/// The features that a value of the `compatibility` property allows.
///
/// # Errors
/// The names of the sets that could not be read.
pub fn feature_set(value: &str) -> Result<FeatureSet, Vec<String>> {
    feature_set_from(value, &read_set)
}

fn feature_set_from(
    value: &str,
    read: &dyn Fn(&str) -> Option<BTreeSet<String>>,
) -> Result<FeatureSet, Vec<String>> {
    match value {
        "off" | "" => return Ok(FeatureSet::all()),
        "legacy" => return Ok(FeatureSet(Some(BTreeSet::new()))),
        _ => {}
    }
    let (mut set, mut bad): (Option<BTreeSet<String>>, Vec<String>) = (None, Vec::new());
    for name in value.split(',') {
        match read(name) {
            Some(other) => {
                set = Some(match set {
                    None => other,
                    Some(set) => set.intersection(&other).cloned().collect(),
                });
            }
            None => bad.push(name.to_owned()),
        }
    }
    if bad.is_empty() { Ok(FeatureSet(set)) } else { Err(bad) }
}

/// Whether a new pool may have the feature enabled: Cenote maintains its data, or enabling
/// it alone changes nothing on disk.
pub fn may_enable(feature: &Feature) -> bool {
    feature.is_readable()
        && !(feature.has(ACTIVATE_ON_ENABLE) && NOT_WRITTEN.contains(&feature.guid))
}

/// Whether Cenote maintains the feature's data.
pub(crate) fn is_written(feature: &Feature) -> bool {
    feature.is_readable() && !NOT_WRITTEN.contains(&feature.guid)
}

/// Whether new pools have the feature by default.
pub(crate) fn is_default(feature: &Feature) -> bool {
    let known = FEATURES.iter().take(KNOWN_TO_2_3).any(|f| f.guid == feature.guid);
    known && is_written(feature)
}

/// Whether an upgrade enables the feature, where the pool's sets allow it.
pub fn is_upgraded(feature: &Feature) -> bool {
    is_default(feature) && !feature.has(NO_UPGRADE)
}

/// The features that an upgrade enables in a pool with these sets, each behind those that it
/// depends on. `is_enabled` tells which it has.
pub(crate) fn features_to_add(
    set: &FeatureSet,
    is_enabled: &dyn Fn(&Feature) -> bool,
) -> Vec<&'static Feature> {
    let wanted = in_order(|f| is_upgraded(f) && set.has(f.name()) && !is_enabled(f));
    wanted.into_iter().filter(|f| !is_enabled(f)).collect()
}

/// The features that a pool's creator requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureWishes {
    /// `-d`: only features requested by name.
    pub none: bool,
    /// `feature@X=enabled` (true) and `feature@X=disabled`, in order.
    pub named: Vec<(String, bool)>,
}

/// The features to enable in a new pool, each behind those that it depends on, and
/// warnings for what is outside of `set`.
///
/// # Errors
/// The part behind `cannot create 'NAME': `.
pub fn features_to_enable(
    wishes: &FeatureWishes,
    set: &FeatureSet,
) -> Result<(Vec<&'static Feature>, Vec<String>), String> {
    let mut wanted: BTreeSet<&'static str> = BTreeSet::new();
    let mut warnings = Vec::new();
    if !wishes.none {
        let default = FEATURES.iter().filter(|f| is_default(f));
        wanted.extend(default.filter(|f| set.has(f.name())).map(|f| f.guid));
    }
    for (name, enabled) in &wishes.named {
        let feature = by_name(name)
            .filter(|f| may_enable(f))
            .ok_or_else(|| format!("feature '{name}' unsupported by kernel"))?;
        if !enabled {
            wanted.remove(feature.guid);
            continue;
        }
        if !set.has(name) {
            warnings.push(format!(
                "Warning: feature \"{name}\" enabled but is not in specified 'compatibility' \
                 feature set."
            ));
        }
        wanted.insert(feature.guid);
    }
    Ok((in_order(|f| wanted.contains(f.guid)), warnings))
}

/// The features of a pool without any request.
pub(super) fn default_features() -> Vec<&'static Feature> {
    in_order(is_default)
}

/// The wanted features, each behind those that it depends on.
fn in_order(wanted: impl Fn(&Feature) -> bool) -> Vec<&'static Feature> {
    let mut out = Vec::new();
    for feature in FEATURES.iter().filter(|f| wanted(f)) {
        with_needed(feature, &mut out);
    }
    out
}

/// Adds the features that this one depends on, then the feature. The table has no cycles.
fn with_needed(feature: &'static Feature, out: &mut Vec<&'static Feature>) {
    for needed in feature.depends.iter().filter_map(|guid| by_guid(guid)) {
        with_needed(needed, out);
    }
    if !out.contains(&feature) {
        out.push(feature);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&'static Feature]) -> Vec<&'static str> {
        list.iter().map(|f| f.name()).collect()
    }

    fn from_files(name: &str) -> Option<BTreeSet<String>> {
        match name {
            "a" => Some(parse_file("# comment\nlz4_compress\nhole_birth # why\n\nblake3\n")),
            "b" => Some(parse_file("lz4_compress, blake3\tunknown_feature")),
            other => built_in(other),
        }
    }

    #[test]
    fn sets_intersect() {
        let set = |value: &str| feature_set_from(value, &from_files);
        let both = set("a,b").unwrap();
        assert!(both.has("lz4_compress") && both.has("blake3") && !both.has("hole_birth"));
        assert!(set("off").unwrap().has("anything"));
        assert!(!set("legacy").unwrap().has("lz4_compress"));
        assert_eq!(set("a,nope,nada"), Err(vec!["nope".to_owned(), "nada".to_owned()]));
        assert!(set("a,legacy").is_err(), "legacy is not a set among others");
    }

    #[test]
    fn sets_of_releases() {
        let count = |name: &str| built_in(name).unwrap().len();
        assert_eq!(count("compat-2018"), 11);
        assert_eq!(count("openzfs-2.0-linux"), 33);
        assert_eq!(count("openzfs-2.1-freebsd"), 34);
        assert_eq!(count("openzfs-2.2"), 39);
        assert_eq!(count("openzfs-2.3"), 44);
        assert_eq!(count("openzfs-2.4"), 47);
        assert_eq!(built_in("openzfs-2.5"), None);
        assert_eq!(built_in("openzfs-1.9"), None);
        for name in ["compat-2018", "openzfs-2.4"] {
            for feature in built_in(name).unwrap() {
                assert!(by_name(&feature).is_some(), "{feature}");
            }
        }
    }

    #[test]
    fn what_a_new_pool_gets() {
        let all = FeatureSet::all();
        let (default, warnings) = features_to_enable(&FeatureWishes::default(), &all).unwrap();
        let names_ = names(&default);
        assert!(warnings.is_empty());
        assert!(names_.contains(&"log_spacemap") && names_.contains(&"zstd_compress"));
        for newer in ["physical_rewrite", "dynamic_gang_header"] {
            assert!(!names_.contains(&newer), "{newer}");
        }
        for (i, feature) in default.iter().enumerate() {
            for needed in feature.depends {
                assert!(default[..i].iter().any(|f| f.guid == *needed), "{}", feature.guid);
            }
        }
        let none = FeatureWishes { none: true, named: vec![("log_spacemap".into(), true)] };
        let (some, _) = features_to_enable(&none, &all).unwrap();
        assert_eq!(names(&some), ["spacemap_v2", "log_spacemap"]);
    }

    #[test]
    fn wishes_by_name() {
        let set = feature_set_from("compat-2018", &from_files).unwrap();
        let named = |name: &str, on| FeatureWishes { none: false, named: vec![(name.into(), on)] };
        let (some, warnings) = features_to_enable(&named("blake3", true), &set).unwrap();
        assert_eq!(some.len(), 12);
        // Recorded from OpenZFS 2.3.2.
        assert_eq!(
            warnings,
            ["Warning: feature \"blake3\" enabled but is not in specified 'compatibility' \
              feature set."]
        );
        let (some, _) = features_to_enable(&named("lz4_compress", false), &set).unwrap();
        assert!(some.len() == 10 && !names(&some).contains(&"lz4_compress"));
        let e = features_to_enable(&named("x", true), &set).unwrap_err();
        assert_eq!(e, "feature 'x' unsupported by kernel");
        // Passive ones on request, though Cenote will never activate them.
        let (some, _) = features_to_enable(&named("physical_rewrite", true), &set).unwrap();
        assert!(names(&some).contains(&"physical_rewrite"));
        assert!(features_to_enable(&named("draid_failure_domains", true), &set).is_err());
    }
}
