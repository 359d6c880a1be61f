//! Sending snapshots as streams (chapter 07).

use base::{Error, ErrorKind, Result, Txg};
use dsl::{DslDataset, DslDir};
use ondisk::dslphys::DS_FLAG_CI_DATASET;
use ondisk::objset::ObjsetType;
use spa::engine::DatasetUse;
use stream::{ResumePoint, SendFeatures, SendOptions, SendRequest, SendSnapshot, SendSource};

use super::{Dataset, DatasetKind, DatasetOrBookmark};
use crate::props::PropData;

/// Keeps snapshots from being destroyed as long as the result lives; what is no snapshot, and
/// pools that are imported read-only, need nothing.
pub(super) fn keep_snapshots(all: &[&Dataset]) -> Result<Option<DatasetUse>> {
    let mut list = Vec::new();
    for dataset in all.iter().filter(|dataset| dataset.kind == DatasetKind::Snapshot) {
        list.push((dataset.object(), dataset.ds().phys().guid));
    }
    list.sort_unstable();
    list.dedup();
    let writer = all.first().and_then(|dataset| dataset.core.writer.as_ref());
    match writer.filter(|_| !list.is_empty()) {
        Some(writer) => writer.use_snapshots(&list).map(Some),
        None => Ok(None),
    }
}

/// What a stream is made from, as long as this lives.
struct KeptDatasets {
    _snapshots: Option<DatasetUse>,
    /// The file system or volume that is sent itself.
    head: Option<(DatasetUse, Dataset)>,
}

impl KeptDatasets {
    /// What is sent where `of` was asked for.
    fn sent<'a>(&'a self, of: &'a Dataset) -> &'a Dataset {
        self.head.as_ref().map_or(of, |(_, head)| head)
    }
}

/// First version of file systems whose spill blocks hold system attributes.
const SA_VERSION: u64 = 5;

/// The parts of a request for a stream of one snapshot.
#[derive(Clone, Copy, Default)]
pub(super) struct StreamParts<'a> {
    /// What it is incremental to.
    pub(super) from: Option<&'a Dataset>,
    pub(super) options: SendOptions,
    /// It goes on from here.
    pub(super) resume: Option<ResumePoint>,
    /// The redaction bookmark whose blocks are left out.
    pub(super) mark: Option<&'a Dataset>,
}

impl Dataset {
    /// Writes this snapshot as a stream to `output`: the whole of it, or what changed since
    /// `from`, an earlier snapshot or bookmark of the same dataset or of one that it is a clone
    /// of. `progress` gets the bytes written so far, and ends the stream with `false`.
    ///
    /// A file system or volume can be sent itself, if it is not open; it does not change
    /// meanwhile.
    ///
    /// # Errors
    /// `Busy` if it is open; `CrossDevice` if `from` is no such snapshot; `Invalid` for a bookmark;
    /// `Interrupted` by `progress`; `Locked`; `Unsupported`; those of reading and of writing.
    pub fn send(
        &self,
        from: Option<&Dataset>,
        options: SendOptions,
        output: &mut dyn std::io::Write,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        self.write_parts(&StreamParts { from, options, ..StreamParts::default() }, output, progress)
    }

    /// Keeps this snapshot, and that which a stream of it is incremental to, from being destroyed.
    /// A file system or volume is kept from changing, and returned as it is from now on.
    fn kept_with(&self, from: Option<&Dataset>) -> Result<KeptDatasets> {
        let all: Vec<&Dataset> = std::iter::once(self).chain(from).collect();
        let mut kept = KeptDatasets { _snapshots: keep_snapshots(&all)?, head: None };
        let is_head = matches!(self.kind, DatasetKind::Filesystem | DatasetKind::Volume);
        if let Some(writer) = self.core.writer.as_ref().filter(|_| is_head) {
            let in_use = writer.use_head(self.object())?;
            let gone = || Error::not_found("dataset does not exist");
            let head = self.dir().head()?.filter(|head| head.object() == self.object());
            let head = Dataset::of_head(&self.core, head.ok_or_else(gone)?)?;
            kept.head = Some((in_use, head));
        }
        Ok(kept)
    }

    /// As [`Dataset::send`], without the blocks that the redaction bookmark `mark` of this
    /// snapshot lists.
    ///
    /// # Errors
    /// As there; `Invalid` for another bookmark.
    pub fn send_redacted(
        &self,
        from: Option<&Dataset>,
        mark: &Dataset,
        options: SendOptions,
        output: &mut dyn std::io::Write,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let parts = StreamParts { from, options, mark: Some(mark), resume: None };
        self.write_parts(&parts, output, progress)
    }

    /// Bytes of the stream that [`Dataset::send_redacted`] writes. No data is read.
    ///
    /// # Errors
    /// As there.
    pub fn redacted_size(
        &self,
        from: Option<&Dataset>,
        mark: &Dataset,
        options: SendOptions,
    ) -> Result<u64> {
        self.parts_size(&StreamParts { from, options, mark: Some(mark), resume: None })
    }

    pub(super) fn write_parts(
        &self,
        parts: &StreamParts<'_>,
        output: &mut dyn std::io::Write,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let kept = self.kept_with(parts.from).map_err(|e| e.in_dataset(self.name()))?;
        let (snapshot, request) = kept.sent(self).send_request(parts)?;
        snapshot.send(&request, output, progress).map_err(|e| e.in_dataset(self.name()))
    }

    pub(super) fn parts_size(&self, parts: &StreamParts<'_>) -> Result<u64> {
        if self.kind == DatasetKind::Snapshot {
            let (snapshot, request) = self.send_request(parts)?;
            return snapshot.size(&request).map_err(|e| e.in_dataset(self.name()));
        }
        let kept = self.kept_with(parts.from).map_err(|e| e.in_dataset(self.name()))?;
        let (snapshot, request) = kept.sent(self).send_request(parts)?;
        snapshot.size(&request).map_err(|e| e.in_dataset(self.name()))
    }

    /// What is sent, and how.
    fn send_request(&self, parts: &StreamParts<'_>) -> Result<(SendSnapshot, SendRequest)> {
        let fail = |e: Error| e.in_dataset(self.name());
        let StreamParts { from, options, resume, mark } = *parts;
        let source = from.map(|from| self.send_source(from)).transpose().map_err(fail)?;
        let redaction = match mark {
            Some(mark) => Some(self.redaction_by(mark).map_err(fail)?),
            None => self.own_redaction()?,
        };
        let lacking = from.map(Dataset::redaction_list).transpose()?.flatten();
        let snapshot = self.send_snapshot(options.raw)?;
        let from_ivset = from.map_or(Ok(0), Dataset::ivset_guid).map_err(fail)?;
        let keys = self.raw_keys(from_ivset, options, &snapshot).map_err(fail)?;
        let request =
            SendRequest { source, options, resume, until: None, keys, redaction, lacking };
        Ok((snapshot, request))
    }

    /// Bytes of the stream that [`Dataset::send`] writes. No data is read.
    ///
    /// # Errors
    /// As [`Dataset::send`].
    pub fn send_size(&self, from: Option<&Dataset>, options: SendOptions) -> Result<u64> {
        self.parts_size(&StreamParts { from, options, ..StreamParts::default() })
    }

    /// Full name of the snapshot `object` of this pool; `None` if it is gone.
    pub(super) fn name_of_snapshot(&self, object: u64) -> Result<Option<String>> {
        let mos = self.dir().mos();
        let phys = DslDataset::read_phys(mos, object)?;
        let Some(fs) = DslDir::name_of(mos, phys.dir_obj, self.core.spa.name())? else {
            return Ok(None);
        };
        let Some(head) = self.core.spa.root_dir()?.find(&fs)?.head()? else { return Ok(None) };
        let snaps = head.snapshots()?;
        Ok(snaps.iter().find(|s| s.object() == object).map(|s| s.name().to_owned()))
    }

    /// The snapshot or bookmark with this guid in the history of this snapshot.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn source_with_guid(&self, guid: u64) -> Result<Option<Dataset>> {
        let mut at = self.ds().previous_dataset()?;
        while let Some(earlier) = at {
            if earlier.phys().guid == guid {
                let name = self.name_of_snapshot(earlier.object())?;
                return name.map(|name| Dataset::find(&self.core, &name)).transpose();
            }
            at = earlier.previous_dataset()?;
        }
        let fs = self.name().split('@').next().unwrap_or_default();
        let marks = Dataset::find(&self.core, fs)?.bookmarks()?;
        let is = |mark: &Dataset| match &mark.what {
            DatasetOrBookmark::Bookmark(of) => of.0.phys.guid == guid,
            DatasetOrBookmark::Dataset(_) => false,
        };
        Ok(marks.into_iter().find(is))
    }

    /// The snapshots of `zfs send -I`: those after `from` up to this one, oldest first, each
    /// with the one to which its stream is incremental. `from` is a snapshot of the same
    /// dataset, or the one that it is a clone of.
    ///
    /// # Errors
    /// `CrossDevice` if `from` is no such snapshot; those of reading.
    pub fn snapshots_since(&self, from: &Dataset) -> Result<Vec<(Dataset, Dataset)>> {
        if from.kind != DatasetKind::Snapshot {
            let text = "the source of -I must be a snapshot";
            return Err(Error::invalid(text).in_dataset(self.name()));
        }
        self.send_source(from)?;
        let fs = self.name().split('@').next().unwrap_or_default();
        let all = Dataset::find(&self.core, fs)?.snapshots()?;
        let (after, last) = (from.createtxg(), self.createtxg());
        let mut out: Vec<(Dataset, Dataset)> = Vec::new();
        for snap in all.into_iter().filter(|s| s.createtxg() > after && s.createtxg() <= last) {
            let before = out.last().map_or(from, |(_, to)| to).clone();
            out.push((before, snap));
        }
        Ok(out)
    }

    /// With `raw`, the key of an encrypted dataset need not be loaded.
    fn send_snapshot(&self, raw: bool) -> Result<SendSnapshot> {
        let name = match self.kind {
            DatasetKind::Snapshot => self.name().to_owned(),
            DatasetKind::Filesystem | DatasetKind::Volume => format!("{}@--head--", self.name()),
            DatasetKind::Bookmark => {
                let text = "a bookmark has no content";
                return Err(Error::invalid(text).in_dataset(self.name()));
            }
        };
        if self.ds().phys().is_inconsistent() {
            // Which it says itself.
            self.objset()?;
        }
        self.send_parts(name, raw)
    }

    /// What a stream of the snapshot, or of a dataset that does not change meanwhile, is made
    /// from. `name` is the name in it.
    pub(super) fn send_parts(&self, name: String, raw: bool) -> Result<SendSnapshot> {
        let encrypted = self.dir().crypto_key_object()?.is_some();
        let is_partial = self.ds().phys().is_inconsistent();
        let objset = match (raw && encrypted) || is_partial {
            true => self.stored_objset()?,
            false => self.objset()?,
        };
        let (ds, mos) = (self.ds(), self.dir().mos());
        let pool = dsl::features::FeatureState::load(mos)?;
        let has = |guid: &str| ds.attribute(guid).map(|found| found.is_some());
        let version = match is_partial {
            true => None,
            false => self.prop("version")?.map(|found| found.value),
        };
        let features = SendFeatures {
            embedded_data: pool.is_active("com.delphix:embedded_data"),
            lz4: pool.is_active("org.illumos:lz4_compress"),
            large_blocks: has("org.open-zfs:large_blocks")?,
            large_dnode: has("org.zfsonlinux:large_dnode")?,
            zstd: has("org.freebsd:zstd_compress")?,
            longname: has("org.zfsonlinux:longname")?,
            large_microzap: has("com.klarasystems:large_microzap")?,
            // The version of a locked file system cannot be read, and encryption is younger; that
            // of a partial one may not have come yet.
            sa_spill: match version {
                Some(PropData::Num(n)) => n >= SA_VERSION,
                _ => (encrypted || is_partial) && objset.kind() == ObjsetType::Zfs,
            },
            encrypted,
        };
        Ok(SendSnapshot {
            zio: std::sync::Arc::clone(objset.zio()),
            objset: objset.id(),
            root: objset.root_bp(),
            name,
            guid: ds.phys().guid,
            creation_time: ds.phys().creation_time,
            objset_type: match objset.kind() {
                ObjsetType::Zvol => 3,
                _ => 2,
            },
            case_insensitive: ds.phys().flags & DS_FLAG_CI_DATASET != 0,
            features,
        })
    }

    /// Checks that the snapshot or bookmark `from` is in the history of this dataset, which
    /// may be a clone of it.
    ///
    /// # Errors
    /// `CrossDevice`; those of reading.
    pub fn is_later_than(&self, from: &Dataset) -> Result<()> {
        self.send_source(from).map(drop)
    }

    /// Checks that `from` is in the history of this snapshot (§8).
    pub(super) fn send_source(&self, from: &Dataset) -> Result<SendSource> {
        let unrelated = || {
            let text = "not an earlier snapshot from the same fs";
            Error::new(ErrorKind::CrossDevice, text)
        };
        let guid = match &from.what {
            DatasetOrBookmark::Dataset(ds) => ds.phys().guid,
            DatasetOrBookmark::Bookmark(mark) => mark.0.phys.guid,
        };
        // A redaction bookmark of this very snapshot says what its receiver lacks.
        let restores = matches!(&from.what, DatasetOrBookmark::Bookmark(mark)
            if mark.0.phys.redaction_obj != 0 && from.createtxg() == self.createtxg());
        if from.createtxg() >= self.createtxg() && self.kind == DatasetKind::Snapshot && !restores {
            return Err(unrelated());
        }
        let is_origin = from.dir().object() != self.dir().object();
        let source = SendSource { guid, txg: Txg(from.createtxg()), is_origin };
        if from.kind == DatasetKind::Bookmark && !is_origin {
            return Ok(source);
        }
        let mut at = self.ds().previous_dataset()?;
        while let Some(earlier) = at {
            if earlier.phys().guid == guid {
                return Ok(source);
            }
            // The history is in order of creation, and ends with what is older than the source.
            if earlier.phys().creation_txg.0 < from.createtxg() {
                break;
            }
            at = earlier.previous_dataset()?;
        }
        Err(unrelated())
    }
}
