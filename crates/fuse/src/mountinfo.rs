//! The table of mounts (`/proc/self/mountinfo`): which FUSE mounts exist, and which of them
//! have lost their server.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// A FUSE mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Where it is mounted.
    pub path: PathBuf,
    /// Device number, `major:minor`.
    pub device: String,
    /// The part of the type behind `fuse.`, such as `zfs`; empty for plain `fuse`.
    pub subtype: String,
    /// What is mounted (`fsname`): a dataset's name.
    pub fsname: String,
    /// Mounted read-only.
    pub read_only: bool,
}

/// Turns `\040` and its like back into bytes.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if let (b'\\', Some((digits, after))) = (byte, tail.split_first_chunk::<3>()) {
            let octal =
                std::str::from_utf8(digits).ok().and_then(|d| u8::from_str_radix(d, 8).ok());
            if let Some(value) = octal {
                out.push(value);
                rest = after;
                continue;
            }
        }
        out.push(byte);
    }
    out
}

/// One line of the table, if it is a FUSE mount.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?.to_owned();
    let path = unescape(fields.nth(1)?);
    let options = fields.next()?;
    let mut fields = fields.skip_while(|f| *f != b"-").skip(1);
    let kind = std::str::from_utf8(fields.next()?).ok()?;
    let subtype = match kind.strip_prefix("fuse") {
        Some("") => "",
        Some(rest) => rest.strip_prefix('.')?,
        None => return None,
    };
    Some(MountEntry {
        path: OsString::from_vec(path).into(),
        device,
        subtype: subtype.to_owned(),
        fsname: String::from_utf8_lossy(&unescape(fields.next()?)).into_owned(),
        read_only: options.split(|&b| b == b',').any(|o| o == b"ro"),
    })
}

pub(crate) fn parse_table(table: &[u8]) -> Vec<MountEntry> {
    table.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

/// All FUSE mounts of this mount namespace, in the order they were made.
///
/// # Errors
/// When the table cannot be read.
pub fn fuse_mounts() -> base::Result<Vec<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo").map_err(|e| {
        base::Error::io("cannot read the table of mounts", e).on_path("/proc/self/mountinfo")
    })?;
    Ok(parse_table(&table))
}

/// Whether the mount at `path` has lost its server.
///
/// It asks for the file system's totals, which no cache answers: a server that
/// hangs makes the caller wait. A process must not ask about a mount that it
/// serves itself with the asking thread.
pub fn is_stale(path: &Path) -> bool {
    matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// The FUSE mount on top at `path`.
///
/// # Errors
/// As [`fuse_mounts`].
pub(crate) fn top_at(path: &Path) -> base::Result<Option<MountEntry>> {
    let is_there = |m: &MountEntry| m.path.as_os_str().as_bytes() == path.as_os_str().as_bytes();
    Ok(fuse_mounts()?.into_iter().rfind(is_there))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &[u8] = b"\
22 1 0:21 / / rw,relatime - overlay overlay rw
40 22 0:45 / /mnt/a\\040b ro,nosuid shared:7 - fuse.zfs tank/home\\040dir ro,user_id=0
41 22 0:46 / /mnt/c rw - fuse thing rw
42 22 0:47 / /sys/fs/fuse/connections rw - fusectl fusectl rw
43 22 0:48 / /mnt/blk rw - fuseblk /dev/x rw
";

    #[test]
    fn only_fuse_mounts_and_their_names_unescaped() {
        let mounts = parse_table(TABLE);
        assert_eq!(mounts.len(), 2);
        assert_eq!(
            mounts[0],
            MountEntry {
                path: "/mnt/a b".into(),
                device: "0:45".into(),
                subtype: "zfs".into(),
                fsname: "tank/home dir".into(),
                read_only: true,
            }
        );
        assert_eq!((mounts[1].subtype.as_str(), mounts[1].read_only), ("", false));
    }

    proptest! {
        #[test]
        fn random_tables_never_panic(table in prop::collection::vec(prop_oneof![
            Just(b' '), Just(b'\n'), Just(b'\\'), Just(b'-'), Just(b'7'), any::<u8>()], 0..200)) {
            parse_table(&table);
        }
    }
}
