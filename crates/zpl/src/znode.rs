//! The znode of versions before 5: a fixed structure in the bonus (chapter 06 §6).

use base::{Error, Result};
use ondisk::Endian;

/// Bytes of the structure; what follows belongs to the file's kind.
pub(crate) const ZNODE_SIZE: usize = 264;

/// The fields that a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Znode {
    pub(crate) times: [(u64, u64); 4],
    pub(crate) generation: u64,
    pub(crate) mode: u64,
    pub(crate) size: u64,
    pub(crate) parent: u64,
    pub(crate) links: u64,
    pub(crate) xattr: u64,
    pub(crate) rdev: u64,
    pub(crate) flags: u64,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
}

impl Znode {
    /// Parses a bonus of the dnode's byte order.
    ///
    /// # Errors
    /// `Corrupt` when it is too short.
    pub(crate) fn parse(bonus: &[u8], endian: Endian) -> Result<Znode> {
        if bonus.len() < ZNODE_SIZE {
            return Err(Error::corrupt("znode is cut off"));
        }
        let mut r = endian.reader(bonus, "znode");
        let mut times = [(0, 0); 4];
        for time in &mut times {
            *time = (r.u64()?, r.u64()?);
        }
        Ok(Znode {
            times,
            generation: r.u64()?,
            mode: r.u64()?,
            size: r.u64()?,
            parent: r.u64()?,
            links: r.u64()?,
            xattr: r.u64()?,
            rdev: r.u64()?,
            flags: r.u64()?,
            uid: r.u64()?,
            gid: r.u64()?,
        })
    }

    /// The target of a symbolic link, if the bonus holds it.
    pub(crate) fn inline_target(bonus: &[u8], size: u64) -> Option<&[u8]> {
        bonus.get(ZNODE_SIZE..)?.get(..usize::try_from(size).ok()?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A znode whose word at offset `o` is `o`, but for the mode.
    pub(crate) fn sample(endian: Endian, mode: u64, size: u64) -> Vec<u8> {
        let mut raw = vec![0u8; 320];
        for o in (0..176).step_by(8) {
            let value = match o {
                72 => mode,
                80 => size,
                _ => o as u64,
            };
            raw[o..o + 8].copy_from_slice(&endian.bytes_of(value));
        }
        raw[264..320].fill(b't');
        raw
    }

    #[test]
    fn offsets_of_the_table() {
        for endian in [Endian::Little, Endian::Big] {
            let z = Znode::parse(&sample(endian, 0o120777, 5), endian).unwrap();
            assert_eq!(z.times, [(0, 8), (16, 24), (32, 40), (48, 56)]);
            assert_eq!((z.generation, z.mode, z.size, z.parent), (64, 0o120777, 5, 88));
            assert_eq!((z.links, z.xattr, z.rdev, z.flags), (96, 104, 112, 120));
            assert_eq!((z.uid, z.gid), (128, 136));
        }
        assert!(Znode::parse(&[0; 263], Endian::Little).is_err());
    }

    #[test]
    fn targets_lie_behind_it() {
        let raw = sample(Endian::Little, 0, 0);
        assert_eq!(Znode::inline_target(&raw, 5), Some(&b"ttttt"[..]));
        assert_eq!(Znode::inline_target(&raw, 57), None);
        assert_eq!(Znode::inline_target(&raw, u64::MAX), None);
    }
}
