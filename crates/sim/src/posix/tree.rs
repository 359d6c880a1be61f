//! A simple model of a POSIX tree: the required result of each operation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{ErrorKind, ObjectId};
use zpl::rw::Rename;

use super::ops::{NodeKind, PosixOp, bytes};

/// A file of the model, by an id that is never reused.
pub type Id = usize;
/// The top directory of a tree.
pub const TOP: Id = 0;

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileBody {
    /// Bytes.
    File(Arc<Vec<u8>>),
    /// Names.
    Dir(BTreeMap<String, Id>),
    /// A target.
    Link(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// Left behind by a rename.
    Whiteout,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its content.
    pub body: FileBody,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names; for a directory 2 and its subdirectories; 0 when it was removed.
    pub links: u32,
    /// A directory's parent.
    pub parent: Id,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Arc<Vec<u8>>>,
    /// Its object.
    pub object: ObjectId,
    /// It is open.
    pub held: bool,
    /// It was made without a name, and may get one.
    pub linkable: bool,
}

impl File {
    fn new(body: FileBody, mode: u32, parent: Id) -> File {
        let links = if matches!(body, FileBody::Dir(_)) { 2 } else { 1 };
        File {
            body,
            mode,
            uid: 0,
            gid: 0,
            links,
            parent,
            xattrs: BTreeMap::new(),
            object: ObjectId(0),
            held: false,
            linkable: false,
        }
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        matches!(self.body, FileBody::Dir(_))
    }
}

/// All files below one directory, and those without names that are open.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The files.
    pub files: BTreeMap<Id, File>,
    next: Id,
}

type NameResult = Result<Option<Id>, ErrorKind>;

impl Tree {
    /// An empty directory, the object `top`.
    pub fn new(top: ObjectId) -> Tree {
        let mut root = File::new(FileBody::Dir(BTreeMap::new()), 0o755, TOP);
        root.object = top;
        Tree { files: BTreeMap::from([(TOP, root)]), next: 1 }
    }

    /// An existing file.
    pub fn file(&self, id: Id) -> &File {
        &self.files[&id]
    }

    /// The object of a file; object 0 if the file was freed.
    pub fn object(&self, id: Id) -> ObjectId {
        self.files.get(&id).map_or(ObjectId(0), |f| f.object)
    }

    fn edit(&mut self, id: Id) -> Result<&mut File, ErrorKind> {
        self.files.get_mut(&id).ok_or(ErrorKind::NotFound)
    }

    fn names(&mut self, dir: Id) -> Result<&mut BTreeMap<String, Id>, ErrorKind> {
        let file = self.edit(dir)?;
        if file.links == 0 {
            return Err(ErrorKind::NotFound);
        }
        match &mut file.body {
            FileBody::Dir(names) => Ok(names),
            _ => Err(ErrorKind::NotDir),
        }
    }

    /// The file that a name refers to.
    pub fn find(&self, dir: Id, name: &str) -> Option<Id> {
        match &self.files.get(&dir)?.body {
            FileBody::Dir(names) => names.get(name).copied(),
            _ => None,
        }
    }

    /// Directories that have a name.
    pub fn dirs(&self) -> Vec<Id> {
        let there = self.files.iter().filter(|(_, f)| f.is_dir() && f.links > 0);
        there.map(|(id, _)| *id).collect()
    }

    /// Regular files.
    pub fn regular(&self) -> Vec<Id> {
        let all = self.files.iter();
        all.filter(|(_, f)| matches!(f.body, FileBody::File(_))).map(|(id, _)| *id).collect()
    }

    fn add(&mut self, dir: Id, name: &str, file: File) -> NameResult {
        let names = self.names(dir)?;
        if names.contains_key(name) {
            return Err(ErrorKind::Exists);
        }
        let id = self.next;
        self.names(dir)?.insert(name.to_owned(), id);
        if file.is_dir() {
            self.edit(dir)?.links += 1;
        }
        self.next += 1;
        self.files.insert(id, file);
        Ok(Some(id))
    }

    /// Removes one link of a file.
    fn unnamed(&mut self, id: Id) -> Result<(), ErrorKind> {
        let file = self.edit(id)?;
        file.links = if file.is_dir() { 0 } else { file.links - 1 };
        self.forget(id);
        Ok(())
    }

    fn forget(&mut self, id: Id) {
        if self.files.get(&id).is_some_and(|f| f.links == 0 && !f.held) {
            self.files.remove(&id);
        }
    }

    fn is_below(&self, mut id: Id, dir: Id) -> bool {
        while id != dir {
            if id == TOP {
                return false;
            }
            id = self.file(id).parent;
        }
        true
    }

    fn remove(&mut self, dir: Id, name: &str, want_dir: bool) -> NameResult {
        let id = *self.names(dir)?.get(name).ok_or(ErrorKind::NotFound)?;
        match (&self.file(id).body, want_dir) {
            (FileBody::Dir(_), false) => return Err(ErrorKind::IsDir),
            (FileBody::Dir(names), true) if !names.is_empty() => return Err(ErrorKind::NotEmpty),
            (FileBody::Dir(_), true) => self.edit(dir)?.links -= 1,
            (_, true) => return Err(ErrorKind::NotDir),
            _ => {}
        }
        self.names(dir)?.remove(name);
        self.unnamed(id)?;
        Ok(None)
    }

    fn rename(&mut self, from: (Id, &str), to: (Id, &str), how: Rename) -> NameResult {
        self.names(to.0)?;
        let id = *self.names(from.0)?.get(from.1).ok_or(ErrorKind::NotFound)?;
        let target = self.find(to.0, to.1);
        match (how, target) {
            (Rename::NoReplace, Some(_)) => return Err(ErrorKind::Exists),
            (Rename::Exchange, None) => return Err(ErrorKind::NotFound),
            (_, Some(t)) if t == id => return Ok(None),
            _ => {}
        }
        let is_dir = |tree: &Tree, id: Id| tree.file(id).is_dir();
        if is_dir(self, id) && self.is_below(to.0, id) {
            return Err(ErrorKind::Invalid);
        }
        if how == Rename::Exchange
            && let Some(t) = target
        {
            if is_dir(self, t) && self.is_below(from.0, t) {
                return Err(ErrorKind::Invalid);
            }
            self.put(from, t)?;
            self.put(to, id)?;
            return Ok(None);
        }
        if let Some(t) = target {
            self.remove(to.0, to.1, is_dir(self, id)).map(|_| t)?;
        }
        self.names(from.0)?.remove(from.1);
        if is_dir(self, id) {
            self.edit(from.0)?.links -= 1;
            self.edit(to.0)?.links += 1;
        }
        self.names(to.0)?.insert(to.1.to_owned(), id);
        self.edit(id)?.parent = to.0;
        match how {
            Rename::Whiteout => self.add(from.0, from.1, File::new(FileBody::Whiteout, 0, from.0)),
            _ => Ok(None),
        }
    }

    /// Makes a name refer to `id`; counts subdirectories.
    fn put(&mut self, (dir, name): (Id, &str), id: Id) -> Result<(), ErrorKind> {
        let old = self.names(dir)?.insert(name.to_owned(), id);
        let was_dir = old.is_some_and(|old| self.files.get(&old).is_some_and(File::is_dir));
        let is_dir = self.file(id).is_dir();
        let of = self.edit(dir)?;
        of.links = of.links + u32::from(is_dir) - u32::from(was_dir);
        self.edit(id)?.parent = dir;
        Ok(())
    }

    fn content(&mut self, id: Id) -> Result<&mut Vec<u8>, ErrorKind> {
        match &mut self.edit(id)?.body {
            FileBody::File(data) => Ok(Arc::make_mut(data)),
            FileBody::Dir(_) => Err(ErrorKind::IsDir),
            _ => Err(ErrorKind::Invalid),
        }
    }

    fn write(&mut self, id: Id, at: usize, data: &[u8]) -> Result<(), ErrorKind> {
        let content = self.content(id)?;
        let end = at + data.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[at..end].copy_from_slice(data);
        Ok(())
    }

    /// Applies an operation; returns the file that it made, if any, whose object is set
    /// later.
    ///
    /// # Errors
    /// As in POSIX: nothing has changed.
    pub fn apply(&mut self, op: &PosixOp) -> NameResult {
        match op {
            PosixOp::Make { dir, name, kind, mode } => {
                let body = match kind {
                    NodeKind::File => FileBody::File(Arc::default()),
                    NodeKind::Dir => FileBody::Dir(BTreeMap::new()),
                    NodeKind::Fifo => FileBody::Fifo,
                    NodeKind::Link(seed, len) => FileBody::Link(super::ops::target(*seed, *len)),
                };
                let mode = if matches!(kind, NodeKind::Link(..)) { 0o777 } else { *mode };
                return self.add(*dir, name, File::new(body, mode, *dir));
            }
            PosixOp::Link { id, dir, name } => {
                if self.names(*dir)?.contains_key(name) {
                    return Err(ErrorKind::Exists);
                }
                let file = self.edit(*id)?;
                if file.is_dir() {
                    return Err(ErrorKind::NotPermitted);
                }
                if file.links == 0 && !file.linkable {
                    return Err(ErrorKind::NotFound);
                }
                file.links += 1;
                file.linkable = false;
                self.names(*dir)?.insert(name.clone(), *id);
            }
            PosixOp::Unlink { dir, name } => return self.remove(*dir, name, false),
            PosixOp::Rmdir { dir, name } => return self.remove(*dir, name, true),
            PosixOp::Rename { from, name, to, new, how } => {
                return self.rename((*from, name), (*to, new), *how);
            }
            PosixOp::Write { id, at, len, seed } => self.write(*id, *at, &bytes(*seed, *len))?,
            PosixOp::Append { id, len, seed } => {
                let end = self.content(*id)?.len();
                self.write(*id, end, &bytes(*seed, *len))?;
            }
            PosixOp::Truncate { id, size } => self.content(*id)?.resize(*size, 0),
            PosixOp::Punch { id, at, len } => {
                let content = self.content(*id)?;
                let size = content.len();
                content[(*at).min(size)..(at + len).min(size)].fill(0);
            }
            PosixOp::Copy { from, at, to, offset, len } => {
                let source = self.content(*from)?;
                let end = (at + len).min(source.len());
                let piece = source.get(*at..end).unwrap_or_default().to_vec();
                if from == to && *at < offset + piece.len() && *offset < at + piece.len() {
                    return Err(ErrorKind::Invalid);
                }
                if !piece.is_empty() {
                    self.write(*to, *offset, &piece)?;
                }
            }
            PosixOp::SetMode { id, mode } => self.edit(*id)?.mode = *mode,
            PosixOp::SetOwner { id, uid, gid } => {
                let file = self.edit(*id)?;
                (file.uid, file.gid) = (*uid, *gid);
            }
            PosixOp::SetXattr { id, name, len, seed } => {
                let value = Arc::new(bytes(*seed, *len));
                self.edit(*id)?.xattrs.insert(name.clone(), value);
            }
            PosixOp::RemoveXattr { id, name } => {
                self.edit(*id)?.xattrs.remove(name).ok_or(ErrorKind::NoAttribute)?;
            }
            PosixOp::Hold { id } => self.edit(*id)?.held = true,
            PosixOp::Release { id } => {
                self.edit(*id)?.held = false;
                self.forget(*id);
            }
            PosixOp::Temporary { dir, mode } => {
                self.names(*dir)?;
                let mut file = File::new(FileBody::File(Arc::default()), *mode, *dir);
                (file.links, file.held, file.linkable) = (0, true, true);
                let id = self.next;
                self.next += 1;
                self.files.insert(id, file);
                return Ok(Some(id));
            }
            PosixOp::Accessed { .. }
            | PosixOp::Rewrite { .. }
            | PosixOp::Fsync { .. }
            | PosixOp::SyncAll => {}
        }
        Ok(None)
    }

    /// Files with names, by path.
    pub fn paths(&self) -> BTreeMap<String, Id> {
        let mut out = BTreeMap::new();
        let mut todo = vec![(String::new(), TOP)];
        while let Some((path, id)) = todo.pop() {
            if let FileBody::Dir(names) = &self.file(id).body {
                todo.extend(names.iter().map(|(n, id)| (format!("{path}/{n}"), *id)));
            }
            out.insert(path, id);
        }
        out
    }

    /// Files that have names.
    pub fn named(&self) -> BTreeSet<Id> {
        self.paths().into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(tree: &mut Tree, dir: Id, name: &str, kind: NodeKind) -> Id {
        tree.apply(&PosixOp::Make { dir, name: name.into(), kind, mode: 0o644 }).unwrap().unwrap()
    }

    #[test]
    fn links_are_counted() {
        let mut tree = Tree::new(ObjectId(7));
        let d = make(&mut tree, TOP, "d", NodeKind::Dir);
        let e = make(&mut tree, d, "e", NodeKind::Dir);
        let f = make(&mut tree, d, "f", NodeKind::File);
        assert_eq!((tree.file(TOP).links, tree.file(d).links), (3, 3));
        let mv = |tree: &mut Tree, from, name: &str, to, new: &str, how| {
            tree.apply(&PosixOp::Rename { from, name: name.into(), to, new: new.into(), how })
        };
        assert_eq!(mv(&mut tree, TOP, "d", e, "x", Rename::Plain), Err(ErrorKind::Invalid));
        mv(&mut tree, d, "e", TOP, "e", Rename::Plain).unwrap();
        assert_eq!((tree.file(TOP).links, tree.file(d).links), (4, 2));
        mv(&mut tree, TOP, "e", d, "f", Rename::Exchange).unwrap();
        assert_eq!((tree.file(TOP).links, tree.file(d).links), (3, 3));
        mv(&mut tree, TOP, "e", d, "w", Rename::Whiteout).unwrap();
        assert_eq!(tree.file(tree.find(TOP, "e").unwrap()).body, FileBody::Whiteout);
        tree.apply(&PosixOp::Hold { id: f }).unwrap();
        tree.apply(&PosixOp::Unlink { dir: d, name: "w".into() }).unwrap();
        assert_eq!((tree.file(f).links, tree.named().contains(&f)), (0, false));
        tree.apply(&PosixOp::Release { id: f }).unwrap();
        assert!(!tree.files.contains_key(&f));
        assert_eq!(tree.paths().len(), 4);
    }
}
