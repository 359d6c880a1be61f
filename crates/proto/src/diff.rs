//! Differences between snapshots of a file system.
//!
//! # Format
//! [`crate::Request::Diff`] is answered with frames of bytes, a sequence of records: change,
//! type, links gained, and seconds and nanoseconds of the last change, as text with TABs
//! between them; NUL; the path; NUL; the new path, which may be empty; NUL.

use serde::{Deserialize, Serialize};

/// The snapshots to compare.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffArgs {
    /// Full name of the earlier snapshot.
    pub from: String,
    /// Full name of a later snapshot, or of a file system; `None`: the file system of `from`.
    pub to: Option<String>,
}

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharDevice,
    /// A symbolic link.
    Symlink,
    /// A pipe.
    Fifo,
    /// A socket.
    Socket,
}

const KINDS: [(DiffKind, char); 7] = [
    (DiffKind::File, 'F'),
    (DiffKind::Directory, '/'),
    (DiffKind::BlockDevice, 'B'),
    (DiffKind::CharDevice, 'C'),
    (DiffKind::Symlink, '@'),
    (DiffKind::Fifo, '|'),
    (DiffKind::Socket, '='),
];

impl DiffKind {
    /// OpenZFS's character for it (chapter 09 §3.5).
    pub fn letter(self) -> char {
        KINDS.iter().find(|(kind, _)| *kind == self).map_or('F', |(_, letter)| *letter)
    }
}

/// A file that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiffRecord {
    /// `+`, `-`, `M` or `R`.
    pub change: char,
    /// Its type.
    pub kind: DiffKind,
    /// Links that it gained; negative if it lost some.
    pub links: i64,
    /// When its attributes changed last: seconds and nanoseconds since 1970.
    pub ctime: (i64, u64),
    /// Its path.
    pub path: Vec<u8>,
    /// The new path of a renamed file.
    pub new_path: Option<Vec<u8>>,
}

impl DiffRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (seconds, nanoseconds) = self.ctime;
        let mut out = format!(
            "{}\t{}\t{}\t{seconds}\t{nanoseconds}\0",
            self.change,
            self.kind.letter(),
            self.links
        )
        .into_bytes();
        out.extend_from_slice(&self.path);
        out.push(0);
        out.extend_from_slice(self.new_path.as_deref().unwrap_or_default());
        out.push(0);
        out
    }

    /// The first record of some bytes, and how many of them it takes; `None` if they have no
    /// whole record.
    ///
    /// # Errors
    /// `Corrupt` for bytes that are no record.
    pub fn decode(bytes: &[u8]) -> base::Result<Option<(DiffRecord, usize)>> {
        let mut parts = bytes.splitn(4, |b| *b == 0);
        let (Some(head), Some(path), Some(new_path), Some(_)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Ok(None);
        };
        let taken = head.len() + path.len() + new_path.len() + 3;
        let parsed = || {
            let mut words = std::str::from_utf8(head).ok()?.split('\t');
            let letter = |word: &str| word.chars().next();
            let change = letter(words.next()?)?;
            let kind = letter(words.next()?)?;
            let kind = KINDS.iter().find(|(_, letter)| *letter == kind)?.0;
            let links = words.next()?.parse().ok()?;
            let ctime = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let new_path = Some(new_path.to_vec()).filter(|p| !p.is_empty());
            Some(DiffRecord { change, kind, links, ctime, path: path.to_vec(), new_path })
        };
        let odd = || base::Error::corrupt("the daemon sent no record of a difference");
        Ok(Some((parsed().ok_or_else(odd)?, taken)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_wire() {
        let plain = DiffRecord {
            change: 'M',
            kind: DiffKind::Symlink,
            links: -2,
            ctime: (-5, 999),
            path: b"/t\xff\tx\n".to_vec(),
            new_path: None,
        };
        let moved = DiffRecord { change: 'R', new_path: Some(b"/new".to_vec()), ..plain.clone() };
        let mut wire = plain.encode();
        let first = wire.len();
        wire.extend(moved.encode());
        assert_eq!(DiffRecord::decode(&wire).unwrap(), Some((plain, first)));
        assert_eq!(DiffRecord::decode(&wire[first..]).unwrap(), Some((moved, wire.len() - first)));
        for cut in 0..first {
            assert_eq!(DiffRecord::decode(&wire[..cut]).unwrap(), None, "{cut}");
        }
        assert!(DiffRecord::decode(b"x\ty\0a\0b\0").is_err());
    }
}
