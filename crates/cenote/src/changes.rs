//! Changing a pool's datasets: creating, destroying, snapshots, properties.
//!
//! # Theory
//! Names and values are validated as in OpenZFS before the engine is called. The engine
//! validates again what depends on the pool's state, in the txg that makes the change.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use dmu::{Objset, Tx};
use dsl::props::PropData;
use dsl::stored::Stored;
use dsl::write::props::Change;
use ondisk::objset::ObjsetType;
use spa::engine::{Command, Content, NewDataset, PropChange};
use zpl::{CaseSensitivity, NewFs, Time};
use zvol::create::NewVolume;

use crate::dataset::Dataset;
use crate::pool::Pool;

/// Properties of a file system that are stored in its master node and never change.
const FOR_LIFE: [&str; 4] = ["version", "normalization", "utf8only", "casesensitivity"];

/// Properties in their stored form; `None` values are left out.
pub(crate) fn stored(props: &[(String, PropData)]) -> Vec<(String, Stored)> {
    let one = |(name, value): &(String, PropData)| {
        let value = match value {
            PropData::None => return None,
            PropData::Num(n) => Stored::Number(*n),
            PropData::Str(s) => Stored::Text(s.clone()),
        };
        Some((name.clone(), value))
    };
    props.iter().filter_map(one).collect()
}

/// Changes that set properties.
pub(crate) fn set_changes(props: &[(String, PropData)]) -> Vec<PropChange> {
    let set = |(name, value)| PropChange { name, change: Change::Set(value) };
    stored(props).into_iter().map(set).collect()
}

pub(crate) fn command(text: Option<&str>) -> Option<Command> {
    text.map(Command::new)
}

/// User and group of this process.
pub(crate) fn process_owner() -> (u64, u64) {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (uid.as_raw().into(), gid.as_raw().into())
}

fn now() -> Time {
    let now = base::rt::wall_clock();
    Time { seconds: now.as_secs() as i64, nanoseconds: u64::from(now.subsec_nanos()) }
}

/// Splits a list into a new file system's permanent properties and the rest.
///
/// # Errors
/// `Invalid`, `Unsupported`.
pub(crate) fn split_for_life(
    props: &[(String, PropData)],
    above: NewFs,
) -> Result<(NewFs, Vec<(String, Stored)>)> {
    let mut new = NewFs { time: now(), ..above };
    for (name, value) in props {
        let PropData::Num(n) = value else { continue };
        match name.as_str() {
            "version" => new.version = *n,
            "normalization" => new.normalization = *n,
            "utf8only" => new.utf8only = *n != 0,
            "casesensitivity" => {
                new.case = match n {
                    0 => CaseSensitivity::Sensitive,
                    1 => CaseSensitivity::Insensitive,
                    2 => CaseSensitivity::Mixed,
                    _ => return Err(Error::invalid("unknown casesensitivity")),
                }
            }
            _ => {}
        }
    }
    new.check()?;
    let mut rest = stored(props);
    rest.retain(|(name, _)| !FOR_LIFE.contains(&name.as_str()));
    Ok((new, rest))
}

/// The initial content of a file system; its accounting depends on the pool's features.
pub(crate) fn filesystem(new: NewFs) -> Content {
    Box::new(move |os: &Arc<Objset>, tx: &Tx| {
        let props = os.props()?;
        let new = NewFs {
            count_owners: props.count_owners,
            count_objects: props.count_objects,
            count_projects: props.count_projects,
            ..new
        };
        zpl::create::fill(os, tx, &new)
    })
}

impl Pool {
    /// Creates a file system. Properties are in stored form; `command` is added to the
    /// pool's history. Case and normalisation of names are inherited from the parent unless
    /// given.
    ///
    /// # Errors
    /// In OpenZFS's words: `Exists`, `NotFound` without a parent, `Invalid`, `NameTooLong`,
    /// `NoSpace`, `Unsupported`; `ReadOnly`; that of a suspension.
    pub fn create_filesystem(
        &self,
        name: &str,
        props: &[(String, PropData)],
        command_line: Option<&str>,
    ) -> Result<Dataset> {
        let (owners, props): (Vec<_>, Vec<_>) =
            props.iter().cloned().partition(|p| crate::owners::is_owner_quota(&p.0));
        let (new, rest) = split_for_life(&props, self.above(name))?;
        let wanted = NewDataset {
            name: name.to_owned(),
            kind: ObjsetType::Zfs,
            case_insensitive: new.case == CaseSensitivity::Insensitive,
            props: rest,
            content: filesystem(new),
        };
        self.writer()?.create_dataset(wanted, self.command(command_line))?;
        let done = self.set_owner_quotas(name, &owners).and_then(|()| self.dataset(name));
        match done.and_then(|made| made.check_quota().map(|()| made)) {
            // A dataset whose properties cannot be set is not kept.
            Err(e) => {
                self.writer()?.destroy_dataset(name, false, None)?;
                Err(e)
            }
            made => made,
        }
    }

    /// Brings a file system to a newer version, as far as the pool's version allows.
    fn upgrade_version(&self, name: &str, version: &PropData) -> Result<()> {
        let PropData::Num(version) = version else { return Ok(()) };
        if *version > zpl::create::version_for(self.version()) {
            return Err(Error::unsupported("pool must be upgraded"));
        }
        let fs = self.dataset(name)?.open_fs()?;
        fs.upgrade_version(*version)?;
        // Without a mount no other thread would sync it.
        fs.sync_all()
    }

    pub(crate) fn set_owner_quotas(&self, name: &str, owners: &[(String, PropData)]) -> Result<()> {
        for (prop, limit) in owners {
            let PropData::Num(limit) = limit else { continue };
            self.set_owner_quota(name, prop, *limit).map_err(|e| e.in_dataset(name))?;
        }
        Ok(())
    }

    /// The properties that a new file system inherits from its parent.
    fn above(&self, name: &str) -> NewFs {
        let version = zpl::create::version_for(self.version());
        // The user who makes it becomes its owner.
        let (uid, gid) = self.owner_of_new();
        let new = NewFs { version, uid, gid, ..NewFs::default() };
        let parent = name.rsplit_once('/').and_then(|(above, _)| self.dataset(above).ok());
        let Some(fs) = parent.and_then(|p| p.read_fs().ok()) else { return new };
        let of = fs.props();
        let (normalization, utf8only, case) = (of.normalization, of.utf8only, of.case);
        NewFs { normalization, utf8only, case, ..new }
    }

    /// Creates a volume of `size` bytes in blocks of `block_size`, 16 KiB unless given.
    /// Space is reserved only if `props` say so (`refreservation`, which may be
    /// [`crate::REFRESERVATION_AUTO`]).
    ///
    /// # Errors
    /// As [`Pool::create_filesystem`].
    pub fn create_volume(
        &self,
        name: &str,
        size: u64,
        block_size: Option<u32>,
        props: &[(String, PropData)],
        command_line: Option<&str>,
    ) -> Result<Dataset> {
        let block_size = block_size.unwrap_or(zvol::create::BLOCK_SIZE_DEFAULT);
        let new = NewVolume { size, block_size };
        new.check()?;
        let mut list = stored(&self.new_volume_props(name, &new, props)?);
        list.retain(|(name, _)| name != "volsize");
        list.push(("volblocksize".to_owned(), Stored::Number(u64::from(block_size))));
        let wanted = NewDataset {
            name: name.to_owned(),
            kind: ObjsetType::Zvol,
            case_insensitive: false,
            props: list,
            content: Box::new(move |os, tx| zvol::create::fill(os, tx, &new)),
        };
        self.writer()?.create_dataset(wanted, self.command(command_line))?;
        self.dataset(name)
    }

    /// Destroys a file system or volume; `recursive`: with its snapshots and all below.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Exists` while there are children, snapshots or
    /// clones, `Busy` for held snapshots, `Invalid` for the pool's root; `ReadOnly`; that
    /// of a suspension.
    pub fn destroy_dataset(
        &self,
        name: &str,
        recursive: bool,
        command_line: Option<&str>,
    ) -> Result<()> {
        self.writer()?.destroy_dataset(name, recursive, self.command(command_line)).map(drop)
    }

    /// Takes snapshots (`dataset@name`) atomically.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Exists`, `Invalid`, `NameTooLong`, `NoSpace`;
    /// `ReadOnly`; that of a suspension.
    pub fn snapshot(
        &self,
        names: &[String],
        props: &[(String, PropData)],
        command_line: Option<&str>,
    ) -> Result<()> {
        self.writer()?.snapshot(names, &stored(props), self.command(command_line)).map(drop)
    }

    /// Destroys snapshots. With `defer`, those that are held or have clones are destroyed
    /// together with the last of these.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Busy`, `Exists` for those with clones; `ReadOnly`;
    /// that of a suspension.
    pub fn destroy_snapshots(
        &self,
        names: &[String],
        defer: bool,
        command_line: Option<&str>,
    ) -> Result<()> {
        self.writer()?.destroy_snapshots(names, defer, self.command(command_line)).map(drop)
    }

    /// Sets properties of a dataset, in stored form, as [`crate::create::dataset_setting`]
    /// validates them. A new `volsize` is on disk when this returns, and a `refreservation`
    /// that equals the size of the full volume follows it.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` for values whose feature is not enabled; `NoSpace` for
    /// quotas exceeded already; `Invalid` for properties that cannot change; `ReadOnly`;
    /// that of a suspension.
    pub fn set_props(
        &self,
        name: &str,
        props: &[(String, PropData)],
        command_line: Option<&str>,
    ) -> Result<()> {
        let fixed = |p: &&(String, PropData)| {
            let for_life = FOR_LIFE.contains(&p.0.as_str()) && p.0 != "version";
            for_life || p.0 == "volblocksize"
        };
        if let Some((prop, _)) = props.iter().find(fixed) {
            let text = format!("'{prop}' is readonly");
            return Err(Error::invalid(text).in_dataset(name));
        }
        let (owners, mut props): (Vec<_>, Vec<_>) =
            props.iter().cloned().partition(|p| crate::owners::is_owner_quota(&p.0));
        self.set_owner_quotas(name, &owners)?;
        if let Some(at) = props.iter().position(|p| p.0 == "version") {
            let (_, version) = props.swap_remove(at);
            self.upgrade_version(name, &version).map_err(|e| e.in_dataset(name))?;
            if props.is_empty() {
                let line = self.command(command_line);
                return line.map_or(Ok(()), |line| self.writer()?.log_command(line));
            }
        }
        if let Some(size) = crate::volume::take_size(&mut props) {
            self.set_volume_size(name, size, props, command_line)?;
            return self.core.refresh_hosts();
        }
        self.resolve_auto(name, &mut props)?;
        self.writer()?.set_props(name, set_changes(&props), self.command(command_line))?;
        self.core.refresh_hosts()
    }

    /// Removes local values, so that properties are inherited or have their defaults.
    ///
    /// # Errors
    /// As [`Pool::set_props`].
    pub fn inherit(&self, name: &str, props: &[&str], command_line: Option<&str>) -> Result<()> {
        let one = |p: &&str| PropChange { name: (*p).to_owned(), change: Change::Inherit };
        let changes = props.iter().map(one).collect();
        self.writer()?.set_props(name, changes, self.command(command_line))?;
        self.core.refresh_hosts()
    }

    /// Reverts properties to their received values; without one, as [`Pool::inherit`].
    ///
    /// # Errors
    /// As [`Pool::set_props`].
    pub fn revert(&self, name: &str, props: &[&str], command_line: Option<&str>) -> Result<()> {
        let one = |p: &&str| PropChange { name: (*p).to_owned(), change: Change::Revert };
        let changes = props.iter().map(one).collect();
        self.writer()?.set_props(name, changes, self.command(command_line))?;
        self.core.refresh_hosts()
    }
}

impl Dataset {
    /// Takes a snapshot of this dataset; `name` is the part behind the `@`.
    ///
    /// # Errors
    /// As [`Pool::snapshot`].
    pub fn take_snapshot(&self, name: &str) -> Result<()> {
        let full = format!("{}@{name}", self.name());
        self.core().writer()?.snapshot(&[full], &[], None).map(drop)
    }

    /// Destroys a snapshot of this dataset.
    ///
    /// # Errors
    /// As [`Pool::destroy_snapshots`].
    pub fn destroy_snapshot(&self, name: &str) -> Result<()> {
        let full = format!("{}@{name}", self.name());
        self.core().writer()?.destroy_snapshots(&[full], false, None).map(drop)
    }

    /// Renames a snapshot of this dataset.
    ///
    /// # Errors
    /// As [`Pool::rename_snapshot`].
    pub fn rename_snapshot(&self, from: &str, to: &str) -> Result<()> {
        let writer = self.core().writer()?;
        writer.rename_snapshot(self.name(), (from, to), false, None).map(drop)
    }

    /// Whether a new file system fits into its own quota. The size of an empty one is known
    /// only after it was created.
    fn check_quota(&self) -> Result<()> {
        let number = |prop: &str| match self.prop(prop)?.map(|v| v.value) {
            Some(PropData::Num(n)) => Ok::<u64, Error>(n),
            _ => Ok(0),
        };
        for (quota, used) in [("quota", "used"), ("refquota", "referenced")] {
            let limit = number(quota)?;
            if limit != 0 && limit < number(used)? {
                return Err(Error::new(ErrorKind::NoSpace, "out of space"));
            }
        }
        Ok(())
    }

    /// Bytes that destroying these snapshots of this dataset, oldest first, frees: blocks
    /// written and killed again between neighbours (chapter 04 §6.4).
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn reclaimable(&self, snapshots: &[Dataset]) -> Result<u64> {
        let all = self.snapshots()?;
        let doomed: BTreeSet<u64> = snapshots.iter().map(Dataset::object).collect();
        let doomed: BTreeSet<usize> =
            (0..all.len()).filter(|i| doomed.contains(&all[*i].object())).collect();
        let mut sum = 0u64;
        let mut first = None;
        for i in 0..all.len() {
            if !doomed.contains(&i) {
                continue;
            }
            let run = *first.get_or_insert(i);
            if run == i && !doomed.contains(&(i + 1)) {
                sum = sum.saturating_add(all[i].unique_bytes());
            } else {
                let next = all.get(i + 1).unwrap_or(self);
                let before = all[run].previous_txg();
                // Dead in the next snapshot: the last dataset with the block was one of
                // those destroyed.
                sum = sum.saturating_add(next.dead_since(before)?);
            }
            if !doomed.contains(&(i + 1)) {
                first = None;
            }
        }
        Ok(sum)
    }
}
