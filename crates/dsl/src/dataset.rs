//! Datasets: live heads and snapshots (chapter 04 §3).

use std::sync::Arc;

use base::{Error, Result};
use dmu::{Io, Objset};
use ondisk::BlkPtr;
use ondisk::dslphys::{BookmarkPhys, DeadlistPhys, DslDatasetPhys};
use ondisk::objtype::ObjType;
use zio::Zio;

use crate::dir::{DslDir, zap_attribute};
use crate::mos::Mos;

/// A head or a snapshot.
#[derive(Clone)]
pub struct DslDataset {
    dir: DslDir,
    object: u64,
    name: Arc<str>,
    phys: DslDatasetPhys,
}

/// Opens the object set with this root.
type ObjsetOpener<'a> = &'a dyn Fn(Arc<Zio>, BlkPtr, Io) -> Result<Arc<Objset>>;

/// A bookmark of a dataset (chapter 04 §11.3).
#[derive(Clone, Debug)]
pub struct Bookmark {
    /// Full name, `pool/fs#mark`.
    pub name: String,
    /// The structure.
    pub phys: BookmarkPhys,
}

impl DslDataset {
    pub(crate) fn open(dir: DslDir, object: u64, name: Arc<str>) -> Result<DslDataset> {
        let phys = Self::read_phys(dir.mos(), object)?;
        Ok(DslDataset { dir, object, name, phys })
    }

    /// The structure of any dataset object.
    ///
    /// # Errors
    /// `Corrupt` when the object is no dataset; those of reading it.
    pub fn read_phys(mos: &Mos, object: u64) -> Result<DslDatasetPhys> {
        let handle = mos.object(object)?;
        let dnode = handle.dnode();
        if dnode.bonus_type != ObjType::DSL_DATASET {
            return Err(Error::corrupt("object is not a dataset").in_object(handle.id()));
        }
        DslDatasetPhys::parse(&dnode.bonus, dnode.endian).map_err(|e| e.in_object(handle.id()))
    }

    /// Full name; a snapshot's contains `@`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its object id in the MOS.
    pub fn object(&self) -> u64 {
        self.object
    }

    /// The structure.
    pub fn phys(&self) -> &DslDatasetPhys {
        &self.phys
    }

    /// The directory it belongs to.
    pub fn dir(&self) -> &DslDir {
        &self.dir
    }

    /// Whether it is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.phys.is_snapshot()
    }

    /// Snapshots of this head, oldest first.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn snapshots(&self) -> Result<Vec<DslDataset>> {
        let mut out = Vec::new();
        for entry in self.dir.mos().zap_entries(self.phys.snapnames_zapobj)? {
            let object =
                entry.value.as_u64().ok_or_else(|| Error::corrupt("snapshot is not a number"))?;
            let name = format!("{}@{}", self.name, String::from_utf8_lossy(&entry.name));
            out.push(DslDataset::open(self.dir.clone(), object, name.into())?);
        }
        out.sort_by(|a, b| {
            let key = |d: &DslDataset| (d.phys.creation_txg, d.object);
            key(a).cmp(&key(b))
        });
        Ok(out)
    }

    /// The snapshot of that name (without dataset and `@`).
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn snapshot(&self, name: &str) -> Result<Option<DslDataset>> {
        if self.phys.snapnames_zapobj == 0 {
            return Ok(None);
        }
        let zap = self.dir.mos().zap(self.phys.snapnames_zapobj)?;
        let how =
            if self.phys.is_case_insensitive() { dmu::Match::Normalize } else { dmu::Match::Exact };
        let Some(entry) = zap.lookup_as(name.as_bytes(), how)? else { return Ok(None) };
        let object =
            entry.value.as_u64().ok_or_else(|| Error::corrupt("snapshot is not a number"))?;
        let full = format!("{}@{}", self.name, String::from_utf8_lossy(&entry.name));
        DslDataset::open(self.dir.clone(), object, full.into()).map(Some)
    }

    /// Bookmarks of this head, by creation txg and name.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn bookmarks(&self) -> Result<Vec<Bookmark>> {
        let Some(zap) = self.attribute("com.delphix:bookmarks")?.and_then(|v| v.first().copied())
        else {
            return Ok(Vec::new());
        };
        let mut out = Vec::new();
        for entry in self.dir.mos().zap_entries(zap)? {
            let words = entry
                .value
                .u64s()
                .ok_or_else(|| Error::corrupt("bookmark is not an array of numbers"))?;
            out.push(Bookmark {
                name: format!("{}#{}", self.name, String::from_utf8_lossy(&entry.name)),
                phys: BookmarkPhys::from_words(&words)?,
            });
        }
        out.sort_by(|a, b| (a.phys.creation_txg, &a.name).cmp(&(b.phys.creation_txg, &b.name)));
        Ok(out)
    }

    /// Numbers attached to a zapified dataset under `key`.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn attribute(&self, key: &str) -> Result<Option<Vec<u64>>> {
        zap_attribute(self.dir.mos(), self.object, key)
    }

    /// The object set. `None` for `$ORIGIN`, which has no content.
    ///
    /// # Errors
    /// Those of reading the object set block; `Corrupt` when it is none.
    pub fn open_objset(&self) -> Result<Option<Arc<Objset>>> {
        self.open_by(&|zio, root, io| Objset::open(zio, self.object, root, io))
    }

    /// As [`DslDataset::open_objset`]; of an encrypted dataset nothing is decrypted
    /// ([`Objset::open_stored`]).
    ///
    /// # Errors
    /// As [`DslDataset::open_objset`].
    pub fn open_stored_objset(&self) -> Result<Option<Arc<Objset>>> {
        self.open_by(&|zio, root, io| Objset::open_stored(zio, self.object, root, io))
    }

    fn open_by(&self, open: ObjsetOpener<'_>) -> Result<Option<Arc<Objset>>> {
        if self.phys.bp.is_hole() {
            return Ok(None);
        }
        let mos = self.dir.mos();
        let zio = mos.objset().zio();
        loop {
            let moves = zio.roots().moves();
            let opened = open(Arc::clone(zio), self.present_root(), mos.io());
            // Blocks may have moved meanwhile (`zio::RootHolders`).
            if zio.roots().moves() == moves {
                return opened.map(Some).map_err(|e| e.in_dataset(&self.name));
            }
        }
    }

    /// The root of its object set. That of a snapshot may have moved since this was read.
    fn present_root(&self) -> BlkPtr {
        let now = Self::read_phys(self.dir.mos(), self.object);
        let same = now.ok().filter(|now| now.guid == self.phys.guid && now.is_snapshot());
        same.filter(|_| self.phys.is_snapshot()).map_or(self.phys.bp, |now| now.bp)
    }

    /// Totals of the deadlist: used, compressed, uncompressed bytes.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn deadlist_totals(&self) -> Result<DeadlistPhys> {
        let mos = self.dir.mos();
        if self.phys.deadlist_obj == 0 {
            return Ok(DeadlistPhys::default());
        }
        let object = mos.object(self.phys.deadlist_obj)?;
        let dnode = object.dnode();
        if dnode.object_type == ObjType::BPOBJ {
            // Pools older than version 26: the deadlist is a plain bpobj.
            let phys = ondisk::bpobj::BpobjPhys::parse(&dnode.bonus, dnode.endian)?;
            return Ok(DeadlistPhys { used: phys.bytes, comp: phys.comp, uncomp: phys.uncomp });
        }
        DeadlistPhys::parse(&dnode.bonus, dnode.endian)
    }

    /// The structure of the previous snapshot, through origins.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn previous(&self) -> Result<Option<DslDatasetPhys>> {
        match self.phys.prev_snap_obj {
            0 => Ok(None),
            object => Self::read_phys(self.dir.mos(), object).map(Some),
        }
    }

    /// The previous snapshot, through origins, without its name.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn previous_dataset(&self) -> Result<Option<DslDataset>> {
        match self.phys.prev_snap_obj {
            0 => Ok(None),
            object => {
                let phys = Self::read_phys(self.dir.mos(), object)?;
                // Only the MOS of this directory is used.
                let (dir, name) = (self.dir.clone(), Arc::clone(&self.name));
                Ok(Some(DslDataset { dir, object, name, phys }))
            }
        }
    }

    /// Bytes referenced here that were written since the previous snapshot
    /// (chapter 04 §5.7).
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn written(&self) -> Result<u64> {
        let before = self.previous()?.map_or(0, |p| p.referenced_bytes);
        let dead = self.deadlist_totals()?.used;
        Ok(self.phys.referenced_bytes.wrapping_sub(before).wrapping_add(dead))
    }
}
