//! Manifests: the required content of a tree, byte for byte.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use cenote::{FileSystem, Io, ObjectId};
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// Files above this size carry a digest of their non-zero pages only.
const BIG: u64 = 64 << 20;
const PAGE: usize = 4096;

/// One entry of a manifest. Paths and targets are bytes: JSON's lone surrogates
/// stand for bytes that are not UTF-8.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct ManifestEntry {
    /// Path below the root; empty for the root itself.
    #[serde(with = "serde_bytes")]
    path: Vec<u8>,
    mode: String,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Links.
    pub nlink: u64,
    /// Bytes.
    pub size: u64,
    /// Modification time.
    pub mtime_ns: i128,
    /// Inode number.
    pub ino: u64,
    /// Digest of the content.
    pub sha256: Option<String>,
    /// Digest of offset and content of the pages that are not zero.
    pub sha256_nonzero_pages: Option<String>,
    #[serde(default, with = "serde_bytes")]
    target: Option<Vec<u8>>,
    /// Major and minor number of a device.
    pub rdev: Option<[u64; 2]>,
    /// Extended attributes, hexadecimal.
    #[serde(default)]
    pub xattrs: BTreeMap<String, String>,
    /// Another dataset was mounted here: the entry is that one's root.
    #[serde(skip)]
    pub mountpoint: bool,
}

/// Restricts a dataset's manifest to its own entries: of datasets mounted below it, only
/// the mountpoint stays.
pub(crate) fn cut_at_mountpoints(dataset: &str, all: &[String], entries: &mut Vec<ManifestEntry>) {
    let prefix = format!("{dataset}/");
    let below: Vec<&[u8]> =
        all.iter().filter_map(|name| name.strip_prefix(&prefix)).map(str::as_bytes).collect();
    let inside = |path: &[u8], point: &[u8]| {
        path.strip_prefix(point).is_some_and(|rest| rest.first() == Some(&b'/'))
    };
    entries.retain(|e| !below.iter().any(|point| inside(&e.path(), point)));
    for entry in entries {
        entry.mountpoint = below.contains(&&*entry.path());
    }
}

/// Nanoseconds.
const SECOND: i128 = 1_000_000_000;

impl ManifestEntry {
    /// A modification time as in the manifest: zfs-fuse's mounts show whole seconds.
    pub(crate) fn seen(&self, mtime_ns: i128) -> i128 {
        if self.mtime_ns % SECOND == 0 { mtime_ns - mtime_ns.rem_euclid(SECOND) } else { mtime_ns }
    }

    /// The path's bytes.
    pub fn path(&self) -> Vec<u8> {
        unescape(&self.path)
    }

    /// Type and permissions.
    pub fn mode(&self) -> u32 {
        u32::from_str_radix(self.mode.trim_start_matches("0o"), 8).unwrap()
    }

    /// The target of a symbolic link.
    pub fn target(&self) -> Option<Vec<u8>> {
        self.target.as_deref().map(unescape)
    }
}

/// U+DC80 to U+DCFF (as WTF-8) back to the bytes they stand for.
fn unescape(wtf8: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < wtf8.len() {
        match wtf8[at..] {
            [0xed, b @ 0xb2..=0xb3, c, ..] => {
                out.push((b & 3) << 6 | (c & 0x3f));
                at += 3;
            }
            _ => {
                out.push(wtf8[at]);
                at += 1;
            }
        }
    }
    out
}

/// Reads a compressed manifest.
pub(crate) fn read_manifest(path: &Path) -> Vec<ManifestEntry> {
    let reader = BufReader::new(zstd::Decoder::new(File::open(path).unwrap()).unwrap());
    reader.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
}

/// Compares a file system with a manifest; returns a line for each difference. `times` says
/// whether modification times are compared.
pub fn verify(fs: &FileSystem, manifest: &[ManifestEntry], times: bool) -> Vec<String> {
    let mut differences = Vec::new();
    let mut seen = BTreeMap::new();
    walk(fs, fs.root(), Vec::new(), &mut seen);
    for entry in manifest {
        let path = entry.path();
        let Some(id) = seen.remove(&path) else {
            differences.push(format!("{}: missing", show(&path)));
            continue;
        };
        match fs.walk(&path, Io::WAIT) {
            Ok(found) if found == id => {}
            other => differences.push(format!("{}: lookup finds {other:?}", show(&path))),
        }
        if entry.mountpoint {
            continue;
        }
        compare(fs, id, entry, times, &mut differences);
    }
    differences.extend(seen.into_keys().map(|p| format!("{}: unexpected", show(&p))));
    differences
}

/// The result of a comparison in which failures are allowed.
#[derive(Clone, Debug, Default)]
pub struct Tolerant {
    /// Entries that are right.
    pub right: usize,
    /// Entries that could not be read, and why.
    pub unreadable: Vec<String>,
    /// Entries that were read and are wrong.
    pub wrong: Vec<String>,
}

/// As [`verify`], for a pool that is damaged beyond repair: reading may fail, but all data
/// read must be right.
pub fn verify_tolerant(fs: &FileSystem, manifest: &[ManifestEntry]) -> Tolerant {
    let mut out = Tolerant::default();
    for entry in manifest.iter().filter(|e| !e.mountpoint) {
        let path = show(&entry.path());
        match tolerant_entry(fs, entry) {
            Ok(None) => out.right += 1,
            Ok(Some(difference)) => out.wrong.push(format!("{path}: {difference}")),
            Err(e) if e.kind() == cenote::ErrorKind::NotFound => {
                out.wrong.push(format!("{path}: {e}"));
            }
            Err(e) => out.unreadable.push(format!("{path}: {e}")),
        }
    }
    out
}

fn tolerant_entry(fs: &FileSystem, e: &ManifestEntry) -> cenote::Result<Option<String>> {
    let id = fs.walk(&e.path(), Io::WAIT)?;
    let a = fs.attrs(id, Io::WAIT)?;
    let ids = (u64::from(a.uid), u64::from(a.gid), u64::from(a.nlink));
    let found = (a.mode, ids, a.size);
    let wanted = (e.mode(), (e.uid, e.gid, e.nlink), e.size);
    if found != wanted {
        return Ok(Some(format!("attributes {found:?} instead of {wanted:?}")));
    }
    let content = match (&e.sha256, &e.sha256_nonzero_pages) {
        (Some(wanted), _) => Some((wanted, try_digest(fs, id, a.size)?)),
        (None, Some(wanted)) => Some((wanted, try_digest_pages(fs, id, a.size)?)),
        (None, None) => None,
    };
    if let Some((wanted, found)) = content
        && *wanted != found
    {
        return Ok(Some("content differs".to_owned()));
    }
    if let Some(target) = e.target()
        && fs.readlink(id, Io::WAIT)? != target
    {
        return Ok(Some("target differs".to_owned()));
    }
    let mut xattrs = BTreeMap::new();
    for name in fs.list_xattrs(id, Io::WAIT)? {
        let value = fs.get_xattr(id, &name, Io::WAIT)?.unwrap_or_default();
        let hex: String = value.iter().map(|b| format!("{b:02x}")).collect();
        xattrs.insert(String::from_utf8_lossy(&name).into_owned(), hex);
    }
    Ok((xattrs != e.xattrs).then(|| "extended attributes differ".to_owned()))
}

fn show(path: &[u8]) -> String {
    format!("/{}", String::from_utf8_lossy(path))
}

fn walk(fs: &FileSystem, id: ObjectId, path: Vec<u8>, seen: &mut BTreeMap<Vec<u8>, ObjectId>) {
    let attrs = fs.attrs(id, Io::WAIT).unwrap();
    if attrs.mode & 0o170_000 == 0o040_000 {
        let mut cookie = 0;
        loop {
            let page = fs.readdir(id, cookie, Io::WAIT).unwrap();
            for entry in &page.entries {
                cookie = entry.next_cookie;
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let mut below = path.clone();
                if !below.is_empty() {
                    below.push(b'/');
                }
                below.extend_from_slice(&entry.name);
                walk(fs, entry.id, below, seen);
            }
            if page.is_last() {
                break;
            }
        }
    }
    seen.insert(path, id);
}

fn compare(fs: &FileSystem, id: ObjectId, e: &ManifestEntry, times: bool, out: &mut Vec<String>) {
    let path = show(&e.path());
    let a = fs.attrs(id, Io::WAIT).unwrap();
    let mut check = |what: &str, found: String, wanted: String| {
        if found != wanted {
            out.push(format!("{path}: {what} is {found}, not {wanted}"));
        }
    };
    check("mode", format!("{:o}", a.mode), format!("{:o}", e.mode()));
    check("uid", a.uid.to_string(), e.uid.to_string());
    check("gid", a.gid.to_string(), e.gid.to_string());
    check("nlink", a.nlink.to_string(), e.nlink.to_string());
    check("size", a.size.to_string(), e.size.to_string());
    // The root of a snapshot has a synthetic inode number in the live file system.
    if e.ino < 1 << 47 {
        check("ino", id.0.to_string(), e.ino.to_string());
    }
    if times {
        let mtime = i128::from(a.mtime.seconds) * SECOND + i128::from(a.mtime.nanoseconds);
        check("mtime", e.seen(mtime).to_string(), e.mtime_ns.to_string());
    }
    if let Some(wanted) = &e.sha256 {
        check("content", digest(fs, id, a.size), wanted.clone());
    }
    if let Some(wanted) = &e.sha256_nonzero_pages {
        check("content", digest_pages(fs, id, a.size), wanted.clone());
    }
    if let Some(target) = e.target() {
        let found = fs.readlink(id, Io::WAIT).unwrap();
        check("target", show(&found), show(&target));
    }
    if let Some(rdev) = e.rdev {
        let found = a.device.map(|d| [u64::from(d.major), u64::from(d.minor)]);
        check("device", format!("{found:?}"), format!("{:?}", Some(rdev)));
    }
    let mut xattrs = BTreeMap::new();
    for name in fs.list_xattrs(id, Io::WAIT).unwrap() {
        let value = fs.get_xattr(id, &name, Io::WAIT).unwrap().unwrap();
        let hex: String = value.iter().map(|b| format!("{b:02x}")).collect();
        xattrs.insert(String::from_utf8_lossy(&name).into_owned(), hex);
    }
    check("xattrs", format!("{xattrs:?}"), format!("{:?}", e.xattrs));
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// The SHA-256 of a file's content, as manifests have it.
pub fn digest(fs: &FileSystem, id: ObjectId, size: u64) -> String {
    try_digest(fs, id, size).unwrap()
}

fn try_digest(fs: &FileSystem, id: ObjectId, size: u64) -> cenote::Result<String> {
    assert!(size <= BIG);
    let mut hash = Sha256::new();
    let mut at = 0;
    while at < size {
        for piece in fs.read(id, at, 1 << 20, Io::WAIT)? {
            hash.update(&*piece);
            at += piece.len() as u64;
        }
    }
    Ok(hex(hash))
}

fn digest_pages(fs: &FileSystem, id: ObjectId, size: u64) -> String {
    try_digest_pages(fs, id, size).unwrap()
}

fn try_digest_pages(fs: &FileSystem, id: ObjectId, size: u64) -> cenote::Result<String> {
    let mut hash = Sha256::new();
    let mut at = 0;
    while let Some(extent) = fs.extent(id, at, Io::WAIT)? {
        let end = extent.offset + extent.len;
        if extent.data {
            let mut pos = extent.offset / PAGE as u64 * PAGE as u64;
            while pos < end.min(size) {
                let mut page = Vec::new();
                for piece in fs.read(id, pos, PAGE, Io::WAIT)? {
                    page.extend_from_slice(&piece);
                }
                if page.iter().any(|&b| b != 0) {
                    hash.update(pos.to_le_bytes());
                    hash.update(&page);
                }
                pos += PAGE as u64;
            }
        }
        at = end;
    }
    Ok(hex(hash))
}
