//! Creating and snapshotting datasets, and their properties: sync tasks over `dsl::write`
//! (chapter 04 §4.2, §7, §12).
//!
//! # Theory
//! A request is checked completely before anything changes. Its changes are made in one
//! txg, so several snapshots are atomic. Errors have OpenZFS's wording.
//!
//! # Invariants
//! * An `act` can only fail because of damage; its `check` excluded other errors. A failing
//!   act suspends the pool.
//! * A destroyed head's dirty data is dropped with it; users of its object set get
//!   `NotFound`.
//!
//! # Departures from OpenZFS
//! * Limits on the number of file systems and snapshots apply to all users. OpenZFS exempts
//!   users that may change the limit, and here every user of the daemon may.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::limits::{DATASET_DEPTH_MAX, DATASET_NAME_MAX};
use base::{Error, ErrorKind, Result, Txg};
use codec::checksum::Checksum;
use dmu::{Io, Objset, ObjsetProps, Tx};
use dsl::stored::Stored;
use dsl::write::props::{self, Change, Target};
use dsl::write::{MosRead, create, delegation, destroy, features, rename, snapshot};
use dsl::{DslDir, Mos};
use ondisk::BlkPtr;
use ondisk::objset::ObjsetType;
use ondisk::zil::{LogPtr, Record};

use super::claim::CLONE_RANGE;
use super::effective::{effective_number, find_dir, missing};
use super::heads::dedup_of;
use super::sync::Flags;
use super::tasks::{Command, TaskCx};
use super::{Writer, objset_props};
use crate::audit::log::{LogVisitor, log_header, walk_log};

/// First version of pools whose snapshots have properties.
const VERSION_SNAPSHOT_PROPS: u64 = 12;

/// Fills a new dataset's object set. Conditions that can fail must be checked before.
pub type Content = Box<dyn FnOnce(&Arc<Objset>, &Tx) -> Result<()> + Send>;

/// Parameters of a new dataset.
pub struct NewDataset {
    /// Full name, pool first.
    pub name: String,
    /// File system or volume.
    pub kind: ObjsetType,
    /// Snapshot names are looked up without regard to case.
    pub case_insensitive: bool,
    /// Properties set on it.
    pub props: Vec<(String, Stored)>,
    /// Its initial content.
    pub content: Content,
}

/// A property to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropChange {
    /// Its name.
    pub name: String,
    /// The change.
    pub change: Change,
}

/// Properties that reserve space.
pub(super) const RESERVATIONS: [&str; 2] = ["reservation", "refreservation"];

pub(super) fn exists(name: &str) -> Error {
    Error::new(ErrorKind::Exists, "dataset already exists").in_dataset(name)
}

pub(super) fn check_name(name: &str) -> Result<()> {
    if name.len() > DATASET_NAME_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, "name is too long").in_dataset(name));
    }
    Ok(())
}

/// Checks a value against the pool's version and features.
pub(super) fn check_value(mos: &dyn MosRead, name: &str, value: &Stored) -> Result<()> {
    let Some(n) = value.number() else { return Ok(()) };
    let guid = match (name, n) {
        ("recordsize" | "volblocksize", n) if n > 128 << 10 => "org.open-zfs:large_blocks",
        ("checksum", 11) => "org.illumos:sha512",
        ("checksum", 12) => "org.illumos:skein",
        ("checksum", 13) => "org.illumos:edonr",
        ("checksum", 14) => "org.openzfs:blake3",
        ("compression", 15) => "org.illumos:lz4_compress",
        ("compression", n) if n & 0x7f == 16 => "org.freebsd:zstd_compress",
        ("dnodesize", n) if n != 0 => features::LARGE_DNODE,
        ("filesystem_limit" | "snapshot_limit", n) if n != u64::MAX => features::FILESYSTEM_LIMITS,
        ("dedup", n) => match dedup_of(n).map(|(checksum, _)| checksum) {
            None => return Ok(()),
            Some(Checksum::Sha512) => "org.illumos:sha512",
            Some(Checksum::Skein) => "org.illumos:skein",
            Some(Checksum::Edonr) => "org.illumos:edonr",
            Some(Checksum::Blake3) => "org.openzfs:blake3",
            // Older pools have no tables of this form.
            Some(_) if mos.directory("features_for_write")?.is_some() => return Ok(()),
            Some(_) => return Err(must_be_upgraded()),
        },
        _ => return Ok(()),
    };
    if features::is_enabled(mos, guid)? {
        return Ok(());
    }
    Err(must_be_upgraded())
}

/// Whether the pool's snapshots can have properties.
fn check_snapshot_props(cx: &TaskCx<'_>) -> Result<()> {
    match cx.state.config.version < VERSION_SNAPSHOT_PROPS {
        true => Err(must_be_upgraded()),
        false => Ok(()),
    }
}

fn must_be_upgraded() -> Error {
    Error::unsupported("pool must be upgraded to set this property or value")
}

/// Bytes that may still be charged to a directory, if the pool has `usable` bytes
/// (chapter 04 §5.5).
pub(super) fn available(mos: &dyn MosRead, dir: u64, usable: u64) -> Result<u64> {
    let (mut dirs, mut at) = (Vec::new(), dir);
    while at != 0 && dirs.len() <= DATASET_DEPTH_MAX {
        let phys = mos.dir(at)?;
        at = phys.parent_obj;
        dirs.push(phys);
    }
    let mut room = usable;
    for (i, phys) in dirs.iter().rev().enumerate() {
        room = match i {
            0 => room.saturating_sub(phys.used_bytes),
            _ => room.saturating_add(phys.reserved.saturating_sub(phys.used_bytes)),
        };
        if phys.quota != 0 {
            room = room.min(phys.quota.saturating_sub(phys.used_bytes));
        }
    }
    Ok(room)
}

/// Checks a changed property against a directory's space.
fn check_room(mos: &dyn MosRead, dir: u64, name: &str, value: &Stored, usable: u64) -> Result<()> {
    let (Some(n), phys) = (value.number(), mos.dir(dir)?) else { return Ok(()) };
    let grows = |used: u64, old: u64| n.max(used).saturating_sub(old.max(used));
    let growth = match name {
        "reservation" => Some((grows(phys.used_bytes, phys.reserved), phys.parent_obj)),
        "refreservation" if phys.head_dataset_obj != 0 => {
            let unique = mos.dataset(phys.head_dataset_obj)?.unique_bytes;
            Some((grows(unique, props::refreservation(mos, dir)?), dir))
        }
        _ => None,
    };
    if let Some((bytes, of)) = growth.filter(|(bytes, of)| *bytes > 0 && *of != 0)
        && bytes > available(mos, of, usable)?
    {
        return Err(Error::new(ErrorKind::NoSpace, "size is greater than available space"));
    }
    let used = match name {
        "quota" => phys.used_bytes.max(phys.reserved),
        "refquota" if phys.head_dataset_obj != 0 => {
            mos.dataset(phys.head_dataset_obj)?.referenced_bytes
        }
        _ => return Ok(()),
    };
    if n != 0 && n < used {
        let text = "size is less than current used or reserved space";
        return Err(Error::new(ErrorKind::NoSpace, text));
    }
    Ok(())
}

/// A limit on the number of datasets (chapter 04 §5.6).
pub(super) struct Limit {
    /// Name of the counted objects.
    word: &'static str,
    /// The property.
    prop: &'static str,
    /// The counter.
    pub(super) count: &'static str,
}

pub(super) const FILESYSTEMS: Limit =
    Limit { word: "filesystem", prop: "filesystem_limit", count: "com.joyent:filesystem_count" };
pub(super) const SNAPSHOTS: Limit =
    Limit { word: "snapshot", prop: "snapshot_limit", count: "com.joyent:snapshot_count" };

impl TaskCx<'_> {
    pub(super) fn dir(&self, name: &str) -> Result<u64> {
        find_dir(self.read(), self.writer.name(), name)
    }

    /// The head of a file system or volume by its full name.
    pub(super) fn head(&self, name: &str) -> Result<u64> {
        match self.read().dir(self.dir(name)?)?.head_dataset_obj {
            0 => Err(missing(name)),
            head => Ok(head),
        }
    }

    /// A snapshot by its full name: head and snapshot.
    pub(super) fn snapshot(&self, name: &str) -> Result<(u64, u64)> {
        let (fs, snap) = name.split_once('@').ok_or_else(|| missing(name))?;
        let head = self.head(fs)?;
        let found = snapshot::find(self.cx, &self.read().dataset(head)?, snap)?;
        Ok((head, found.ok_or_else(|| missing(name))?))
    }

    pub(super) fn kind_of(&self, head: u64) -> Result<ObjsetType> {
        if let Some(os) = self.writer.heads.lock().get(&head) {
            return Ok(os.kind());
        }
        let bp = self.read().dataset(head)?.bp;
        Ok(Objset::open(Arc::clone(&self.writer.zio), head, bp, Io::SYNC)?.kind())
    }

    /// Whether `dir` may get one more file system or snapshot, in addition to those that
    /// this request already counted (`more`, by directory).
    ///
    /// # Errors
    /// `NoSpace`, naming the dataset with the limit; those of reading the MOS.
    pub(super) fn check_limit(
        &self,
        dir: u64,
        what: &Limit,
        more: &mut BTreeMap<u64, u64>,
    ) -> Result<()> {
        for at in rename::ancestors(self.read(), dir)? {
            let wanted = more.entry(at).or_default();
            *wanted += 1;
            self.check_limit_at(at, what, *wanted)?;
        }
        Ok(())
    }

    /// Whether `dir` and the directories above it that `except` lacks may get `more` file
    /// systems or snapshots.
    ///
    /// # Errors
    /// As [`TaskCx::check_limit`].
    pub(super) fn check_limit_below(
        &self,
        dir: u64,
        what: &Limit,
        more: u64,
        except: &BTreeSet<u64>,
    ) -> Result<()> {
        let above = rename::ancestors(self.read(), dir)?;
        let mut own = above.into_iter().take_while(|at| !except.contains(at));
        own.try_for_each(|at| self.check_limit_at(at, what, more))
    }

    fn check_limit_at(&self, dir: u64, what: &Limit, more: u64) -> Result<()> {
        let mos = self.read();
        let zap = mos.dir(dir)?.props_zapobj;
        let max = props::own(mos, zap, what.prop)?.and_then(|v| v.number());
        let now = mos.attribute_u64(dir, what.count)?;
        let (Some(max), Some(now)) = (max, now) else { return Ok(()) };
        if max == u64::MAX || now.saturating_add(more) <= max {
            return Ok(());
        }
        let name = DslDir::name_of(self.mos(), dir, self.writer.name())?;
        let (word, name) = (what.word, name.unwrap_or_default());
        let text = format!("{word} limit of '{name}' is reached ({max})");
        Err(Error::new(ErrorKind::NoSpace, text))
    }

    /// Updates the properties of the live heads.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub(crate) fn refresh_heads(&self) -> Result<()> {
        let flags = self.flags()?;
        let heads: Vec<(u64, Arc<Objset>)> =
            self.writer.heads.lock().iter().map(|(&h, os)| (h, Arc::clone(os))).collect();
        for (head, os) in heads {
            let dir = self.read().dataset(head)?.dir_obj;
            let get = |name: &str| effective_number(self.read(), dir, name);
            os.set_props(objset_props(&flags, &get)?)?;
        }
        Ok(())
    }

    /// Gives the user who made a dataset the create-time permissions of those above it
    /// (chapter 04 §13).
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn grant_to_creator(&self, dir: u64, command: Option<&Command>) -> Result<()> {
        let user = command.map(|c| c.uid).filter(|uid| *uid != 0);
        user.map_or(Ok(()), |uid| delegation::created(self.cx, dir, uid))
    }

    fn make(&mut self, parent: u64, new: NewDataset) -> Result<create::Created> {
        let name = new.name.rsplit('/').next().unwrap_or_default();
        let wanted =
            create::NewDataset { name, case_insensitive: new.case_insensitive, origin: None };
        let made = create::dataset(self.cx, parent, &wanted)?;
        for (name, value) in &new.props {
            props::change(self.cx, Target::Dir(made.dir), name, &Change::Set(value.clone()))?;
        }
        let get = |name: &str| effective_number(self.read(), made.dir, name);
        let props = objset_props(&self.flags()?, &get)?;
        let os = Objset::create(Arc::clone(&self.writer.zio), made.head, new.kind, props);
        (new.content)(&os, self.tx)?;
        self.mark_accounting(made.head, &os)?;
        self.add_head(made.head, os);
        self.log_internal("create", Some((&new.name, made.head)), "")?;
        Ok(made)
    }

    pub(super) fn free(&self, bp: &BlkPtr) -> Result<()> {
        self.writer.free(self.cx.txg, bp)
    }

    /// Frees the blocks of a head's intent log (chapter 06 §19); nothing is replayed.
    pub(super) fn free_log(&self, head: u64) -> Result<()> {
        let bp = self.read().dataset(head)?.bp;
        if bp.is_hole() {
            return Ok(());
        }
        let zio = &self.writer.zio;
        let os = Objset::open(Arc::clone(zio), head, bp, Io::SYNC)?;
        let header = log_header(&os.phys())?;
        if header.log.is_end() {
            return Ok(());
        }
        let mut seen = LogBlocks::new(header.claim_txg);
        // An error ends the log: blocks behind it were not claimed.
        let _end = walk_log(zio, &header, &mut seen);
        seen.into_blocks().iter().try_for_each(|bp| self.free(bp))
    }

    pub(super) fn destroy_head(&mut self, head: u64, name: &str) -> Result<()> {
        self.settle()?;
        self.end_clones(head);
        self.free_log(head)?;
        self.log_internal("destroy", Some((name, head)), "")?;
        destroy::head(self.cx, head, &Arc::clone(&self.writer.zio))?;
        self.drop_head(head);
        self.free_in_background();
        Ok(())
    }

    pub(super) fn destroy_one_snapshot(
        &mut self,
        snap: u64,
        name: &str,
        defer: bool,
    ) -> Result<()> {
        let text = if defer { "defer" } else { "" };
        self.log_internal("destroy", Some((name, snap)), text)?;
        let short = name.split_once('@').map(|(_, short)| short);
        destroy::named_snapshot(self.cx, snap, short, defer)?;
        self.free_in_background();
        Ok(())
    }
}

/// Blocks of a log, each once, and the references to cloned blocks that its claim took.
pub(super) struct LogBlocks {
    claimed: Txg,
    found: BTreeMap<(u32, u64), BlkPtr>,
    /// One for each pointer of a record (chapter 06 §19.2).
    references: Vec<BlkPtr>,
}

impl LogBlocks {
    pub(super) fn new(claimed: Txg) -> LogBlocks {
        LogBlocks { claimed, found: BTreeMap::new(), references: Vec::new() }
    }

    /// All that is to be freed with the log.
    pub(super) fn into_blocks(self) -> Vec<BlkPtr> {
        self.found.into_values().chain(self.references).collect()
    }

    fn note(&mut self, bp: &BlkPtr) {
        if let BlkPtr::Block(b) = bp {
            self.found.entry((b.dva().vdev.0, b.dva().offset)).or_insert(*bp);
        }
    }
}

impl LogVisitor for LogBlocks {
    fn block(&mut self, ptr: &LogPtr) -> Result<bool> {
        self.note(&ptr.bp);
        Ok(true)
    }

    fn record(&mut self, record: &Record<'_>, _encrypted: bool) -> Result<()> {
        if self.claimed == Txg::ZERO {
            return Ok(());
        }
        let clone = record.header.txtype == CLONE_RANGE;
        for bp in record.pointers()? {
            let bp = bp?;
            if clone {
                // The claim referred to each of them.
                self.references.extend(bp.as_block().map(|_| bp));
            } else if bp.birth() >= self.claimed {
                self.note(&bp);
            }
        }
        Ok(())
    }
}

pub(super) fn log(cx: &TaskCx<'_>, command: Option<&Command>) -> Result<()> {
    command.filter(|c| !c.text.is_empty()).map_or(Ok(()), |c| cx.log_command(c))
}

impl Writer {
    /// Creates a file system or volume; it is on disk when this returns.
    ///
    /// # Errors
    /// In OpenZFS's words: `Exists`, `NotFound` without a parent, `Invalid` below a volume,
    /// `NameTooLong`, `NoSpace`, `Unsupported` for properties whose feature is not enabled;
    /// those of a suspension.
    pub fn create_dataset(&self, new: NewDataset, command: Option<Command>) -> Result<Txg> {
        check_name(&new.name)?;
        let (name, list) = (new.name.clone(), new.props.clone());
        let check = move |cx: &mut TaskCx<'_>| {
            let parent = cx.parent_of(&name)?;
            let last = name.rsplit('/').next().unwrap_or_default();
            let wanted = create::NewDataset { name: last, case_insensitive: false, origin: None };
            match create::check(cx.cx, parent, &wanted) {
                Err(e) if e.kind() == ErrorKind::Exists => return Err(exists(&name)),
                other => other.map_err(|e| e.in_dataset(name.as_str()))?,
            }
            if cx.writer.allocatable(false) == 0 {
                return Err(Error::new(ErrorKind::NoSpace, "out of space").in_dataset(&name));
            }
            let limited = cx.check_limit(parent, &FILESYSTEMS, &mut BTreeMap::new());
            limited.map_err(|e| e.in_dataset(&name))?;
            list.iter().try_for_each(|(name, value)| check_value(cx.read(), name, value))?;
            let reserves = |p: &&(String, Stored)| RESERVATIONS.contains(&p.0.as_str());
            let wanted = list.iter().filter(reserves).filter_map(|p| p.1.number()).max();
            let room = || available(cx.read(), parent, cx.writer.usable());
            if wanted.map_or(Ok(false), |n| room().map(|room| n > room))? {
                return Err(Error::new(ErrorKind::NoSpace, "out of space").in_dataset(&name));
            }
            Ok(parent)
        };
        let act = move |cx: &mut TaskCx<'_>, parent| {
            let made = cx.make(parent, new)?;
            cx.grant_to_creator(made.dir, command.as_ref())?;
            log(cx, command.as_ref())
        };
        self.sync_task(check, act).map(|(_, txg)| txg)
    }

    /// Takes snapshots atomically. Properties are set on each.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Exists`, `Invalid`, `NameTooLong`, `NoSpace`; those
    /// of a suspension.
    pub fn snapshot(
        &self,
        names: &[String],
        props: &[(String, Stored)],
        command: Option<Command>,
    ) -> Result<Txg> {
        names.iter().try_for_each(|n| check_name(n))?;
        loop {
            let done = self.try_snapshot(names.to_vec(), props.to_vec(), command.clone());
            match done {
                // A dataset can have one snapshot per txg.
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    fn try_snapshot(
        &self,
        names: Vec<String>,
        list: Vec<(String, Stored)>,
        command: Option<Command>,
    ) -> Result<Txg> {
        let has_props = !list.is_empty();
        let check = move |cx: &mut TaskCx<'_>| {
            if has_props {
                check_snapshot_props(cx)?;
            }
            let mut heads = Vec::with_capacity(names.len());
            let (mut seen, mut more) = (BTreeSet::new(), BTreeMap::new());
            for name in names {
                let Some((fs, snap)) = name.split_once('@') else {
                    let text = "missing '@' delimiter in snapshot name";
                    return Err(Error::invalid(text).in_dataset(&name));
                };
                let head = cx.head(fs)?;
                if !seen.insert(head) {
                    let text = "multiple snapshots of same fs not allowed";
                    return Err(Error::invalid(text).in_dataset(&name));
                }
                match snapshot::check(cx.cx, head, snap) {
                    Err(e) if e.kind() == ErrorKind::Exists => return Err(exists(&name)),
                    other => other.map_err(|e| e.in_dataset(name.as_str()))?,
                }
                cx.check_replayed(head).map_err(|e| e.in_dataset(name.as_str()))?;
                let dir = cx.read().dataset(head)?.dir_obj;
                let limited = cx.check_limit(dir, &SNAPSHOTS, &mut more);
                limited.map_err(|e| e.in_dataset(name.as_str()))?;
                heads.push((head, name));
            }
            if cx.writer.allocatable(false) == 0 {
                return Err(Error::new(ErrorKind::NoSpace, "out of space"));
            }
            Ok(heads)
        };
        let act = move |cx: &mut TaskCx<'_>, heads: Vec<(u64, String)>| {
            cx.end_idle_logs(heads.iter().map(|(head, _)| *head))?;
            cx.settle()?;
            for (head, name) in &heads {
                let (_, last) = name.split_once('@').unwrap_or_default();
                let snap = snapshot::take(cx.cx, *head, last)?;
                for (prop, value) in &list {
                    let set = Change::Set(value.clone());
                    props::change(cx.cx, Target::Snapshot(snap), prop, &set)?;
                }
                cx.log_internal("snapshot", Some((name, snap)), "")?;
            }
            log(cx, command.as_ref())
        };
        self.sync_task(check, act).map(|(_, txg)| txg)
    }

    /// Changes properties of a file system, volume or snapshot, all in one txg. They apply
    /// to blocks written from then on. The caller validates the values.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` for values whose feature is not enabled; `NoSpace` for
    /// quotas that are exceeded already; those of a suspension.
    pub fn set_props(
        &self,
        name: &str,
        changes: Vec<PropChange>,
        command: Option<Command>,
    ) -> Result<()> {
        check_name(name)?;
        let (name, list) = (name.to_owned(), changes.clone());
        let of = name.clone();
        let check = move |cx: &mut TaskCx<'_>| {
            let target = if of.contains('@') {
                check_snapshot_props(cx).map_err(|e| e.in_dataset(of.as_str()))?;
                Target::Snapshot(cx.snapshot(&of)?.1)
            } else {
                Target::Dir(cx.dir(&of)?)
            };
            for PropChange { name, change } in &list {
                props::check_name(name)?;
                let (Change::Set(value) | Change::Receive(value)) = change else { continue };
                check_value(cx.read(), name, value).map_err(|e| e.in_dataset(of.as_str()))?;
                if let Target::Dir(dir) = target {
                    check_room(cx.read(), dir, name, value, cx.writer.usable())
                        .map_err(|e| e.in_dataset(of.as_str()))?;
                }
            }
            Ok(target)
        };
        let act = move |cx: &mut TaskCx<'_>, target| {
            for PropChange { name: prop, change } in &changes {
                props::change(cx.cx, target, prop, change)?;
                let (verb, text) = match change {
                    Change::Set(Stored::Number(n)) => ("set", format!("{prop}={n}")),
                    Change::Set(Stored::Text(t)) => ("set", format!("{prop}={t}")),
                    _ => ("inherit", format!("{prop}=")),
                };
                let object = match target {
                    Target::Dir(dir) => cx.read().dir(dir)?.head_dataset_obj,
                    Target::Snapshot(snap) => snap,
                };
                cx.log_internal(verb, Some((&name, object)), &text)?;
            }
            cx.refresh_heads()?;
            log(cx, command.as_ref())
        };
        self.sync_task(check, act).map(|_| ())
    }

    /// Adds a command to the pool's history.
    ///
    /// # Errors
    /// Those of a suspension.
    pub fn log_command(&self, command: Command) -> Result<()> {
        self.sync_task(|_| Ok(()), move |cx, ()| cx.log_command(&command)).map(|_| ())
    }

    /// The object set of a file system or volume by its full name, open for writing with
    /// its effective properties.
    ///
    /// # Errors
    /// `NotFound`; as [`Writer::open_head`].
    pub fn open_dataset(&self, name: &str) -> Result<Arc<Objset>> {
        let (head, props) = self.head_of(name)?;
        self.open_head(head, props).map_err(|e| e.in_dataset(name))
    }

    /// The same for reading.
    ///
    /// # Errors
    /// `NotFound`; as [`Writer::open_dataset`].
    pub fn read_dataset(&self, name: &str) -> Result<Arc<Objset>> {
        let (head, props) = self.head_of(name)?;
        self.live_head(&self.mos, head, props).map_err(|e| e.in_dataset(name))
    }

    fn head_of(&self, name: &str) -> Result<(u64, ObjsetProps)> {
        let mos: &dyn MosRead = &self.mos;
        let _names = self.names();
        let dir = find_dir(mos, self.name(), name)?;
        let head = mos.dir(dir)?.head_dataset_obj;
        if head == 0 {
            return Err(missing(name));
        }
        let get = |prop: &str| effective_number(mos, dir, prop);
        Ok((head, objset_props(&self.flags()?, &get)?))
    }

    /// The effective properties of a head's blocks.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub(super) fn props_of(&self, mos: &Mos, head: u64) -> Result<ObjsetProps> {
        let read: &dyn MosRead = mos;
        let dir = read.dataset(head)?.dir_obj;
        objset_props(&Flags::load(mos)?, &|prop| effective_number(read, dir, prop))
    }
}
