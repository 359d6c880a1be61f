//! State of scrubs, resilvers and rebuilds (chapter 04 §17; chapter 05 §3.1).
//!
//! # Theory
//! Each is an array of words under a name in the MOS directory or a vdev's ZAP;
//! a scan resumes from the position stored in it.
//!
//! # Invariants
//! States and functions are known ones. Everything else is returned as found, because
//! an invalid position merely ends a scan.

use base::{Error, ObjectId, Result, Txg};

use crate::dslphys::BookmarkPlace;
use crate::removal::JobState;

/// Words of the MOS directory's `scan`.
pub const SCAN_WORDS: usize = 24;
/// Words of the MOS directory's `error_scrub`.
pub const ERROR_SCRUB_WORDS: usize = 9;
/// Words of a top-level vdev's `org.openzfs:vdev_rebuild`.
pub(crate) const REBUILD_WORDS: usize = 12;

/// The function of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanFunc {
    /// Nothing was ever scanned.
    None,
    /// Reads and repairs everything.
    Scrub,
    /// Reconstructs devices that missed txgs.
    Resilver,
    /// Reads the blocks in the error log.
    ErrorScrub,
}

/// The state of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanState {
    /// None.
    None,
    /// Running, or paused.
    Scanning,
    /// Done.
    Finished,
    /// Cancelled.
    Canceled,
    /// Scrubbing errors.
    ErrorScrubbing,
}

/// State of the last or current scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Its function.
    pub func: ScanFunc,
    /// Its state.
    pub state: ScanState,
    /// Datasets still to visit.
    pub queue: Option<ObjectId>,
    /// Blocks born after this txg...
    pub min_txg: Txg,
    /// ...and up to this one.
    pub max_txg: Txg,
    /// The same for the dataset being visited.
    pub cur_min_txg: Txg,
    /// The same for the dataset being visited.
    pub cur_max_txg: Txg,
    /// UTC seconds.
    pub start_time: u64,
    /// UTC seconds.
    pub end_time: u64,
    /// Bytes allocated when it began.
    pub to_examine: u64,
    /// Bytes examined.
    pub examined: u64,
    /// Bytes skipped.
    pub skipped: u64,
    /// Bytes repaired.
    pub processed: u64,
    /// Errors found.
    pub errors: u64,
    /// Highest dedup class that is scanned by its table.
    pub ddt_class_max: u64,
    /// Class, type, checksum and cursor of the position in the dedup tables.
    pub ddt_bookmark: [u64; 4],
    /// Position in the object sets.
    pub bookmark: BookmarkPlace,
    /// 1: datasets visited before are visited again; 2: paused.
    pub flags: u64,
}

fn scan_func(code: u64) -> Result<ScanFunc> {
    Ok(match code {
        0 => ScanFunc::None,
        1 => ScanFunc::Scrub,
        2 => ScanFunc::Resilver,
        3 => ScanFunc::ErrorScrub,
        _ => return Err(Error::corrupt(format!("scan of the unknown kind {code}"))),
    })
}

fn scan_state(code: u64) -> Result<ScanState> {
    Ok(match code {
        0 => ScanState::None,
        1 => ScanState::Scanning,
        2 => ScanState::Finished,
        3 => ScanState::Canceled,
        4 => ScanState::ErrorScrubbing,
        _ => return Err(Error::corrupt(format!("scan in the unknown state {code}"))),
    })
}

fn scan_func_code(func: ScanFunc) -> u64 {
    match func {
        ScanFunc::None => 0,
        ScanFunc::Scrub => 1,
        ScanFunc::Resilver => 2,
        ScanFunc::ErrorScrub => 3,
    }
}

fn scan_state_code(state: ScanState) -> u64 {
    match state {
        ScanState::None => 0,
        ScanState::Scanning => 1,
        ScanState::Finished => 2,
        ScanState::Canceled => 3,
        ScanState::ErrorScrubbing => 4,
    }
}

impl Scan {
    /// From the words of the MOS directory's `scan`.
    ///
    /// # Errors
    /// `Corrupt` for an unknown function or state.
    pub fn from_words(words: &[u64; SCAN_WORDS]) -> Result<Scan> {
        let [func, state, queue, min, max, cur_min, cur_max, start, end, rest @ ..] = *words;
        let [to_examine, examined, skipped, processed, errors, class_max, rest @ ..] = rest;
        let [d0, d1, d2, d3, b0, b1, b2, b3, flags] = rest;
        Ok(Scan {
            func: scan_func(func)?,
            state: scan_state(state)?,
            queue: (queue != 0).then_some(ObjectId(queue)),
            min_txg: Txg(min),
            max_txg: Txg(max),
            cur_min_txg: Txg(cur_min),
            cur_max_txg: Txg(cur_max),
            start_time: start,
            end_time: end,
            to_examine,
            examined,
            skipped,
            processed,
            errors,
            ddt_class_max: class_max,
            ddt_bookmark: [d0, d1, d2, d3],
            bookmark: BookmarkPlace { objset: b0, object: b1, level: b2.cast_signed(), blkid: b3 },
            flags,
        })
    }

    /// The words to write.
    pub fn to_words(&self) -> [u64; SCAN_WORDS] {
        let [d0, d1, d2, d3] = self.ddt_bookmark;
        let BookmarkPlace { objset, object, level, blkid } = self.bookmark;
        [
            scan_func_code(self.func),
            scan_state_code(self.state),
            self.queue.map_or(0, |o| o.0),
            self.min_txg.0,
            self.max_txg.0,
            self.cur_min_txg.0,
            self.cur_max_txg.0,
            self.start_time,
            self.end_time,
            self.to_examine,
            self.examined,
            self.skipped,
            self.processed,
            self.errors,
            self.ddt_class_max,
            d0,
            d1,
            d2,
            d3,
            objset,
            object,
            level.cast_unsigned(),
            blkid,
            self.flags,
        ]
    }
}

/// State of the last or current error scrub (chapter 04 §17.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorScrub {
    /// Its function.
    pub func: ScanFunc,
    /// Its state.
    pub state: ScanState,
    /// Position in the error log's ZAP.
    pub cursor: u64,
    /// UTC seconds.
    pub start_time: u64,
    /// UTC seconds.
    pub end_time: u64,
    /// Blocks to examine.
    pub to_examine: u64,
    /// Blocks examined.
    pub examined: u64,
    /// Errors found.
    pub errors: u64,
    /// Paused.
    pub paused: bool,
}

impl ErrorScrub {
    /// From the words of the MOS directory's `error_scrub`.
    ///
    /// # Errors
    /// `Corrupt` for an unknown function or state.
    pub fn from_words(words: &[u64; ERROR_SCRUB_WORDS]) -> Result<ErrorScrub> {
        let [func, state, cursor, start_time, end_time, to_examine, examined, errors, paused] =
            *words;
        Ok(ErrorScrub {
            func: scan_func(func)?,
            state: scan_state(state)?,
            cursor,
            start_time,
            end_time,
            to_examine,
            examined,
            errors,
            paused: paused != 0,
        })
    }

    /// The words to write.
    pub fn to_words(&self) -> [u64; ERROR_SCRUB_WORDS] {
        [
            scan_func_code(self.func),
            scan_state_code(self.state),
            self.cursor,
            self.start_time,
            self.end_time,
            self.to_examine,
            self.examined,
            self.errors,
            u64::from(self.paused),
        ]
    }
}

/// State of a sequential rebuild of a top-level vdev (chapter 05 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebuild {
    /// Its state.
    pub state: JobState,
    /// Byte offset up to which the vdev was rebuilt.
    pub last_offset: u64,
    /// First txg to rebuild.
    pub min_txg: Txg,
    /// Last txg to rebuild.
    pub max_txg: Txg,
    /// UTC seconds.
    pub start_time: u64,
    /// UTC seconds.
    pub end_time: u64,
    /// Milliseconds spent.
    pub scan_time_ms: u64,
    /// Bytes scanned, issued, rebuilt and estimated.
    pub bytes: [u64; 4],
    /// Errors found.
    pub errors: u64,
}

impl Rebuild {
    /// From the words of `org.openzfs:vdev_rebuild`.
    ///
    /// # Errors
    /// `Corrupt` for an unknown state.
    pub fn from_words(words: &[u64; REBUILD_WORDS]) -> Result<Rebuild> {
        let [state, last_offset, min, max, start_time, end_time, scan_time_ms, rest @ ..] = *words;
        let [scanned, issued, rebuilt, estimated, errors] = rest;
        // Here 2 is canceled and 3 complete; elsewhere the codes are reversed.
        let state = match state {
            2 => JobState::Canceled,
            3 => JobState::Finished,
            s => JobState::from_code(s)?,
        };
        Ok(Rebuild {
            state,
            last_offset,
            min_txg: Txg(min),
            max_txg: Txg(max),
            start_time,
            end_time,
            scan_time_ms,
            bytes: [scanned, issued, rebuilt, estimated],
            errors,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Chapter 04 §17.1, a finished scrub.
    const FINISHED: [u64; SCAN_WORDS] = [
        1,
        2,
        0,
        0,
        9,
        1,
        9,
        100,
        101,
        1_368_064,
        1_368_064,
        135_168,
        0,
        0,
        1,
        3,
        0,
        0,
        0,
        u64::MAX,
        0,
        0,
        0,
        0,
    ];

    #[test]
    fn the_scan_of_the_specification() {
        let scan = Scan::from_words(&FINISHED).unwrap();
        assert_eq!((scan.func, scan.state), (ScanFunc::Scrub, ScanState::Finished));
        assert_eq!((scan.max_txg, scan.cur_max_txg, scan.queue), (Txg(9), Txg(9), None));
        assert_eq!((scan.to_examine, scan.skipped), (1_368_064, 135_168));
        assert_eq!(scan.ddt_bookmark, [3, 0, 0, 0]);
        assert_eq!(scan.bookmark.objset, u64::MAX);
        assert_eq!(scan.to_words(), FINISHED);
        let mut odd = FINISHED;
        odd[1] = 5;
        assert!(Scan::from_words(&odd).is_err());
    }

    #[test]
    fn rebuilds_number_their_states_differently() {
        let words = [2, 9, 4, 5, 0, 0, 7, 1, 2, 3, 4, 5];
        let r = Rebuild::from_words(&words).unwrap();
        assert_eq!((r.state, r.bytes, r.errors), (JobState::Canceled, [1, 2, 3, 4], 5));
        assert!(Rebuild::from_words(&[4; 12]).is_err());
        let e = ErrorScrub::from_words(&[3, 4, 0, 1, 2, 3, 4, 5, 1]).unwrap();
        assert_eq!((e.func, e.paused, e.errors), (ScanFunc::ErrorScrub, true, 5));
        assert_eq!(e.to_words(), [3, 4, 0, 1, 2, 3, 4, 5, 1]);
    }

    proptest! {
        #[test]
        fn hostile_words_never_panic(words: [u64; 24]) {
            let small = words.map(|w| w % 6);
            if let Ok(scan) = Scan::from_words(&small) {
                prop_assert_eq!(scan.to_words(), small);
            }
            let mut rebuild = [0; REBUILD_WORDS];
            rebuild.copy_from_slice(&small[..REBUILD_WORDS]);
            let _ = Rebuild::from_words(&rebuild);
        }
    }
}
