//! Compares a directory tree, as the kernel shows it, with a manifest.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::manifest::ManifestEntry;

const PAGE: usize = 4096;

/// The properties to compare.
#[derive(Clone, Copy, Debug)]
pub struct Compare {
    /// Modification times.
    pub times: bool,
    /// Inode numbers and sizes of directories: true for a mount, false for a copy.
    pub identity: bool,
}

/// Differences between the tree at `root` and a manifest, a line each.
pub fn verify_tree(root: &Path, manifest: &[ManifestEntry], compare: Compare) -> Vec<String> {
    let mut out = Vec::new();
    let mut seen = BTreeMap::new();
    let device = std::fs::symlink_metadata(root).map(|m| m.dev());
    let walked = device.and_then(|device| walk(root, Vec::new(), device, &mut seen));
    if let Err(e) = walked {
        out.push(format!("{}: {e}", root.display()));
    }
    for entry in manifest {
        let path = entry.path();
        let Some(file) = seen.remove(&path) else {
            out.push(format!("{}: missing", show(&path)));
            continue;
        };
        if entry.mountpoint {
            continue;
        }
        if let Err(e) = one(&file, entry, compare, &mut out) {
            out.push(format!("{}: {e}", show(&path)));
        }
    }
    out.extend(seen.into_keys().map(|p| format!("{}: unexpected", show(&p))));
    out
}

fn show(path: &[u8]) -> String {
    format!("/{}", String::from_utf8_lossy(path))
}

/// File systems mounted below, on another device, are not entered.
fn walk(
    file: &Path,
    path: Vec<u8>,
    device: u64,
    seen: &mut BTreeMap<Vec<u8>, PathBuf>,
) -> std::io::Result<()> {
    let meta = std::fs::symlink_metadata(file)?;
    if meta.is_dir() && meta.dev() == device {
        for entry in std::fs::read_dir(file)? {
            let entry = entry?;
            let mut below = path.clone();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(entry.file_name().as_bytes());
            walk(&entry.path(), below, device, seen)?;
        }
    }
    seen.insert(path, file.to_owned());
    Ok(())
}

/// Inode numbers from here on are not object ids.
const OWN_INO: u64 = 1 << 47;

fn one(
    file: &Path,
    e: &ManifestEntry,
    compare: Compare,
    out: &mut Vec<String>,
) -> std::io::Result<()> {
    let meta = std::fs::symlink_metadata(file)?;
    let path = show(&e.path());
    let mut check = |what: &str, found: String, wanted: String| {
        if found != wanted {
            out.push(format!("{path}: {what} is {found}, not {wanted}"));
        }
    };
    check("mode", format!("{:o}", meta.mode()), format!("{:o}", e.mode()));
    check("uid", meta.uid().to_string(), e.uid.to_string());
    check("gid", meta.gid().to_string(), e.gid.to_string());
    if compare.identity || !meta.is_dir() {
        check("nlink", meta.nlink().to_string(), e.nlink.to_string());
        check("size", meta.size().to_string(), e.size.to_string());
    }
    // The root of a snapshot below `.zfs` has a synthetic inode number, except with
    // zfs-fuse.
    let of_zfs_fuse = e.path().is_empty() && e.ino < OWN_INO && meta.ino() >= OWN_INO;
    if compare.identity && !of_zfs_fuse {
        check("ino", meta.ino().to_string(), e.ino.to_string());
    }
    if compare.times {
        let mtime = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        check("mtime", e.seen(mtime).to_string(), e.mtime_ns.to_string());
    }
    if let Some(wanted) = &e.sha256 {
        check("content", digest(file)?, wanted.clone());
    }
    if let Some(wanted) = &e.sha256_nonzero_pages {
        check("content", digest_pages(file, &meta)?, wanted.clone());
    }
    if let Some(target) = e.target() {
        let found = std::fs::read_link(file)?;
        check("target", show(found.as_os_str().as_bytes()), show(&target));
    }
    if let Some([major, minor]) = e.rdev {
        let dev = meta.rdev();
        let found = [u64::from(rustix::fs::major(dev)), u64::from(rustix::fs::minor(dev))];
        check("device", format!("{found:?}"), format!("{:?}", [major, minor]));
    }
    check("xattrs", format!("{:?}", xattrs(file)?), format!("{:?}", e.xattrs));
    Ok(())
}

/// Extended attributes, values in hexadecimal.
fn xattrs(file: &Path) -> std::io::Result<BTreeMap<String, String>> {
    let mut out = BTreeMap::new();
    let mut names = vec![0u8; 1 << 16];
    let len = match rustix::fs::llistxattr(file, &mut names[..]) {
        Ok(len) => len,
        Err(rustix::io::Errno::OPNOTSUPP) => return Ok(out),
        Err(e) => return Err(e.into()),
    };
    for name in names[..len].split(|&b| b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0u8; 1 << 16];
        let len = rustix::fs::lgetxattr(file, OsStr::from_bytes(name), &mut value[..])?;
        let hex: String = value[..len].iter().map(|b| format!("{b:02x}")).collect();
        out.insert(String::from_utf8_lossy(name).into_owned(), hex);
    }
    Ok(out)
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

fn digest(file: &Path) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    let mut from = File::open(file)?;
    let mut buf = vec![0u8; 1 << 20];
    loop {
        match from.read(&mut buf)? {
            0 => return Ok(hex(hash)),
            n => hash.update(&buf[..n]),
        }
    }
}

fn digest_pages(file: &Path, meta: &Metadata) -> std::io::Result<String> {
    use rustix::fs::{SeekFrom, seek};
    let from = File::open(file)?;
    let mut hash = Sha256::new();
    let mut page = [0u8; PAGE];
    let mut pos = 0u64;
    while pos < meta.len() {
        let Ok(data) = seek(&from, SeekFrom::Data(pos)) else { break };
        pos = data / PAGE as u64 * PAGE as u64;
        let end = seek(&from, SeekFrom::Hole(data))?;
        while pos < end {
            let n = from.read_at(&mut page, pos)?;
            if page[..n].iter().any(|&b| b != 0) {
                hash.update(pos.to_le_bytes());
                hash.update(&page[..n]);
            }
            pos += PAGE as u64;
        }
    }
    Ok(hex(hash))
}
