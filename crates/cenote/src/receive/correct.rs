//! `zfs receive -c`: damaged blocks of a snapshot are repaired from a stream of it (chapter 07
//! §13.7).

use std::io::Read;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::Io;
use stream::{Begin, correct_substream};
use zio::ErrorEntry;

use super::{IncomingSnapshot, IncomingStream, ReceiveObserver, ReceiveOptions, ReceivedStream};
use crate::dataset::{Dataset, DatasetKind};
use crate::pool::Pool;

/// What a corrective receive repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CorrectedBlocks {
    /// Blocks that could not be read before.
    pub blocks: u64,
    /// Their bytes on disk, before parity.
    pub bytes: u64,
}

impl Pool {
    /// The snapshot that a stream can repair.
    fn correctable(&self, sent: &IncomingSnapshot, target: &str) -> Result<Dataset> {
        let snapshot = self.dataset(target).map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                Error::not_found(format!("destination '{target}' does not exist"))
            }
            _ => e,
        })?;
        if snapshot.kind() != DatasetKind::Snapshot || snapshot.guid() != sent.guid {
            return Err(Error::invalid(format!("the stream is not one of snapshot '{target}'")));
        }
        match (snapshot.is_locked(), sent.is_raw) {
            (true, false) => Err(Error::new(
                ErrorKind::Locked,
                "key must be loaded to do a non-raw corrective recv on an encrypted dataset.",
            )),
            (false, true) => {
                Err(Error::invalid(format!("'{target}' is not encrypted, and the stream is raw")))
            }
            _ => Ok(snapshot),
        }
    }

    /// Repairs the snapshot `target` with the substream that comes next.
    pub(super) fn correct_one<R: Read>(
        &self,
        stream: &mut IncomingStream<R>,
        sent: &IncomingSnapshot,
        target: &str,
        options: &ReceiveOptions,
        observer: &mut dyn ReceiveObserver,
    ) -> Result<ReceivedStream> {
        let none = || base::bug!("there is no substream to receive");
        let begin: Begin = stream.next.as_ref().ok_or_else(none)?.0;
        let snapshot = self.correctable(sent, target)?;
        self.writer()?;
        observer.begins(sent, target)?;
        let of = target.split('@').next().unwrap_or(target);
        observer.allows(of, &["receive", "mount", "create"])?;
        let mut corrected = CorrectedBlocks::default();
        if options.dry_run {
            stream.skip()?;
        } else {
            stream.next = None;
            let objset = snapshot.objset_as_stored()?;
            let stopped = || observer.is_stopped();
            let done = correct_substream(&mut stream.reader, &begin, &objset, &stopped)?;
            corrected.blocks = done.blocks.len() as u64;
            corrected.bytes = done.bytes;
            self.forget_repaired(&snapshot, &done.blocks)?;
            if done.failed > 0 {
                let text = "corrective receive was not able to reconstruct the data needed for \
                            healing.";
                return Err(Error::checksum(text));
            }
        }
        Ok(ReceivedStream {
            snapshot: target.to_owned(),
            sent: sent.clone(),
            bytes: stream.bytes() - stream.began_at,
            is_new: false,
            skipped: false,
            corrected: Some(corrected),
        })
    }

    /// Removes blocks from the error logs that are right now in every dataset that has them.
    fn forget_repaired(&self, of: &Dataset, repaired: &[ErrorEntry]) -> Result<()> {
        if repaired.is_empty() {
            return Ok(());
        }
        let place = |e: &ErrorEntry| (e.object, e.level, e.blkid);
        let places: std::collections::BTreeSet<_> = repaired.iter().map(place).collect();
        let name = of.name().split('@').next().unwrap_or_default();
        let head = self.dataset(name)?;
        let mut family = head.snapshots()?;
        family.insert(0, head);
        let fixed = self.known_errors()?.into_iter().filter(|entry| {
            places.contains(&place(entry))
                && family.iter().any(|member| member.object() == entry.objset)
                && family.iter().all(|member| is_right(member, entry))
        });
        let fixed: Vec<ErrorEntry> = fixed.collect();
        self.writer()?.forget_errors(fixed)
    }
}

/// Whether a dataset does not have the block of an entry, or the block can be read.
fn is_right(dataset: &Dataset, entry: &ErrorEntry) -> bool {
    let found = dataset.objset_as_stored().and_then(|os| {
        let object = os.object(ObjectId(entry.object), Io::SCAN)?;
        object.block_pointer(entry.level, entry.blkid, Io::SCAN)
    });
    match found {
        Ok(bp) => match bp.as_block() {
            Some(block) if entry.birth == 0 || bp.allocation_birth().0 == entry.birth => {
                dataset.can_read(block)
            }
            _ => true,
        },
        Err(e) => e.kind() == ErrorKind::NotFound,
    }
}
