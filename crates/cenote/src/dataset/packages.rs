//! Packages: several streams with a header that lists datasets, and streams that go on where a
//! receiver stopped (chapter 07 §8.6 and §11).
//!
//! # Theory
//! A [`SendPlan`] is made before the first byte is written: it names each substream with its
//! source. So an error of names leaves nothing half sent, a dry run has the same steps as the
//! stream, and what happens to other snapshots meanwhile does not matter.
//!
//! Datasets are in the order in which a receiver can make them: below their parents, and clones
//! behind the datasets of their origins. Those of one parent are in the order of their creation.

use std::collections::BTreeSet;

use base::{Error, ErrorKind, Result};
use nvlist::NvList;
use stream::{
    Begin, End, Features, HeaderKind, PackageDataset, PackageHeader, ResumePoint, ResumeToken,
    SendOptions, StreamRecord, StreamWriter,
};

use super::sending::{StreamParts, keep_snapshots};
use super::{Dataset, DatasetKind};
use crate::pool::Pool;
use crate::props::{self, Attr, PropData, Source};

/// What a package contains (`zfs send -I -R -p -b -h -w -s -X`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackageOptions {
    /// All snapshots between the source and the last one.
    pub intermediate: bool,
    /// All descendants, with their properties; without a source, all snapshots.
    pub recursive: bool,
    /// Properties.
    pub props: bool,
    /// Of properties, those that were received, even if others are in force.
    pub received: bool,
    /// User holds.
    pub holds: bool,
    /// Raw streams were requested.
    pub raw: bool,
    /// Descendants without the last snapshot are left out, with what is below them.
    pub skip_missing: bool,
    /// Descendants to leave out, by full name.
    pub exclude: Vec<String>,
}

impl PackageOptions {
    /// Whether there is a package, and not one stream.
    fn is_package(&self) -> bool {
        self.intermediate || self.has_list()
    }

    /// Whether its header lists datasets.
    fn has_list(&self) -> bool {
        self.recursive || self.props || self.received || self.holds
    }
}

/// The substreams of a package, or a single stream.
#[derive(Clone)]
pub struct SendPlan {
    /// Each snapshot with the source of its stream.
    pub steps: Vec<(Option<Dataset>, Dataset)>,
    /// Datasets that are left out for lack of the last snapshot, by full name.
    pub skipped: Vec<String>,
    /// The name in the header of a package, and its list; `None` for a single stream.
    package: Option<(String, Option<PackageHeader>)>,
    holds: bool,
}

/// A dataset of a package.
struct PackageMember {
    dataset: Dataset,
    /// Its snapshots up to the last one, oldest first.
    snaps: Vec<Dataset>,
    /// Position of the source among them.
    from: Option<usize>,
    /// Guid of the parent's source or last snapshot.
    parent_snap: u64,
}

fn guid_of(snap: &Dataset) -> u64 {
    snap.ds().phys().guid
}

fn short_name(snap: &Dataset) -> &str {
    snap.name().split_once(['@', '#']).map_or("", |(_, name)| name)
}

impl Dataset {
    /// What a stream or package that ends with this snapshot consists of. `from` is its source:
    /// a snapshot or bookmark for a single stream; for a package of several, a snapshot of the
    /// same dataset, or the one that it is a clone of.
    ///
    /// # Errors
    /// `CrossDevice` if `from` is no earlier snapshot; `NotFound` for a descendant without the
    /// last snapshot; `Invalid`; `Unsupported` for encrypted datasets with properties that are
    /// not sent raw; those of reading.
    pub fn plan_send(&self, from: Option<&Dataset>, options: &PackageOptions) -> Result<SendPlan> {
        let mut plan = SendPlan {
            steps: Vec::new(),
            skipped: Vec::new(),
            package: None,
            holds: options.holds,
        };
        if options.recursive {
            self.plan_recursive(from, options, &mut plan)?;
            return Ok(plan);
        }
        plan.steps = match from {
            Some(from) if options.intermediate => {
                let all = self.snapshots_since(from)?;
                all.into_iter().map(|(from, to)| (Some(from), to)).collect()
            }
            _ => vec![(from.cloned(), self.clone())],
        };
        if options.is_package() {
            let header = match options.has_list() {
                true => Some(self.single_header(from, options, &plan.steps)?),
                false => None,
            };
            plan.package = Some((self.name().to_owned(), header));
        }
        Ok(plan)
    }

    /// The header of a package of this dataset alone.
    fn single_header(
        &self,
        from: Option<&Dataset>,
        options: &PackageOptions,
        steps: &[(Option<Dataset>, Dataset)],
    ) -> Result<PackageHeader> {
        let from = from.filter(|_| options.intermediate);
        let mut snaps: Vec<Dataset> = steps.iter().map(|(_, to)| to.clone()).collect();
        snaps.splice(0..0, from.filter(|from| from.dir().object() == self.dir().object()).cloned());
        let head = self.head()?;
        let member = PackageMember { dataset: head, snaps, from: None, parent_snap: 0 };
        Ok(PackageHeader {
            from_snap: from.map(|from| short_name(from).to_owned()),
            to_snap: short_name(self).to_owned(),
            recursive: false,
            raw: options.raw,
            datasets: vec![member.describe(options)?],
        })
    }

    /// The file system or volume of this snapshot.
    fn head(&self) -> Result<Dataset> {
        let name = self.name().split('@').next().unwrap_or_default();
        Dataset::find(&self.core, name)
    }

    fn plan_recursive(
        &self,
        from: Option<&Dataset>,
        options: &PackageOptions,
        plan: &mut SendPlan,
    ) -> Result<()> {
        if self.kind != DatasetKind::Snapshot {
            return Err(Error::invalid("only snapshots can be sent with their descendants"));
        }
        if let Some(from) = from {
            if from.kind != DatasetKind::Snapshot {
                return Err(Error::invalid("the source must be a snapshot"));
            }
            self.send_source(from)?;
        }
        let top = self.head()?;
        let mut members = Vec::new();
        let names = (from.map(short_name), short_name(self));
        collect(top, 0, names, options, (&mut members, &mut plan.skipped))?;
        let mut datasets = Vec::new();
        for member in &members {
            datasets.push(member.describe(options)?);
        }
        let header = PackageHeader {
            from_snap: from.map(|from| short_name(from).to_owned()),
            to_snap: short_name(self).to_owned(),
            recursive: true,
            raw: options.raw,
            datasets,
        };
        plan.package = Some((self.name().to_owned(), Some(header)));
        plan.steps = ordered(&members, from.is_some(), options.intermediate)?;
        Ok(())
    }
}

/// Adds a dataset and those below it.
fn collect(
    dataset: Dataset,
    parent_snap: u64,
    (from, to): (Option<&str>, &str),
    options: &PackageOptions,
    (members, skipped): (&mut Vec<PackageMember>, &mut Vec<String>),
) -> Result<()> {
    let mut snaps = dataset.snapshots()?;
    let Some(last) = snaps.iter().position(|snap| short_name(snap) == to) else {
        let name = format!("{}@{to}", dataset.name());
        if options.skip_missing {
            skipped.push(name);
            return Ok(());
        }
        return Err(Error::not_found(format!("'{name}' does not exist")));
    };
    snaps.truncate(last + 1);
    let from_at = from.and_then(|from| snaps.iter().position(|snap| short_name(snap) == from));
    let known = snaps.get(from_at.unwrap_or(last)).map_or(0, guid_of);
    let mut children = dataset.children()?;
    children.retain(|child| !child.is_incomplete());
    children.sort_by_key(Dataset::createtxg);
    members.push(PackageMember { dataset, snaps, from: from_at, parent_snap });
    for child in children {
        if !options.exclude.iter().any(|name| name == child.name()) {
            collect(child, known, (from, to), options, (members, skipped))?;
        }
    }
    Ok(())
}

/// The substreams of all members, each behind those of its parent and of its origin.
fn ordered(
    members: &[PackageMember],
    incremental: bool,
    intermediate: bool,
) -> Result<Vec<(Option<Dataset>, Dataset)>> {
    let dirs: BTreeSet<u64> = members.iter().map(|m| m.dataset.dir().object()).collect();
    let (mut sent, mut steps) = (BTreeSet::new(), Vec::new());
    let mut left: Vec<&PackageMember> = members.iter().collect();
    while !left.is_empty() {
        let before = left.len();
        let mut waiting = Vec::new();
        for member in left {
            let dir = member.dataset.dir();
            // An origin that is sent, too; another one is not known to the receiver.
            let origin = member.origin()?.filter(|origin| dirs.contains(&origin.dir().object()));
            let ready = |object: u64| !dirs.contains(&object) || sent.contains(&object);
            let parent = dir.parent().map_or(0, dsl::DslDir::object);
            if !ready(parent) || origin.as_ref().is_some_and(|o| !ready(o.dir().object())) {
                waiting.push(member);
                continue;
            }
            sent.insert(dir.object());
            member.steps(origin, incremental, intermediate, &mut steps);
        }
        if waiting.len() == before {
            return Err(Error::corrupt("datasets are clones of each other"));
        }
        left = waiting;
    }
    Ok(steps)
}

impl PackageMember {
    /// The snapshot that it is a clone of.
    fn origin(&self) -> Result<Option<Dataset>> {
        match self.dataset.prop("origin")?.map(|origin| origin.value) {
            Some(PropData::Str(name)) if !name.is_empty() => {
                Dataset::find(&self.dataset.core, &name).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn steps(
        &self,
        origin: Option<Dataset>,
        incremental: bool,
        intermediate: bool,
        steps: &mut Vec<(Option<Dataset>, Dataset)>,
    ) {
        let (mut source, rest) = match self.from {
            Some(at) => (self.snaps.get(at).cloned(), self.snaps.get(at + 1..)),
            None => (origin, Some(self.snaps.as_slice())),
        };
        let rest = rest.unwrap_or_default();
        // From a source to the last snapshot alone (`-i`).
        let direct = incremental && !intermediate;
        let first = if direct { rest.len().saturating_sub(1) } else { 0 };
        for snap in rest.get(first..).unwrap_or_default() {
            steps.push((source.take(), snap.clone()));
            source = Some(snap.clone());
        }
    }

    /// Its entry in the header's list.
    fn describe(&self, options: &PackageOptions) -> Result<(u64, PackageDataset)> {
        let dataset = &self.dataset;
        let encrypted = dataset.dir().crypto_key_object()?.is_some();
        let with_props = options.recursive || options.props || options.received;
        if encrypted && with_props && !options.raw {
            let text = format!(
                "encrypted dataset {} may not be sent with properties without the raw flag",
                dataset.name()
            );
            return Err(Error::unsupported(text));
        }
        let guids = self.snaps.iter().map(|snap| (short_name(snap).to_owned(), guid_of(snap)));
        let holds = |snap: &Dataset| -> Result<NvList> {
            let mut list = NvList::new();
            for (tag, since) in snap.holds()? {
                list.add_u64(&tag, since);
            }
            Ok(list)
        };
        let root = dataset.prop("encryptionroot")?.map(|found| found.value);
        let is_root = matches!(root, Some(PropData::Str(name)) if name == dataset.name());
        let origin = self.origin()?;
        let of = PackageDataset {
            name: dataset.name().to_owned(),
            parent_from_snap: self.parent_snap,
            origin: origin.as_ref().map(guid_of),
            props: if with_props { Some(sent_props(dataset, options.received)?) } else { None },
            is_encryption_root: encrypted && is_root,
            snaps: guids.collect(),
            snap_props: self
                .snaps
                .iter()
                .map(|snap| sent_props(snap, options.received))
                .collect::<Result<_>>()?,
            snap_holds: match options.holds {
                true => Some(self.snaps.iter().map(holds).collect::<Result<_>>()?),
                false => None,
            },
        };
        Ok((dataset.ds().phys().guid, of))
    }
}

/// The properties that a header has: set here or received, and not read-only (§11.1).
fn sent_props(dataset: &Dataset, received: bool) -> Result<NvList> {
    /// Limits of the whole dataset, which its snapshots do not have.
    const LIMITS: [&str; 4] = ["quota", "reservation", "refquota", "refreservation"];
    let mut list = NvList::new();
    let is_snapshot = dataset.kind == DatasetKind::Snapshot;
    for (name, found) in dataset.props()? {
        let known = props::dataset_prop(&name);
        let excluded = known.is_some_and(|prop| prop.attr == Attr::ReadOnly)
            || (is_snapshot && LIMITS.contains(&name.as_str()));
        if excluded {
            continue;
        }
        let value = match (received, &found.source) {
            (true, _) => dataset.ds().received(&name)?.map(dsl::stored::Stored::into_data),
            (false, Source::Local | Source::Received) => Some(found.value),
            (false, _) => None,
        };
        match value {
            Some(PropData::Num(n)) => drop(list.add_u64(&name, n)),
            Some(PropData::Str(text)) => drop(list.add_str(&name, &text)),
            Some(PropData::None) | None => {}
        }
    }
    Ok(list)
}

impl SendPlan {
    /// Bytes of each step's stream.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn sizes(&self, options: SendOptions) -> Result<Vec<u64>> {
        self.steps.iter().map(|(from, to)| to.send_size(from.as_ref(), options)).collect()
    }

    /// Writes everything. `progress` gets the number of the step and the bytes of its stream
    /// written so far, and ends the stream with `false`.
    ///
    /// # Errors
    /// As [`Dataset::send`].
    pub fn send(
        &self,
        options: SendOptions,
        output: &mut dyn std::io::Write,
        progress: &mut dyn FnMut(usize, u64) -> bool,
    ) -> Result<()> {
        let steps = self.steps.iter().flat_map(|(from, to)| from.iter().chain([to]));
        let _kept = keep_snapshots(&steps.collect::<Vec<_>>())?;
        if let Some((name, header)) = &self.package {
            let features = Features::default().with_if(Features::HOLDS, self.holds);
            let begin = Begin::new(HeaderKind::Package, features, name)?;
            let payload = match header {
                Some(header) => header.to_list().pack_xdr(),
                None => Vec::new(),
            };
            let mut writer = StreamWriter::new(&mut *output);
            writer.write(&StreamRecord::Begin(begin), &payload)?;
            writer.write(&StreamRecord::End(End::default()), &[])?;
        }
        for (n, (from, to)) in self.steps.iter().enumerate() {
            to.send(from.as_ref(), options, output, &mut |bytes| progress(n, bytes))?;
        }
        match self.package {
            Some(_) => StreamWriter::new(output).finish_package(),
            None => Ok(()),
        }
    }
}

/// A stream that goes on where its receiver stopped (`zfs send -t`).
#[derive(Clone)]
pub struct ResumedSend {
    /// The snapshot.
    pub snapshot: Dataset,
    /// What it is incremental to.
    pub from: Option<Dataset>,
    /// As in the token.
    pub options: SendOptions,
    /// The redaction bookmark of a redacted stream.
    mark: Option<Dataset>,
    point: ResumePoint,
}

impl Pool {
    /// The stream that a token describes.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound` if a snapshot or redaction bookmark is gone; those of
    /// reading.
    pub fn resume_send(&self, token: &ResumeToken) -> Result<ResumedSend> {
        let name = token.to_name.as_str();
        let gone = |what: String| Error::not_found(format!("{what} no longer exists"));
        let snapshot = self.dataset(name).map_err(|e| match e.kind() {
            ErrorKind::NotFound => gone(format!("'{name}' used in the initial send")),
            _ => e,
        })?;
        if snapshot.ds().phys().guid != token.to_guid {
            let text = format!("'{name}' is no longer the same snapshot used in the initial send");
            return Err(Error::invalid(text));
        }
        let from = match token.from_guid {
            None | Some(0) => None,
            Some(guid) => match snapshot.resume_source(guid, token.book_redact_snaps.as_deref())? {
                Some(found) => Some(found),
                None => return Err(gone(format!("incremental source {guid:#x}"))),
            },
        };
        let mark = match &token.redact_snaps {
            // A redacted dataset itself was sent.
            Some(_) if snapshot.redaction_snaps()?.is_some() => None,
            Some(snaps) => {
                let gone = || gone("the redaction bookmark used in the initial send".to_owned());
                Some(snapshot.redaction_mark(token.to_guid, snaps)?.ok_or_else(gone)?)
            }
            None => None,
        };
        Ok(ResumedSend {
            snapshot,
            from,
            mark,
            options: SendOptions {
                large_blocks: token.large_blocks,
                embedded: token.embedded,
                compressed: token.compressed,
                raw: token.raw,
            },
            point: ResumePoint { object: token.object, offset: token.offset },
        })
    }
}

impl ResumedSend {
    fn parts(&self) -> StreamParts<'_> {
        StreamParts {
            from: self.from.as_ref(),
            options: self.options,
            resume: Some(self.point),
            mark: self.mark.as_ref(),
        }
    }

    /// Bytes of the stream.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn size(&self) -> Result<u64> {
        self.snapshot.parts_size(&self.parts())
    }

    /// Writes the stream; as [`Dataset::send`].
    ///
    /// # Errors
    /// As [`Dataset::send`].
    pub fn send(
        &self,
        output: &mut dyn std::io::Write,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        self.snapshot.write_parts(&self.parts(), output, progress)
    }
}
