//! Resumable receives: their tokens, and discarding what they left (chapter 07 §12).

use base::Result;
use dsl::props::PropData;
use dsl::write::MosRead;
use dsl::write::receive;
use stream::ResumeToken;

use crate::changes::command;
use crate::dataset::Dataset;
use crate::pool::Pool;

impl Pool {
    /// Destroys what an interrupted, resumable receive into a dataset left (`zfs receive -A`).
    ///
    /// # Errors
    /// `NotFound`; `Invalid` without such state; `Busy` while it is being received; `ReadOnly`;
    /// that of a suspension.
    pub fn discard_partial(&self, dataset: &str, command_line: Option<&str>) -> Result<()> {
        self.writer()?.discard_partial(dataset, command(command_line))
    }
}

impl Dataset {
    /// The token from which a sender continues the stream that this dataset was receiving
    /// (property `receive_resume_token`), if a receive into it was interrupted.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn resume_token(&self) -> Result<Option<ResumeToken>> {
        let mos: &dyn MosRead = self.dir().mos();
        let hidden = receive::hidden_head(mos, self.dir().object())?;
        let head = hidden.unwrap_or(self.object());
        let Some(state) = receive::resume_state(mos, head)? else {
            return Ok(None);
        };
        Ok(Some(ResumeToken {
            from_guid: state.from_guid,
            object: state.position.object,
            offset: state.position.offset,
            bytes: state.position.bytes,
            to_guid: state.to_guid,
            to_name: state.to_name,
            large_blocks: state.large_blocks,
            embedded: state.embedded,
            compressed: state.compressed,
            raw: state.raw,
            redact_snaps: receive::redacted_by(mos, head)?,
            book_redact_snaps: state.from_redacted,
        }))
    }

    /// Names of the properties that have a received value here.
    pub(crate) fn received_prop_names(&self) -> Result<Vec<String>> {
        let _names = self.core().names();
        self.ds().received_names()
    }

    /// The value of the property.
    pub(crate) fn resume_token_text(&self) -> Result<Option<PropData>> {
        Ok(self.resume_token()?.map(|token| PropData::Str(token.encode())))
    }
}
