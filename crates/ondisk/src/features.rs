//! Feature flags (chapter 04 §14).
//!
//! # Theory
//! A pool of version 5000 lists the format extensions that it uses in two ZAPs, by
//! name. A feature with a count above zero is *active*. A reader must support every
//! active feature of `features_for_read`; those of `features_for_write` (read-only
//! compatible) must be supported only for writing.
//!
//! # Invariants
//! The table is closed: a name that is not in it is unknown, and an active unknown
//! feature prevents a pool from being opened. Descriptions are those that OpenZFS 2.4
//! stores in `feature_descriptions`.

/// Software that lacks the feature can still read the pool.
pub(crate) const READ_ONLY_COMPATIBLE: u8 = 1;
/// Needed before the MOS can be read: listed in labels while active.
pub const MOS: u8 = 2;
/// Becomes active, with count 1, as soon as it is enabled.
pub const ACTIVATE_ON_ENABLE: u8 = 4;
/// Datasets that use it carry a key in their own ZAP.
pub(crate) const PER_DATASET: u8 = 8;
/// A pool upgrade leaves it off; it is enabled by name only.
pub const NO_UPGRADE: u8 = 16;

/// A feature known to this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its globally unique name, `domain:short_name`.
    pub guid: &'static str,
    /// The description for administrators.
    pub description: &'static str,
    /// Names of the features that must be enabled first.
    pub depends: &'static [&'static str],
    /// [`READ_ONLY_COMPATIBLE`], [`MOS`], ...
    pub flags: u8,
}

impl Feature {
    /// The administrative name: the part behind the colon (`feature@NAME`).
    pub fn name(&self) -> &'static str {
        self.guid.split_once(':').map_or(self.guid, |(_, name)| name)
    }

    /// Whether all bits of `flag` are set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag == flag
    }

    /// Whether its count is stored in `features_for_write` instead of
    /// `features_for_read`.
    pub fn is_read_only_compatible(&self) -> bool {
        self.has(READ_ONLY_COMPATIBLE)
    }

    /// Whether labels name it while it is active.
    pub fn is_mos(&self) -> bool {
        self.has(MOS)
    }

    /// Whether each dataset that uses it counts separately.
    pub fn is_per_dataset(&self) -> bool {
        self.has(PER_DATASET)
    }

    /// Whether Cenote reads pools in which it is active.
    pub fn is_readable(&self) -> bool {
        !UNREADABLE.contains(&self.guid)
    }
}

/// Features whose data Cenote cannot read yet: the permutations of dRAID failure
/// domains are not confirmed by any pool.
const UNREADABLE: &[&str] = &["com.seagate:draid_failure_domains"];

/// Every feature known, in the order of chapter 04 §14.2.
pub const FEATURES: &[Feature] = &[
    Feature {
        guid: "com.delphix:async_destroy",
        description: "Destroy filesystems asynchronously.",
        depends: &[],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "com.delphix:empty_bpobj",
        description: "Snapshots use less space.",
        depends: &[],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "org.illumos:lz4_compress",
        description: "LZ4 compression algorithm support.",
        depends: &[],
        flags: ACTIVATE_ON_ENABLE,
    },
    Feature {
        guid: "com.joyent:multi_vdev_crash_dump",
        description: "Crash dumps to multiple vdev pools.",
        depends: &[],
        flags: 0,
    },
    Feature {
        guid: "com.delphix:spacemap_histogram",
        description: "Spacemaps maintain space histograms.",
        depends: &[],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "com.delphix:enabled_txg",
        description: "Record txg at which a feature is enabled",
        depends: &[],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "com.delphix:hole_birth",
        description: "Retain hole birth txg for more precise zfs send",
        depends: &["com.delphix:enabled_txg"],
        flags: MOS | ACTIVATE_ON_ENABLE,
    },
    Feature {
        guid: "com.delphix:extensible_dataset",
        description: "Enhanced dataset functionality, used by other features.",
        depends: &[],
        flags: 0,
    },
    Feature {
        guid: "com.delphix:embedded_data",
        description: "Blocks which compress very well use even less space.",
        depends: &[],
        flags: MOS | ACTIVATE_ON_ENABLE,
    },
    Feature {
        guid: "com.delphix:bookmarks",
        description: "\"zfs bookmark\" command",
        depends: &["com.delphix:extensible_dataset"],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "com.joyent:filesystem_limits",
        description: "Filesystem and snapshot limits.",
        depends: &["com.delphix:extensible_dataset"],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "org.open-zfs:large_blocks",
        description: "Support for blocks larger than 128KB.",
        depends: &["com.delphix:extensible_dataset"],
        flags: PER_DATASET,
    },
    Feature {
        guid: "org.zfsonlinux:large_dnode",
        description: "Variable on-disk size of dnodes.",
        depends: &["com.delphix:extensible_dataset"],
        flags: PER_DATASET,
    },
    Feature {
        guid: "org.illumos:sha512",
        description: "SHA-512/256 hash algorithm.",
        depends: &["com.delphix:extensible_dataset"],
        flags: PER_DATASET,
    },
    Feature {
        guid: "org.illumos:skein",
        description: "Skein hash algorithm.",
        depends: &["com.delphix:extensible_dataset"],
        flags: PER_DATASET,
    },
    Feature {
        guid: "org.illumos:edonr",
        description: "Edon-R hash algorithm.",
        depends: &["com.delphix:extensible_dataset"],
        flags: PER_DATASET,
    },
    Feature {
        guid: "org.zfsonlinux:userobj_accounting",
        description: "User/Group object accounting.",
        depends: &["com.delphix:extensible_dataset"],
        flags: READ_ONLY_COMPATIBLE | PER_DATASET,
    },
    Feature {
        guid: "com.datto:encryption",
        description: "Support for dataset level encryption",
        depends: &["com.delphix:extensible_dataset", "com.datto:bookmark_v2"],
        flags: PER_DATASET,
    },
    Feature {
        guid: "org.zfsonlinux:project_quota",
        description: "space/object accounting based on project ID.",
        depends: &["com.delphix:extensible_dataset"],
        flags: READ_ONLY_COMPATIBLE | PER_DATASET,
    },
    Feature {
        guid: "com.delphix:device_removal",
        description: "Top-level vdevs can be removed, reducing logical pool size.",
        depends: &[],
        flags: MOS,
    },
    Feature {
        guid: "com.delphix:obsolete_counts",
        description: "Reduce memory used by removed devices when their blocks are freed or remapped.",
        depends: &["com.delphix:extensible_dataset", "com.delphix:device_removal"],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "com.delphix:zpool_checkpoint",
        description: "Pool state can be checkpointed, allowing rewind later.",
        depends: &[],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "com.delphix:spacemap_v2",
        description: "Space maps representing large segments are more efficient.",
        depends: &[],
        flags: READ_ONLY_COMPATIBLE | ACTIVATE_ON_ENABLE,
    },
    Feature {
        guid: "org.zfsonlinux:allocation_classes",
        description: "Support for separate allocation classes.",
        depends: &[],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "com.datto:resilver_defer",
        description: "Support for deferring new resilvers when one is already running.",
        depends: &[],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "com.datto:bookmark_v2",
        description: "Support for larger bookmarks",
        depends: &["com.delphix:extensible_dataset", "com.delphix:bookmarks"],
        flags: 0,
    },
    Feature {
        guid: "com.delphix:redaction_bookmarks",
        description: "Support for bookmarks which store redaction lists for zfs redacted send/recv.",
        depends: &[
            "com.datto:bookmark_v2",
            "com.delphix:extensible_dataset",
            "com.delphix:bookmarks",
        ],
        flags: 0,
    },
    Feature {
        guid: "com.delphix:redacted_datasets",
        description: "Support for redacted datasets, produced by receiving a redacted zfs send stream.",
        depends: &["com.delphix:extensible_dataset"],
        flags: PER_DATASET,
    },
    Feature {
        guid: "com.delphix:bookmark_written",
        description: "Additional accounting, enabling the written#<bookmark> property (space written since a bookmark), and estimates of send stream sizes for incrementals from bookmarks.",
        depends: &[
            "com.datto:bookmark_v2",
            "com.delphix:extensible_dataset",
            "com.delphix:bookmarks",
        ],
        flags: 0,
    },
    Feature {
        guid: "com.delphix:log_spacemap",
        description: "Log metaslab changes on a single spacemap and flush them periodically.",
        depends: &["com.delphix:spacemap_v2"],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "com.delphix:livelist",
        description: "Improved clone deletion performance.",
        depends: &["com.delphix:extensible_dataset"],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "org.openzfs:device_rebuild",
        description: "Support for sequential mirror/dRAID device rebuilds",
        depends: &[],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "org.freebsd:zstd_compress",
        description: "zstd compression algorithm support.",
        depends: &["com.delphix:extensible_dataset"],
        flags: PER_DATASET,
    },
    Feature {
        guid: "org.openzfs:draid",
        description: "Support for distributed spare RAID",
        depends: &[],
        flags: MOS,
    },
    Feature {
        guid: "org.openzfs:zilsaxattr",
        description: "Support for xattr=sa extended attribute logging in ZIL.",
        depends: &["com.delphix:extensible_dataset"],
        flags: READ_ONLY_COMPATIBLE | PER_DATASET,
    },
    Feature {
        guid: "com.delphix:head_errlog",
        description: "Support for per-dataset on-disk error logs.",
        depends: &[],
        flags: ACTIVATE_ON_ENABLE,
    },
    Feature {
        guid: "org.openzfs:blake3",
        description: "BLAKE3 hash algorithm.",
        depends: &["com.delphix:extensible_dataset"],
        flags: PER_DATASET,
    },
    Feature {
        guid: "com.fudosecurity:block_cloning",
        description: "Support for block cloning via Block Reference Table.",
        depends: &[],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "com.klarasystems:vdev_zaps_v2",
        description: "Support for root vdev ZAP.",
        depends: &[],
        flags: MOS,
    },
    Feature {
        guid: "com.delphix:redaction_list_spill",
        description: "Support for increased number of redaction_snapshot arguments in zfs redact.",
        depends: &["com.delphix:redaction_bookmarks"],
        flags: 0,
    },
    Feature {
        guid: "org.openzfs:raidz_expansion",
        description: "Support for raidz expansion",
        depends: &[],
        flags: MOS,
    },
    Feature {
        guid: "com.klarasystems:fast_dedup",
        description: "Support for advanced deduplication",
        depends: &[],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "org.zfsonlinux:longname",
        description: "support filename up to 1024 bytes",
        depends: &["com.delphix:extensible_dataset"],
        flags: PER_DATASET,
    },
    Feature {
        guid: "com.klarasystems:large_microzap",
        description: "Support for microzaps larger than 128KB.",
        depends: &["com.delphix:extensible_dataset", "org.open-zfs:large_blocks"],
        flags: READ_ONLY_COMPATIBLE | PER_DATASET,
    },
    Feature {
        guid: "com.klarasystems:dynamic_gang_header",
        description: "Support for dynamically sized gang headers",
        depends: &[],
        flags: MOS | NO_UPGRADE,
    },
    Feature {
        guid: "com.truenas:block_cloning_endian",
        description: "Fixes BRT ZAP endianness on new pools.",
        depends: &[],
        flags: READ_ONLY_COMPATIBLE,
    },
    Feature {
        guid: "com.truenas:physical_rewrite",
        description: "Support for preserving logical birth time during rewrite.",
        depends: &["com.delphix:extensible_dataset"],
        flags: READ_ONLY_COMPATIBLE | PER_DATASET,
    },
    Feature {
        guid: "com.seagate:draid_failure_domains",
        description: "Support for failure domains in distributed spare RAID.",
        depends: &["org.openzfs:draid"],
        flags: MOS,
    },
];

/// The feature with this guid.
pub fn by_guid(guid: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|f| f.guid == guid)
}

/// The feature with this administrative name.
pub fn by_name(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|f| f.name() == name)
}

/// Features that Cenote can read.
pub fn readable() -> impl Iterator<Item = &'static Feature> {
    FEATURES.iter().filter(|f| f.is_readable())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent() {
        for f in FEATURES {
            let (domain, name) = f.guid.split_once(':').unwrap();
            assert!(domain.bytes().all(|b| b.is_ascii_lowercase() || b"-.".contains(&b)));
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'));
            assert_eq!(by_guid(f.guid), Some(f));
            assert_eq!(by_name(f.name()), Some(f), "names are unique");
            // Following the dependencies ends: at most one step for each feature.
            let mut needed: Vec<&str> = f.depends.to_vec();
            let mut steps = 0;
            while let Some(d) = needed.pop() {
                steps += 1;
                assert!(steps < FEATURES.len(), "{} needs itself", f.guid);
                needed.extend(by_guid(d).unwrap().depends);
            }
            assert!(!(f.is_mos() && f.is_read_only_compatible()));
        }
        assert_eq!(FEATURES.len(), 48);
        assert_eq!(readable().count(), 47);
    }

    /// Chapter 01 §4.5 lists the same features as needed for the MOS.
    #[test]
    fn mos_features_are_those_of_chapter_1() {
        let mos: Vec<&str> = FEATURES.iter().filter(|f| f.is_mos()).map(Feature::name).collect();
        assert_eq!(
            mos,
            [
                "hole_birth",
                "embedded_data",
                "device_removal",
                "draid",
                "vdev_zaps_v2",
                "raidz_expansion",
                "dynamic_gang_header",
                "draid_failure_domains"
            ]
        );
    }
}
