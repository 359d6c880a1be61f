//! `zfs send -S`: what a partially received dataset has (chapter 07 §1, §12.1).
//!
//! # Theory
//! The stream is that of the snapshot that was being received, with its guid and name, and ends
//! without an END: a resumable receive of it leaves the same partial state, and a token
//! with which the first sender goes on. The partial state is taken as it is on disk, and is kept
//! from being continued or discarded meanwhile.
//!
//! The stream of a raw partial state is raw. It lacks the identity of the snapshot's
//! initialisation vectors, which comes when a receive ends; the stream that continues it has it.
//! OpenZFS sends such streams, too. It has none for redacted partial states (the command of 2.4
//! crashes).

use base::{Error, ErrorKind, Result};
use dsl::DslDataset;
use dsl::write::MosRead;
use dsl::write::receive::{self, ResumeState};
use spa::engine::PartialUse;
use stream::{SendOptions, SendRequest, SendSnapshot, SendSource};

use super::redacting::REDACTED;
use super::{Dataset, DatasetKind, raw_keys};

/// The partial state of a dataset, to be sent.
pub struct SavedSend {
    /// The partial dataset.
    part: Dataset,
    state: ResumeState,
    source: Option<SendSource>,
    /// Identity of the source's initialisation vectors, 0 without one.
    from_ivset: u64,
    options: SendOptions,
    _kept: Option<PartialUse>,
}

impl Dataset {
    /// The partial state that an interrupted, resumable receive into this file system or volume
    /// left.
    ///
    /// # Errors
    /// `Invalid` without such state; `Busy` while it is being received; `Unsupported` for a
    /// redacted one; those of reading.
    pub fn plan_saved(&self, options: SendOptions) -> Result<SavedSend> {
        let none = || {
            let text = "dataset does not have any resumable receive state";
            Error::invalid(text).in_dataset(self.name())
        };
        if !matches!(self.kind, DatasetKind::Filesystem | DatasetKind::Volume) {
            return Err(none());
        }
        let hidden = match self.dir().child(receive::HIDDEN_NAME) {
            Ok(Some(dir)) => dir.head()?,
            Ok(None) => None,
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let object = hidden.as_ref().map_or(self.object(), DslDataset::object);
        let kept = match &self.core.writer {
            Some(writer) => Some(writer.use_partial(object)?),
            None => None,
        };
        let mos: &dyn MosRead = self.dir().mos();
        let state = receive::resume_state(mos, object)?.ok_or_else(none)?;
        // What is on disk now, not when the dataset was looked up.
        let dir = match hidden {
            Some(_) => self.dir().child(receive::HIDDEN_NAME)?.ok_or_else(none)?,
            None => self.dir().clone(),
        };
        let head = dir.head()?.filter(|head| head.object() == object).ok_or_else(none)?;
        if !head.phys().is_inconsistent() {
            return Err(none());
        }
        if state.from_redacted.is_some() || head.attribute(REDACTED)?.is_some() {
            let text = "the partial state of a redacted stream cannot be sent";
            return Err(Error::unsupported(text).in_dataset(self.name()));
        }
        let (source, from_ivset) = match state.from_guid {
            None => (None, 0),
            Some(guid) => {
                let base = head.previous_dataset()?.filter(|base| base.phys().guid == guid);
                let lost = || Error::corrupt("the partial state has lost its origin");
                let base = base.ok_or_else(lost)?;
                let is_origin = base.phys().dir_obj != self.dir().object();
                let txg = base.phys().creation_txg;
                (Some(SendSource { guid, txg, is_origin }), raw_keys::ivset_guid(&base)?)
            }
        };
        let options = SendOptions {
            large_blocks: state.large_blocks || options.large_blocks,
            embedded: state.embedded || options.embedded,
            compressed: state.compressed || options.compressed,
            raw: state.raw,
        };
        let part = Dataset::of_head(&self.core, head)?;
        Ok(SavedSend { part, state, source, from_ivset, options, _kept: kept })
    }
}

impl SavedSend {
    /// Full name of the snapshot that was being received, at its sender.
    pub fn name(&self) -> &str {
        &self.state.to_name
    }

    fn parts(&self) -> Result<(SendSnapshot, SendRequest)> {
        let mut snapshot = self.part.send_parts(self.state.to_name.clone(), self.options.raw)?;
        snapshot.guid = self.state.to_guid;
        let request = SendRequest {
            source: self.source,
            options: self.options,
            until: Some(self.state.position.object),
            keys: self.part.raw_keys(self.from_ivset, self.options, &snapshot)?,
            ..SendRequest::default()
        };
        Ok((snapshot, request))
    }

    /// Bytes of the stream.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn size(&self) -> Result<u64> {
        let (snapshot, request) = self.parts()?;
        snapshot.size(&request)
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
        let (snapshot, request) = self.parts()?;
        snapshot.send(&request, output, progress)
    }
}
