//! Mountpoints: the plan of `zfs mount -a`, and the table of mounts.
//!
//! # Theory
//! A file system mounts at its property `mountpoint` below the pool's altroot. It is not
//! mounted if that property is `none` or `legacy`, if `canmount` forbids it, if its key is not
//! loaded, or if an interrupted receive left it incomplete. Parents come before children: by
//! path, component by component.
//!
//! A file system that was unmounted may still be visible in another mount namespace, which has
//! a copy of the mount. It counts as unmounted: its directory is free, and the table lists the
//! file system as *held*. A held file system is still served. Mounting the dataset again shows
//! the same file system, so that both namespaces see the same content; if that is impossible,
//! the mount is refused. A command that removes the dataset (export, destruction) waits briefly
//! for the holders to end, then names them; it ends the file system only by force.
//!
//! # Invariants
//! * At most one file system mounts or holds a dataset.

use std::collections::{BTreeMap, HashSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::rt::Instant;
use base::{Error, ErrorKind, Result};
use cenote::create::CreateRequest;
use cenote::files::Atime;
use cenote::props::{PropData, dataset_prop};
use cenote::{Dataset, DatasetKind};
use mount::{MountOptions, MountedFs, UnmountOutcome};
use proto::Mounted;

/// The reason for an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnmountReason {
    /// A command unmounts it.
    Requested,
    /// It gets another mountpoint.
    Moved,
    /// Its pool is exported.
    Exported,
    /// Its dataset is destroyed.
    Destroyed,
}

impl UnmountReason {
    /// Whether the dataset must not be served any more, in any namespace.
    pub(crate) fn takes_away(self) -> bool {
        matches!(self, UnmountReason::Exported | UnmountReason::Destroyed)
    }

    /// Whether nothing will be mounted there again.
    pub(crate) fn is_for_good(self) -> bool {
        matches!(self, UnmountReason::Moved | UnmountReason::Destroyed)
    }
}

/// How long a command that removes a dataset waits for holders that are known.
pub(crate) const HOLDERS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long it waits for the kernel if no holder can be found.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two checks meanwhile.
pub(crate) const END_POLL: Duration = Duration::from_millis(20);

/// The holder's description if no process can be found: files of a lazily undone mount, or
/// another user's namespace.
pub(crate) const UNKNOWN_HOLDER: &str = "by a process that cannot be seen from here";

/// Whether a held file system is released within a time.
pub(crate) fn ends_within(fs: &dyn MountedFs, time: Duration) -> bool {
    let begin = base::rt::now();
    while !fs.settle() {
        if begin.elapsed() > time {
            return false;
        }
        base::rt::sleep(END_POLL);
    }
    true
}

/// Unmounts a file system. Without `force`, one that is in use is tried until
/// [`HOLDERS_TIMEOUT`] after `begin`: a process that is being started has the open files of the
/// process that starts it, until it runs its program.
///
/// # Errors
/// As [`MountedFs::unmount`].
pub(crate) fn unmount_within(
    fs: &dyn MountedFs,
    force: bool,
    begin: Instant,
) -> Result<UnmountOutcome> {
    loop {
        match fs.unmount(force) {
            Err(e)
                if !force
                    && e.kind() == ErrorKind::Busy
                    && begin.elapsed() < HOLDERS_TIMEOUT
                    && fs.is_alive() =>
            {
                base::rt::sleep(END_POLL);
            }
            done => return done,
        }
    }
}

/// The mountpoint of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MountTarget {
    /// At this path.
    At(PathBuf),
    /// `mountpoint=legacy`.
    Legacy,
    /// `mountpoint=none`.
    Nowhere,
}

/// Parses a mountpoint property, which includes the altroot.
pub(crate) fn target(property: &str) -> MountTarget {
    if property == "legacy" {
        return MountTarget::Legacy;
    }
    if !property.starts_with('/') {
        return MountTarget::Nowhere;
    }
    // No `..` may lead out of the altroot: the value comes from a disk.
    let normal = |c: &Component<'_>| matches!(c, Component::Normal(_));
    let path: PathBuf = Path::new(property).components().filter(normal).collect();
    MountTarget::At(Path::new("/").join(path))
}

fn text(dataset: &Dataset, name: &str) -> Result<Option<String>> {
    Ok(match dataset.prop(name)?.map(|v| v.value) {
        Some(PropData::Str(s)) => Some(s),
        _ => None,
    })
}

/// The word of an index property, whether the engine returns its number or its word.
fn word(dataset: &Dataset, name: &str) -> Result<String> {
    let prop = dataset_prop(name).ok_or_else(|| Error::bug("unknown property"))?;
    let value = dataset.prop(name)?.map_or_else(|| prop.default_value(), |v| v.value);
    Ok(cenote::props::format(prop, &value, true))
}

/// A dataset that will be mounted.
#[derive(Clone)]
pub(crate) struct MountPlan {
    /// The file system.
    pub(crate) dataset: Dataset,
    /// Its mountpoint.
    pub(crate) at: PathBuf,
}

/// The reason why `-a` does not mount a dataset; its text is that of `zfs mount DATASET`.
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
    /// `canmount=noauto`, and the dataset was not named.
    Noauto,
    /// Its key is not loaded.
    Locked,
    /// An interrupted receive left it incomplete.
    Incomplete,
    /// It was received from a redacted stream: only a forced mount is made, at this directory.
    Redacted(PathBuf),
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
            Refusal::Incomplete => "the dataset is incomplete: its receive was interrupted",
            Refusal::Redacted(_) => "dataset is redacted, use '-f' to mount it nevertheless",
        };
        format!("cannot mount '{name}': {why}")
    }
}

/// The mountpoint of a dataset, or the reason why it has none.
///
/// # Errors
/// Its properties cannot be read.
pub(crate) fn plan(
    dataset: &Dataset,
    named: bool,
) -> Result<std::result::Result<MountPlan, Refusal>> {
    if dataset.kind() != DatasetKind::Filesystem {
        return Ok(Err(Refusal::Kind));
    }
    let at = match target(text(dataset, "mountpoint")?.as_deref().unwrap_or("none")) {
        MountTarget::At(at) => at,
        MountTarget::Legacy => return Ok(Err(Refusal::Legacy)),
        MountTarget::Nowhere => return Ok(Err(Refusal::Nowhere)),
    };
    Ok(match word(dataset, "canmount")?.as_str() {
        "off" => Err(Refusal::CanmountOff),
        "noauto" if !named => Err(Refusal::Noauto),
        _ if dataset.is_incomplete() => Err(Refusal::Incomplete),
        _ if dataset.is_locked() => Err(Refusal::Locked),
        _ if dataset.redaction_snaps()?.is_some() => Err(Refusal::Redacted(at)),
        _ => Ok(MountPlan { dataset: dataset.clone(), at }),
    })
}

/// The mountpoint of a new pool's root, if it would be mounted.
pub(crate) fn mountpoint_of_new(request: &CreateRequest) -> Option<PathBuf> {
    let setting = |name: &str| request.fs_settings.iter().find(|s| s.0 == name).map(|s| &s.1);
    let canmount = setting("canmount").zip(dataset_prop("canmount"));
    if canmount.is_some_and(|(value, prop)| cenote::props::format(prop, value, true) != "on") {
        return None;
    }
    let path = match setting("mountpoint") {
        Some(PropData::Str(path)) => path.clone(),
        _ => format!("/{}", request.temporary_name.as_ref().unwrap_or(&request.name)),
    };
    match target(&path) {
        MountTarget::At(at) => match &request.altroot {
            Some(root) => Some(root.join(at.strip_prefix("/").unwrap_or(&at))),
            None => Some(at),
        },
        _ => None,
    }
}

/// As [`plan`], for a dataset with `mountpoint=legacy` that mount(8) mounts at a directory.
///
/// # Errors
/// As there.
pub(crate) fn plan_legacy(
    dataset: &Dataset,
    at: &Path,
) -> Result<std::result::Result<MountPlan, String>> {
    let name = dataset.name();
    Ok(match plan(dataset, true)? {
        Err(Refusal::Legacy) if word(dataset, "canmount")? == "off" => {
            Err(Refusal::CanmountOff.message(name))
        }
        Err(Refusal::Legacy) if dataset.is_incomplete() => Err(Refusal::Incomplete.message(name)),
        Err(Refusal::Legacy) if dataset.is_locked() => Err(Refusal::Locked.message(name)),
        Err(Refusal::Legacy) => Ok(MountPlan { dataset: dataset.clone(), at: at.to_owned() }),
        Ok(_) | Err(Refusal::Nowhere) => Err(format!(
            "filesystem '{name}' cannot be mounted using 'mount'.\nUse 'zfs set \
             mountpoint=legacy' or 'zfs mount {name}'.\nSee zfs(8) for more information."
        )),
        Err(refusal) => Err(refusal.message(name)),
    })
}

/// The mount options that a dataset's properties determine.
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
        keep_awake: false,
        atime: None,
        nodiratime: false,
    })
}

/// The mount options that [`override_with`] knows.
pub(crate) fn known(given: &[String]) -> Vec<String> {
    let words = given.iter().flat_map(|list| list.split(','));
    let knows = |w: &&str| {
        let one = [(*w).to_owned()];
        let mut any = MountOptions::default();
        override_with(&mut any, &one, true).is_ok()
    };
    words.filter(knows).map(str::to_owned).collect()
}

/// Applies mount options given by the user on top of those of the properties.
///
/// # Errors
/// `Invalid` for an option that is unknown or cannot be granted, such as `rw` if the pool is
/// not `writable`.
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
            "keepawake" => options.keep_awake = true,
            "nokeepawake" => options.keep_awake = false,
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

/// The mounted and the held file systems.
#[derive(Default)]
pub(crate) struct MountTable {
    entries: BTreeMap<String, MountRecord>,
    /// With their last mountpoints.
    held: BTreeMap<String, MountRecord>,
}

/// One mount.
struct MountRecord {
    at: PathBuf,
    fs: Arc<dyn MountedFs>,
}

/// A dataset, its mountpoint, and its file system.
pub(crate) type Mount = (String, PathBuf, Arc<dyn MountedFs>);

impl MountTable {
    /// Adds a mount.
    pub(crate) fn insert(&mut self, dataset: &str, at: PathBuf, fs: Arc<dyn MountedFs>) {
        self.held.remove(dataset);
        self.entries.insert(dataset.to_owned(), MountRecord { at, fs });
    }

    /// Drops mounts that were undone by other programs (`umount`). `present` are the device
    /// numbers in the kernel's mount table; a file system that is still served becomes held.
    pub(crate) fn forget_dead(&mut self, present: Option<&HashSet<String>>) {
        let shows = |e: &MountRecord| present.is_none_or(|p| e.fs.is_present(p));
        let gone = self.entries.extract_if(.., |_, e| !e.fs.is_alive() || !shows(e));
        for (name, entry) in gone.collect::<Vec<_>>() {
            self.held.insert(name, entry);
        }
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

    /// Whether a path is inside a mounted dataset.
    pub(crate) fn is_inside(&self, path: &Path) -> bool {
        self.entries.values().any(|e| path != e.at && path.starts_with(&e.at))
    }

    /// Whether a path is inside a mounted dataset of a pool.
    pub(crate) fn is_inside_pool(&self, path: &Path, pool: &str) -> bool {
        let of_pool = |name: &str| name.split('/').next() == Some(pool);
        self.entries.iter().any(|(n, e)| of_pool(n) && path != e.at && path.starts_with(&e.at))
    }

    /// Mountpoints of the kernel's mounts of our file systems.
    pub(crate) fn own_mounts(&self) -> Vec<PathBuf> {
        self.entries.values().filter(|e| e.fs.is_own_mount()).map(|e| e.at.clone()).collect()
    }

    /// The mounts of datasets that `wanted` accepts, children first.
    pub(crate) fn deepest_first(&self, wanted: impl Fn(&str) -> bool) -> Vec<Mount> {
        let mut all: Vec<_> = self
            .entries
            .iter()
            .filter(|(n, _)| wanted(n))
            .map(|(n, e)| (n.clone(), e.at.clone(), Arc::clone(&e.fs)))
            .collect();
        all.sort_by(|a, b| b.1.cmp(&a.1));
        all
    }

    /// Held file systems of datasets that `wanted` accepts, with their last mountpoints.
    pub(crate) fn held(&self, wanted: impl Fn(&str) -> bool) -> Vec<Mount> {
        let wanted = self.held.iter().filter(|(n, _)| wanted(n));
        wanted.map(|(n, e)| (n.clone(), e.at.clone(), Arc::clone(&e.fs))).collect()
    }

    /// Removes mounted and held file systems of datasets that `wanted` accepts, children first.
    pub(crate) fn take(&mut self, wanted: impl Fn(&str) -> bool) -> Vec<Arc<dyn MountedFs>> {
        let mut all = self.deepest_first(&wanted);
        all.extend(self.held(wanted));
        for (name, _, _) in &all {
            self.entries.remove(name);
            self.held.remove(name);
        }
        all.into_iter().map(|m| m.2).collect()
    }

    /// Records that a mount was undone.
    pub(crate) fn unmounted(&mut self, dataset: &str, left: UnmountOutcome) {
        if let (Some(entry), UnmountOutcome::Held) = (self.entries.remove(dataset), left) {
            self.held.insert(dataset.to_owned(), entry);
        }
    }

    /// Datasets have other names: `new_name` gives that of each, or `None` if it stays.
    pub(crate) fn renamed(&mut self, new_name: impl Fn(&str) -> Option<String>) {
        for table in [&mut self.entries, &mut self.held] {
            let renamed: Vec<_> = table.extract_if(.., |n, _| new_name(n).is_some()).collect();
            table.extend(renamed.into_iter().filter_map(|(n, e)| Some((new_name(&n)?, e))));
        }
    }

    /// Removes a held file system that has ended.
    pub(crate) fn settled(&mut self, dataset: &str) {
        self.held.remove(dataset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Alive or not, with a device number.
    struct FakeFs {
        alive: bool,
        device: &'static str,
        /// How many unmounts fail because it is in use.
        busy: AtomicUsize,
    }

    impl FakeFs {
        fn new(alive: bool, device: &'static str) -> FakeFs {
            FakeFs { alive, device, busy: AtomicUsize::new(0) }
        }
    }

    impl MountedFs for FakeFs {
        fn unmount(&self, force: bool) -> Result<UnmountOutcome> {
            let less = |n: usize| n.checked_sub(1);
            match self.busy.fetch_update(Relaxed, Relaxed, less) {
                Ok(_) if !force => Err(Error::busy("in use")),
                _ => Ok(UnmountOutcome::Ended),
            }
        }
        fn is_present(&self, present: &HashSet<String>) -> bool {
            present.contains(self.device)
        }
        fn settle(&self) -> bool {
            true
        }
        fn holders(&self) -> Vec<String> {
            Vec::new()
        }
        fn put_back(&self, _: &Path, _: &MountOptions) -> Result<bool> {
            Ok(true)
        }
        fn is_own_mount(&self) -> bool {
            true
        }
        fn abort(&self) {}
        fn is_alive(&self) -> bool {
            self.alive
        }
        fn remount(&self, _: &MountOptions) -> Result<bool> {
            Ok(true)
        }
        fn snapshots_changed(&self, _: &[&str]) {}
        fn renamed(&self, _: &Dataset) {}
    }

    /// `zpool export` said "pool or dataset is busy" after the last file had been closed: another
    /// thread of the program was starting a process, which had the file until it ran.
    #[test]
    fn a_process_that_is_being_started_does_not_keep_a_mount() {
        let fs = FakeFs::new(true, "0:1");
        fs.busy.store(3, Relaxed);
        unmount_within(&fs, false, base::rt::now()).unwrap();
        assert_eq!(fs.busy.load(Relaxed), 0);
        // What is in use stays, and force asks once.
        fs.busy.store(usize::MAX, Relaxed);
        let busy = unmount_within(&fs, false, base::rt::now()).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        fs.busy.store(2, Relaxed);
        unmount_within(&fs, true, base::rt::now()).unwrap();
        assert_eq!(fs.busy.load(Relaxed), 1);
    }

    #[test]
    fn targets() {
        assert_eq!(target("/mnt/tank/a"), MountTarget::At("/mnt/tank/a".into()));
        assert_eq!(target("legacy"), MountTarget::Legacy);
        assert_eq!(target("none"), MountTarget::Nowhere);
        assert_eq!(target("-"), MountTarget::Nowhere);
        assert_eq!(target("/mnt/../../etc"), MountTarget::At("/mnt/etc".into()));
    }

    #[test]
    fn the_table_lists_parents_first_and_unmounts_children_first() {
        let mut t = MountTable::default();
        t.insert("p/z", "/a/b".into(), Arc::new(FakeFs::new(true, "0:1")));
        t.insert("p", "/a".into(), Arc::new(FakeFs::new(true, "0:2")));
        t.insert("q", "/b".into(), Arc::new(FakeFs::new(false, "0:3")));
        t.forget_dead(None);
        let names: Vec<String> = t.list().into_iter().map(|m| m.dataset).collect();
        assert_eq!(names, ["p", "p/z"]);
        let down: Vec<String> = t.deepest_first(|_| true).into_iter().map(|m| m.0).collect();
        assert_eq!(down, ["p/z", "p"]);
        assert_eq!(t.at_path(Path::new("/a/b")).as_deref(), Some("p/z"));
        assert!(!t.is_mounted("q"));
    }

    #[test]
    fn what_others_unmounted_is_held_while_it_is_served() {
        let mut t = MountTable::default();
        let all = |t: &MountTable| t.held(|_| true).into_iter().map(|h| h.0).collect::<Vec<_>>();
        t.insert("p", "/a".into(), Arc::new(FakeFs::new(true, "0:1")));
        t.insert("q", "/b".into(), Arc::new(FakeFs::new(true, "0:2")));
        t.insert("r", "/c".into(), Arc::new(FakeFs::new(false, "0:3")));
        t.forget_dead(Some(&HashSet::from(["0:2".to_owned()])));
        assert!(!t.is_mounted("p") && t.is_mounted("q") && !t.is_mounted("r"));
        // The last one has ended: the next check removes it.
        assert_eq!(all(&t), ["p", "r"]);
        t.settled("r");
        t.unmounted("q", UnmountOutcome::Held);
        assert_eq!(all(&t), ["p", "q"]);
        t.insert("p", "/a".into(), Arc::new(FakeFs::new(true, "0:1")));
        t.settled("q");
        assert!(t.is_mounted("p") && all(&t).is_empty());
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
            if let MountTarget::At(at) = target(&path) {
                prop_assert!(at.starts_with("/alt") && !at.components().any(|c| c == Component::ParentDir));
            }
        }
    }
}
