//! The description from which a tree is built: the configuration of each vdev.
//!
//! The layer above converts label and MOS configurations into this type; nothing here
//! parses disk bytes. Values are still untrusted: [`crate::Tree::build`] checks depth,
//! counts and geometry.

use base::limits::{VDEV_COUNT_MAX, VDEV_DEPTH_MAX};
use base::{Error, Guid, Result, Txg};

use crate::draid::DraidParams;
use crate::parity::DATA_COLUMNS_MAX;

/// Progress of a running raidz expansion (chapter 02 §10.7, chapter 08 §E.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reflow {
    /// Linear byte offset: sectors below are at the new location.
    pub offset: u64,
    /// The scratch state of the uberblock is VALID: rows below `offset` are read from
    /// the scratch area.
    pub scratch_valid: bool,
}

/// The type of a vdev (chapter 01 §4.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VdevKind {
    /// The root; its children are the top-level vdevs in order of their ids.
    Root,
    /// A mirror: all children hold the same data.
    Mirror,
    /// A mirror of old and new while a replacement resilvers.
    Replacing,
    /// A mirror of a failed leaf and the spare that stands in for it.
    Spare,
    /// Parity over the children.
    Raidz {
        /// Parity columns, 1..=3.
        nparity: u8,
        /// First births with one more column, ascending, one for each completed
        /// expansion.
        expand_txgs: Vec<Txg>,
        /// A running expansion: its progress when the first snapshot was made.
        reflow: Option<Reflow>,
    },
    /// Parity over permuted children with distributed spares.
    Draid(DraidParams),
    /// A block device.
    Disk,
    /// A regular file.
    File,
    /// A distributed spare: space of a dRAID that acts as a leaf.
    DraidSpare {
        /// The dRAID's guid.
        draid: Guid,
        /// Index among the dRAID's spares.
        spare_id: u32,
    },
    /// A device that the importer could not name.
    Missing,
    /// A removed log vdev: its id stays in use.
    Hole,
    /// A removed data vdev: addresses are translated.
    Indirect,
}

impl VdevKind {
    /// Whether it is a leaf with its own device.
    pub fn is_device(&self) -> bool {
        matches!(self, VdevKind::Disk | VdevKind::File)
    }

    /// Whether all children hold the same bytes.
    pub fn is_mirror_like(&self) -> bool {
        matches!(self, VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare)
    }

    /// The format's type string.
    pub fn name(&self) -> &'static str {
        match self {
            VdevKind::Root => "root",
            VdevKind::Mirror => "mirror",
            VdevKind::Replacing => "replacing",
            VdevKind::Spare => "spare",
            VdevKind::Raidz { .. } => "raidz",
            VdevKind::Draid(_) => "draid",
            VdevKind::Disk => "disk",
            VdevKind::File => "file",
            VdevKind::DraidSpare { .. } => "dspare",
            VdevKind::Missing => "missing",
            VdevKind::Hole => "hole",
            VdevKind::Indirect => "indirect",
        }
    }
}

/// The allocation class of a top-level vdev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AllocClass {
    /// Ordinary data and metadata.
    #[default]
    Normal,
    /// Intent logs.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
}

/// Reasons recorded in the configuration for not opening a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Persistent {
    /// Taken offline by the administrator.
    pub offline: bool,
    /// Declared faulted.
    pub faulted: bool,
    /// Declared degraded.
    pub degraded: bool,
    /// Physically removed.
    pub removed: bool,
    /// Not present when the configuration was written.
    pub not_present: bool,
    /// Faulted because of a request, not because of errors.
    pub external: bool,
    /// Faulted because it had too many errors.
    pub err_exceeded: bool,
}

impl Persistent {
    /// Whether one of the flags keeps the leaf closed.
    pub fn keeps_closed(self) -> bool {
        self.offline || self.faulted || self.removed
    }
}

/// One vdev of a configuration, with its children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The type.
    pub kind: VdevKind,
    /// Index below its parent.
    pub id: u64,
    /// Unique id; 0 for holes.
    pub guid: Guid,
    /// Children in order.
    pub children: Vec<Spec>,
    /// log2 of the sector size; meaningful on top-level vdevs, inherited below.
    pub ashift: u32,
    /// Bytes of allocatable space of a top-level vdev.
    pub asize: u64,
    /// Minimum allocatable bytes for which a top-level vdev is opened (chapter 01 §1);
    /// 0 is not checked.
    pub min_asize: u64,
    /// Holds intent logs only.
    pub is_log: bool,
    /// Allocation class.
    pub class: AllocClass,
    /// Path of a leaf.
    pub path: Option<String>,
    /// Persistent flags of a leaf.
    pub persistent: Persistent,
}

impl Spec {
    /// A vdev of `kind` without children; all other fields are zero.
    pub fn new(kind: VdevKind, id: u64, guid: Guid) -> Spec {
        Spec {
            kind,
            id,
            guid,
            children: Vec::new(),
            ashift: 0,
            asize: 0,
            min_asize: 0,
            is_log: false,
            class: AllocClass::Normal,
            path: None,
            persistent: Persistent::default(),
        }
    }

    /// Sets the children.
    #[must_use]
    pub fn with_children(mut self, children: Vec<Spec>) -> Spec {
        self.children = children;
        self
    }

    /// Sets the sector shift and the allocatable bytes of a top-level vdev.
    #[must_use]
    pub fn with_space(mut self, ashift: u32, asize: u64) -> Spec {
        (self.ashift, self.asize) = (ashift, asize);
        self
    }

    /// Checks the shape and geometry of this vdev and everything below it.
    ///
    /// # Errors
    /// `Limit` for depth or count, `Corrupt` for impossible geometry, `Unsupported`
    /// for geometry that this version cannot read.
    pub fn check(&self) -> Result<()> {
        let mut count = 0;
        self.check_below(0, None, &mut count)
    }

    fn check_below(&self, depth: usize, top: Option<&Spec>, count: &mut usize) -> Result<()> {
        *count += 1;
        if depth > VDEV_DEPTH_MAX || *count > VDEV_COUNT_MAX {
            return Err(Error::limit("the vdev tree is too deep or too large").on_vdev(self.guid));
        }
        self.check_kind(depth, top.unwrap_or(self)).map_err(|e| e.on_vdev(self.guid))?;
        for child in &self.children {
            let top = if depth == 0 { child } else { top.unwrap_or(self) };
            child.check_below(depth + 1, Some(top), count)?;
        }
        Ok(())
    }

    fn check_kind(&self, depth: usize, top: &Spec) -> Result<()> {
        let n = self.children.len();
        let bad = |why: &str| Err(Error::corrupt(format!("{} vdev {why}", self.kind.name())));
        if (depth == 0) != (self.kind == VdevKind::Root) {
            return bad("where a root belongs, or the other way round");
        }
        let has_space = !matches!(self.kind, VdevKind::Root | VdevKind::Hole | VdevKind::Missing);
        if has_space && !(9..=30).contains(&top.ashift) {
            return bad(&format!("has the impossible ashift {}", top.ashift));
        }
        match &self.kind {
            VdevKind::Root => Ok(()),
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare if n == 0 => {
                bad("has no children")
            }
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => Ok(()),
            VdevKind::Raidz { nparity, expand_txgs, reflow } => {
                let history = expand_txgs.len() + usize::from(reflow.is_some());
                let original = n.checked_sub(history);
                if !(1..=3).contains(nparity) || n > 255 {
                    return bad("has impossible parity or width");
                }
                if original.is_none_or(|w| w <= usize::from(*nparity)) {
                    return bad("has too few children for its parity and expansions");
                }
                if n - usize::from(*nparity) > DATA_COLUMNS_MAX {
                    return Err(Error::unsupported("a raidz vdev is too wide"));
                }
                if !expand_txgs.is_sorted() {
                    return bad("has expansion txgs out of order");
                }
                Ok(())
            }
            VdevKind::Draid(params) => params.check(n, top.ashift),
            _ if n != 0 => bad("has children although it is a leaf"),
            _ => Ok(()),
        }
    }
}
