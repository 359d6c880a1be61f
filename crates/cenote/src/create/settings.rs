//! Validation of properties in text form (chapter 09 §2.1, §2.2, §2.4; the messages are
//! those of OpenZFS 2.3.2).
//!
//! # Invariants
//! * A checked value is in stored form: numbers for sizes and index words.
//! * Nothing here depends on the pool's features.

use std::path::PathBuf;

use dsl::props::{
    Attr, Prop, PropData, Types, Unit, dataset_prop, is_space_prop, is_user_prop, parse_size,
    pool_column,
};
use ondisk::features::by_name;

/// Longest comment, in bytes.
const COMMENT_MAX: usize = 32;
/// Longest value of a user property, in bytes.
const USER_VALUE_MAX: usize = 8191;
/// Longest name of a user property, in bytes.
const USER_NAME_MAX: usize = 255;

/// When a pool property is being set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// While the pool is created.
    Create,
    /// Later.
    Set,
}

/// A checked pool property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolSetting {
    /// Stored in the pool's property object, by name (chapter 04 §12.5).
    Stored(&'static str, u64),
    /// The dataset to boot from; empty is none.
    Bootfs(String),
    /// Stored in the configuration.
    Comment(String),
    /// Stored in the configuration; the sets could be read.
    Compatibility(String),
    /// 1 to 28, or 5000.
    Version(u64),
    /// Until the pool is exported: prefix of all mountpoints.
    Altroot(PathBuf),
    /// Until the pool is exported: `none`, a path, or empty for the usual one.
    Cachefile(String),
    /// Until the pool is exported: its name.
    TemporaryName(String),
    /// A feature, by short name: enable it, or, at creation, do not.
    Feature(String, bool),
    /// A user property; an empty value removes it.
    User(String, String),
    /// Accepted and without effect (`dedupditto`).
    NoEffect(&'static str),
}

/// Checks one pool property.
///
/// # Errors
/// The part behind `cannot create 'NAME': ` or `cannot set property for 'NAME': `.
pub fn pool_setting(name: &str, value: &str, when: When) -> Result<PoolSetting, String> {
    if let Some(feature) = name.strip_prefix("feature@") {
        return feature_setting(name, feature, value, when);
    }
    if when == When::Set && is_like_user_prop(name) {
        return user_setting(name, value).map(|(n, v)| PoolSetting::User(n, v));
    }
    let prop = pool_column(name).ok_or_else(|| format!("invalid property '{name}'"))?;
    if prop.attr == Attr::ReadOnly {
        return Err(format!("'{}' is readonly", prop.name));
    }
    match prop.name {
        "version" => version(value),
        "ashift" => ashift(value),
        "bootfs" => bootfs(value, when),
        "altroot" => altroot(value, when),
        "readonly" => Err("property 'readonly' can only be set at import time".to_owned()),
        "tname" if when == When::Set => {
            Err("property 'tname' can only be set at creation time".to_owned())
        }
        "tname" => Ok(PoolSetting::TemporaryName(value.to_owned())),
        "cachefile" => cachefile(value),
        "comment" => comment(value),
        "compatibility" => match super::compat::feature_set(value) {
            Ok(_) => Ok(PoolSetting::Compatibility(value.to_owned())),
            Err(bad) => Err(format!("could not read/parse feature file(s): {}", bad.join(","))),
        },
        "dedupditto" => Ok(PoolSetting::NoEffect("dedupditto")),
        _ => match number(prop, value)? {
            PropData::Num(n) => Ok(PoolSetting::Stored(prop.name, n)),
            _ => Err(format!("invalid property '{name}'")),
        },
    }
}

fn feature_setting(
    property: &str,
    feature: &str,
    value: &str,
    when: When,
) -> Result<PoolSetting, String> {
    if by_name(feature).is_none() {
        return Err(format!("feature '{feature}' unsupported by kernel"));
    }
    let enabled = match (value, when) {
        ("enabled", _) => true,
        ("disabled", When::Create) => false,
        ("disabled", When::Set) => {
            return Err(format!(
                "property '{property}' can only be set to 'disabled' at creation time"
            ));
        }
        _ => {
            return Err(format!(
                "property '{property}' can only be set to 'enabled' or 'disabled'"
            ));
        }
    };
    Ok(PoolSetting::Feature(feature.to_owned(), enabled))
}

fn version(value: &str) -> Result<PoolSetting, String> {
    let version = parse_size(value)?;
    if !(1..=28).contains(&version) && version != 5000 {
        return Err(format!("property 'version' number {version} is invalid."));
    }
    Ok(PoolSetting::Version(version))
}

fn ashift(value: &str) -> Result<PoolSetting, String> {
    let shift = parse_size(value)?;
    if shift != 0 && !(9..=16).contains(&shift) {
        return Err(format!(
            "property 'ashift' number {shift} is invalid, only values between 9 and 16 are \
             allowed."
        ));
    }
    Ok(PoolSetting::Stored("ashift", shift))
}

fn bootfs(value: &str, when: When) -> Result<PoolSetting, String> {
    if when == When::Create {
        return Err("property 'bootfs' cannot be set at creation or import time".to_owned());
    }
    Ok(PoolSetting::Bootfs(value.to_owned()))
}

fn altroot(value: &str, when: When) -> Result<PoolSetting, String> {
    if when == When::Set {
        let text = "property 'altroot' can only be set during pool creation or import";
        return Err(text.to_owned());
    }
    if !value.starts_with('/') {
        return Err(format!("bad alternate root '{value}'"));
    }
    Ok(PoolSetting::Altroot(value.into()))
}

fn cachefile(value: &str) -> Result<PoolSetting, String> {
    if !matches!(value, "" | "none") {
        let Some(cut) = value.rfind('/').filter(|_| value.starts_with('/')) else {
            let text = "property 'cachefile' must be empty, an absolute path, or 'none'";
            return Err(text.to_owned());
        };
        let (dir, file) = (&value[..cut], &value[cut + 1..]);
        if matches!(file, "" | "." | "..") {
            return Err(format!("'{value}' is not a valid file"));
        }
        let dir = if dir.is_empty() { "/" } else { dir };
        if !std::path::Path::new(dir).is_dir() {
            return Err(format!("'{dir}' is not a valid directory"));
        }
        // The daemon keeps its own list of the pools to import.
        return Err("the use of cache files is not supported by this version of Cenote".to_owned());
    }
    Ok(PoolSetting::Cachefile(value.to_owned()))
}

fn comment(value: &str) -> Result<PoolSetting, String> {
    if !value.bytes().all(|b| (b' '..=b'~').contains(&b)) {
        return Err("comment may only have printable characters".to_owned());
    }
    if value.len() > COMMENT_MAX {
        return Err(format!("comment must not exceed {COMMENT_MAX} characters"));
    }
    Ok(PoolSetting::Comment(value.to_owned()))
}

/// Whether a user property is meant, valid or not.
fn is_like_user_prop(name: &str) -> bool {
    is_user_prop(name) || (name.contains(':') && name.len() > USER_NAME_MAX)
}

fn user_setting(name: &str, value: &str) -> Result<(String, String), String> {
    if name.len() > USER_NAME_MAX {
        return Err(format!("property name '{name}' is too long"));
    }
    if value.len() > USER_VALUE_MAX {
        return Err(format!("property value '{value}' is too long"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// A number or an index word, as the property's unit says.
fn number(prop: &Prop, value: &str) -> Result<PropData, String> {
    if prop.unit == Unit::Words {
        let one_of = || format!("'{}' must be one of '{}'", prop.name, prop.values);
        return prop.index(value).map(PropData::Num).ok_or_else(one_of);
    }
    if prop.unit == Unit::Text {
        return Ok(PropData::Str(value.to_owned()));
    }
    let n = match (prop.unit, value) {
        (Unit::Limit, "none") | (Unit::AutoQuota, "auto") => u64::MAX,
        (_, "none") => 0,
        _ => parse_size(value)?,
    };
    Ok(PropData::Num(n))
}

/// Checks a property of a new pool's root file system (`-O`).
///
/// # Errors
/// The part behind `cannot create 'NAME': `.
pub(crate) fn root_fs_setting(name: &str, value: &str) -> Result<(String, PropData), String> {
    if is_like_user_prop(name) {
        return user_setting(name, value).map(|(n, v)| (n, PropData::Str(v)));
    }
    let unknown = || format!("invalid property '{name}'");
    let prop = dataset_prop(name).filter(|p| p.types.intersects(Types::F)).ok_or_else(unknown)?;
    native_setting(prop, value)
}

/// The kind of dataset on which a property is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// An existing file system.
    Filesystem,
    /// A new file system.
    NewFilesystem,
    /// An existing volume.
    Volume,
    /// A new volume.
    NewVolume,
    /// A snapshot.
    Snapshot,
}

impl Of {
    fn types(self) -> Types {
        match self {
            Of::Filesystem | Of::NewFilesystem => Types::F,
            Of::Volume | Of::NewVolume => Types::V,
            Of::Snapshot => Types::S,
        }
    }

    fn is_new(self) -> bool {
        matches!(self, Of::NewFilesystem | Of::NewVolume)
    }
}

/// Checks a property of any dataset.
///
/// # Errors
/// The part behind `cannot create 'NAME': ` or `cannot set property for 'NAME': `.
pub fn dataset_setting(name: &str, value: &str, of: Of) -> Result<(String, PropData), String> {
    if is_like_user_prop(name) {
        return user_setting(name, value).map(|(n, v)| (n, PropData::Str(v)));
    }
    if is_space_prop(name) {
        return match of {
            Of::Filesystem => crate::owners::quota_setting(name, value),
            _ => Err(format!("'{name}' does not apply to datasets of this type")),
        };
    }
    let prop = dataset_prop(name).ok_or_else(|| format!("invalid property '{name}'"))?;
    if of == Of::Snapshot {
        return Err("this property can not be modified for snapshots".to_owned());
    }
    if !prop.types.intersects(of.types()) {
        return Err(format!("'{name}' does not apply to datasets of this type"));
    }
    if !of.is_new() && matches!(prop.attr, Attr::Once | Attr::OnceLocal) {
        return Err(format!("'{name}' is readonly"));
    }
    if name == "refreservation" && value == "auto" && matches!(of, Of::Volume | Of::NewVolume) {
        return Ok((name.to_owned(), PropData::Num(crate::REFRESERVATION_AUTO)));
    }
    native_setting(prop, value)
}

fn native_setting(prop: &Prop, value: &str) -> Result<(String, PropData), String> {
    let name = prop.name;
    if prop.attr == Attr::ReadOnly || name == "name" {
        return Err(format!("'{name}' is readonly"));
    }
    let checked = number(prop, value)?;
    let n = if let PropData::Num(n) = checked { n } else { 0 };
    match name {
        "recordsize" | "volblocksize" if !n.is_power_of_two() || !(512..=16 << 20).contains(&n) => {
            return Err(format!("'{name}' must be power of 2 from 512B to 16M"));
        }
        "volsize" if n == 0 => return Err("'volsize' cannot be zero".to_owned()),
        "special_small_blocks"
            if n != 0 && (!n.is_power_of_two() || !(512..=1 << 20).contains(&n)) =>
        {
            return Err(format!(
                "invalid 'special_small_blocks={n}' property: must be zero or a power of 2 from \
                 512B to 1M"
            ));
        }
        "quota" | "refquota" if n == 0 && value != "none" => {
            return Err("use 'none' to disable quota/refquota".to_owned());
        }
        "mlslabel" => return Err("mlslabels are unsupported".to_owned()),
        "mountpoint" => check_mountpoint(value)?,
        "encryption" if value != "off" => {
            return Err(
                "encryption of new datasets is not supported by this version of Cenote".to_owned()
            );
        }
        "keyformat" | "keylocation" | "pbkdf2iters" if value != "none" => {
            return Err("encryption properties need encryption".to_owned());
        }
        _ => {}
    }
    Ok((name.to_owned(), checked))
}

/// Checks the properties of a new file system or volume, including their combination.
///
/// # Errors
/// As [`dataset_setting`].
pub fn new_dataset_settings(
    list: &[(String, String)],
    of: Of,
) -> Result<Vec<(String, PropData)>, String> {
    let all = list.iter().map(|(name, value)| dataset_setting(name, value, of));
    with_utf8(all.collect::<Result<_, _>>()?)
}

/// Checks a whole list of `-O` properties, including their combination.
///
/// # Errors
/// As [`root_fs_setting`].
pub fn root_fs_settings(list: &[(String, String)]) -> Result<Vec<(String, PropData)>, String> {
    let all = list.iter().map(|(name, value)| root_fs_setting(name, value));
    with_utf8(all.collect::<Result<_, _>>()?)
}

/// Normalisation requires UTF-8.
fn with_utf8(mut out: Vec<(String, PropData)>) -> Result<Vec<(String, PropData)>, String> {
    let get = |name: &str| out.iter().find(|p| p.0 == name).map(|p| &p.1);
    let normalized = matches!(get("normalization"), Some(PropData::Num(n)) if *n != 0);
    if normalized {
        match get("utf8only") {
            Some(PropData::Num(1)) => {}
            None => out.push(("utf8only".to_owned(), PropData::Num(1))),
            Some(_) => {
                return Err("'utf8only' must be set 'on' if normalization chosen".to_owned());
            }
        }
    }
    Ok(out)
}

/// Whether a mountpoint is valid: an absolute path, `legacy` or `none`.
///
/// # Errors
/// OpenZFS's message, whole.
pub fn check_mountpoint(value: &str) -> Result<(), String> {
    if value.starts_with('/') || matches!(value, "legacy" | "none") {
        return Ok(());
    }
    Err(format!("invalid mountpoint '{value}': must be an absolute path, 'legacy', or 'none'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn create(name: &str, value: &str) -> Result<PoolSetting, String> {
        pool_setting(name, value, When::Create)
    }
    fn set(name: &str, value: &str) -> Result<PoolSetting, String> {
        pool_setting(name, value, When::Set)
    }

    /// Recorded from OpenZFS 2.3.2's `zpool create -o`.
    #[test]
    fn at_creation() {
        use PoolSetting::{Comment, Feature, Stored, Version};
        assert_eq!(create("autotrim", "on"), Ok(Stored("autotrim", 1)));
        assert_eq!(create("listsnaps", "on"), Ok(Stored("listsnapshots", 1)));
        assert_eq!(create("failmode", "panic"), Ok(Stored("failmode", 2)));
        assert_eq!(create("dedup_table_quota", "5G"), Ok(Stored("dedup_table_quota", 5 << 30)));
        assert_eq!(create("dedup_table_quota", "auto"), Ok(Stored("dedup_table_quota", u64::MAX)));
        assert_eq!(create("dedup_table_quota", "none"), Ok(Stored("dedup_table_quota", 0)));
        assert_eq!(create("comment", "hello"), Ok(Comment("hello".into())));
        assert_eq!(create("comment", ""), Ok(Comment(String::new())));
        assert_eq!(create("version", "28"), Ok(Version(28)));
        assert_eq!(create("dedupditto", "5"), Ok(PoolSetting::NoEffect("dedupditto")));
        let feature = |on| Ok(Feature("lz4_compress".into(), on));
        assert_eq!(create("feature@lz4_compress", "enabled"), feature(true));
        assert_eq!(create("feature@lz4_compress", "disabled"), feature(false));
        for (name, value, why) in [
            ("autotrim", "maybe", "'autotrim' must be one of 'on | off'"),
            ("failmode", "foo", "'failmode' must be one of 'wait | continue | panic'"),
            ("comment", "a\tb", "comment may only have printable characters"),
            ("size", "5", "'size' is readonly"),
            ("health", "ONLINE", "'health' is readonly"),
            ("readonly", "on", "property 'readonly' can only be set at import time"),
            ("cachefile", "x", "property 'cachefile' must be empty, an absolute path, or 'none'"),
            ("cachefile", "/no/such/x", "'/no/such' is not a valid directory"),
            ("version", "29", "property 'version' number 29 is invalid."),
            ("bootfs", "tank", "property 'bootfs' cannot be set at creation or import time"),
            ("feature@x", "enabled", "feature 'x' unsupported by kernel"),
            (
                "feature@lz4_compress",
                "on",
                "property 'feature@lz4_compress' can only be set to 'enabled' or 'disabled'",
            ),
            ("dedup_table_quota", "x", "bad numeric value 'x'"),
        ] {
            assert_eq!(create(name, value), Err(why.to_owned()), "{name}={value}");
        }
        let long = "x".repeat(33);
        assert_eq!(
            create("comment", &long),
            Err("comment must not exceed 32 characters".to_owned())
        );
    }

    /// Recorded from OpenZFS 2.3.2's `zpool set`.
    #[test]
    fn later() {
        assert_eq!(set("a:b", "c"), Ok(PoolSetting::User("a:b".into(), "c".into())));
        assert_eq!(set("ashift", "12"), Ok(PoolSetting::Stored("ashift", 12)));
        let long = format!("a:{}", "x".repeat(260));
        for (name, value, why) in [
            ("nope", "5", "invalid property 'nope'".to_owned()),
            ("", "5", "invalid property ''".to_owned()),
            ("A:b", "c", "invalid property 'A:b'".to_owned()),
            (&long, "c", format!("property name '{long}' is too long")),
            (
                "ashift",
                "1",
                "property 'ashift' number 1 is invalid, only values between 9 and 16 are allowed."
                    .to_owned(),
            ),
            ("ashift", "x", "bad numeric value 'x'".to_owned()),
            (
                "feature@lz4_compress",
                "disabled",
                "property 'feature@lz4_compress' can only be set to 'disabled' at creation time"
                    .to_owned(),
            ),
            (
                "altroot",
                "/x",
                "property 'altroot' can only be set during pool creation or import".to_owned(),
            ),
            ("tname", "x", "property 'tname' can only be set at creation time".to_owned()),
            ("delegation", "2", "'delegation' must be one of 'on | off'".to_owned()),
            ("guid", "3", "'guid' is readonly".to_owned()),
        ] {
            assert_eq!(set(name, value), Err(why), "{name}={value}");
        }
        let value = "x".repeat(9000);
        assert_eq!(set("a:b", &value), Err(format!("property value '{value}' is too long")));
    }

    /// Recorded from OpenZFS 2.3.2's `zpool create -O`.
    #[test]
    fn of_the_root_file_system() {
        let num = |n| Ok(PropData::Num(n));
        let fs = |name: &str, value: &str| root_fs_setting(name, value).map(|p| p.1);
        assert_eq!(fs("compression", "lz4"), num(15));
        assert_eq!(fs("recordsize", "1M"), num(1 << 20));
        assert_eq!(fs("quota", "10G"), num(10 << 30));
        assert_eq!(fs("quota", "none"), num(0));
        assert_eq!(fs("snapshot_limit", "none"), num(u64::MAX));
        assert_eq!(fs("a:b", "c"), Ok(PropData::Str("c".into())));
        assert_eq!(fs("mountpoint", "none"), Ok(PropData::Str("none".into())));
        for (name, value, why) in [
            ("used", "1", "'used' is readonly"),
            ("name", "x", "'name' is readonly"),
            ("recordsize", "100", "'recordsize' must be power of 2 from 512B to 16M"),
            ("recordsize", "32M", "'recordsize' must be power of 2 from 512B to 16M"),
            ("copies", "4", "'copies' must be one of '1 | 2 | 3'"),
            ("sync", "maybe", "'sync' must be one of 'standard | always | disabled'"),
            ("version", "9", "'version' must be one of '1 | 2 | 3 | 4 | 5 | current'"),
            ("quota", "0", "use 'none' to disable quota/refquota"),
            ("quota", "x", "bad numeric value 'x'"),
            ("mlslabel", "x", "mlslabels are unsupported"),
            (
                "mountpoint",
                "x",
                "invalid mountpoint 'x': must be an absolute path, 'legacy', or 'none'",
            ),
            (
                "dedup",
                "foo",
                "'dedup' must be one of 'on | off | verify | sha256[,verify] | sha512[,verify] | \
                 skein[,verify] | edonr,verify | blake3[,verify]'",
            ),
        ] {
            assert_eq!(fs(name, value), Err(why.to_owned()), "{name}={value}");
        }
        assert!(fs("volsize", "1G").is_err() && fs("nope", "1").is_err());
        assert!(fs("encryption", "on").is_err() && fs("encryption", "off").is_ok());
    }

    #[test]
    fn normalization_wants_utf8() {
        let list = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(String, String)> =
                pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            root_fs_settings(&pairs)
        };
        let forced = list(&[("normalization", "formD")]).unwrap();
        assert_eq!(forced[1], ("utf8only".to_owned(), PropData::Num(1)));
        assert_eq!(list(&[("normalization", "formD"), ("utf8only", "on")]).unwrap().len(), 2);
        assert_eq!(
            list(&[("utf8only", "off"), ("normalization", "formD")]),
            Err("'utf8only' must be set 'on' if normalization chosen".to_owned())
        );
    }

    proptest! {
        #[test]
        fn no_input_panics(name in "[a-z@:_]{0,20}", value in ".{0,40}") {
            let _ = (create(&name, &value), set(&name, &value), root_fs_setting(&name, &value));
            for known in ["ashift", "comment", "cachefile", "version", "feature@lz4_compress"] {
                let _ = (create(known, &value), set(known, &value));
            }
        }
    }
}
