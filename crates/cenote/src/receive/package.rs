//! Packages: many datasets in one stream, with their names and properties (chapter 07 §11.3,
//! §14.2, §14.3).
//!
//! # Theory
//! The header of a package lists the sender's datasets with the guids of their snapshots. A guid
//! is the same on both sides, so it says which local dataset is which of the sender's, whatever
//! its name. A recursive, incremental package is reconciled before its substreams come: datasets
//! and snapshots that the sender has renamed are renamed, clones that it has promoted are
//! promoted, and, if that is forced, what it has destroyed is destroyed. Each of these steps is a
//! complete request of its own; after an error, or a crash, the next run of the same stream goes
//! on where this one ended.
//!
//! # Departures from OpenZFS
//! * The reconciliation is made once, before the substreams. Names that only a substream makes
//!   possible (a renamed dataset below a new one) are settled by the next incremental package.

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, ErrorKind, Result};
use dsl::props::{Attr, PropData, dataset_prop, is_user_prop};
use dsl::stored::Stored;
use dsl::write::props::Change;
use nvlist::{NvList, Value};
use spa::engine::{PropChange, SnapshotHold};
use stream::{PackageDataset, PackageHeader};

use super::{ReceiveNames, ReceiveObserver, ReceiveOptions, ReceivedStream};
use crate::dataset::{Dataset, DatasetKind};
use crate::delegation::permission_to_set;
use crate::pool::Pool;

/// Steps of one reconciliation at most: more than any package that it can be sensible for.
const STEPS_MAX: usize = 100_000;

/// Properties that a stream does not set: the content has them, or keys do.
const NOT_RECEIVED: [&str; 12] = [
    "version",
    "normalization",
    "utf8only",
    "casesensitivity",
    "volsize",
    "volblocksize",
    "encryption",
    "keyformat",
    "keylocation",
    "pbkdf2iters",
    "pbkdf2salt",
    "zoned",
];

/// A dataset of this pool below the target.
struct LocalDataset {
    name: String,
    /// Names of snapshots, without dataset, by guid.
    snaps: BTreeMap<u64, String>,
    /// Guid and full name of the snapshot that it is a clone of.
    origin: Option<(u64, String)>,
}

/// What the reconciliation does next.
#[derive(Debug, PartialEq, Eq)]
enum PackageStep {
    Promote(String),
    RenameDataset(String, String),
    RenameSnapshot(String, String, String),
    DestroySnapshot(String),
    DestroyDataset(String),
}

impl PackageStep {
    /// The permissions that it needs, and for what.
    fn needs(&self) -> (&str, &'static [&'static str]) {
        match self {
            PackageStep::Promote(name) => (name, &["promote", "mount"]),
            PackageStep::RenameDataset(name, _) | PackageStep::RenameSnapshot(name, ..) => {
                (name, &["rename", "create", "mount"])
            }
            PackageStep::DestroySnapshot(name) | PackageStep::DestroyDataset(name) => {
                (name, &["destroy", "mount"])
            }
        }
    }
}

/// The dataset of a package that has a snapshot in common with a local one.
fn counterpart<'h>(header: &'h PackageHeader, local: &LocalDataset) -> Option<&'h PackageDataset> {
    let common = |of: &PackageDataset| of.snaps.iter().any(|(_, g)| local.snaps.contains_key(g));
    header.datasets.iter().map(|(_, of)| of).find(|of| common(of))
}

/// The next step that makes the local datasets those of the package. `name_of` gives the name
/// that a dataset of the package has here.
fn next_step(
    header: &PackageHeader,
    locals: &[LocalDataset],
    force: bool,
    name_of: &dyn Fn(&PackageDataset) -> Option<String>,
) -> Option<PackageStep> {
    // Promotions come first: they free snapshots of clones, which may be to be destroyed.
    for local in locals {
        if let Some(of) = counterpart(header, local)
            && let Some((guid, _)) = &local.origin
            && of.origin != Some(*guid)
            && of.snaps.iter().any(|(_, g)| g == guid)
        {
            return Some(PackageStep::Promote(local.name.clone()));
        }
    }
    let taken: BTreeSet<&str> = locals.iter().map(|l| l.name.as_str()).collect();
    for (i, local) in locals.iter().enumerate() {
        let Some(of) = counterpart(header, local) else {
            // The first is the target itself.
            let inner = locals.iter().any(|l| l.name.starts_with(&format!("{}/", local.name)));
            if force && i > 0 && !inner {
                return Some(PackageStep::DestroyDataset(local.name.clone()));
            }
            continue;
        };
        for (guid, snap) in &local.snaps {
            let theirs = of.snaps.iter().find(|(_, g)| g == guid).map(|(name, _)| name);
            match theirs {
                None if force => {
                    return Some(PackageStep::DestroySnapshot(format!("{}@{snap}", local.name)));
                }
                Some(name) if name != snap && !local.snaps.values().any(|s| s == name) => {
                    let (of, from) = (local.name.clone(), snap.clone());
                    return Some(PackageStep::RenameSnapshot(of, from, name.clone()));
                }
                _ => {}
            }
        }
        if i == 0 {
            continue;
        }
        let Some(wanted) = name_of(of).filter(|wanted| *wanted != local.name) else { continue };
        let above = wanted.rsplit_once('/').map_or("", |(above, _)| above);
        let inside = wanted.starts_with(&format!("{}/", local.name));
        if taken.contains(above) && !taken.contains(wanted.as_str()) && !inside {
            return Some(PackageStep::RenameDataset(local.name.clone(), wanted));
        }
    }
    None
}

impl Pool {
    /// Makes the datasets below the target those of a recursive, incremental package.
    ///
    /// # Errors
    /// Those of the single changes.
    pub(super) fn reconcile(
        &self,
        header: &PackageHeader,
        package: &str,
        target: &str,
        names: ReceiveNames,
        options: &ReceiveOptions,
        observer: &mut dyn ReceiveObserver,
    ) -> Result<()> {
        if !header.recursive || header.from_snap.is_none() || options.dry_run {
            return Ok(());
        }
        let name_of = |of: &PackageDataset| -> Option<String> {
            let sent = format!("{}@{}", of.name, header.to_snap);
            let full = names.target(target, Some(package), &sent).ok()?;
            full.split_once('@').map(|(dataset, _)| dataset.to_owned())
        };
        let top = names.target(target, Some(package), package)?;
        let top = top.split('@').next().unwrap_or_default().to_owned();
        for _ in 0..STEPS_MAX {
            let locals = self.locals(&top)?;
            let Some(step) = next_step(header, &locals, options.force, &name_of) else {
                return Ok(());
            };
            let (name, permissions) = step.needs();
            observer.allows(name, permissions)?;
            self.package_step(&step, observer)?;
        }
        Err(Error::limit("the package renames and destroys too much"))
    }

    fn package_step(&self, step: &PackageStep, observer: &mut dyn ReceiveObserver) -> Result<()> {
        match step {
            PackageStep::Promote(name) => self.promote(name, None),
            PackageStep::RenameDataset(from, to) => {
                observer.switch(from, &mut || self.rename_dataset(from, to, None))
            }
            PackageStep::RenameSnapshot(of, from, to) => {
                self.rename_snapshot(of, (from, to), false, None).map(drop)
            }
            PackageStep::DestroySnapshot(name) => {
                self.destroy_snapshots(std::slice::from_ref(name), false, None)
            }
            PackageStep::DestroyDataset(name) => {
                observer.switch(name, &mut || self.destroy_dataset(name, true, None))
            }
        }
    }

    /// A dataset and all below it, parents first; none if it does not exist.
    fn locals(&self, top: &str) -> Result<Vec<LocalDataset>> {
        let top = match self.dataset(top) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let (mut out, mut todo) = (Vec::new(), vec![top]);
        while let Some(dataset) = todo.pop() {
            if dataset.is_incomplete() {
                continue;
            }
            let mut children = dataset.children()?;
            children.reverse();
            todo.extend(children);
            let short = |s: &Dataset| {
                let name = s.name().split_once('@').map_or("", |(_, snap)| snap);
                (s.guid(), name.to_owned())
            };
            let snaps = dataset.snapshots()?.iter().map(short).collect();
            let origin = match dataset.prop("origin")?.map(|value| value.value) {
                Some(PropData::Str(name)) => Some((self.dataset(&name)?.guid(), name)),
                _ => None,
            };
            out.push(LocalDataset { name: dataset.name().to_owned(), snaps, origin });
        }
        Ok(out)
    }

    /// Stores the properties of a dataset in a package as received ones; received values that
    /// the stream does not have any more are removed.
    ///
    /// # Errors
    /// Those of reading. What cannot be set is remarked.
    pub(super) fn receive_props(
        &self,
        name: &str,
        props: &NvList,
        observer: &mut dyn ReceiveObserver,
    ) -> Result<()> {
        let dataset = self.dataset(name)?;
        let mut changes = Vec::new();
        for (key, value) in props.iter() {
            let Some(prop) = key.to_str() else { continue };
            let value = match value {
                Value::Uint64(n) => Stored::Number(*n),
                Value::String(text) => Stored::Text(text.to_str().unwrap_or_default().to_owned()),
                _ => continue,
            };
            if is_received(prop, dataset.kind()) {
                changes.push(PropChange { name: prop.to_owned(), change: Change::Receive(value) });
            }
        }
        let is_snapshot = dataset.kind() == DatasetKind::Snapshot;
        let old = if is_snapshot { Vec::new() } else { dataset.received_prop_names()? };
        for prop in old {
            if !changes.iter().any(|change| change.name == prop) {
                changes.push(PropChange { name: prop, change: Change::ClearReceived });
            }
        }
        for change in changes {
            let prop = change.name.clone();
            let allowed = observer.allows(name, &[permission_to_set(&prop)]);
            let set = || self.writer()?.set_props(name, vec![change], None).map(drop);
            if let Err(e) = allowed.and_then(|()| set()) {
                let why = e.message();
                observer.remark(&format!("cannot receive {prop} property on {name}: {why}"));
            }
        }
        Ok(())
    }
}

impl Pool {
    /// Properties and holds that a package has for the snapshot that was received.
    ///
    /// # Errors
    /// Those of reading. What cannot be set is remarked.
    pub(super) fn receive_snapshot_extras(
        &self,
        of: &PackageDataset,
        received: &ReceivedStream,
        options: &ReceiveOptions,
        observer: &mut dyn ReceiveObserver,
    ) -> Result<()> {
        let sent = received.sent.name.split_once('@').map_or("", |(_, snap)| snap);
        let Some(at) = of.snaps.iter().position(|(name, _)| name == sent) else { return Ok(()) };
        let snapshot = received.snapshot.as_str();
        if let Some(props) = of.snap_props.get(at) {
            self.receive_props(snapshot, props, observer)?;
        }
        let holds = of.snap_holds.as_ref().and_then(|all| all.get(at));
        for (tag, _) in holds.filter(|_| !options.ignore_holds).into_iter().flat_map(NvList::iter) {
            let Some(tag) = tag.to_str() else { continue };
            let hold = SnapshotHold { snapshot: snapshot.to_owned(), tag: tag.to_owned() };
            let allowed = observer.allows(snapshot, &["hold"]);
            if let Err(e) = allowed.and_then(|()| self.hold(&[hold], None)) {
                let why = e.message();
                observer.remark(&format!("cannot hold snapshot '{snapshot}': {why}"));
            }
        }
        Ok(())
    }
}

/// Whether a stream may set the property of such a dataset.
fn is_received(prop: &str, kind: DatasetKind) -> bool {
    if is_user_prop(prop) {
        return true;
    }
    let applies = |known: &dsl::props::Prop| match kind {
        DatasetKind::Volume => known.types.intersects(dsl::props::Types::V),
        DatasetKind::Snapshot => known.types.intersects(dsl::props::Types::S),
        _ => known.types.intersects(dsl::props::Types::F),
    };
    dataset_prop(prop).is_some_and(|known| known.attr != Attr::ReadOnly && applies(known))
        && !NOT_RECEIVED.contains(&prop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(name: &str, snaps: &[(u64, &str)], origin: Option<u64>) -> LocalDataset {
        LocalDataset {
            name: name.to_owned(),
            snaps: snaps.iter().map(|(g, n)| (*g, (*n).to_owned())).collect(),
            origin: origin.map(|guid| (guid, format!("{name}@{guid}"))),
        }
    }

    fn theirs(name: &str, snaps: &[(&str, u64)]) -> (u64, PackageDataset) {
        let snaps = snaps.iter().map(|(n, g)| ((*n).to_owned(), *g)).collect();
        (1, PackageDataset { name: name.to_owned(), snaps, ..PackageDataset::default() })
    }

    #[test]
    fn steps_in_their_order() {
        let mut header = PackageHeader {
            recursive: true,
            from_snap: Some("1".into()),
            to_snap: "2".into(),
            datasets: vec![
                theirs("p/t", &[("1", 10), ("2", 20)]),
                theirs("p/t/new", &[("1", 11), ("2", 21)]),
            ],
            ..PackageHeader::default()
        };
        let name_of = |of: &PackageDataset| Some(of.name.replacen("p/t", "q/x", 1));
        let step = |header: &PackageHeader, locals: &[LocalDataset], force| {
            next_step(header, locals, force, &name_of)
        };
        let top = || local("q/x", &[(10, "1")], None);
        let old = local("q/x/old", &[(11, "1")], None);
        let renamed = PackageStep::RenameDataset("q/x/old".into(), "q/x/new".into());
        assert_eq!(step(&header, &[top(), old], false), Some(renamed));
        let gone = local("q/x/gone", &[(99, "1")], None);
        let destroyed = PackageStep::DestroyDataset("q/x/gone".into());
        assert_eq!(step(&header, &[top(), gone], true), Some(destroyed));
        let extra = local("q/x", &[(10, "1"), (12, "mine")], None);
        let destroyed = PackageStep::DestroySnapshot("q/x@mine".into());
        assert_eq!(step(&header, &[extra], true), Some(destroyed));
        let named = local("q/x", &[(10, "one")], None);
        let snap = PackageStep::RenameSnapshot("q/x".into(), "one".into(), "1".into());
        assert_eq!(step(&header, &[named], false), Some(snap));
        let clone = local("q/x/new", &[(21, "2")], Some(11));
        let promoted = PackageStep::Promote("q/x/new".into());
        assert_eq!(step(&header, &[top(), clone], false), Some(promoted));
        let clone = local("q/x/new", &[(21, "2")], Some(11));
        header.datasets[1].1.origin = Some(11);
        assert_eq!(step(&header, &[top(), clone], false), None);
        // A snapshot that a promotion moves is not destroyed before, though its clone is there.
        header.datasets.push(theirs("p/t/base", &[("2", 32)]));
        header.datasets.push(theirs("p/t/clone", &[("1", 31), ("2", 33)]));
        let base = local("q/x/base", &[(31, "1"), (32, "2")], None);
        let clone = local("q/x/clone", &[(33, "2")], Some(31));
        let promoted = PackageStep::Promote("q/x/clone".into());
        assert_eq!(step(&header, &[top(), base, clone], true), Some(promoted));
        // Without force nothing is destroyed.
        let gone = local("q/x/gone", &[(99, "1")], None);
        assert_eq!(step(&header, &[top(), gone], false), None);
    }

    #[test]
    fn properties_that_a_stream_sets() {
        let fs = DatasetKind::Filesystem;
        for prop in ["compression", "mountpoint", "quota", "user:note", "recordsize"] {
            assert!(is_received(prop, fs), "{prop}");
        }
        for prop in ["used", "volsize", "version", "nonsense", "encryption"] {
            assert!(!is_received(prop, fs), "{prop}");
        }
        assert!(!is_received("recordsize", DatasetKind::Volume));
    }
}
