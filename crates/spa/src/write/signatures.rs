//! Signatures of foreign data on a device: magic numbers of file systems, swap, encryption,
//! volume managers and partition tables, from their published formats.
//!
//! Names are those that `blkid` prints, because OpenZFS's messages quote them.

use base::Result;
use device::{Device, read_blocking};

/// One magic number.
struct Magic {
    name: &'static str,
    offset: u64,
    bytes: &'static [u8],
}

const fn m(name: &'static str, offset: u64, bytes: &'static [u8]) -> Magic {
    Magic { name, offset, bytes }
}

/// Most specific first.
const MAGICS: &[Magic] = &[
    m("crypto_LUKS", 0, b"LUKS\xba\xbe"),
    m("crypto_LUKS", 0x4000, b"SKUL\xba\xbe"),
    m("LVM2_member", 536, b"LVM2 001"),
    m("LVM2_member", 24, b"LVM2 001"),
    m("linux_raid_member", 4096, b"\xfc\x4e\x2b\xa9"),
    m("linux_raid_member", 0, b"\xfc\x4e\x2b\xa9"),
    m("xfs", 0, b"XFSB"),
    m("btrfs", 65_600, b"_BHRfS_M"),
    m("f2fs", 1024, b"\x10\x20\xf5\xf2"),
    m("bcache", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    m("reiserfs", 65_588, b"ReIsEr2Fs"),
    m("jfs", 32_768, b"JFS1"),
    m("squashfs", 0, b"hsqs"),
    m("exfat", 3, b"EXFAT   "),
    m("ntfs", 3, b"NTFS    "),
    m("vfat", 82, b"FAT32   "),
    m("vfat", 54, b"FAT16   "),
    m("vfat", 54, b"FAT12   "),
    m("iso9660", 32_769, b"CD001"),
    m("ufs", 66_908, b"\x19\x54\x01\x19\x00"),
];

/// Bytes read from the start: btrfs has the largest offset of its magic number.
const HEAD: usize = 128 << 10;
/// Swap's magic number is at the end of its first page, whose size depends on the machine.
const SWAP_PAGES: [usize; 5] = [4096, 8192, 16_384, 32_768, 65_536];
const EXT_MAGIC: usize = 1080;

/// Content of a device that is not ZFS's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Foreign {
    /// A file system, swap, or a member of something, by `blkid`'s name.
    Content(&'static str),
    /// A GUID partition table.
    Gpt,
    /// An MBR partition table.
    Mbr,
}

/// Looks at the start of a device.
///
/// # Errors
/// The device's.
pub(super) fn identify(device: &dyn Device) -> Result<Option<Foreign>> {
    let len = HEAD.min(usize::try_from(device.size()).unwrap_or(HEAD)) / 4096 * 4096;
    if len == 0 {
        return Ok(None);
    }
    Ok(identify_head(&read_blocking(device, 0, len)?))
}

fn identify_head(head: &[u8]) -> Option<Foreign> {
    let at = |offset: usize, bytes: &[u8]| {
        head.get(offset..).is_some_and(|rest| rest.starts_with(bytes))
    };
    if let Some(magic) = MAGICS.iter().find(|m| at(m.offset as usize, m.bytes)) {
        return Some(Foreign::Content(magic.name));
    }
    if at(EXT_MAGIC, b"\x53\xef") {
        return Some(Foreign::Content(ext_version(head)));
    }
    let swap = |page: &usize| at(page - 10, b"SWAPSPACE2") || at(page - 10, b"SWAP-SPACE");
    if SWAP_PAGES.iter().any(swap) {
        return Some(Foreign::Content("swap"));
    }
    if at(512, b"EFI PART") || at(4096, b"EFI PART") {
        return Some(Foreign::Gpt);
    }
    (at(510, b"\x55\xaa") && has_partition(head)).then_some(Foreign::Mbr)
}

/// ext2 has no journal, ext4 has features that ext3 lacks.
fn ext_version(head: &[u8]) -> &'static str {
    const HAS_JOURNAL: u32 = 4;
    /// Extents, 64-bit, flexible block groups and the like.
    const INCOMPAT_EXT3: u32 = 0x1 | 0x2 | 0x4 | 0x8 | 0x10;
    let word = |offset: usize| {
        let bytes = head.get(offset..offset + 4).and_then(|b| b.first_chunk());
        bytes.map_or(0, |b| u32::from_le_bytes(*b))
    };
    let (compat, incompat) = (word(1024 + 92), word(1024 + 96));
    if incompat & !INCOMPAT_EXT3 != 0 {
        "ext4"
    } else if compat & HAS_JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    }
}

/// A boot sector has the same magic number; an entry in use makes it a partition table.
fn has_partition(head: &[u8]) -> bool {
    (0..4).any(|i| head.get(446 + 16 * i + 4).is_some_and(|&kind| kind != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(parts: &[(usize, &[u8])]) -> Option<Foreign> {
        let mut head = vec![0; HEAD];
        for (offset, bytes) in parts {
            head[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        identify_head(&head)
    }

    #[test]
    fn known_magics() {
        for magic in MAGICS {
            let found = with(&[(magic.offset as usize, magic.bytes)]);
            assert_eq!(found, Some(Foreign::Content(magic.name)));
        }
        let ext = |compat: u8, incompat: u8| {
            with(&[(1080, b"\x53\xef"), (1116, &[compat]), (1120, &[incompat])])
        };
        assert_eq!(ext(0, 2), Some(Foreign::Content("ext2")));
        assert_eq!(ext(4, 2), Some(Foreign::Content("ext3")));
        assert_eq!(ext(4, 0x42), Some(Foreign::Content("ext4")));
        assert_eq!(with(&[(4086, b"SWAPSPACE2")]), Some(Foreign::Content("swap")));
        assert_eq!(with(&[(65_526, b"SWAPSPACE2")]), Some(Foreign::Content("swap")));
    }

    #[test]
    fn partition_tables_and_nothing() {
        let mbr: (usize, &[u8]) = (510, b"\x55\xaa");
        assert_eq!(with(&[mbr, (450, &[0x83])]), Some(Foreign::Mbr));
        assert_eq!(with(&[mbr]), None, "no partition in it");
        assert_eq!(with(&[mbr, (450, &[0xee]), (512, b"EFI PART")]), Some(Foreign::Gpt));
        assert_eq!(with(&[]), None);
        assert_eq!(identify_head(b"XF"), None);
    }
}
