//! The description a tree is built from: what the configuration says of each vdev.
//!
//! The layer above converts label and MOS configurations into this type; nothing
//! here parses disk bytes. Values are still untrusted: [`crate::Tree::build`] checks
//! depth, counts and geometry.

use base::limits::{VDEV_COUNT_MAX, VDEV_DEPTH_MAX};
use base::{Error, Guid, Result, Txg};

use crate::draid::DraidParams;
use crate::parity::DATA_COLUMNS_MAX;

/// Progress of a running raidz expansion (chapter 02 §10.7, chapter 08 §E.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reflow {
    /// Linear byte offset: sectors below are at the new location.
    pub offset: u64,
    /// The uberblock's scratch state is VALID: rows below `offset` are read from
    /// the scratch area.
    pub scratch_valid: bool,
}

/// What a vdev is (chapter 01 §4.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The root; its children are the top-level vdevs in order of their ids.
    Root,
    /// All children hold the same.
    Mirror,
    /// A mirror of old and new while a replacement resilvers.
    Replacing,
    /// A mirror of a failed leaf and the spare that stands in for it.
    Spare,
    /// Parity over the children.
    Raidz {
        /// Parity columns, 1..=3.
        nparity: u8,
        /// First births with one column more, ascending, one for each completed
        /// expansion.
        expand_txgs: Vec<Txg>,
        /// A running expansion.
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
        /// Which of its spares.
        spare_id: u32,
    },
    /// A device the importer could not name.
    Missing,
    /// A removed log: its id stays used.
    Hole,
    /// A removed data vdev: addresses are translated.
    Indirect,
}

impl Kind {
    /// Whether it is a leaf with a device of its own.
    pub fn is_device(&self) -> bool {
        matches!(self, Kind::Disk | Kind::File)
    }

    /// Whether all children hold the same bytes.
    pub fn is_mirror_like(&self) -> bool {
        matches!(self, Kind::Mirror | Kind::Replacing | Kind::Spare)
    }

    /// The format's type string.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Root => "root",
            Kind::Mirror => "mirror",
            Kind::Replacing => "replacing",
            Kind::Spare => "spare",
            Kind::Raidz { .. } => "raidz",
            Kind::Draid(_) => "draid",
            Kind::Disk => "disk",
            Kind::File => "file",
            Kind::DraidSpare { .. } => "dspare",
            Kind::Missing => "missing",
            Kind::Hole => "hole",
            Kind::Indirect => "indirect",
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

/// Why a leaf is not to be opened, as recorded in the configuration.
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
}

/// One vdev of a configuration, with its children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// What it is.
    pub kind: Kind,
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
    /// Bytes of allocatable space without which a top-level vdev cannot be opened
    /// (chapter 01 §1); 0 is not checked.
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
    /// A vdev of `kind` without children, every other field zero.
    pub fn new(kind: Kind, id: u64, guid: Guid) -> Spec {
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

    /// With these children.
    #[must_use]
    pub fn with_children(mut self, children: Vec<Spec>) -> Spec {
        self.children = children;
        self
    }

    /// With a top-level vdev's sector shift and allocatable bytes.
    #[must_use]
    pub fn with_space(mut self, ashift: u32, asize: u64) -> Spec {
        (self.ashift, self.asize) = (ashift, asize);
        self
    }

    /// Checks shape and geometry of the whole tree below.
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
        if (depth == 0) != (self.kind == Kind::Root) {
            return bad("where a root belongs, or the other way round");
        }
        let has_space = !matches!(self.kind, Kind::Root | Kind::Hole | Kind::Missing);
        if has_space && !(9..=30).contains(&top.ashift) {
            return bad(&format!("has the impossible ashift {}", top.ashift));
        }
        match &self.kind {
            Kind::Root => Ok(()),
            Kind::Mirror | Kind::Replacing | Kind::Spare if n == 0 => bad("has no children"),
            Kind::Mirror | Kind::Replacing | Kind::Spare => Ok(()),
            Kind::Raidz { nparity, expand_txgs, reflow } => {
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
                    return bad("has expansion groups out of order");
                }
                Ok(())
            }
            Kind::Draid(params) => params.check(n, top.ashift),
            _ if n != 0 => bad("has children although it is a leaf"),
            _ => Ok(()),
        }
    }
}
