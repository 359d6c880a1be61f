//! Dataset directories (chapter 04 §2).

use std::collections::HashSet;
use std::sync::Arc;

use base::limits::DATASET_DEPTH_MAX;
use base::{Error, Result};
use ondisk::dslphys::DslDirPhys;
use ondisk::objtype::ObjType;

use crate::dataset::DslDataset;
use crate::mos::Mos;

/// A directory of the dataset tree: one file system or volume with its
/// snapshots, or one of the pool's own (`$MOS`, `$FREE`, `$ORIGIN`).
/// Cheap to clone.
#[derive(Clone)]
pub struct DslDir(Arc<DirInner>);

struct DirInner {
    mos: Mos,
    object: u64,
    /// Full name, pool first.
    name: Arc<str>,
    /// The directory above; properties are inherited along these.
    parent: Option<DslDir>,
    /// Directories above.
    depth: usize,
    phys: DslDirPhys,
}

impl DslDir {
    /// The pool's root directory; `pool` is the name of the pool.
    ///
    /// # Errors
    /// `Corrupt` when the MOS has none; those of reading it.
    pub fn root(mos: &Mos, pool: &str) -> Result<DslDir> {
        let object = mos
            .lookup("root_dataset")?
            .ok_or_else(|| Error::corrupt("the pool has no root dataset"))?;
        Self::open(mos, object, pool.into(), None)
    }

    fn open(mos: &Mos, object: u64, name: Arc<str>, parent: Option<DslDir>) -> Result<DslDir> {
        let handle = mos.object(object)?;
        let dnode = handle.dnode();
        if dnode.bonus_type != ObjType::DSL_DIR {
            return Err(Error::corrupt("object is not a dataset directory").in_object(handle.id()));
        }
        let phys = DslDirPhys::parse(&dnode.bonus, dnode.endian)?;
        let depth = parent.as_ref().map_or(0, |p| p.0.depth + 1);
        Ok(DslDir(Arc::new(DirInner { mos: mos.clone(), object, name, parent, depth, phys })))
    }

    /// Full name, pool first.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its object id in the MOS.
    pub fn object(&self) -> u64 {
        self.0.object
    }

    /// The structure.
    pub fn phys(&self) -> &DslDirPhys {
        &self.0.phys
    }

    /// The MOS that contains it.
    pub fn mos(&self) -> &Mos {
        &self.0.mos
    }

    /// The directories above, nearest first.
    pub fn ancestors(&self) -> impl Iterator<Item = &DslDir> {
        std::iter::successors(self.parent(), |dir| dir.parent())
    }

    /// The directory above.
    pub fn parent(&self) -> Option<&DslDir> {
        self.0.parent.as_ref()
    }

    fn child_at(&self, name: &str, object: u64) -> Result<DslDir> {
        if self.0.depth + 1 >= DATASET_DEPTH_MAX {
            return Err(Error::limit("datasets nested too deep").in_dataset(self.name()));
        }
        let full = format!("{}/{name}", self.name()).into();
        let child = Self::open(self.mos(), object, full, Some(self.clone()))?;
        // Each directory has one parent. So no directory is reached by two paths, and a
        // damaged tree cannot branch without end.
        if child.phys().parent_obj != self.object() {
            let e = Error::corrupt("a dataset is not the child of its parent");
            return Err(e.in_dataset(child.name()));
        }
        Ok(child)
    }

    /// The full name of a directory object, found by ascending to the root; `None` for one
    /// that is not below the root.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn name_of(mos: &Mos, object: u64, pool: &str) -> Result<Option<String>> {
        let mut parts = Vec::new();
        let mut at = object;
        for _ in 0..DATASET_DEPTH_MAX {
            let dir = Self::open(mos, at, "".into(), None)?;
            let above = dir.phys().parent_obj;
            if above == 0 {
                parts.push(pool.to_owned());
                parts.reverse();
                return Ok(Some(parts.join("/")));
            }
            let siblings = Self::open(mos, above, "".into(), None)?.child_names()?;
            let Some((name, _)) = siblings.into_iter().find(|(_, o)| *o == at) else {
                return Ok(None);
            };
            parts.push(name);
            at = above;
        }
        Ok(None)
    }

    /// The child of that name; the pool's own (`$...`) included.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn child(&self, name: &str) -> Result<Option<DslDir>> {
        if self.phys().child_dir_zapobj == 0 {
            return Ok(None);
        }
        let children = self.mos().zap(self.phys().child_dir_zapobj)?;
        children.lookup_u64(name)?.map(|object| self.child_at(name, object)).transpose()
    }

    /// Names and objects of all children, the pool's own included, by name.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn child_names(&self) -> Result<Vec<(String, u64)>> {
        let mut out = Vec::new();
        for entry in self.mos().zap_entries(self.phys().child_dir_zapobj)? {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let object = entry
                .value
                .as_u64()
                .ok_or_else(|| Error::corrupt("child of a dataset is not a number"))?;
            out.push((name, object));
        }
        out.sort_unstable();
        let objects: HashSet<u64> = out.iter().map(|(_, object)| *object).collect();
        if objects.len() != out.len() {
            let e = Error::corrupt("two datasets in one directory are the same object");
            return Err(e.in_dataset(self.name()));
        }
        Ok(out)
    }

    /// The children that users see, by name.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn children(&self) -> Result<Vec<DslDir>> {
        let names = self.child_names()?;
        let visible = names.into_iter().filter(|(name, _)| !name.starts_with(['$', '%']));
        visible.map(|(name, object)| self.child_at(&name, object)).collect()
    }

    /// The live dataset; `None` for directories without one (`$MOS`, `$FREE`).
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn head(&self) -> Result<Option<DslDataset>> {
        match self.phys().head_dataset_obj {
            0 => Ok(None),
            object => DslDataset::open(self.clone(), object, Arc::clone(&self.0.name)).map(Some),
        }
    }

    /// The directory of a full dataset name without snapshot; this one must be
    /// the root.
    ///
    /// # Errors
    /// `NotFound`; those of reading the MOS.
    pub fn find(&self, full_name: &str) -> Result<DslDir> {
        let missing = || Error::not_found("dataset does not exist").in_dataset(full_name);
        let mut parts = full_name.split('/');
        if parts.next() != Some(self.name()) {
            return Err(missing());
        }
        let mut dir = self.clone();
        for part in parts {
            if part.starts_with('$') {
                return Err(missing());
            }
            dir = dir.child(part)?.ok_or_else(missing)?;
        }
        Ok(dir)
    }

    /// A number attached to a zapified directory; `None` if there is none.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn attribute(&self, key: &str) -> Result<Option<Vec<u64>>> {
        zap_attribute(self.mos(), self.object(), key)
    }

    /// Whether an encryption key belongs to it.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn crypto_key_object(&self) -> Result<Option<u64>> {
        Ok(self.attribute("com.datto:crypto_key_obj")?.and_then(|v| v.first().copied()))
    }

    /// Calls `f` with this directory and all that users see below, parents first.
    ///
    /// # Errors
    /// Those of reading the MOS and of `f`.
    pub fn walk(&self, f: &mut impl FnMut(&DslDir) -> Result<()>) -> Result<()> {
        f(self)?;
        self.children()?.iter().try_for_each(|child| child.walk(f))
    }

    /// As [`DslDir::walk`], with the pool's own directories and temporary ones.
    ///
    /// # Errors
    /// As [`DslDir::walk`].
    pub fn walk_all(&self, f: &mut impl FnMut(&DslDir) -> Result<()>) -> Result<()> {
        f(self)?;
        for (name, object) in self.child_names()? {
            self.child_at(&name, object)?.walk_all(f)?;
        }
        Ok(())
    }
}

/// Numbers under `key` of a zapified object (chapter 04 §0).
pub(crate) fn zap_attribute(mos: &Mos, object: u64, key: &str) -> Result<Option<Vec<u64>>> {
    let handle = mos.object(object)?;
    if handle.object_type() != ObjType::OTN_ZAP_METADATA {
        return Ok(None);
    }
    let zap = dmu::Zap::open(handle, mos.io())?;
    Ok(zap.lookup(key.as_bytes())?.and_then(|v| v.u64s()))
}
