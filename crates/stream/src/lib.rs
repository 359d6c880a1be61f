//! Send streams (chapter 07): what `zfs send` writes and `zfs receive` reads.
//!
//! # Theory
//! A stream is a sequence of records: a header of 312 bytes and, for some types, a payload
//! whose length the header implies. One fletcher-4 sum runs over all bytes from a BEGIN record
//! to its END, and each header carries the sum of what precedes it, so a reader notices damage
//! at the record where it begins. A BEGIN opens a *substream*, one snapshot's content, or is
//! the header of a *package*, which lists datasets and is followed by their substreams.
//!
//! The records know bytes, not pools: [`StreamReader`] and [`StreamWriter`] check and make the
//! grammar, lengths and sums; [`StreamRecord::check`] holds a record against the limits that a
//! receiver must enforce before it changes anything. [`SendSnapshot`] makes the records of a
//! snapshot from its blocks, and [`receive_substream`] applies records to an object set.
//!
//! # Invariants
//! * No input makes the reader panic or allocate more than it has received, plus one buffer.
//!   Payload lengths have a limit for each type ([`StreamRecord::payload_len`]).
//! * After the END of a substream the reader has consumed nothing behind it.
//! * A record that was read and is written again has the same bytes, its sum apart.

mod correct;
mod dump;
pub mod fuzzing;
mod package;
mod reader;
mod receive;
mod record;
mod rewrite;
mod send;
mod token;
mod writer;

pub use correct::{Corrected, correct_substream};
pub use dump::{Dump, DumpOptions, list_text};
pub use package::{PackageDataset, PackageHeader};
pub use reader::{ReadRecord, StreamReader};
pub use receive::{BATCH_BYTES, ReceiveHost, ReceiveInto, receive_substream};
pub use record::{
    Begin, End, Features, Free, FreeObjects, HEADER_SIZE, HeaderKind, Object, ObjectRange, Spill,
    StreamRecord, TO_THE_END, Write, WriteByRef, WriteEmbedded, begin_flags, record_flags,
};
pub use rewrite::{Selected, decompress, drop_records, recompress, redup};
pub use send::redact::{RedactionList, redacted_blocks};
pub use send::{ResumePoint, SendFeatures, SendOptions, SendRequest, SendSnapshot, SendSource};
pub use token::ResumeToken;
pub use writer::StreamWriter;
