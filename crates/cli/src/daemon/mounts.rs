//! What gets mounted where: the plan of `zfs mount -a`, and the table of mounts.
//!
//! # Theory
//! A file system mounts at its property `mountpoint` below the pool's altroot,
//! unless that is `none` or `legacy`, `canmount` forbids it, or its key is not
//! loaded. Parents come before children: by path, component by component.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use base::{Error, ErrorKind, Result};
use cenote::props::{PropData, dataset_prop};

use crate::engine::{Atime, Dataset, DatasetKind};
use crate::proto::Mounted;

/// How a dataset is to be mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountOptions {
    /// Nothing can be changed.
    pub(crate) read_only: bool,
    /// Access times do not change.
    pub(crate) noatime: bool,
    /// Ignore set-user-id bits.
    pub(crate) nosuid: bool,
    /// Ignore device files.
    pub(crate) nodev: bool,
    /// Nothing can be executed.
    pub(crate) noexec: bool,
    /// `.zfs` is listed in the root.
    pub(crate) snapdir_visible: bool,
    /// `.zfs` does not exist.
    pub(crate) snapdir_disabled: bool,
    /// POSIX ACLs apply.
    pub(crate) posix_acl: bool,
    /// File data is cached by the ARC alone, not by the kernel.
    pub(crate) direct_io: bool,
    /// Requests come over io_uring where the kernel offers that; a mount has threads and
    /// descriptors for it of its own.
    pub(crate) io_uring: bool,
    /// Cores are kept awake while requests come thick; `None`: where that is known to pay.
    pub(crate) keep_awake: Option<bool>,
    /// How access times are kept, if not as the properties say.
    pub(crate) atime: Option<Atime>,
    /// Those of directories do not change.
    pub(crate) nodiratime: bool,
}

/// A mounted file system.
pub(crate) trait MountedFs: Send + Sync {
    /// Unmounts and waits until nothing is served any more; with `force` even if
    /// it is in use.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it is in use.
    fn unmount(&self, force: bool) -> Result<()>;
    /// Ends it wherever it shows, without waiting: what is open there fails. Its pool was
    /// given up.
    fn cut(&self);
    /// Whether it is still mounted and served.
    fn is_alive(&self) -> bool;
    /// Makes these options hold; false if only a new mount can do that.
    ///
    /// # Errors
    /// The kernel's refusal.
    fn remount(&self, options: &MountOptions) -> Result<bool>;
    /// Snapshots of these names came or went.
    fn snapshots_changed(&self, names: &[&str]);
}

/// Makes mounts.
pub(crate) trait Mounter: Send + Sync {
    /// Mounts a file system at a directory that exists.
    ///
    /// # Errors
    /// The file system cannot be opened, or the kernel refuses the mount.
    fn mount(
        &self,
        dataset: &Dataset,
        mountpoint: &Path,
        options: &MountOptions,
    ) -> Result<Box<dyn MountedFs>>;
}

/// Where a dataset belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// At this path.
    At(PathBuf),
    /// `mountpoint=legacy`.
    Legacy,
    /// `mountpoint=none`.
    Nowhere,
}

/// Where a mountpoint property says; the altroot is part of it already.
pub(crate) fn target(property: &str) -> Target {
    if property == "legacy" {
        return Target::Legacy;
    }
    if !property.starts_with('/') {
        return Target::Nowhere;
    }
    // No `..` may lead out of the altroot: the value comes from a disk.
    let normal = |c: &Component<'_>| matches!(c, Component::Normal(_));
    let path: PathBuf = Path::new(property).components().filter(normal).collect();
    Target::At(Path::new("/").join(path))
}

fn text(dataset: &Dataset, name: &str) -> Result<Option<String>> {
    Ok(match dataset.prop(name)?.map(|v| v.value) {
        Some(PropData::Str(s)) => Some(s),
        _ => None,
    })
}

/// The word of an index property, whether the engine tells number or word.
fn word(dataset: &Dataset, name: &str) -> Result<String> {
    let prop = dataset_prop(name).ok_or_else(|| Error::bug("unknown property"))?;
    let value = dataset.prop(name)?.map_or_else(|| prop.default_value(), |v| v.value);
    Ok(cenote::props::format(prop, &value, true))
}

/// One dataset of a plan.
#[derive(Clone)]
pub(crate) struct Plan {
    /// The file system.
    pub(crate) dataset: Dataset,
    /// Where.
    pub(crate) at: PathBuf,
}

/// Why a dataset is not mounted by `-a`; its text is that of `zfs mount DATASET`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Not a file system.
    Kind,
    /// `mountpoint=legacy`.
    Legacy,
    /// `mountpoint=none`.
    Nowhere,
    /// `canmount=off`.
    CanmountOff,
    /// `canmount=noauto`, and it was not named outright.
    Noauto,
    /// Its key is not loaded.
    Locked,
}

impl Refusal {
    /// The message of `zfs mount NAME`.
    pub(crate) fn message(&self, name: &str) -> String {
        let why = match self {
            Refusal::Kind => {
                return format!(
                    "cannot open '{name}': operation not applicable to datasets of this type"
                );
            }
            Refusal::Legacy => "legacy mountpoint\nuse mount(8) to mount this filesystem",
            Refusal::Nowhere => "no mountpoint set",
            Refusal::CanmountOff | Refusal::Noauto => "'canmount' property is set to 'off'",
            Refusal::Locked => "encryption key not loaded",
        };
        format!("cannot mount '{name}': {why}")
    }
}

/// Where to mount a dataset, or why not.
///
/// # Errors
/// Its properties cannot be read.
pub(crate) fn plan(dataset: &Dataset, named: bool) -> Result<std::result::Result<Plan, Refusal>> {
    if dataset.kind() != DatasetKind::Filesystem {
        return Ok(Err(Refusal::Kind));
    }
    let at = match target(text(dataset, "mountpoint")?.as_deref().unwrap_or("none")) {
        Target::At(at) => at,
        Target::Legacy => return Ok(Err(Refusal::Legacy)),
        Target::Nowhere => return Ok(Err(Refusal::Nowhere)),
    };
    Ok(match word(dataset, "canmount")?.as_str() {
        "off" => Err(Refusal::CanmountOff),
        "noauto" if !named => Err(Refusal::Noauto),
        _ if dataset.is_locked() => Err(Refusal::Locked),
        _ => Ok(Plan { dataset: dataset.clone(), at }),
    })
}

/// The mount options that a dataset's properties ask for.
///
/// # Errors
/// Its properties cannot be read.
pub(crate) fn options(dataset: &Dataset) -> Result<MountOptions> {
    let off = |name| word(dataset, name).map(|w| w == "off");
    let snapdir = word(dataset, "snapdir")?;
    Ok(MountOptions {
        read_only: !off("readonly")?,
        noatime: off("atime")?,
        nosuid: off("setuid")?,
        nodev: off("devices")?,
        noexec: off("exec")?,
        snapdir_visible: snapdir == "visible",
        snapdir_disabled: snapdir == "disabled",
        posix_acl: word(dataset, "acltype")? == "posix",
        direct_io: false,
        io_uring: false,
        keep_awake: None,
        atime: None,
        nodiratime: false,
    })
}

/// Mount options given by hand, over those of the properties.
///
/// # Errors
/// `Invalid` for an option that is unknown or cannot be granted, such as `rw` where
/// nothing is `writable`.
pub(crate) fn override_with(
    options: &mut MountOptions,
    given: &[String],
    writable: bool,
) -> Result<()> {
    for word in given.iter().flat_map(|list| list.split(',')).filter(|w| !w.is_empty()) {
        match word {
            "suid" | "setuid" => options.nosuid = false,
            "nosuid" | "nosetuid" => options.nosuid = true,
            "dev" | "devices" => options.nodev = false,
            "nodev" | "nodevices" => options.nodev = true,
            "exec" => options.noexec = false,
            "noexec" => options.noexec = true,
            "direct_io" => options.direct_io = true,
            "nodirect_io" => options.direct_io = false,
            "io_uring" => options.io_uring = true,
            "noio_uring" => options.io_uring = false,
            "keepawake" => options.keep_awake = Some(true),
            "nokeepawake" => options.keep_awake = Some(false),
            "ro" => options.read_only = true,
            "rw" if writable => options.read_only = false,
            "noatime" => (options.noatime, options.atime) = (true, Some(Atime::Off)),
            "strictatime" | "norelatime" => {
                (options.noatime, options.atime) = (false, Some(Atime::On));
            }
            "relatime" => (options.noatime, options.atime) = (false, Some(Atime::Relatime)),
            "atime" if options.noatime => {
                (options.noatime, options.atime) = (false, Some(Atime::On));
            }
            "nodiratime" => options.nodiratime = true,
            "diratime" => options.nodiratime = false,
            "defaults" | "atime" => {}
            "rw" => return Err(Error::invalid("the pool is imported read-only")),
            other => return Err(Error::invalid(format!("invalid mount option '{other}'"))),
        }
    }
    Ok(())
}

/// Makes the directory to mount on, with what leads there.
///
/// # Errors
/// It cannot be made, or is no directory; `Exists` if it is not empty and
/// `overlay` is off.
pub(crate) fn prepare(at: &Path, overlay: bool) -> Result<()> {
    // Inside a read-only file system it fails unless the directory is there.
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(at)
        .map_err(|e| Error::io("failed to create mountpoint", e))?;
    if !overlay {
        let mut entries = std::fs::read_dir(at).map_err(|e| Error::io("cannot look at it", e))?;
        if entries.next().is_some() {
            return Err(Error::new(ErrorKind::NotEmpty, "directory is not empty"));
        }
    }
    Ok(())
}

/// What is mounted.
#[derive(Default)]
pub(crate) struct Table {
    entries: BTreeMap<String, Entry>,
}

/// One mount.
struct Entry {
    at: PathBuf,
    fs: std::sync::Arc<dyn MountedFs>,
}

impl Table {
    /// Adds a mount.
    pub(crate) fn insert(&mut self, dataset: &str, at: PathBuf, fs: Box<dyn MountedFs>) {
        self.entries.insert(dataset.to_owned(), Entry { at, fs: fs.into() });
    }

    /// Drops mounts that someone else undid (`umount`).
    pub(crate) fn forget_dead(&mut self) {
        self.entries.retain(|_, e| e.fs.is_alive());
    }

    /// Whether a dataset is mounted.
    pub(crate) fn is_mounted(&self, dataset: &str) -> bool {
        self.entries.get(dataset).is_some_and(|e| e.fs.is_alive())
    }

    /// The dataset mounted at a path.
    pub(crate) fn at_path(&self, path: &Path) -> Option<String> {
        self.entries.iter().find(|(_, e)| e.at == path).map(|(name, _)| name.clone())
    }

    /// All mounts, parents first.
    pub(crate) fn list(&self) -> Vec<Mounted> {
        let mut all: Vec<(&Path, &String)> =
            self.entries.iter().map(|(n, e)| (e.at.as_path(), n)).collect();
        all.sort();
        all.into_iter()
            .map(|(at, n)| Mounted { dataset: n.clone(), mountpoint: at.display().to_string() })
            .collect()
    }

    /// The mounts of datasets that `wanted` accepts, children first.
    pub(crate) fn deepest_first(
        &self,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<(String, PathBuf, std::sync::Arc<dyn MountedFs>)> {
        let mut all: Vec<_> = self
            .entries
            .iter()
            .filter(|(n, _)| wanted(n))
            .map(|(n, e)| (n.clone(), e.at.clone(), std::sync::Arc::clone(&e.fs)))
            .collect();
        all.sort_by(|a, b| b.1.cmp(&a.1));
        all
    }

    /// Removes a mount from the table.
    pub(crate) fn remove(&mut self, dataset: &str) {
        self.entries.remove(dataset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Fake(bool);
    impl MountedFs for Fake {
        fn unmount(&self, _: bool) -> Result<()> {
            Ok(())
        }
        fn cut(&self) {}
        fn is_alive(&self) -> bool {
            self.0
        }
        fn remount(&self, _: &MountOptions) -> Result<bool> {
            Ok(true)
        }
        fn snapshots_changed(&self, _: &[&str]) {}
    }

    #[test]
    fn targets() {
        assert_eq!(target("/mnt/tank/a"), Target::At("/mnt/tank/a".into()));
        assert_eq!(target("legacy"), Target::Legacy);
        assert_eq!(target("none"), Target::Nowhere);
        assert_eq!(target("-"), Target::Nowhere);
        assert_eq!(target("/mnt/../../etc"), Target::At("/mnt/etc".into()));
    }

    #[test]
    fn the_table_lists_parents_first_and_unmounts_children_first() {
        let mut t = Table::default();
        t.insert("p/z", "/a/b".into(), Box::new(Fake(true)));
        t.insert("p", "/a".into(), Box::new(Fake(true)));
        t.insert("q", "/b".into(), Box::new(Fake(false)));
        t.forget_dead();
        let names: Vec<String> = t.list().into_iter().map(|m| m.dataset).collect();
        assert_eq!(names, ["p", "p/z"]);
        let down: Vec<String> = t.deepest_first(|_| true).into_iter().map(|m| m.0).collect();
        assert_eq!(down, ["p/z", "p"]);
        assert_eq!(t.at_path(Path::new("/a/b")).as_deref(), Some("p/z"));
        assert!(!t.is_mounted("q"));
    }

    #[test]
    fn options_given_by_hand_win() {
        let from = MountOptions { nosuid: true, ..MountOptions::default() };
        let with = |words: &[&str]| {
            let mut options = from.clone();
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            override_with(&mut options, &words, false).map(|()| options)
        };
        assert_eq!(with(&["atime", ""]).unwrap(), from);
        let o = with(&["strictatime,nodiratime"]).unwrap();
        assert!(o.atime == Some(Atime::On) && o.nodiratime && !o.noatime);
        let o = with(&["noatime", "diratime"]).unwrap();
        assert!(o.atime == Some(Atime::Off) && !o.nodiratime && o.noatime);
        assert!(with(&["ro"]).unwrap().read_only);
        let o = with(&["suid,nodev", "noexec"]).unwrap();
        assert_eq!((o.nosuid, o.nodev, o.noexec), (false, true, true));
        assert!(!with(&["noexec,exec"]).unwrap().noexec);
        assert_eq!(with(&["rw"]).unwrap_err().message(), "the pool is imported read-only");
        let e = with(&["noexec,x"]).unwrap_err();
        assert_eq!(e.message(), "invalid mount option 'x'");
    }

    proptest! {
        #[test]
        fn no_mountpoint_escapes(path in "/alt/(/|\\.\\.|\\.|a|b){0,12}") {
            if let Target::At(at) = target(&path) {
                prop_assert!(at.starts_with("/alt") && !at.components().any(|c| c == Component::ParentDir));
            }
        }
    }
}
