//! The master node: the properties of a file system (chapter 06 §2).

use base::{Error, ObjectId, Result};
use dmu::Zap;
use ondisk::objtype::ObjType;

/// The newest version, the one with system attributes.
pub(crate) const ZPL_VERSION: u64 = 5;
/// Object number of the master node.
pub(crate) const MASTER_NODE: ObjectId = ObjectId(1);

/// How names that differ only in case compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaseSensitivity {
    /// They differ.
    #[default]
    Sensitive,
    /// They are one name.
    Insensitive,
    /// They differ, unless a caller requests otherwise.
    Mixed,
}

/// The quota tables of one kind of id; `None` as long as no quota was ever set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaObjects {
    /// Limits in bytes by id.
    pub bytes: Option<ObjectId>,
    /// Limits in objects by id.
    pub objects: Option<ObjectId>,
    /// Bytes for ids without an entry; 0 = none.
    pub default_bytes: u64,
    /// Objects for ids without an entry; 0 = none.
    pub default_objects: u64,
}

/// The contents of the master node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Props {
    /// ZPL version, 1 to 5.
    pub version: u64,
    /// Normalisation of names: 0, 0x10 (formD), 0x20 (formKD), 0x50 (formC), 0x60 (formKC).
    pub normalization: u64,
    /// Names must be UTF-8.
    pub utf8only: bool,
    /// Case of names.
    pub case: CaseSensitivity,
    /// Root directory.
    pub root: ObjectId,
    /// Files without links, not yet freed.
    pub delete_queue: Option<ObjectId>,
    /// SA master node; version 5 has it.
    pub sa_attrs: Option<ObjectId>,
    /// Domains of foreign ids.
    pub fuid: Option<ObjectId>,
    /// Hidden directory behind `.zfs/shares`.
    pub shares: Option<ObjectId>,
    /// Quotas of users.
    pub user_quota: QuotaObjects,
    /// Quotas of groups.
    pub group_quota: QuotaObjects,
    /// Quotas of projects.
    pub project_quota: QuotaObjects,
}

impl Props {
    /// Reads and checks the master node.
    ///
    /// # Errors
    /// `Corrupt` when a required key is absent or a value impossible,
    /// `Unsupported` for a version above 5, those of reading.
    pub(crate) fn read(zap: &Zap) -> Result<Props> {
        if zap.object().object_type() != ObjType::MASTER_NODE {
            return Err(Error::corrupt("object 1 is not a master node"));
        }
        Props::from_keys(|key| zap.lookup_u64(key))
    }

    fn from_keys(get: impl Fn(&str) -> Result<Option<u64>>) -> Result<Props> {
        let number = |key: &str| get(key).map(Option::unwrap_or_default);
        let object = |key: &str| get(key).map(|v| v.filter(|v| *v != 0).map(ObjectId));
        let version = get("VERSION")?.unwrap_or(ZPL_VERSION);
        if version == 0 {
            return Err(Error::corrupt("file system of version 0"));
        }
        if version > ZPL_VERSION {
            return Err(Error::unsupported(format!(
                "file system of version {version}; Cenote supports versions up to {ZPL_VERSION}"
            )));
        }
        let sa_attrs = object("SA_ATTRS")?;
        if version >= ZPL_VERSION && sa_attrs.is_none() {
            return Err(Error::corrupt("file system without system attributes' tables"));
        }
        let normalization = number("normalization")?;
        if !matches!(normalization, 0 | 0x10 | 0x20 | 0x50 | 0x60) {
            return Err(Error::corrupt(format!("unknown normalization {normalization:#x}")));
        }
        let case = match number("casesensitivity")? {
            0 => CaseSensitivity::Sensitive,
            1 => CaseSensitivity::Insensitive,
            2 => CaseSensitivity::Mixed,
            n => return Err(Error::corrupt(format!("unknown casesensitivity {n}"))),
        };
        let quota = |kind_name: &str| -> Result<QuotaObjects> {
            Ok(QuotaObjects {
                bytes: object(&format!("{kind_name}quota@"))?,
                objects: object(&format!("{kind_name}objquota@"))?,
                default_bytes: number(&format!("default{kind_name}quota"))?,
                default_objects: number(&format!("default{kind_name}objquota"))?,
            })
        };
        Ok(Props {
            version,
            normalization,
            utf8only: number("utf8only")? != 0,
            case,
            root: object("ROOT")?
                .ok_or_else(|| Error::corrupt("file system without a root directory"))?,
            delete_queue: object("DELETE_QUEUE")?,
            sa_attrs,
            fuid: object("FUID")?,
            shares: object("SHARES")?,
            user_quota: quota("user")?,
            group_quota: quota("group")?,
            project_quota: quota("project")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ErrorKind;

    fn read(keys: &[(&str, u64)]) -> Result<Props> {
        Props::from_keys(|key| Ok(keys.iter().find(|k| k.0 == key).map(|k| k.1)))
    }

    #[test]
    fn the_root_dataset_of_the_specification() {
        let p = read(&[("SA_ATTRS", 32), ("DELETE_QUEUE", 33), ("ROOT", 34), ("VERSION", 5)]);
        let p = p.unwrap();
        assert_eq!((p.root, p.sa_attrs), (ObjectId(34), Some(ObjectId(32))));
        assert_eq!((p.case, p.version), (CaseSensitivity::Sensitive, 5));
        assert_eq!(p.user_quota, QuotaObjects::default());
    }

    #[test]
    fn quotas_by_kind() {
        let keys = [
            ("VERSION", 4),
            ("ROOT", 3),
            ("groupobjquota@", 77),
            ("defaultprojectquota", 5),
            ("userquota@", 9),
        ];
        let p = read(&keys).unwrap();
        assert_eq!(p.group_quota.objects, Some(ObjectId(77)));
        assert_eq!((p.user_quota.bytes, p.project_quota.default_bytes), (Some(ObjectId(9)), 5));
    }

    #[test]
    fn refuses_what_cannot_be() {
        let kind = |keys: &[(&str, u64)]| read(keys).unwrap_err().kind();
        assert_eq!(kind(&[("VERSION", 6), ("ROOT", 3)]), ErrorKind::Unsupported);
        assert_eq!(kind(&[("VERSION", 0), ("ROOT", 3)]), ErrorKind::Corrupt);
        assert_eq!(kind(&[("ROOT", 3)]), ErrorKind::Corrupt);
        assert_eq!(kind(&[("VERSION", 4)]), ErrorKind::Corrupt);
        let four = [("VERSION", 4), ("ROOT", 3)];
        assert_eq!(kind(&[four[0], four[1], ("casesensitivity", 3)]), ErrorKind::Corrupt);
        assert_eq!(kind(&[four[0], four[1], ("normalization", 0x40)]), ErrorKind::Corrupt);
    }
}
