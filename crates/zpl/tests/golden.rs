//! Whole trees against the manifests that OpenZFS's kernel module produced.
//!
//! Runs when `CENOTE_POOLS` names a directory with unpacked single-disk pools
//! (`NAME/disk1.img`) and their unpacked manifests (`NAME.DATASET.jsonl`). The tree is
//! printed exactly as the generator of the manifests prints it, and compared line by line.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{ErrorKind, ObjectId};
use common::{Need, skip};
use dmu::Io;
use zpl::{Attrs, CaseSensitivity, FileSystem, FileType, SpaceKind, Whence};

const PAGE: u64 = 4096;

/// A string as Python's `json.dumps` prints it.
fn json(bytes: &[u8]) -> String {
    let text = std::str::from_utf8(bytes).expect("the golden trees' names are UTF-8");
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            ' '..='~' => out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
    out
}

fn read_all(fs: &FileSystem, id: ObjectId, size: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while (out.len() as u64) < size {
        let bufs = fs.read(id, out.len() as u64, 300_000, Io::WAIT).expect("reads");
        let before = out.len();
        bufs.iter().for_each(|b| out.extend_from_slice(b));
        assert!(out.len() > before, "a read inside the file yields nothing");
    }
    assert!(fs.read(id, size, 10, Io::WAIT).expect("reads").is_empty());
    out
}

/// Offsets and contents of the pages that are not zero, digested as the generator does.
fn nonzero_pages(fs: &FileSystem, id: ObjectId, size: u64) -> Vec<u8> {
    let (mut out, mut pos) = (Vec::new(), 0);
    while pos < size {
        pos = match fs.seek(id, pos, Whence::Data, Io::WAIT) {
            Ok(at) => at & !(PAGE - 1),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::PastEnd);
                break;
            }
        };
        let end = fs.seek(id, pos, Whence::Hole, Io::WAIT).expect("a hole follows");
        while pos < end {
            let page = fs.read(id, pos, PAGE as usize, Io::WAIT).expect("reads").concat_bytes();
            if page.iter().any(|b| *b != 0) {
                out.extend_from_slice(&pos.to_le_bytes());
                out.extend_from_slice(&page);
            }
            pos += PAGE;
        }
    }
    out
}

trait Concat {
    fn concat_bytes(&self) -> Vec<u8>;
}

impl Concat for Vec<base::Buf> {
    fn concat_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|b| b.iter().copied()).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// One line of the manifest.
fn line(fs: &FileSystem, a: &Attrs, path: &[u8]) -> String {
    let mut keys = BTreeMap::new();
    let ns = i128::from(a.mtime.seconds) * 1_000_000_000 + i128::from(a.mtime.nanoseconds);
    keys.insert("path", json(path));
    keys.insert("mode", format!("\"0o{:o}\"", a.mode));
    keys.insert("uid", a.uid.to_string());
    keys.insert("gid", a.gid.to_string());
    keys.insert("nlink", a.nlink.to_string());
    keys.insert("size", a.size.to_string());
    keys.insert("mtime_ns", ns.to_string());
    keys.insert("ino", a.id.to_string());
    match a.kind {
        FileType::Symlink => {
            let target = fs.readlink(a.id, Io::WAIT).expect("a target");
            assert_eq!(target.len() as u64, a.size);
            keys.insert("target", json(&target));
        }
        FileType::Regular if a.size <= 1 << 26 => {
            let digest = common::sha256(&read_all(fs, a.id, a.size));
            keys.insert("sha256", format!("\"{digest}\""));
        }
        FileType::Regular => {
            let digest = common::sha256(&nonzero_pages(fs, a.id, a.size));
            keys.insert("sha256_nonzero_pages", format!("\"{digest}\""));
        }
        FileType::Char | FileType::Block => {
            let d = a.device.expect("a device has a number");
            keys.insert("rdev", format!("[{}, {}]", d.major, d.minor));
        }
        _ => {}
    }
    let mut names = fs.list_xattrs(a.id, Io::WAIT).expect("xattrs");
    names.sort();
    assert!(names.is_empty() || a.may_have_xattrs);
    let pairs: Vec<String> = names
        .iter()
        .map(|n| {
            let value = fs.get_xattr(a.id, n, Io::WAIT).expect("reads").expect("is listed");
            format!("{}: \"{}\"", json(n), hex(&value))
        })
        .collect();
    if !pairs.is_empty() {
        keys.insert("xattrs", format!("{{{}}}", pairs.join(", ")));
    }
    let all: Vec<String> = keys.iter().map(|(k, v)| format!("\"{k}\": {v}")).collect();
    format!("{{{}}}", all.join(", "))
}

/// Lists a directory one page at a time, and again one entry at a time by cookie.
fn list(fs: &FileSystem, dir: &Attrs) -> Vec<(Vec<u8>, ObjectId, FileType)> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let page = fs.readdir(dir.id, cookie, Io::WAIT).expect("lists");
        for e in &page.entries {
            all.push((e.name.clone(), e.id, e.kind));
        }
        if all.len() < 200 {
            let next = page.entries.first().map(|e| e.next_cookie);
            let again = fs.readdir(dir.id, next.unwrap_or(cookie), Io::WAIT).expect("lists");
            let skipped = page.entries.get(1).map(|e| &e.name);
            if next.is_some() && skipped.is_some() {
                assert_eq!(again.entries.first().map(|e| &e.name), skipped);
            }
        }
        match page.next {
            Some(next) => cookie = next,
            None => break,
        }
    }
    assert_eq!(all.len() as u64, dir.size, "a directory's size counts its entries");
    assert_eq!((&*all[0].0, all[0].1), (&b"."[..], dir.id));
    assert_eq!((&*all[1].0, all[1].1), (&b".."[..], dir.parent));
    all.drain(..2);
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn manifest(fs: &FileSystem) -> Vec<String> {
    let mut out = Vec::new();
    // Depth first in the order of names: a stack of the entries still to print.
    let mut stack = vec![(Vec::new(), fs.root())];
    while let Some((path, id)) = stack.pop() {
        let attrs = fs.attrs(id, Io::WAIT).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        out.push(line(fs, &attrs, &path));
        if attrs.kind != FileType::Dir {
            continue;
        }
        for (name, child, kind) in list(fs, &attrs).into_iter().rev() {
            let found = fs.lookup(id, &name, Io::WAIT).expect("is listed");
            assert_eq!((found.id, found.kind), (child, kind));
            let below: Vec<u8> =
                if path.is_empty() { name } else { [&*path, b"/", &*name].concat() };
            assert_eq!(fs.walk(&below, Io::WAIT).expect("is listed"), child);
            stack.push((below, child));
        }
    }
    out
}

fn check(dir: &Path, pool: &str, dataset: &str, fs: &FileSystem) -> usize {
    let name = if dataset.is_empty() { pool.to_owned() } else { format!("{pool}/{dataset}") };
    let file = dir.join(format!("{pool}.{}.jsonl", name.replace('/', ".")));
    let Ok(want) = std::fs::read_to_string(&file) else {
        println!("{name}: no manifest");
        return 0;
    };
    let got = manifest(fs);
    let want: Vec<&str> = want.lines().collect();
    let wrong = got.iter().zip(&want).filter(|(g, w)| g != w);
    let shown: Vec<String> = wrong.take(5).map(|(g, w)| format!("got  {g}\nwant {w}")).collect();
    assert!(shown.is_empty(), "{name}:\n{}", shown.join("\n"));
    assert_eq!(got.len(), want.len(), "{name}: number of entries");
    println!("{name}: {} entries are equal", got.len());
    got.len()
}

type GoldenFs = (PathBuf, Vec<(String, Arc<FileSystem>)>);

fn pool(name: &str) -> Option<GoldenFs> {
    let dir = common::pools()?;
    let image = dir.join(name).join("disk1.img");
    if !image.exists() {
        skip(Need::Unpacked, &format!("there is no {}", image.display()));
        return None;
    }
    let mos = common::open_mos(&image);
    let open = |(name, os)| (name, FileSystem::open(os, Io::WAIT).expect("a file system"));
    Some((dir, common::datasets(&mos).into_iter().map(open).collect()))
}

#[test]
fn basic_is_what_openzfs_saw() {
    let Some((dir, all)) = pool("basic") else { return };
    assert_eq!(all.len(), 1);
    let fs = &all[0].1;
    assert!(check(&dir, "basic", "", fs) > 5000);
    accounting_adds_up(fs);
    what_is_not_there(fs);
    memory_only(fs);
}

#[test]
fn compress_is_what_openzfs_saw() {
    let Some((dir, all)) = pool("compress") else { return };
    let sum: usize = all.iter().map(|(name, fs)| check(&dir, "compress", name, fs)).sum();
    assert!(sum > 10_000, "{sum} entries");
    let ci = &all.iter().find(|d| d.0 == "ci").expect("dataset ci").1;
    assert_eq!(ci.props().case, CaseSensitivity::Insensitive);
    assert_eq!((ci.props().normalization, ci.props().utf8only), (0x10, true));
    for (one, other) in [("/LINKS/Target", "/links/target"), ("/names/É", "/names/e\u{301}")] {
        let find = |p: &str| ci.walk(p.as_bytes(), Io::WAIT).expect("is there");
        assert_eq!(find(one), find(other));
    }
    let e = ci.lookup(ci.root(), b"\xff", Io::WAIT).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    for (_, fs) in &all {
        accounting_adds_up(fs);
    }
}

#[test]
fn other_pools_are_what_openzfs_saw() {
    for name in ["snaps", "dedup", "clonedblk", "frag"] {
        let Some((dir, all)) = pool(name) else { continue };
        let sum: usize = all.iter().map(|(dataset, fs)| check(&dir, name, dataset, fs)).sum();
        assert!(sum > 0, "{name} has no manifest");
    }
}

#[test]
fn encrypted_datasets_are_locked() {
    let Some(dir) = common::pools() else { return };
    let image = dir.join("crypt/disk1.img");
    if !image.exists() {
        skip(Need::Unpacked, &format!("there is no {}", image.display()));
        return;
    }
    let mut locked = 0;
    for (name, os) in common::datasets(&common::open_mos(&image)) {
        match FileSystem::open(os, Io::WAIT) {
            Ok(_) => assert_eq!(name, "", "only the root dataset is not encrypted"),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Locked, "{name}: {e}");
                locked += 1;
            }
        }
    }
    assert!(locked >= 2);
}

/// The accounts' totals are the objects' charges (chapter 03 §6).
fn accounting_adds_up(fs: &FileSystem) {
    let os = fs.objset();
    let mut charged = BTreeMap::<u64, (u64, u64)>::new();
    let mut id = ObjectId(0);
    while let Some(next) = os.next_object(id, Io::WAIT).expect("an object set") {
        id = next;
        if let Ok(a) = fs.attrs(id, Io::WAIT) {
            let used = os.object(id, Io::WAIT).expect("is there").dnode().used;
            let sum = charged.entry(a.owner_fuid).or_default();
            *sum = (sum.0 + 512 + used, sum.1 + 1);
        }
    }
    let users = fs.userspace(SpaceKind::User, Io::WAIT).expect("accounts");
    let told: BTreeMap<_, _> = users.iter().map(|u| (u.id, (u.used, u.objects))).collect();
    assert_eq!(told, charged);
    let total = |kind| {
        let all = fs.userspace(kind, Io::WAIT).expect("accounts");
        all.iter().fold((0, 0), |s, e| (s.0 + e.used, s.1 + e.objects))
    };
    assert_eq!(total(SpaceKind::User), total(SpaceKind::Group));
    assert_eq!(total(SpaceKind::User), total(SpaceKind::Project));
}

fn what_is_not_there(fs: &FileSystem) {
    let kind = |r: base::Result<ObjectId>| r.unwrap_err().kind();
    let walk = |p: &str| fs.walk(p.as_bytes(), Io::WAIT);
    assert_eq!(kind(walk("nowhere")), ErrorKind::NotFound);
    assert_eq!(kind(walk("links/target/x")), ErrorKind::NotDir);
    assert_eq!(kind(walk("links/short/x")), ErrorKind::NotDir);
    assert_eq!(kind(walk(&"n".repeat(256))), ErrorKind::NameTooLong);
    assert_eq!(walk("links/../links/./target").unwrap(), walk("links/hard").unwrap());
    assert_eq!(walk("..").unwrap(), fs.root());
    let file = walk("links/target").unwrap();
    let kind = |e: base::Error| e.kind();
    assert_eq!(fs.readlink(file, Io::WAIT).map_err(kind), Err(ErrorKind::Invalid));
    assert_eq!(fs.get_xattr(file, b"user.none", Io::WAIT).unwrap(), None);
    assert_eq!(fs.read(fs.root(), 0, 1, Io::WAIT).map_err(kind), Err(ErrorKind::IsDir));
    assert_eq!(fs.attrs(ObjectId(1), Io::WAIT).map_err(kind), Err(ErrorKind::NotFound));
    assert_eq!(fs.readdir(file, 0, Io::WAIT).map_err(kind), Err(ErrorKind::NotDir));
    // The sparse file of one terabyte has no data.
    let c = walk("sparse/c").unwrap();
    assert_eq!(fs.seek(c, 5, Whence::Data, Io::WAIT).map_err(kind), Err(ErrorKind::PastEnd));
    assert_eq!(fs.seek(c, 5, Whence::Hole, Io::WAIT).unwrap(), 5);
    assert_eq!(fs.seek(c, 1 << 40, Whence::Hole, Io::WAIT).map_err(kind), Err(ErrorKind::PastEnd));
    let far = fs.read(c, (1 << 40) - 100, 4096, Io::WAIT).unwrap();
    assert_eq!(far.concat_bytes(), [0; 100]);
    let extent = fs.extent(c, 0, Io::WAIT).unwrap().unwrap();
    assert_eq!((extent.data, extent.len), (false, 1 << 40));
}

/// Content that was read is served from memory; other content gives an error and no read.
fn memory_only(fs: &FileSystem) {
    let id = fs.walk(b"sizes/k0_300000", Io::WAIT).unwrap();
    let cached = fs.read(id, 1000, 200_000, Io::WAIT).unwrap().concat_bytes();
    let from_memory = fs.read(id, 1000, 200_000, Io::MEMORY).unwrap().concat_bytes();
    assert_eq!(cached, from_memory);
    assert_eq!(fs.walk(b"sizes/k0_300000", Io::MEMORY).unwrap(), id);
    fs.objset().drop_dnodes();
    fs.objset().zio().cache().clear();
    let kind = fs.read(id, 1000, 200_000, Io::MEMORY).unwrap_err().kind();
    assert_eq!(kind, ErrorKind::WouldBlock);
    assert_eq!(fs.walk(b"sizes", Io::MEMORY).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(fs.attrs(id, Io::MEMORY).unwrap_err().kind(), ErrorKind::WouldBlock);
    let page = fs.readdir(fs.root(), 0, Io::MEMORY);
    assert_eq!(page.unwrap_err().kind(), ErrorKind::WouldBlock);
}
