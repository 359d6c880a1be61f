//! Operations on a file system: drawn at random, performed, and compared.

use std::collections::BTreeSet;

use base::rt::sim::Rng;
use base::{ErrorKind, ObjectId, Result};
use dmu::{Io, Zap};
use zpl::rw::{Caller, Falloc, New, Rename, Rewrite, SetAttrs, SetHow, WritePosition};
use zpl::{Device, FileSystem, FileType};

use super::tree::{FileBody, Id, TOP, Tree};

/// The kind of a new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A named pipe.
    Fifo,
    /// A symbolic link to a target of that seed and length.
    Link(u32, usize),
}

/// An operation. Files are given by the model's ids.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each says what it is")]
pub enum PosixOp {
    Make { dir: Id, name: String, kind: NodeKind, mode: u32 },
    Link { id: Id, dir: Id, name: String },
    Unlink { dir: Id, name: String },
    Rmdir { dir: Id, name: String },
    Rename { from: Id, name: String, to: Id, new: String, how: Rename },
    Write { id: Id, at: usize, len: usize, seed: u32 },
    Append { id: Id, len: usize, seed: u32 },
    Truncate { id: Id, size: usize },
    Punch { id: Id, at: usize, len: usize },
    Copy { from: Id, at: usize, to: Id, offset: usize, len: usize },
    SetMode { id: Id, mode: u32 },
    SetOwner { id: Id, uid: u32, gid: u32 },
    SetXattr { id: Id, name: String, len: usize, seed: u32 },
    RemoveXattr { id: Id, name: String },
    Hold { id: Id },
    Release { id: Id },
    Temporary { dir: Id, mode: u32 },
    Accessed { id: Id },
    Rewrite { id: Id, at: usize, len: usize, keep_birth: bool },
    Fsync { id: Id },
    SyncAll,
}

/// Bytes that follow from a seed; some are zeros, which make holes.
pub fn bytes(seed: u32, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    if !seed.is_multiple_of(9) {
        Rng::stream(u64::from(seed), 71).fill(&mut out);
    }
    if seed.is_multiple_of(4) {
        // Compressible bytes.
        out.chunks_mut(64).for_each(|c| {
            let first = c[0];
            c.fill(first);
        });
    }
    out
}

/// A target of a symbolic link.
pub fn target(seed: u32, len: usize) -> Vec<u8> {
    bytes(seed | 1, len.max(1)).iter().map(|b| b'a' + b % 26).collect()
}

/// Maximum sizes.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Bytes of a write.
    pub write: usize,
    /// Largest offset.
    pub file: usize,
    /// Bytes of an extended attribute.
    pub xattr: usize,
    /// Different names.
    pub names: u64,
    /// Calls of several transactions each of which is visible.
    pub split: bool,
}

fn name(rng: &mut Rng, scale: &Scale) -> String {
    let n = rng.below(scale.names);
    if n.is_multiple_of(7) {
        format!("{}{n}", "long".repeat(20 + n as usize % 40))
    } else {
        format!("n{n}")
    }
}

fn pick(rng: &mut Rng, ids: &[Id]) -> Option<Id> {
    ids.get(rng.below(ids.len().max(1) as u64) as usize).copied()
}

/// Mostly the name of an existing entry.
fn some_name(rng: &mut Rng, tree: &Tree, dir: Id, scale: &Scale) -> String {
    if let FileBody::Dir(names) = &tree.file(dir).body
        && !names.is_empty()
        && !rng.one_in(12)
    {
        let at = rng.below(names.len() as u64) as usize;
        if let Some(name) = names.keys().nth(at) {
            return name.clone();
        }
    }
    name(rng, scale)
}

/// Draws an operation on a tree.
pub fn draw(rng: &mut Rng, tree: &Tree, scale: &Scale) -> PosixOp {
    let dirs = tree.dirs();
    let all: Vec<Id> = tree.files.keys().copied().filter(|id| *id != TOP).collect();
    let dir = pick(rng, &dirs).unwrap_or(TOP);
    let to = pick(rng, &dirs).unwrap_or(TOP);
    let file = pick(rng, &tree.regular());
    let any = pick(rng, &all);
    let seed = rng.next_u64() as u32;
    let small = |rng: &mut Rng, most: usize| match rng.below(4) {
        0 => rng.below(most as u64 + 1) as usize,
        1 => rng.below(most as u64 / 8 + 1) as usize,
        _ => rng.below(most as u64 / 64 + 1) as usize,
    };
    let (size, offset) = (small(rng, scale.write), small(rng, scale.file));
    let which = rng.below(100);
    match (which, file, any) {
        (0..=15, ..) => {
            let kind = match rng.below(8) {
                0..=3 => NodeKind::File,
                4 | 5 => NodeKind::Dir,
                6 => NodeKind::Fifo,
                _ => NodeKind::Link(seed, 1 + rng.below(400) as usize),
            };
            PosixOp::Make { dir, name: name(rng, scale), kind, mode: 0o600 | rng.below(64) as u32 }
        }
        (16..=20, Some(id), _) => PosixOp::Link { id, dir, name: name(rng, scale) },
        (21..=28, ..) => PosixOp::Unlink { dir, name: some_name(rng, tree, dir, scale) },
        (29..=31, ..) => PosixOp::Rmdir { dir, name: some_name(rng, tree, dir, scale) },
        (32..=45, ..) => {
            let how = match rng.below(8) {
                0..=3 => Rename::Plain,
                4 => Rename::NoReplace,
                5 | 6 => Rename::Exchange,
                _ => Rename::Whiteout,
            };
            let new = if rng.one_in(2) || how == Rename::Exchange {
                some_name(rng, tree, to, scale)
            } else {
                name(rng, scale)
            };
            PosixOp::Rename { from: dir, name: some_name(rng, tree, dir, scale), to, new, how }
        }
        (46..=60, Some(id), _) => PosixOp::Write { id, at: offset, len: size.max(1), seed },
        (61..=64, Some(id), _) => PosixOp::Append { id, len: size.max(1), seed },
        (65..=69, Some(id), _) => PosixOp::Truncate { id, size: offset },
        (70..=72, Some(id), _) => PosixOp::Punch { id, at: offset, len: size.max(1) },
        (73..=75, Some(from), _) if scale.split => {
            let to = pick(rng, &tree.regular()).unwrap_or(from);
            PosixOp::Copy { from, at: small(rng, scale.file), to, offset, len: size }
        }
        (73..=75, Some(id), _) => {
            PosixOp::Rewrite { id, at: offset, len: scale.file, keep_birth: seed.is_multiple_of(2) }
        }
        (76 | 77, _, Some(id)) => PosixOp::SetMode { id, mode: 0o400 | rng.below(512) as u32 },
        (78 | 79, _, Some(id)) => {
            PosixOp::SetOwner { id, uid: rng.below(5) as u32, gid: rng.below(5) as u32 }
        }
        (80..=86, _, Some(id)) => {
            let (name, len) = (format!("user.{}", rng.below(6)), small(rng, scale.xattr));
            PosixOp::SetXattr { id, name, len, seed }
        }
        (87..=89, _, Some(id)) => {
            let name = tree.file(id).xattrs.keys().next().cloned();
            PosixOp::RemoveXattr { id, name: name.unwrap_or_else(|| "user.none".to_owned()) }
        }
        (90..=91, Some(id), _) if !tree.file(id).held => PosixOp::Hold { id },
        (92..=94, ..) => match tree.files.iter().find(|(_, f)| f.held) {
            Some((id, _)) => PosixOp::Release { id: *id },
            None => PosixOp::Temporary { dir, mode: 0o600 },
        },
        (95, ..) => PosixOp::Temporary { dir, mode: 0o640 },
        (96, _, Some(id)) => PosixOp::Accessed { id },
        (97 | 98, _, Some(id)) => PosixOp::Fsync { id },
        (99, ..) => PosixOp::SyncAll,
        _ => PosixOp::Make { dir, name: name(rng, scale), kind: NodeKind::File, mode: 0o644 },
    }
}

/// On Linux symbolic links have no mode changes and no user attributes. Only calls that a
/// kernel would pass on are made.
pub fn is_possible(tree: &Tree, op: &PosixOp) -> bool {
    let plain = |id: &Id| matches!(tree.file(*id).body, FileBody::File(_) | FileBody::Dir(_));
    match op {
        PosixOp::SetMode { id, .. } => !matches!(tree.file(*id).body, FileBody::Link(_)),
        PosixOp::SetXattr { id, .. } | PosixOp::RemoveXattr { id, .. } => plain(id),
        PosixOp::Link { id, .. } => tree.file(*id).links > 0 || tree.file(*id).held,
        _ => true,
    }
}

/// Performs an operation; returns the object that it made, if any.
///
/// # Errors
/// Those of the file system.
pub fn perform(fs: &FileSystem, tree: &Tree, op: &PosixOp) -> Result<Option<ObjectId>> {
    let root = Caller::root();
    let object = |id: &Id| tree.object(*id);
    let set = |id: &Id, set: SetAttrs| fs.set_attrs(&root, object(id), &set).map(drop);
    match op {
        PosixOp::Make { dir, name, kind, mode } => {
            let text;
            let new = match kind {
                NodeKind::File => New::file(*mode),
                NodeKind::Dir => New::dir(*mode),
                NodeKind::Fifo => New { kind: FileType::Fifo, ..New::file(*mode) },
                NodeKind::Link(seed, len) => {
                    text = target(*seed, *len);
                    New::symlink(&text)
                }
            };
            return Ok(Some(fs.make(&root, object(dir), name.as_bytes(), &new)?.id));
        }
        PosixOp::Link { id, dir, name } => {
            fs.link(&root, object(id), object(dir), name.as_bytes())?;
        }
        PosixOp::Unlink { dir, name } => drop(fs.unlink(&root, object(dir), name.as_bytes())?),
        PosixOp::Rmdir { dir, name } => drop(fs.rmdir(&root, object(dir), name.as_bytes())?),
        PosixOp::Rename { from, name, to, new, how } => {
            let (from, to) = ((object(from), name.as_bytes()), (object(to), new.as_bytes()));
            fs.rename(&root, from, to, *how)?;
            if *how == Rename::Whiteout {
                return Ok(fs.lookup(from.0, from.1, Io::WAIT).ok().map(|f| f.id));
            }
        }
        PosixOp::Write { id, at, len, seed } => {
            fs.write(&root, object(id), WritePosition::Offset(*at as u64), &bytes(*seed, *len))?;
        }
        PosixOp::Append { id, len, seed } => {
            fs.write(&root, object(id), WritePosition::End, &bytes(*seed, *len))?;
        }
        PosixOp::Truncate { id, size } => {
            set(id, SetAttrs { size: Some(*size as u64), ..SetAttrs::default() })?;
        }
        PosixOp::Punch { id, at, len } => {
            fs.allocate(&root, object(id), Falloc::PunchHole, *at as u64, *len as u64)?;
        }
        PosixOp::Copy { from, at, to, offset, len } => {
            let (from, to) = ((object(from), *at as u64), (object(to), *offset as u64));
            fs.copy_range(&root, from, to, *len as u64)?;
        }
        PosixOp::SetMode { id, mode } => {
            set(id, SetAttrs { mode: Some(*mode), ..SetAttrs::default() })?
        }
        PosixOp::SetOwner { id, uid, gid } => {
            set(id, SetAttrs { uid: Some(*uid), gid: Some(*gid), ..SetAttrs::default() })?;
        }
        PosixOp::SetXattr { id, name, len, seed } => {
            let value = bytes(*seed, *len);
            fs.set_xattr(&root, object(id), name.as_bytes(), &value, SetHow::Any)?;
        }
        PosixOp::RemoveXattr { id, name } => fs.remove_xattr(&root, object(id), name.as_bytes())?,
        PosixOp::Hold { id } => fs.hold(object(id))?,
        PosixOp::Release { id } => fs.release(object(id))?,
        PosixOp::Temporary { dir, mode } => {
            let id = fs.make_unlinked(&root, object(dir), *mode)?.id;
            fs.hold(id)?;
            return Ok(Some(id));
        }
        PosixOp::Accessed { id } => fs.accessed(object(id)),
        PosixOp::Rewrite { id, at, len, keep_birth } => {
            let how = Rewrite { keep_birth: *keep_birth, skip_snapshots: false };
            let (mut next, end) = (Some(*at as u64), (*at + *len) as u64);
            while let Some(at) = next {
                next = fs.rewrite(object(id), at..end, how)?.next;
            }
        }
        PosixOp::Fsync { id } => fs.fsync(object(id))?,
        PosixOp::SyncAll => fs.sync_all()?,
    }
    Ok(None)
}

/// Performs an operation on both; returns the new tree, or `None` if nothing has changed
/// because of an error or lack of space.
///
/// # Errors
/// The difference found.
pub fn both(
    fs: &FileSystem,
    tree: &Tree,
    op: &PosixOp,
) -> std::result::Result<Option<Tree>, String> {
    let mut next = tree.clone();
    let due = next.apply(op);
    match (due, perform(fs, tree, op)) {
        (Ok(made), Ok(object)) => {
            if let Some(id) = made {
                let object = object.ok_or_else(|| format!("{op:?} made nothing"))?;
                if let Some(file) = next.files.get_mut(&id) {
                    file.object = object;
                }
            }
            Ok(Some(next))
        }
        (_, Err(e)) if e.kind() == ErrorKind::NoSpace => Ok(None),
        (Err(_), Err(_)) => Ok(None),
        (Ok(_), Err(e)) => Err(format!("{op:?}: {e}")),
        (Err(due), Ok(_)) => Err(format!("{op:?} should fail: {due:?}")),
    }
}

/// Compares everything below the tree's top; returns the objects that are part of it,
/// including hidden ones.
///
/// # Errors
/// The difference found.
pub fn compare(
    fs: &FileSystem,
    tree: &Tree,
    unnamed: bool,
) -> std::result::Result<BTreeSet<u64>, String> {
    let mut objects = BTreeSet::new();
    for (path, id) in tree.paths() {
        one(fs, tree, id, &mut objects).map_err(|e| format!("{path:?}: {e}"))?;
    }
    let named = tree.named();
    for (id, file) in &tree.files {
        if unnamed && !named.contains(id) {
            one(fs, tree, *id, &mut objects)
                .map_err(|e| format!("{:?}, without a name: {e}", file.object))?;
        }
    }
    Ok(objects)
}

fn one(
    fs: &FileSystem,
    tree: &Tree,
    id: Id,
    objects: &mut BTreeSet<u64>,
) -> std::result::Result<(), String> {
    let fail = |e: base::Error| e.to_string();
    let file = tree.file(id);
    let object = file.object;
    let attrs = fs.attrs(object, Io::WAIT).map_err(fail)?;
    let (kind, size) = match &file.body {
        FileBody::File(data) => (FileType::Regular, data.len()),
        FileBody::Dir(names) => (FileType::Dir, names.len() + 2),
        FileBody::Link(target) => (FileType::Symlink, target.len()),
        FileBody::Fifo => (FileType::Fifo, 0),
        FileBody::Whiteout => (FileType::Char, 0),
    };
    let found = (attrs.kind, attrs.mode & 0o7777, attrs.uid, attrs.gid, attrs.nlink, attrs.size);
    let due = (kind, file.mode, file.uid, file.gid, file.links, size as u64);
    if found != due {
        return Err(format!("{found:?}, should be {due:?}"));
    }
    match &file.body {
        FileBody::File(data) => {
            let pieces = fs.read(object, 0, data.len(), Io::WAIT).map_err(fail)?;
            let content: Vec<u8> = pieces.iter().flat_map(|b| b.iter().copied()).collect();
            if content != **data {
                let at = content.iter().zip(data.iter()).position(|(a, b)| a != b);
                return Err(format!("{} bytes, other ones from {at:?} on", content.len()));
            }
        }
        FileBody::Dir(names) => {
            entries(fs, tree, object, names)?;
            if id != TOP && file.links > 0 && attrs.parent != tree.object(file.parent) {
                return Err("another directory is above".to_owned());
            }
        }
        FileBody::Link(target) => {
            let found = fs.readlink(object, Io::WAIT).map_err(fail)?;
            if found != *target {
                return Err("another target".to_owned());
            }
        }
        FileBody::Whiteout if attrs.device != Some(Device::default()) => {
            return Err("a device, and no whiteout".to_owned());
        }
        _ => {}
    }
    let mut names = fs.list_xattrs(object, Io::WAIT).map_err(fail)?;
    names.sort();
    if !names.iter().map(|n| &n[..]).eq(file.xattrs.keys().map(String::as_bytes)) {
        return Err(format!("extended attributes {names:?}"));
    }
    for (name, due) in &file.xattrs {
        let value = fs.get_xattr(object, name.as_bytes(), Io::WAIT).map_err(fail)?;
        if value.as_ref() != Some(&**due) {
            return Err(format!("another value of {name}"));
        }
    }
    objects.insert(object.0);
    hidden(fs, object, objects).map_err(fail)
}

fn entries(
    fs: &FileSystem,
    tree: &Tree,
    object: ObjectId,
    names: &std::collections::BTreeMap<String, Id>,
) -> std::result::Result<(), String> {
    let mut found = std::collections::BTreeMap::new();
    let mut cookie = Some(0);
    while let Some(at) = cookie {
        let page = fs.readdir(object, at, Io::WAIT).map_err(|e| e.to_string())?;
        for entry in page.entries {
            let dots = entry.name == b"." || entry.name == b"..";
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            if !dots && found.insert(name.clone(), entry.id).is_some() {
                return Err(format!("{name:?} twice"));
            }
        }
        cookie = page.next;
    }
    let due = names.iter().map(|(n, id)| (n.clone(), tree.object(*id))).collect();
    if found == due {
        return Ok(());
    }
    Err(format!("entries {found:?}, should be {due:?}"))
}

/// The objects of an object's extended attributes.
fn hidden(fs: &FileSystem, id: ObjectId, objects: &mut BTreeSet<u64>) -> Result<()> {
    let Some(dir) = fs.xattr_directory(id, Io::WAIT)? else { return Ok(()) };
    objects.insert(dir.0);
    Zap::open(fs.objset().object(dir, Io::WAIT)?, Io::WAIT)?.for_each(|e| {
        objects.extend(e.value.first_u64().map(|v| v & ((1 << 48) - 1)));
        Ok(())
    })
}

/// Objects without a reference: neither from a tree, whose objects are `known`, nor from
/// the delete queue; and the number of objects on the queue.
///
/// # Errors
/// Those of reading.
pub(crate) fn orphaned_objects(
    fs: &FileSystem,
    known: &BTreeSet<u64>,
) -> Result<(BTreeSet<u64>, usize)> {
    let os = fs.objset();
    let props = fs.props();
    let mut all = BTreeSet::new();
    let mut at = ObjectId(0);
    while let Some(id) = os.next_object(at, Io::WAIT)? {
        at = id;
        all.insert(id.0);
    }
    let mut expected = known.clone();
    expected.extend([1, fs.root().0]);
    let mut queued = 0;
    if let Some(queue) = props.delete_queue {
        expected.insert(queue.0);
        let mut ids = Vec::new();
        Zap::open(os.object(queue, Io::WAIT)?, Io::WAIT)?.for_each(|e| {
            ids.extend(e.value.first_u64().map(ObjectId));
            Ok(())
        })?;
        for id in ids {
            expected.insert(id.0);
            hidden(fs, id, &mut expected)?;
            // A hidden directory that is being emptied.
            if let Ok(attrs) = fs.attrs(id, Io::WAIT)
                && attrs.kind == FileType::Dir
                && attrs.is_xattr()
            {
                Zap::open(os.object(id, Io::WAIT)?, Io::WAIT)?.for_each(|e| {
                    expected.extend(e.value.first_u64().map(|v| v & ((1 << 48) - 1)));
                    Ok(())
                })?;
            }
            queued += 1;
        }
    }
    if let Some(master) = props.sa_attrs {
        expected.insert(master.0);
        let zap = Zap::open(os.object(master, Io::WAIT)?, Io::WAIT)?;
        for table in ["REGISTRY", "LAYOUTS"] {
            expected.extend(zap.lookup_u64(table)?);
        }
    }
    Ok((all.difference(&expected).copied().collect(), queued))
}
