//! The readable end of an intent log on the disks that a crash left.

use base::{Result, Txg};
use dmu::{Io, Objset};
use ondisk::zil::{LogPtr, Record};
use spa::audit::log::{LogVisitor, log_header, walk_log};
use zio::Zio;

/// The readable end of a log: of its chain, and of its records with the data they refer to.
/// The two differ where a power cut left a log block intact and tore that data.
pub(crate) struct LogEnd<'a> {
    zio: &'a Zio,
    last_synced: Txg,
    pub(crate) id: [u64; 2],
    pub(crate) block: u64,
    pub(crate) record: u64,
    torn: bool,
}

impl LogVisitor for LogEnd<'_> {
    fn block(&mut self, ptr: &LogPtr) -> Result<bool> {
        let [a, b, _, seq] = ptr.verifier;
        (self.id, self.block) = ([a, b], seq);
        Ok(true)
    }

    fn record(&mut self, record: &Record<'_>, _: bool) -> Result<()> {
        for bp in record.pointers()? {
            let bp = bp?;
            self.torn |= bp.birth() > self.last_synced && self.zio.read(&bp, Io::SCAN).is_err();
        }
        if !self.torn {
            self.record = record.header.seq;
        }
        Ok(())
    }
}

/// The readable part of the log of an object set in a pool whose last txg is `last_synced`.
pub(crate) fn end_of_log<'a>(zio: &'a Zio, last_synced: Txg, os: &Objset) -> Result<LogEnd<'a>> {
    let mut end = LogEnd { zio, last_synced, id: [0; 2], block: 0, record: 0, torn: false };
    // An error is the end.
    let _end = walk_log(zio, &log_header(&os.phys())?, &mut end);
    Ok(end)
}
