//! How each block of an object set is stored (chapter 03 §9, chapter 02 §4.2-4.3,
//! chapter 05 §12.1).

use codec::checksum::Checksum;
use codec::compress::Compression;
use ondisk::ObjType;
use zio::{CacheTiers, CacheUse, Class, DedupMode, WriteProps};

/// Property `redundant_metadata`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedundantMetadata {
    /// One more copy of all metadata.
    #[default]
    All,
    /// Of metadata but the lowest indirect blocks of data.
    Most,
    /// Of critical metadata.
    Some,
    /// Of none.
    None,
}

/// What a dataset's properties, and the pool's features, say about its blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjsetProps {
    /// For data; effective, not "on".
    pub checksum: Checksum,
    /// For data; effective, not "on".
    pub compression: Compression,
    /// For metadata: lz4, or lzjb in pools without it.
    pub metadata_compression: Compression,
    /// The checksum of data that is deduplicated, and how equal blocks are recognised.
    pub dedup: Option<(Checksum, DedupMode)>,
    /// Addresses of a data block, 1 to 3.
    pub copies: u8,
    /// Extra copies of metadata.
    pub redundant_metadata: RedundantMetadata,
    /// Data blocks up to this size go to special vdevs, bytes; 0 = none.
    pub special_small_blocks: u32,
    /// There are special vdevs.
    pub special: bool,
    /// Feature `embedded_data` is enabled.
    pub embed: bool,
    /// Feature `hole_birth` is active.
    pub hole_birth: bool,
    /// The pool has version 15 or a newer one: space is accounted to owners, and the blocks of
    /// new object sets have room for that. It matters to new ones alone.
    pub count_owners: bool,
    /// Feature `userobj_accounting` is enabled.
    pub count_objects: bool,
    /// Feature `project_quota` is enabled.
    pub count_projects: bool,
    /// Which tiers of the cache may keep the blocks.
    pub tiers: CacheTiers,
    /// The object set is one of an encrypted dataset, and its key is not known: blocks are not
    /// embedded, and those of dnodes not compressed (chapter 08 §A.4). [`crate::Objset`] sets
    /// this itself.
    pub sealed: bool,
}

impl ObjsetProps {
    /// The meta object set's (chapter 03 §9).
    pub fn mos() -> ObjsetProps {
        ObjsetProps { copies: 3, ..ObjsetProps::default() }
    }

    /// Whether a written block stays in the first tier of the cache.
    pub(crate) fn keeps(&self, metadata: bool) -> bool {
        match self.tiers.first {
            CacheUse::All => true,
            CacheUse::Metadata => metadata,
            CacheUse::None => false,
        }
    }
}

impl Default for ObjsetProps {
    /// A dataset with default properties in a pool with all features.
    fn default() -> Self {
        ObjsetProps {
            checksum: Checksum::Fletcher4,
            compression: Compression::ON,
            metadata_compression: Compression::ON,
            dedup: None,
            copies: 1,
            redundant_metadata: RedundantMetadata::All,
            special_small_blocks: 0,
            special: false,
            embed: true,
            hole_birth: true,
            count_owners: true,
            count_objects: true,
            count_projects: true,
            tiers: CacheTiers::ALL,
            sealed: false,
        }
    }
}

/// The properties of a block on which its storage depends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockKind {
    pub(crate) object_type: ObjType,
    pub(crate) level: u8,
    pub(crate) spill: bool,
    pub(crate) size: u64,
    /// The dnode's own settings, 0 = inherit.
    pub(crate) checksum: u8,
    pub(crate) compression: u8,
}

impl BlockKind {
    pub(crate) fn is_metadata(&self) -> bool {
        self.level > 0 || self.spill || self.object_type.is_metadata()
    }

    /// "Critical" metadata (chapter 03 §7.2).
    fn is_critical(&self) -> bool {
        self.object_type.is_metadata()
            && !(self.object_type == ObjType::DNODE && self.level == 0)
            && self.object_type != ObjType::DIRECTORY_CONTENTS
            && self.object_type != ObjType::SA
    }
}

impl ObjsetProps {
    fn extra_copy(&self, kind: &BlockKind) -> bool {
        match self.redundant_metadata {
            _ if !kind.is_metadata() => false,
            RedundantMetadata::All => true,
            RedundantMetadata::Most => {
                kind.level >= 2 || kind.object_type.is_metadata() || kind.spill
            }
            RedundantMetadata::Some => kind.is_critical(),
            RedundantMetadata::None => false,
        }
    }

    fn class_of(&self, kind: &BlockKind) -> Class {
        if matches!(kind.object_type, ObjType::DDT_ZAP | ObjType::DDT_STATS) {
            return Class::Dedup;
        }
        let small = kind.size <= u64::from(self.special_small_blocks);
        if self.special && (kind.is_metadata() || small) { Class::Special } else { Class::Normal }
    }

    /// How a block of this kind is written; `compress` is off in late sync passes.
    pub(crate) fn for_block(&self, kind: &BlockKind, compress: bool) -> WriteProps {
        let metadata = kind.is_metadata();
        // A sealed dnode has its sender's function, whose feature this pool may lack.
        let of_dnode = kind.checksum > 1 && !self.sealed;
        let own = Checksum::from_id(kind.checksum).filter(|_| of_dnode);
        // The MAC of encrypted content would have to be that of the equal block.
        let dedup = self.dedup.filter(|_| !metadata && !self.sealed);
        let own = dedup.map(|(checksum, _)| checksum).or(own);
        let checksum = match metadata {
            true if self.checksum.is_metadata_ok() => self.checksum,
            true => Checksum::Fletcher4,
            false if kind.checksum == 1 && dedup.is_none() => Checksum::Fletcher4,
            false => own.unwrap_or(self.checksum),
        };
        let own = Compression::from_id(kind.compression).filter(|_| kind.compression > 1);
        let uncompressed =
            kind.level == 0 && matches!(kind.object_type, ObjType::DNODE | ObjType::OBJSET);
        let compression = match metadata {
            _ if !compress => Compression::Off,
            // Zeros alone still become a hole.
            _ if self.sealed && uncompressed => Compression::Empty,
            true => self.metadata_compression,
            false if kind.compression == 1 => self.metadata_compression,
            false => match own.unwrap_or(self.compression) {
                // Zeros alone still become a hole.
                Compression::Off if dedup.is_some() => Compression::Empty,
                other => other,
            },
        };
        // The third address of encrypted content has its salt and IV.
        let encrypted = self.sealed && kind.level == 0 && kind.object_type.is_encrypted();
        let most = if encrypted { 2 } else { 3 };
        let copies = (self.copies + u8::from(self.extra_copy(kind))).min(most);
        // As many copies as the lowest indirect block above would have (chapter 05 §12.6).
        let above = BlockKind { level: 1, spill: false, ..*kind };
        let header_copies = (self.copies + u8::from(self.extra_copy(&above))).min(most).max(copies);
        WriteProps {
            compression,
            checksum,
            copies,
            header_copies,
            embed: self.embed && !self.sealed,
            hole_birth: self.hole_birth,
            class: self.class_of(kind),
            dedup: dedup.map_or(DedupMode::Off, |(_, mode)| mode),
            tiers: self.tiers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(object_type: ObjType, level: u8) -> BlockKind {
        BlockKind { object_type, level, spill: false, size: 16384, checksum: 0, compression: 0 }
    }

    #[test]
    fn copies_follow_the_table() {
        let file = ObjType::PLAIN_FILE_CONTENTS;
        let dir = ObjType::DIRECTORY_CONTENTS;
        let cases = [
            (RedundantMetadata::All, [1, 2, 2, 2, 2]),
            (RedundantMetadata::Most, [1, 1, 2, 2, 2]),
            (RedundantMetadata::Some, [1, 1, 1, 1, 2]),
            (RedundantMetadata::None, [1, 1, 1, 1, 1]),
        ];
        for (redundant_metadata, wanted) in cases {
            let props = ObjsetProps { redundant_metadata, ..ObjsetProps::default() };
            let kinds = [
                kind(file, 0),
                kind(file, 1),
                kind(file, 2),
                kind(dir, 0),
                kind(ObjType::MASTER_NODE, 0),
            ];
            let got = kinds.map(|k| props.for_block(&k, true).copies);
            assert_eq!(got[..3], wanted[..3], "{redundant_metadata:?}");
            assert_eq!(got[4], wanted[4], "{redundant_metadata:?}");
        }
        assert_eq!(ObjsetProps::mos().for_block(&kind(ObjType::DSL_DIR, 0), true).copies, 3);
    }

    #[test]
    fn deduplicated_data_has_a_checksum_of_its_own() {
        let props = ObjsetProps {
            compression: Compression::Off,
            dedup: Some((Checksum::Skein, DedupMode::Verify)),
            ..ObjsetProps::default()
        };
        let file = kind(ObjType::PLAIN_FILE_CONTENTS, 0);
        for checksum in [0, 1, 8] {
            let data = props.for_block(&BlockKind { checksum, ..file }, true);
            assert_eq!((data.checksum, data.dedup), (Checksum::Skein, DedupMode::Verify));
            assert_eq!(data.compression, Compression::Empty);
        }
        let spill = BlockKind { spill: true, ..file };
        for other in [kind(file.object_type, 1), kind(ObjType::DIRECTORY_CONTENTS, 0), spill] {
            let other = props.for_block(&other, true);
            assert_eq!((other.checksum, other.dedup), (Checksum::Fletcher4, DedupMode::Off));
        }
        let sealed = ObjsetProps { sealed: true, ..props }.for_block(&file, true);
        assert_eq!((sealed.checksum, sealed.dedup), (Checksum::Fletcher4, DedupMode::Off));
        let ddt = ObjsetProps::mos().for_block(&kind(ObjType::DDT_ZAP, 1), true);
        assert_eq!(ddt.class, Class::Dedup);
    }

    #[test]
    fn sealed_blocks_leave_room_for_their_parameters() {
        let props = ObjsetProps { copies: 3, sealed: true, ..ObjsetProps::default() };
        let (file, dnode) = (ObjType::PLAIN_FILE_CONTENTS, ObjType::DNODE);
        for (of, level, copies) in
            [(file, 0, 2), (file, 1, 3), (dnode, 0, 2), (dnode, 1, 3), (ObjType::MASTER_NODE, 0, 3)]
        {
            let how = props.for_block(&kind(of, level), true);
            assert_eq!((how.copies, how.embed), (copies, false), "{of:?} {level}");
            let plain = of == dnode && level == 0;
            assert_eq!(how.compression == Compression::Empty, plain, "{of:?} {level}");
            assert!(how.header_copies <= copies);
        }
    }

    #[test]
    fn metadata_is_compressed_and_summed_whatever_the_data_is() {
        let props = ObjsetProps {
            checksum: Checksum::Off,
            compression: Compression::Off,
            ..ObjsetProps::default()
        };
        let data = props.for_block(&kind(ObjType::PLAIN_FILE_CONTENTS, 0), true);
        assert_eq!((data.checksum, data.compression), (Checksum::Off, Compression::Off));
        let indirect = props.for_block(&kind(ObjType::PLAIN_FILE_CONTENTS, 1), true);
        assert_eq!(
            (indirect.checksum, indirect.compression),
            (Checksum::Fletcher4, Compression::ON)
        );
        let late = props.for_block(&kind(ObjType::SPACE_MAP, 0), false);
        assert_eq!(late.compression, Compression::Off);
    }
}
