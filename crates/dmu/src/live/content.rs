//! The content of one block in one txg, until the txg is written.

use std::ops::Range;

use base::{Buf, BufMut, Result};
use ondisk::BlkPtr;
use zio::PackedForm;

use super::clone::CLONE_MEMORY;

/// A change of a block's content in place.
pub(crate) enum BlockEdit<'a> {
    /// Any.
    Plain(&'a mut dyn FnMut(&mut [u8]) -> Result<()>),
    /// One that checks the content before it changes it, unless it is told that the content is
    /// what such an edit left.
    Checking(&'a mut dyn FnMut(&mut [u8], bool) -> Result<()>),
}

impl BlockEdit<'_> {
    /// Changes `content`. `checked`: it is what a checking edit left. Returns whether it is now.
    ///
    /// # Errors
    /// Those of the edit; then the content counts as not checked.
    pub(super) fn apply(&mut self, content: &mut [u8], checked: bool) -> Result<bool> {
        match self {
            BlockEdit::Plain(edit) => edit(content).map(|()| false),
            BlockEdit::Checking(edit) => edit(content, checked).map(|()| true),
        }
    }
}

/// A block's content in one txg.
pub(crate) enum DirtyContent {
    /// Still changing.
    Open(BufMut),
    /// Still changing, and perhaps read: the next change copies it while a reader has it.
    Shared(Buf),
    /// The txg is being written: never changes again.
    Frozen(Buf),
    /// Compressed already, and to be stored so. [`super::handle::HandleState::put_packed`] unpacked it once,
    /// so it can be unpacked.
    Packed(Buf, PackedForm),
    /// That of a block on disk, to which the txg will write this pointer ([`super::clone`]).
    Cloned(Box<BlkPtr>),
}

/// The content of a packed block.
pub(super) fn unpacked(bytes: &Buf, form: PackedForm) -> BufMut {
    let mut whole = BufMut::zeroed(form.lsize as usize);
    if form.redacted {
        return whole;
    }
    // The first unpacking succeeded, and this one has the same input.
    let _same = codec::compress::decompress(form.compression, bytes, &mut whole);
    whole
}

impl DirtyContent {
    fn take(&mut self) -> DirtyContent {
        std::mem::replace(self, DirtyContent::Frozen(Buf::zeros(0)))
    }

    /// A part of the content, to be read while it changes; nothing is copied. A clone has
    /// none in memory.
    pub(super) fn part(&mut self, range: Range<usize>) -> Buf {
        if range.is_empty() || self.cloned().is_some() {
            return Buf::zeros(0);
        }
        match self {
            DirtyContent::Shared(buf) | DirtyContent::Frozen(buf) => buf.slice(range),
            DirtyContent::Open(open) => {
                let whole = std::mem::replace(open, BufMut::alloc(0)).freeze();
                let part = whole.slice(range);
                *self = DirtyContent::Shared(whole);
                part
            }
            DirtyContent::Packed(bytes, form) => unpacked(bytes, *form).freeze().slice(range),
            DirtyContent::Cloned(_) => Buf::zeros(0),
        }
    }

    /// The pointer of a clone.
    pub(crate) fn cloned(&self) -> Option<BlkPtr> {
        if let DirtyContent::Cloned(bp) = self { Some(**bp) } else { None }
    }

    /// The whole content, likewise.
    pub(crate) fn share(&mut self) -> Buf {
        let len = self.len();
        self.part(0..len)
    }

    /// The content, to be changed; `None` once it is frozen, and for a clone.
    pub(super) fn open(&mut self) -> Option<&mut BufMut> {
        if matches!(self, DirtyContent::Shared(_))
            && let DirtyContent::Shared(buf) = self.take()
        {
            let buf = buf.try_unfreeze().unwrap_or_else(|shared| BufMut::copy_of(&shared));
            *self = DirtyContent::Open(buf);
        }
        if let DirtyContent::Packed(bytes, form) = self {
            *self = DirtyContent::Open(unpacked(bytes, *form));
        }
        if let DirtyContent::Open(buf) = self { Some(buf) } else { None }
    }

    /// Ends all change. Content that is compressed already is returned so, with its form.
    pub(crate) fn freeze(&mut self) -> (Buf, Option<PackedForm>) {
        let buf = match self.take() {
            DirtyContent::Open(buf) => buf.freeze(),
            DirtyContent::Shared(buf) | DirtyContent::Frozen(buf) => buf,
            DirtyContent::Packed(bytes, form) => {
                *self = DirtyContent::Packed(bytes.clone(), form);
                return (bytes, Some(form));
            }
            // The caller takes clones out before.
            DirtyContent::Cloned(bp) => {
                *self = DirtyContent::Cloned(bp);
                return (Buf::zeros(0), None);
            }
        };
        *self = DirtyContent::Frozen(buf.clone());
        (buf, None)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            DirtyContent::Open(buf) => buf.len(),
            DirtyContent::Shared(buf) | DirtyContent::Frozen(buf) => buf.len(),
            // The memory that it would take in plain form is counted.
            DirtyContent::Packed(_, form) => form.lsize as usize,
            DirtyContent::Cloned(bp) => usize::try_from(bp.head().lsize.0).unwrap_or(0),
        }
    }

    /// Bytes of memory that it is counted for.
    pub(super) fn memory(&self) -> u64 {
        if self.cloned().is_some() { CLONE_MEMORY } else { self.len() as u64 }
    }
}
