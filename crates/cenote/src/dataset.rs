//! File systems, volumes, snapshots and bookmarks by name, and their properties.

mod open;
pub(crate) mod packages;
mod raw_keys;
mod redacting;
pub(crate) mod saved;
mod sending;
mod written;

use std::sync::Arc;

use base::limits::DATASET_NAME_MAX;
use base::{Error, ErrorKind, Result};
use dmu::{Io, Objset, OutagePolicy};
use dsl::dataset::Bookmark;
use dsl::props::{self, Attr, PropData, PropValue, Source, Types};
use dsl::write::{bpobj, deadlist};
use dsl::{DslDataset, DslDir};
use ondisk::dslphys::UsedKind;

use crate::pool::PoolCore;
use crate::values::{absent, number, ratio, text, with_source};

/// The kind of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatasetKind {
    /// A file system.
    Filesystem,
    /// A volume.
    Volume,
    /// A snapshot.
    Snapshot,
    /// A bookmark.
    Bookmark,
}

impl DatasetKind {
    /// ZFS's word.
    pub fn word(self) -> &'static str {
        match self {
            DatasetKind::Filesystem => "filesystem",
            DatasetKind::Volume => "volume",
            DatasetKind::Snapshot => "snapshot",
            DatasetKind::Bookmark => "bookmark",
        }
    }

    fn types(self) -> Types {
        match self {
            DatasetKind::Filesystem => Types::F,
            DatasetKind::Volume => Types::V,
            DatasetKind::Snapshot => Types::S,
            DatasetKind::Bookmark => Types::B,
        }
    }
}

/// A dataset of an imported pool.
#[derive(Clone)]
pub struct Dataset {
    core: Arc<PoolCore>,
    what: DatasetOrBookmark,
    kind: DatasetKind,
    /// Kind of the file system or volume that it is or belongs to.
    owner: DatasetKind,
    locked: bool,
}

#[derive(Clone)]
enum DatasetOrBookmark {
    Dataset(Box<DslDataset>),
    Bookmark(Box<(Bookmark, DslDataset)>),
}

impl Dataset {
    pub(crate) fn core(&self) -> &Arc<PoolCore> {
        &self.core
    }

    pub(crate) fn find(core: &Arc<PoolCore>, name: &str) -> Result<Dataset> {
        Dataset::find_with(core, name, OutagePolicy::Fail)
    }

    /// The dataset of this name; reads through it treat absent devices by this policy.
    fn find_with(core: &Arc<PoolCore>, name: &str, outage: OutagePolicy) -> Result<Dataset> {
        let missing = || Error::not_found("dataset does not exist").in_dataset(name);
        if name.len() > DATASET_NAME_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "dataset name is too long"));
        }
        let cut = name.find(['@', '#']).unwrap_or(name.len());
        let (fs, rest) = name.split_at(cut);
        let _names = core.names();
        let head = core.spa.root_dir_with(outage)?.find(fs)?.head()?.ok_or_else(missing)?;
        match rest.split_at_checked(1) {
            None => Dataset::of_head(core, head),
            Some(("@", snap)) => {
                let snap = head.snapshot(snap)?.ok_or_else(missing)?;
                Dataset::of_snapshot(core, snap)
            }
            Some(_) => {
                let all = head.bookmarks()?;
                let mark = all.into_iter().find(|b| b.name == name).ok_or_else(missing)?;
                Dataset::of_bookmark(core, mark, head)
            }
        }
    }

    pub(crate) fn of_head(core: &Arc<PoolCore>, head: DslDataset) -> Result<Dataset> {
        let (kind, locked) = kind_of(&head)?;
        let what = DatasetOrBookmark::Dataset(Box::new(head));
        Ok(Dataset { core: Arc::clone(core), what, kind, owner: kind, locked })
    }

    fn of_snapshot(core: &Arc<PoolCore>, snap: DslDataset) -> Result<Dataset> {
        let (owner, locked) = kind_of(&snap)?;
        let what = DatasetOrBookmark::Dataset(Box::new(snap));
        Ok(Dataset { core: Arc::clone(core), what, kind: DatasetKind::Snapshot, owner, locked })
    }

    fn of_bookmark(core: &Arc<PoolCore>, mark: Bookmark, head: DslDataset) -> Result<Dataset> {
        let (owner, locked) = kind_of(&head)?;
        let what = DatasetOrBookmark::Bookmark(Box::new((mark, head)));
        Ok(Dataset { core: Arc::clone(core), what, kind: DatasetKind::Bookmark, owner, locked })
    }

    pub(crate) fn ds(&self) -> &DslDataset {
        match &self.what {
            DatasetOrBookmark::Dataset(ds) => ds,
            DatasetOrBookmark::Bookmark(b) => &b.1,
        }
    }

    pub(crate) fn dir(&self) -> &DslDir {
        self.ds().dir()
    }

    /// The object of its directory, or of the directory that it belongs to.
    pub(crate) fn directory(&self) -> u64 {
        self.dir().object()
    }

    /// Names and objects of its directory and those above.
    pub(crate) fn directories_up(&self) -> Vec<(String, u64)> {
        let all = std::iter::once(self.dir()).chain(self.dir().ancestors());
        all.map(|dir| (dir.name().to_owned(), dir.object())).collect()
    }

    /// How reads through this handle are made.
    fn io(&self) -> Io {
        self.dir().mos().io()
    }

    /// What reads through this handle do when devices are absent.
    fn outage(&self) -> OutagePolicy {
        self.io().outage
    }

    /// Full name.
    pub fn name(&self) -> &str {
        match &self.what {
            DatasetOrBookmark::Dataset(ds) => ds.name(),
            DatasetOrBookmark::Bookmark(b) => &b.0.name,
        }
    }

    /// The current state of the dataset, snapshots and properties included.
    ///
    /// # Errors
    /// `NotFound` when it was destroyed; those of reading the MOS.
    pub fn now(&self) -> Result<Dataset> {
        self.now_with(self.outage())
    }

    /// As [`Dataset::now`]. Reads through the result, and through all that is opened with
    /// it, treat absent devices by this policy. A pool that is imported read-only is never
    /// suspended, so its reads always fail.
    ///
    /// # Errors
    /// As [`Dataset::now`].
    pub fn now_with(&self, outage: OutagePolicy) -> Result<Dataset> {
        match self.core.writer {
            Some(_) => Dataset::find_with(&self.core, self.name(), outage),
            None => Ok(self.clone()),
        }
    }

    /// Its kind.
    pub fn kind(&self) -> DatasetKind {
        self.kind
    }

    /// Object id in the pool's meta object set.
    pub fn object(&self) -> u64 {
        self.ds().object()
    }

    /// Encrypted, and the key is not loaded.
    pub fn is_locked(&self) -> bool {
        self.locked
    }

    /// A receive that was interrupted, or is in progress, left the content incomplete. The
    /// dataset cannot be opened.
    pub fn is_incomplete(&self) -> bool {
        matches!(self.what, DatasetOrBookmark::Dataset(_)) && self.ds().phys().is_inconsistent()
    }

    /// The identity of the dataset or snapshot, or of the snapshot that a bookmark remembers.
    pub fn guid(&self) -> u64 {
        match &self.what {
            DatasetOrBookmark::Dataset(ds) => ds.phys().guid,
            DatasetOrBookmark::Bookmark(b) => b.0.phys.guid,
        }
    }

    /// Txg in which it was created; snapshots of one dataset are sorted by it.
    pub fn createtxg(&self) -> u64 {
        match &self.what {
            DatasetOrBookmark::Dataset(ds) => ds.phys().creation_txg.0,
            DatasetOrBookmark::Bookmark(b) => b.0.phys.creation_txg.0,
        }
    }

    /// Bytes that only this snapshot or head refers to.
    pub(crate) fn unique_bytes(&self) -> u64 {
        self.ds().phys().unique_bytes
    }

    /// Txg of the snapshot before this one.
    pub(crate) fn previous_txg(&self) -> u64 {
        self.ds().phys().prev_snap_txg.0
    }

    /// Bytes that only the previous snapshot has, born after a txg.
    pub(crate) fn dead_since(&self, txg: u64) -> Result<u64> {
        let (mos, object) = (self.dir().mos(), self.ds().phys().deadlist_obj);
        if object == 0 || deadlist::is_plain(mos, object)? {
            return Ok(0);
        }
        let keys = deadlist::keys(mos, object)?;
        let mut sum = 0u64;
        for &list in keys.range(txg..).map(|(_, list)| list) {
            sum = sum.saturating_add(u64::try_from(bpobj::usage(mos, list)?.used).unwrap_or(0));
        }
        Ok(sum)
    }

    /// The file systems and volumes directly below, by name.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn children(&self) -> Result<Vec<Dataset>> {
        if matches!(self.kind, DatasetKind::Snapshot | DatasetKind::Bookmark) {
            return Ok(Vec::new());
        }
        let _names = self.core.names();
        let mut out = Vec::new();
        for dir in self.dir().children()? {
            if let Some(head) = dir.head()? {
                out.push(Dataset::of_head(&self.core, head)?);
            }
        }
        Ok(out)
    }

    /// Snapshots, oldest first.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn snapshots(&self) -> Result<Vec<Dataset>> {
        if matches!(self.kind, DatasetKind::Snapshot | DatasetKind::Bookmark) {
            return Ok(Vec::new());
        }
        let _names = self.core.names();
        // A snapshot has its head's type and key.
        let of = |snap| Dataset {
            core: Arc::clone(&self.core),
            what: DatasetOrBookmark::Dataset(Box::new(snap)),
            kind: DatasetKind::Snapshot,
            ..*self
        };
        Ok(self.ds().snapshots()?.into_iter().map(of).collect())
    }

    /// One snapshot by the part of its name behind the `@`.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn snapshot(&self, name: &str) -> Result<Option<Dataset>> {
        let _names = self.core.names();
        let found = self.ds().snapshot(name)?;
        found.map(|s| Dataset::of_snapshot(&self.core, s)).transpose()
    }

    /// Bookmarks, oldest first.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn bookmarks(&self) -> Result<Vec<Dataset>> {
        if matches!(self.kind, DatasetKind::Snapshot | DatasetKind::Bookmark) {
            return Ok(Vec::new());
        }
        let _names = self.core.names();
        let marks = self.ds().bookmarks()?;
        let head = self.ds().clone();
        marks.into_iter().map(|m| Dataset::of_bookmark(&self.core, m, head.clone())).collect()
    }

    pub(crate) fn objset(&self) -> Result<Arc<Objset>> {
        if self.kind == DatasetKind::Bookmark {
            return Err(Error::invalid("a bookmark has no content").in_dataset(self.name()));
        }
        if self.ds().phys().is_inconsistent() {
            let text = "the dataset is incomplete: a receive or destroy was interrupted";
            return Err(Error::new(ErrorKind::Busy, text).in_dataset(self.name()));
        }
        if self.locked {
            let text = "the dataset is encrypted and its key is not loaded";
            return Err(Error::new(ErrorKind::Locked, text).in_dataset(self.name()));
        }
        // A dataset that is being written is read through its live object set.
        if let (Some(writer), DatasetKind::Filesystem | DatasetKind::Volume) =
            (&self.core.writer, self.kind)
        {
            return writer.read_dataset(self.name());
        }
        let none = || Error::corrupt("the dataset has no content").in_dataset(self.name());
        let os = self.ds().open_objset()?.ok_or_else(none)?;
        os.set_tiers(self.cache_tiers());
        Ok(os)
    }

    /// The counters for reads of this file system or volume; snapshots have no kstat
    /// (chapter 09 §6.1).
    fn counters(&self) -> Option<Arc<kstat::IoCounters>> {
        match self.kind {
            DatasetKind::Filesystem | DatasetKind::Volume => {
                crate::kstats::dataset_counters(&self.core, self.object(), self.name())
            }
            DatasetKind::Snapshot | DatasetKind::Bookmark => None,
        }
    }

    /// Opens its objects for reading and writing.
    ///
    /// # Errors
    /// `ReadOnly` for snapshots, pools imported read-only, and datasets with an intent log
    /// to replay; `Invalid` for bookmarks; `Locked`; those of reading.
    pub fn open_rw(&self) -> Result<crate::Objects> {
        let writer = self.core.writer().map_err(|e| e.in_dataset(self.name()))?;
        match self.kind {
            DatasetKind::Snapshot => {
                let text = "a snapshot does not change";
                return Err(Error::new(ErrorKind::ReadOnly, text).in_dataset(self.name()));
            }
            DatasetKind::Bookmark => {
                return Err(Error::invalid("a bookmark has no content").in_dataset(self.name()));
            }
            DatasetKind::Filesystem | DatasetKind::Volume => {}
        }
        let _checked = self.objset()?;
        crate::Objects::open(writer, self.name())
    }

    /// Bytes that could still be written here (chapter 04 §5.5).
    ///
    /// # Errors
    /// Those of reading the pool's space.
    pub fn available(&self) -> Result<u64> {
        let dir = self.available_in_dir(self.dir())?;
        let unique = self.ds().phys().unique_bytes;
        let with_reservation =
            dir.saturating_add(self.setting("refreservation")?.saturating_sub(unique));
        Ok(match self.setting("refquota")? {
            0 => with_reservation,
            q => with_reservation.min(q.saturating_sub(self.ds().phys().referenced_bytes)),
        })
    }

    fn available_in_dir(&self, dir: &DslDir) -> Result<u64> {
        let own = |dir: &DslDir, limit: u64| {
            let phys = dir.phys();
            let room = limit.saturating_sub(phys.used_bytes);
            if phys.quota == 0 {
                room
            } else {
                room.min(phys.quota.saturating_sub(phys.used_bytes))
            }
        };
        let mut dirs: Vec<&DslDir> = std::iter::once(dir).chain(dir.ancestors()).collect();
        dirs.reverse();
        let total = match &self.core.writer {
            Some(writer) => writer.usable(),
            None => {
                let space = self.core.space()?;
                let usable = space.usable().saturating_add(self.core.saved()?);
                // An unreadable list is not a reason to report no space at all.
                let waiting = dsl::write::bpobj::deferred(self.core.spa.mos()).unwrap_or_default();
                let waiting = waiting.map_or(0, |(_, list)| list.bytes);
                usable.saturating_sub(space.slop()).saturating_sub(waiting)
            }
        };
        let mut available = 0;
        for (i, d) in dirs.iter().enumerate() {
            let phys = d.phys();
            available = if i == 0 {
                own(d, total)
            } else {
                let reserved = phys.reserved.saturating_sub(phys.used_bytes);
                let from_parent = available.saturating_add(reserved);
                if phys.quota == 0 {
                    from_parent
                } else {
                    from_parent.min(phys.quota.saturating_sub(phys.used_bytes))
                }
            };
        }
        Ok(available)
    }

    /// A stored number that is not inherited, 0 if it was never set.
    fn setting(&self, name: &str) -> Result<u64> {
        Ok(self.ds().stored(name, false)?.and_then(|(v, _)| v.number()).unwrap_or(0))
    }

    /// The property `name`; `None` when it does not apply here.
    ///
    /// # Errors
    /// `Invalid` for a name that is no property's; those of reading.
    pub fn prop(&self, name: &str) -> Result<Option<PropValue>> {
        if props::is_user_prop(name) {
            return self.user_prop(name);
        }
        if props::is_written_prop(name) {
            return self.written_since(name);
        }
        if props::is_space_prop(name) {
            return self.owner_prop(name);
        }
        let prop = props::dataset_prop(name)
            .ok_or_else(|| Error::invalid(format!("invalid property '{name}'")))?;
        if !prop.types.intersects(self.kind.types()) {
            return Ok(None);
        }
        if let DatasetOrBookmark::Bookmark(b) = &self.what {
            return match name {
                "redact_snaps" => self.redaction_prop(name),
                _ => bookmark_prop(&b.0, name),
            };
        }
        if self.owner == DatasetKind::Volume
            && self.kind == DatasetKind::Snapshot
            && !prop.types.intersects(Types::V)
            && !is_snapshot_own(name)
        {
            return Ok(None);
        }
        match self.computed(name)? {
            Some(value) => Ok(value),
            None => self.stored_prop(prop),
        }
    }

    /// A property from the property ZAPs, or its default.
    fn stored_prop(&self, prop: &'static props::Prop) -> Result<Option<PropValue>> {
        let inheritable = prop.attr == Attr::Inherit;
        let found = self.ds().stored(prop.name, inheritable)?;
        let received = self.ds().received(prop.name)?.map(|v| v.into_data());
        let (value, source) = match found {
            Some((value, source)) => (value.into_data(), source),
            None => (prop.default_value(), Source::Default),
        };
        // A limit of zero means no limit and has no source.
        let is_zero = value == PropData::Num(0) && prop.default == "none";
        let source = if is_zero { Source::Default } else { source };
        Ok(Some(PropValue { value, source, received }))
    }

    fn user_prop(&self, name: &str) -> Result<Option<PropValue>> {
        if self.kind == DatasetKind::Bookmark {
            return Ok(None);
        }
        let received = self.ds().received(name)?.map(|v| v.into_data());
        let found = self.ds().stored(name, true)?;
        Ok(found.map(|(v, source)| PropValue { value: v.into_data(), source, received }))
    }

    /// Properties that are not (only) in a property ZAP. Outer `None`: not one
    /// of them; inner `None`: does not apply here.
    fn computed(&self, name: &str) -> Result<Option<Option<PropValue>>> {
        let ds = self.ds();
        let (phys, dir) = (ds.phys(), self.dir().phys());
        let snap = self.kind == DatasetKind::Snapshot;
        // Directories that pools before version 13 made have no parts.
        let part = |kind: UsedKind| dir.used(kind);
        let value = match name {
            "type" => text(self.kind.word()),
            "name" => text(self.name()),
            "creation" => number(phys.creation_time),
            "used" => number(if snap { phys.unique_bytes } else { dir.used_bytes }),
            "available" => number(self.available()?),
            "referenced" => number(phys.referenced_bytes),
            "compressratio" if snap => {
                number(ratio(phys.uncompressed_bytes, phys.compressed_bytes))
            }
            "compressratio" => number(ratio(dir.uncompressed_bytes, dir.compressed_bytes)),
            "refcompressratio" => number(ratio(phys.uncompressed_bytes, phys.compressed_bytes)),
            "mounted" => number(0),
            "origin" => self.origin(),
            "quota" => limit(dir.quota),
            "reservation" => limit(dir.reserved),
            "createtxg" => number(phys.creation_txg.0),
            "guid" => number(phys.guid),
            "objsetid" => number(ds.object()),
            "usedbysnapshots" => part(UsedKind::Snap).map_or(Ok(None), number),
            "usedbydataset" => part(UsedKind::Head).map_or(Ok(None), number),
            "usedbychildren" => part(UsedKind::Child)
                .zip(part(UsedKind::ChildReservation))
                .map_or(Ok(None), |(used, reserved)| number(used.saturating_add(reserved))),
            "usedbyrefreservation" => part(UsedKind::RefReservation).map_or(Ok(None), number),
            "written" => number(ds.written()?),
            "logicalused" => number(dir.uncompressed_bytes),
            "logicalreferenced" => number(phys.uncompressed_bytes),
            "defer_destroy" => number(u64::from(phys.is_defer_destroy())),
            "userrefs" => number(self.hold_count()?),
            "numclones" => number(phys.num_children.saturating_sub(1)),
            "clones" => self.clones(),
            "unique" => number(phys.unique_bytes),
            "inconsistent" => number(u64::from(phys.is_inconsistent())),
            "prevsnap" => self.previous_snapshot(),
            "filesystem_count" => self.count("com.joyent:filesystem_count"),
            "snapshot_count" => self.count("com.joyent:snapshot_count"),
            "snapshots_changed" | "snapshots_changed_nsecs" => self.snapshots_changed(name),
            "mountpoint" => self.mountpoint(),
            "receive_resume_token" => self.resume_token_prop(),
            "redact_snaps" | "redacted" => self.redaction_prop(name),
            "useraccounting" | "remaptxg" | "ivsetguid" | "stmf_sbd_lu" | "iscsioptions" => {
                Ok(None)
            }
            "volsize" | "volblocksize" => self.volume_prop(name),
            "version" | "utf8only" | "normalization" | "casesensitivity" => self.zpl_prop(name),
            n if n.starts_with("default") && n.ends_with("quota") => self.zpl_prop(name),
            "encryption" | "keyformat" | "pbkdf2iters" | "pbkdf2salt" | "encryptionroot"
            | "keystatus" | "keyguid" => self.crypto_prop(name),
            _ => return Ok(None),
        };
        value.map(Some)
    }

    fn resume_token_prop(&self) -> Result<Option<PropValue>> {
        match self.resume_token_text()? {
            Some(PropData::Str(token)) => text(token),
            _ => Ok(None),
        }
    }

    fn origin(&self) -> Result<Option<PropValue>> {
        let object = self.dir().phys().origin_obj;
        // Formally every ordinary dataset is a clone of the pool's empty snapshot.
        match object {
            o if o == 0 || o == self.core.origin_snapshot()? => absent_here(),
            _ => match self.name_of_snapshot(object)? {
                Some(name) => text(name),
                None => absent_here(),
            },
        }
    }

    fn clones(&self) -> Result<Option<PropValue>> {
        let mos = self.dir().mos();
        let mut names = Vec::new();
        for next in dsl::write::links::clones_of(mos, self.ds().object(), self.ds().phys())? {
            let dir = DslDataset::read_phys(mos, next)?.dir_obj;
            names.extend(DslDir::name_of(mos, dir, self.core.spa.name())?);
        }
        names.sort();
        if names.is_empty() { absent_here() } else { text(names.join(",")) }
    }

    fn previous_snapshot(&self) -> Result<Option<PropValue>> {
        let previous = self.ds().phys().prev_snap_obj;
        let snaps = self.ds().snapshots()?;
        match snaps.iter().find(|s| s.object() == previous) {
            Some(s) => text(s.name()),
            None => Ok(None),
        }
    }

    fn hold_count(&self) -> Result<u64> {
        Ok(self.dir().mos().zap_entries(self.ds().phys().userrefs_obj)?.len() as u64)
    }

    /// Tags and times of the holds, sorted.
    pub(crate) fn hold_entries(&self) -> Result<Vec<(String, u64)>> {
        let mut out = Vec::new();
        for entry in self.dir().mos().zap_entries(self.ds().phys().userrefs_obj)? {
            let time = entry.value.as_u64();
            let time = time.ok_or_else(|| Error::corrupt("the time of a hold is not a number"))?;
            out.push((String::from_utf8_lossy(&entry.name).into_owned(), time));
        }
        out.sort();
        Ok(out)
    }

    fn count(&self, key: &str) -> Result<Option<PropValue>> {
        let stored = self.dir().attribute(key)?.and_then(|v| v.first().copied());
        match stored {
            Some(n) => with_source(PropData::Num(n), Source::Local),
            None => with_source(PropData::Num(u64::MAX), Source::Default),
        }
    }

    fn snapshots_changed(&self, name: &str) -> Result<Option<PropValue>> {
        let words = self.dir().attribute("com.ixsystems:snapshots_changed")?;
        let Some(&[seconds, nanoseconds]) = words.as_deref() else { return Ok(None) };
        number(if name.ends_with("nsecs") {
            seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
        } else {
            seconds
        })
    }

    fn mountpoint(&self) -> Result<Option<PropValue>> {
        let found = self.ds().stored("mountpoint", true)?;
        let (path, source) = match found {
            None => (format!("/{}", self.name()), Source::Default),
            Some((value, source)) => {
                let value = value.text().unwrap_or("none").to_owned();
                let path = match &source {
                    _ if value == "none" || value == "legacy" => value,
                    Source::Inherited(from) => {
                        let below = self.name().get(from.len()..).unwrap_or_default();
                        format!("{}{below}", value.trim_end_matches('/'))
                    }
                    _ => value,
                };
                (path, source)
            }
        };
        let path = match self.core.spa.options().altroot.as_ref() {
            Some(root) if path.starts_with('/') => {
                let root = root.to_string_lossy();
                let joined = format!("{}{path}", root.trim_end_matches('/'));
                match joined.strip_suffix('/') {
                    Some(short) if !short.is_empty() => short.to_owned(),
                    _ => joined,
                }
            }
            _ => path,
        };
        with_source(PropData::Str(path), source)
    }

    fn volume_prop(&self, name: &str) -> Result<Option<PropValue>> {
        if self.owner != DatasetKind::Volume {
            return Ok(None);
        }
        if self.locked {
            return absent();
        }
        let volume = self.read_volume()?;
        if name == "volsize" {
            let source =
                if self.kind == DatasetKind::Volume { Source::Local } else { Source::None };
            return with_source(PropData::Num(volume.size()), source);
        }
        let default = props::dataset_prop(name).map(props::Prop::default_value);
        let value = PropData::Num(volume.block_size());
        let source = if default.as_ref() == Some(&value) { Source::Default } else { Source::None };
        with_source(value, source)
    }

    fn zpl_prop(&self, name: &str) -> Result<Option<PropValue>> {
        if self.owner != DatasetKind::Filesystem || self.locked {
            return Ok(None);
        }
        let fs = self.read_fs()?;
        let p = fs.props();
        number(match name {
            "version" => p.version,
            "utf8only" => u64::from(p.utf8only),
            "normalization" => p.normalization,
            "casesensitivity" => match p.case {
                zpl::CaseSensitivity::Sensitive => 0,
                zpl::CaseSensitivity::Insensitive => 1,
                zpl::CaseSensitivity::Mixed => 2,
            },
            "defaultuserquota" => p.user_quota.default_bytes,
            "defaultgroupquota" => p.group_quota.default_bytes,
            "defaultprojectquota" => p.project_quota.default_bytes,
            "defaultuserobjquota" => p.user_quota.default_objects,
            "defaultgroupobjquota" => p.group_quota.default_objects,
            "defaultprojectobjquota" => p.project_quota.default_objects,
            _ => return Ok(None),
        })
    }

    fn crypto_prop(&self, name: &str) -> Result<Option<PropValue>> {
        let dir = self.dir();
        let Some(object) = dir.crypto_key_object()? else {
            return match (name, props::dataset_prop(name)) {
                ("encryption" | "keyformat" | "pbkdf2iters", Some(prop)) => {
                    let value = match name {
                        "encryption" => PropData::Num(2),
                        _ => prop.default_value(),
                    };
                    with_source(value, Source::Default)
                }
                _ => Ok(None),
            };
        };
        let key = dir.mos().zap(object)?;
        let get = |k: &str| key.lookup_u64(k);
        match name {
            "encryption" => number(get("DSL_CRYPTO_SUITE")?.unwrap_or(0)),
            "keyformat" => number(get("keyformat")?.unwrap_or(0)),
            "pbkdf2iters" => match get("pbkdf2iters")?.unwrap_or(0) {
                0 => with_source(PropData::Num(0), Source::Default),
                n => number(n),
            },
            "pbkdf2salt" => number(get("pbkdf2salt")?.unwrap_or(0)),
            "keyguid" => number(get("DSL_CRYPTO_GUID")?.unwrap_or(0)),
            "keystatus" => number(1),
            _ => {
                let root = get("DSL_CRYPTO_ROOT_DDOBJ")?.unwrap_or(0);
                // That of a clone may be anywhere.
                match DslDir::name_of(dir.mos(), root, self.core.spa.name()) {
                    Ok(Some(name)) => text(name),
                    _ => absent(),
                }
            }
        }
    }

    /// All properties that `zfs get all` lists, in its order.
    ///
    /// # Errors
    /// Those of reading.
    pub fn props(&self) -> Result<Vec<(String, PropValue)>> {
        let mut out = Vec::new();
        for prop in props::dataset_props().iter().filter(|p| p.visible) {
            if let Some(value) = self.prop(prop.name)?
                && (value.value != PropData::None || value.source != Source::None)
            {
                out.push((prop.name.to_owned(), value));
            }
        }
        if self.kind != DatasetKind::Bookmark {
            for name in self.ds().user_property_names()? {
                if let Some(value) = self.user_prop(&name)? {
                    out.push((name, value));
                }
            }
        }
        Ok(out)
    }
}

/// Not applicable, and not listed by `zfs get all`.
fn absent_here() -> Result<Option<PropValue>> {
    Ok(Some(PropValue::default()))
}

/// A limit that is stored in the directory itself.
fn limit(bytes: u64) -> Result<Option<PropValue>> {
    let source = if bytes == 0 { Source::Default } else { Source::Local };
    with_source(PropData::Num(bytes), source)
}

/// Properties that any snapshot has itself, whatever it is a snapshot of.
fn is_snapshot_own(name: &str) -> bool {
    props::dataset_prop(name).is_some_and(|p| p.attr == Attr::ReadOnly)
}

fn bookmark_prop(mark: &Bookmark, name: &str) -> Result<Option<PropValue>> {
    let phys = &mark.phys;
    match name {
        "type" => text("bookmark"),
        "name" => text(mark.name.as_str()),
        "creation" => number(phys.creation_time),
        "createtxg" => number(phys.creation_txg.0),
        "guid" => number(phys.guid),
        "referenced" if phys.referenced.used != 0 => number(phys.referenced.used),
        "logicalreferenced" if phys.referenced.used != 0 => number(phys.referenced.uncomp),
        _ => Ok(None),
    }
}

/// Whether it is a file system or a volume, and whether it is locked.
fn kind_of(ds: &DslDataset) -> Result<(DatasetKind, bool)> {
    let encrypted = ds.dir().crypto_key_object()?.is_some();
    // The object set's block is authenticated, not encrypted: its type is readable.
    let kind = match ds.open_objset()? {
        Some(os) if os.kind() == ondisk::objset::ObjsetType::Zvol => DatasetKind::Volume,
        _ => DatasetKind::Filesystem,
    };
    Ok((kind, encrypted))
}
