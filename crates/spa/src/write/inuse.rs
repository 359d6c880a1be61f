//! Other owners of a device that is about to become a vdev (chapter 09 §1.2; the messages
//! are those of OpenZFS 2.3.2).
//!
//! # Departures from OpenZFS
//! * A cache device of an imported pool is refused with `-f`, too: OpenZFS calls that pool
//!   "unknown" and allows it.
//! * A whole disk is used without a partition table of its own, so an existing one is a
//!   reason to require `-f`.

use std::path::Path;
use std::sync::Arc;

use base::{Error, ErrorKind, Guid, Result};
use device::{Device, Engine, FileDevice, Lock, OpenOptions};
use nvlist::NvList;

use super::admit::ExaminedDevice;
use super::signatures::{Foreign, identify};
use super::topology::{LeafFacts, Role};
use crate::labels::LeafLabels;

/// A pool that is open on this system.
#[derive(Clone, Debug, Default)]
pub struct OpenPool {
    /// Its guid.
    pub guid: Guid,
    /// Its name.
    pub name: String,
    /// Guids of its leaves.
    pub leaves: Vec<Guid>,
    /// Guids of its spares.
    pub spares: Vec<Guid>,
    /// Guids of its cache devices.
    pub caches: Vec<Guid>,
}

/// A use of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InUse {
    /// Member of an open pool.
    Active(String),
    /// Member of a pool that was not exported, but is not open here.
    PotentiallyActive(String),
    /// Member of an exported pool.
    Exported(String),
    /// Spare of an open pool.
    Spare(String),
    /// Cache device of an open pool.
    Cache(String),
    /// Another process has it open; with the content, if known.
    Opened(Option<&'static str>),
    /// A file system or the like.
    Content(&'static str),
    /// A GUID partition table.
    Gpt,
    /// An MBR partition table.
    Mbr,
}

impl InUse {
    /// Whether `-f` overrides it.
    pub fn yields_to_force(&self) -> bool {
        !matches!(self, InUse::Active(_) | InUse::Spare(_) | InUse::Cache(_) | InUse::Opened(_))
    }

    /// Whether it prevents the use as `role`: spares may be shared among pools.
    pub(crate) fn forbids(&self, role: Role) -> bool {
        !(matches!(self, InUse::Spare(_)) && role == Role::Spare)
    }

    /// The message of `zpool create` and `zpool add`.
    pub fn line(&self, device: &Path) -> String {
        let d = device.display();
        match self {
            InUse::Active(p) | InUse::Cache(p) => format!("{d} is part of active pool '{p}'"),
            InUse::PotentiallyActive(p) => {
                format!("{d} is part of potentially active pool '{p}'")
            }
            InUse::Exported(p) => format!("{d} is part of exported pool '{p}'"),
            InUse::Spare(p) => format!("{d} is reserved as a hot spare for pool {p}"),
            InUse::Opened(what) => {
                format!("{d} is in use and contains a {} filesystem.", what.unwrap_or("unknown"))
            }
            InUse::Content(what) => format!("{d} contains a filesystem of type '{what}'"),
            InUse::Gpt => format!("{d} contains a partition table of type 'gpt'"),
            InUse::Mbr => format!(
                "{d} does not contain an EFI label but it may contain partition\ninformation in \
                 the MBR."
            ),
        }
    }

    /// The message of `zpool labelclear`; `None` for devices that belong to no pool.
    pub fn labelclear_line(&self, device: &Path) -> Option<String> {
        let d = device.display();
        let member = |what: &str, p: &str| format!("{d} is a member ({what}) of pool \"{p}\"");
        let yielding = |what: &str, p: &str| {
            format!(
                "use '-f' to override the following error:\n{d} is a member of {what} pool \"{p}\""
            )
        };
        Some(match self {
            InUse::Active(p) => member("ACTIVE", p),
            InUse::Spare(p) => member("SPARE", p),
            InUse::Cache(p) => member("L2CACHE", p),
            InUse::PotentiallyActive(p) => yielding("potentially active", p),
            InUse::Exported(p) => yielding("exported", p),
            InUse::Opened(_) | InUse::Content(_) | InUse::Gpt | InUse::Mbr => return None,
        })
    }
}

/// The use of a device according to its labels; `None` if it is free.
pub(crate) fn by_labels(labels: &LeafLabels, open: &[OpenPool]) -> Option<InUse> {
    let (config, _) = labels.discovery_config()?;
    by_config(config, open)
}

fn by_config(config: &NvList, open: &[OpenPool]) -> Option<InUse> {
    let guid = Guid(config.u64("guid")?);
    let holder = |list: fn(&OpenPool) -> &Vec<Guid>| {
        open.iter().find(|p| list(p).contains(&guid)).map(|p| p.name.clone())
    };
    match config.u64("state")? {
        state @ (0 | 1) => {
            let pool = config.u64("pool_guid").map(Guid);
            let name = config.str("name").unwrap_or("?").to_owned();
            let here = open.iter().find(|p| Some(p.guid) == pool && p.leaves.contains(&guid));
            Some(match here {
                // The state of an open pool is newer than any label.
                Some(p) => InUse::Active(p.name.clone()),
                None if state == 0 => InUse::PotentiallyActive(name),
                None => InUse::Exported(name),
            })
        }
        3 => holder(|p| &p.spares).map(InUse::Spare),
        4 => holder(|p| &p.caches).map(InUse::Cache),
        _ => None,
    }
}

/// All reasons against using a device. Files are not searched for foreign content: OpenZFS
/// does not do it either, and an image may contain anything.
///
/// # Errors
/// The device's; a device too small for labels has none.
pub fn inspect(device: &dyn Device, block_device: bool, open: &[OpenPool]) -> Result<Vec<InUse>> {
    let mut found = Vec::new();
    match LeafLabels::read(device) {
        Ok(labels) => found.extend(by_labels(&labels, open)),
        Err(e) if e.kind() == base::ErrorKind::Invalid => {}
        Err(e) => return Err(e),
    }
    if block_device && found.is_empty() {
        found.extend(identify(device)?.map(|foreign| match foreign {
            Foreign::Content(name) => InUse::Content(name),
            Foreign::Gpt => InUse::Gpt,
            Foreign::Mbr => InUse::Mbr,
        }));
    }
    Ok(found)
}

/// Opens a file or block device and examines it: size, sectors, owner.
///
/// # Errors
/// `NotFound` and `Invalid` in OpenZFS's words for a path that is no device; the device's.
pub fn examine(path: &Path, engine: &Arc<Engine>, open: &[OpenPool]) -> Result<ExaminedDevice> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let shown = path.display();
    let meta = std::fs::metadata(path)
        .map_err(|e| Error::io(format!("cannot resolve path '{shown}'"), e))?;
    let block_device = meta.file_type().is_block_device();
    if !block_device && !meta.is_file() {
        let text = format!("cannot use '{shown}': must be a block device or regular file");
        return Err(Error::invalid(text));
    }
    let options = |write, lock| OpenOptions {
        write,
        lock,
        min_size: 0,
        engine: Some(Arc::clone(engine)),
        ..OpenOptions::default()
    };
    let device = FileDevice::open(path, &options(false, Lock::None))?;
    let mut in_use = inspect(&device, block_device, open)?;
    // A process that has it locked or mounted makes opening it for exclusive use fail.
    if !in_use.iter().any(|u| !u.yields_to_force()) {
        match FileDevice::open(path, &options(true, Lock::ByAccess)) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Busy => {
                in_use = vec![InUse::Opened(content(&in_use))];
            }
            Err(e) => return Err(e),
        }
    }
    let id = if block_device { (u64::MAX, meta.rdev()) } else { (meta.dev(), meta.ino()) };
    Ok(ExaminedDevice { facts: LeafFacts::of(&device, block_device), in_use, id })
}

fn content(found: &[InUse]) -> Option<&'static str> {
    found.iter().find_map(|u| if let InUse::Content(name) = u { Some(*name) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(state: u64, pool: u64, guid: u64) -> NvList {
        let mut list = NvList::new();
        list.add_u64("state", state).add_u64("pool_guid", pool).add_u64("guid", guid);
        list.add_u64("txg", 4).add_str("name", "kitchen");
        list
    }

    fn open() -> Vec<OpenPool> {
        vec![OpenPool {
            guid: Guid(77),
            name: "kitchen".into(),
            leaves: vec![Guid(1), Guid(2)],
            spares: vec![Guid(3)],
            caches: vec![Guid(4)],
        }]
    }

    /// Recorded from OpenZFS 2.3.2's `zpool create -n` and `zpool labelclear`.
    #[test]
    fn words() {
        let d = Path::new("/x/d");
        let name = || "kitchen".to_owned();
        let line = |u: InUse| u.line(d);
        assert_eq!(line(InUse::Active(name())), "/x/d is part of active pool 'kitchen'");
        assert_eq!(line(InUse::Exported(name())), "/x/d is part of exported pool 'kitchen'");
        assert_eq!(
            line(InUse::PotentiallyActive(name())),
            "/x/d is part of potentially active pool 'kitchen'"
        );
        assert_eq!(line(InUse::Spare(name())), "/x/d is reserved as a hot spare for pool kitchen");
        assert_eq!(line(InUse::Content("ext4")), "/x/d contains a filesystem of type 'ext4'");
        let clear = |u: InUse| u.labelclear_line(d).unwrap();
        assert_eq!(clear(InUse::Active(name())), "/x/d is a member (ACTIVE) of pool \"kitchen\"");
        assert_eq!(
            clear(InUse::Exported(name())),
            "use '-f' to override the following error:\n/x/d is a member of exported pool \
             \"kitchen\""
        );
        assert_eq!(InUse::Gpt.labelclear_line(d), None);
    }

    #[test]
    fn who_has_it() {
        let by = |list: &NvList| by_config(list, &open());
        let kitchen = || "kitchen".to_owned();
        assert_eq!(by(&member(0, 77, 1)), Some(InUse::Active(kitchen())));
        assert_eq!(by(&member(1, 77, 2)), Some(InUse::Active(kitchen())));
        assert_eq!(by(&member(0, 77, 9)), Some(InUse::PotentiallyActive(kitchen())));
        assert_eq!(by(&member(0, 78, 1)), Some(InUse::PotentiallyActive(kitchen())));
        assert_eq!(by(&member(1, 78, 1)), Some(InUse::Exported(kitchen())));
        assert_eq!(by(&member(2, 77, 9)), None, "destroyed");
        assert_eq!(by(&member(3, 0, 3)), Some(InUse::Spare(kitchen())));
        assert_eq!(by(&member(3, 0, 5)), None);
        assert_eq!(by(&member(4, 0, 4)), Some(InUse::Cache(kitchen())));
        assert!(!InUse::Spare(kitchen()).forbids(Role::Spare));
        assert!(InUse::Spare(kitchen()).forbids(Role::Data));
        for (use_, yields) in [
            (InUse::Active(kitchen()), false),
            (InUse::Exported(kitchen()), true),
            (InUse::PotentiallyActive(kitchen()), true),
            (InUse::Spare(kitchen()), false),
            (InUse::Content("xfs"), true),
            (InUse::Opened(None), false),
        ] {
            assert_eq!(use_.yields_to_force(), yields, "{use_:?}");
        }
    }
}
