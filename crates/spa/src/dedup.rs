//! Dedup tables as they are on disk: finding, reading and judging them (chapter 08 §B.1,
//! §B.4).
//!
//! # Theory
//! There is at most one table for each checksum function. A legacy table consists of up to
//! three ZAPs, one for each class of entries, named in the MOS directory. A fast table has a
//! directory of its own, which names the same ZAPs and two logs. The logs have newer states
//! of entries: the *active* one is written, the *flushing* one is being moved into the ZAPs.
//! One object has the statistics of all ZAPs.
//!
//! # Invariants
//! A table that [`load`] accepts can be changed: its ZAPs have keys of words, all its objects
//! are different ones, its logs are whole blocks of this byte order, and the feature counts
//! the fast tables. Other tables make the pool read-only ([`obstacle`]). That its counts are
//! right cannot be seen here; the audit compares them with the pointers.
//!
//! # Hostile tables
//! The logs are read into memory, so their bytes and their entries are limited.

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use codec::checksum::Checksum;
use dmu::Object;
use dsl::Mos;
use dsl::write::{MosRead, features};
use ondisk::Endian;
use ondisk::ddt::{
    CHECKSUMS, Class, Entry, Key, LOG_BLOCK, LogHeader, LogRecords, STAT_BUCKETS, STATISTICS_KEY,
    StatBucket, directory_key, log_key, parse_statistics, zap_key,
};
use ondisk::zap::FatPhys;

/// The feature that counts the fast tables.
pub(crate) const FAST_DEDUP: &str = "com.klarasystems:fast_dedup";
/// The version of a fast table's directory.
pub(crate) const VERSION: u64 = 1;
/// The form of a fast table: flat entries and logs.
pub(crate) const FLAT_AND_LOG: u64 = 3;
/// Classes of entries.
pub(crate) const CLASSES: usize = Class::ALL.len();
/// Most bytes of a log, 4 GiB.
const LOG_BYTES_MAX: u64 = 4 << 30;
/// Most entries of a pool's logs: about 800 MB in memory.
pub(crate) const LOG_ENTRIES_MAX: usize = 4 << 20;

/// Statistics of one class.
pub(crate) type DedupHistogram = [StatBucket; STAT_BUCKETS];

/// The objects of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableObjects {
    pub(crate) checksum: Checksum,
    /// The directory of a fast table.
    pub(crate) directory: Option<u64>,
    /// The ZAP of each class.
    pub(crate) zaps: [Option<u64>; CLASSES],
    pub(crate) logs: [Option<u64>; 2],
}

/// The newest state of an entry that a log has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) entry: Entry,
    /// The class of the ZAP that has an older state; `None` if there is none.
    pub(crate) stored: Option<Class>,
}

/// Entries of a log.
pub(crate) type HeldEntries = BTreeMap<Key, Held>;

/// A table without its entries.
#[derive(Clone, Debug)]
pub(crate) struct LoadedTable {
    pub(crate) objects: TableObjects,
    pub(crate) statistics: [Box<DedupHistogram>; CLASSES],
    /// The logs of a fast table that has them: the active one, the flushing one.
    pub(crate) logs: Option<[(u64, LogHeader); 2]>,
}

/// No blocks.
pub(crate) fn empty_statistics() -> Box<DedupHistogram> {
    Box::new([StatBucket::default(); STAT_BUCKETS])
}

/// The objects of all tables, without judging them.
///
/// # Errors
/// Those of reading the MOS.
pub(crate) fn find(mos: &Mos) -> Result<Vec<TableObjects>> {
    let root = mos.directory()?;
    let mut out = Vec::new();
    for checksum in CHECKSUMS {
        let fast = root.lookup_u64(&directory_key(checksum))?;
        let own = fast.map(|object| mos.zap(object)).transpose()?;
        for (directory, of) in [(None, Some(&root)), (fast, own.as_ref())] {
            let Some(of) = of else { continue };
            let mut table =
                TableObjects { checksum, directory, zaps: [None; CLASSES], logs: [None; 2] };
            for (zap, class) in table.zaps.iter_mut().zip(Class::ALL) {
                *zap = of.lookup_u64(&zap_key(checksum, class))?;
            }
            if directory.is_some() {
                for (log, which) in table.logs.iter_mut().zip([0, 1]) {
                    *log = of.lookup_u64(&log_key(checksum, which))?;
                }
            }
            if directory.is_some() || table.zaps.iter().any(Option::is_some) {
                out.push(table);
            }
        }
    }
    Ok(out)
}

/// The key of an entry in a ZAP.
pub(crate) fn key_of(name: &[u8]) -> Result<Key> {
    let (words, rest) = name.as_chunks();
    let words: Vec<u64> = words.iter().map(|w| u64::from_be_bytes(*w)).collect();
    let key = <[u64; 5]>::try_from(words).ok().filter(|_| rest.is_empty());
    key.map(Key::from_words).ok_or_else(|| Error::corrupt("a dedup entry has an odd key"))
}

/// The header of a log, and its object.
///
/// # Errors
/// Those of reading it; `Corrupt`, `Unsupported`.
pub(crate) fn open_log(mos: &Mos, object: u64) -> Result<(LogHeader, Object)> {
    let object = mos.object(object)?;
    let header = LogHeader::parse(&object.dnode().bonus, object.dnode().endian)?;
    let blocks = object.dnode().max_blkid.saturating_add(1);
    if header.length > blocks.saturating_mul(object.block_size()) {
        return Err(Error::corrupt("dedup log is longer than its object"));
    }
    Ok((header, object))
}

/// Adds the entries of a log to `to`, except those that were flushed. Later ones override
/// earlier ones.
///
/// # Errors
/// Those of reading it; `Corrupt`; `Limit` for a log with more entries than `most`.
pub(crate) fn read_log(
    mos: &Mos,
    (header, object): &(LogHeader, Object),
    most: usize,
    to: &mut HeldEntries,
) -> Result<()> {
    if header.length > LOG_BYTES_MAX {
        return Err(Error::limit("a dedup log is too long"));
    }
    for blkid in 0..header.length.div_ceil(object.block_size()) {
        let (block, endian) = object.read_written(blkid, mos.io())?;
        for record in LogRecords::new(&block, endian) {
            let record = record?;
            if header.is_flushed(&record.key) {
                continue;
            }
            to.insert(record.key, Held { entry: Entry::Flat(record.entry), stored: record.stored });
            if to.len() > most {
                return Err(Error::limit("a dedup log has too many entries"));
            }
        }
    }
    Ok(())
}

/// The statistics of a class, which are none if they are missing.
///
/// # Errors
/// Those of reading them; `Corrupt`.
pub(crate) fn statistics(
    mos: &dyn MosRead,
    of: Option<u64>,
    checksum: Checksum,
    class: Class,
) -> Result<Box<DedupHistogram>> {
    let Some(object) = of else { return Ok(empty_statistics()) };
    let Some(value) = mos.zap_lookup(object, zap_key(checksum, class).as_bytes())? else {
        return Ok(empty_statistics());
    };
    let odd = || Error::corrupt("dedup statistics are not numbers");
    parse_statistics(&value.u64s().ok_or_else(odd)?).map(Box::new)
}

/// The logs of a fast table, the active one first.
fn judge_logs(mos: &Mos, objects: &TableObjects) -> Result<Option<[(u64, LogHeader); 2]>> {
    let (first, second) = match objects.logs {
        [None, None] => return Ok(None),
        [Some(first), Some(second)] => (first, second),
        _ => return Err(Error::corrupt("a dedup table with one log")),
    };
    let open = |id: u64| {
        let (header, object) = open_log(mos, id)?;
        if object.dnode().endian != Endian::Little {
            return Err(Error::unsupported("a dedup log of the other byte order"));
        }
        if object.block_size() != LOG_BLOCK || header.length > LOG_BYTES_MAX {
            return Err(Error::corrupt("a dedup log of an impossible size"));
        }
        Ok((id, header))
    };
    let (first, second) = (open(first)?, open(second)?);
    match (first.1.flushing, second.1.flushing) {
        (false, true) => Ok(Some([first, second])),
        (true, false) => Ok(Some([second, first])),
        // New ones, or both were flushed completely.
        _ if first.1.length == 0 => Ok(Some([second, first])),
        _ if second.1.length == 0 => Ok(Some([first, second])),
        _ => Err(Error::corrupt("both logs of a dedup table are in use for one purpose")),
    }
}

/// All tables, for a writer of the pool; the logs are not read.
///
/// # Errors
/// Those of reading the MOS; `Corrupt` and `Unsupported` for tables that cannot be changed.
pub(crate) fn load(mos: &Mos) -> Result<Vec<LoadedTable>> {
    let read: &dyn MosRead = mos;
    let tables = find(mos)?;
    let statistics_zap = read.directory(STATISTICS_KEY)?;
    let mut seen: BTreeSet<u64> = statistics_zap.into_iter().collect();
    let mut checksums = BTreeSet::new();
    let mut out = Vec::new();
    for objects in &tables {
        let odd =
            |what: &str| Error::corrupt(format!("dedup table {}: {what}", objects.checksum.name()));
        if !checksums.insert(objects.checksum.id()) {
            return Err(odd("it has both forms"));
        }
        if let Some(directory) = objects.directory {
            let (version, flags) =
                (read.number(directory, "version")?, read.number(directory, "flags")?);
            if (version, flags) != (Some(VERSION), Some(FLAT_AND_LOG)) {
                return Err(Error::unsupported("a dedup table of an unknown form"));
            }
        }
        let all = objects.zaps.iter().chain(&objects.logs).chain([&objects.directory]);
        if !all.flatten().all(|object| seen.insert(*object)) {
            return Err(odd("it shares an object"));
        }
        for zap in objects.zaps.iter().flatten() {
            let header = mos.zap(*zap)?.fat_header()?.filter(FatPhys::has_word_keys);
            header.ok_or_else(|| odd("its entries are in no ZAP of numbers"))?;
        }
        let mut statistics = [(); CLASSES].map(|()| empty_statistics());
        for (of, class) in statistics.iter_mut().zip(Class::ALL) {
            *of = self::statistics(read, statistics_zap, objects.checksum, class)?;
        }
        let logs = judge_logs(mos, objects)?;
        out.push(LoadedTable { objects: *objects, statistics, logs });
    }
    let fast = out.iter().filter(|t| t.objects.directory.is_some()).count() as u64;
    if counted(read)? != fast {
        return Err(Error::corrupt("feature fast_dedup does not count the dedup tables"));
    }
    Ok(out)
}

/// The stored number of fast tables.
///
/// # Errors
/// Those of reading the MOS.
pub(crate) fn counted(mos: &dyn MosRead) -> Result<u64> {
    // Pools older than version 5000 have no features.
    match mos.directory("features_for_write")? {
        Some(_) => Ok(features::count(mos, FAST_DEDUP)?.unwrap_or(0)),
        None => Ok(0),
    }
}

/// Why the tables cannot be changed; `None` if they can.
///
/// # Errors
/// Those of reading the MOS.
pub(crate) fn obstacle(mos: &Mos) -> Result<Option<&'static str>> {
    match load(mos) {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            return Ok(Some("its dedup table has a form that this version does not know"));
        }
        Err(e) if matches!(e.kind(), ErrorKind::Io | ErrorKind::DevicesMissing) => return Err(e),
        Err(_) => return Ok(Some("its dedup table is damaged")),
    }
    let known = |name: &str| {
        let of = |checksum: Checksum| {
            name == directory_key(checksum)
                || Class::ALL.iter().any(|class| name == zap_key(checksum, *class))
        };
        name == STATISTICS_KEY || CHECKSUMS.into_iter().any(of)
    };
    for entry in mos.directory()?.entries()? {
        let name = String::from_utf8_lossy(&entry.name);
        if name.starts_with("DDT-") && !known(&name) {
            return Ok(Some("it has a dedup table of an unknown kind"));
        }
    }
    Ok(None)
}

/// An error of a table, as that of a pool that can be read.
pub(crate) fn damaged(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Checksum | ErrorKind::NotFound | ErrorKind::Limit => {
            let why = format!("a dedup table is damaged ({error})");
            Error::new(ErrorKind::ReadOnly, why).caused_by(error)
        }
        _ => error,
    }
}

/// A value of an entry ZAP.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn decode(value: &ondisk::zap::ZapValue, fast: bool) -> Result<Entry> {
    let odd = || Error::corrupt("a dedup entry has no bytes");
    Entry::decode(value.as_bytes().ok_or_else(odd)?, fast)
}

/// A log that is empty.
pub(crate) fn empty_log(flushing: bool, first_txg: Txg) -> LogHeader {
    LogHeader { flushing, length: 0, first_txg, checkpoint: None }
}

/// An error about one of a table's objects.
pub(crate) fn in_table(error: Error, object: u64) -> Error {
    error.in_object(ObjectId(object))
}
