//! What the pool stores of a defragmentation, so that it continues after an export or a crash.
//!
//! # Theory
//! The record is an array of numbers in the object directory, under a name that no other program
//! looks up; it refers to no object. It is stored when a defragmentation begins, is paused,
//! continued, stopped, or over, and whenever a part of the work is done. Progress since then is
//! lost in a crash: work that is done is found done when it is looked at again.

use base::{Error, Result};

/// Its name in the object directory.
pub(crate) const RECORD: &str = "org.cenote:defrag";
/// Numbers before the datasets.
const FIXED: usize = 20;
/// The first number.
const VERSION: u64 = 1;
/// Datasets that a request can name.
pub const DATASETS_MAX: usize = 256;
/// A layout score of 1.
pub const WHOLE_SCORE: u64 = 1000;

/// The state of a defragmentation, with its number on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefragState {
    /// It runs, or waits until it can.
    Active = 1,
    /// It came to its end.
    Complete = 2,
    /// It was stopped.
    Canceled = 3,
    /// It was interrupted, and continues when it is started again.
    Paused = 4,
}

/// What is being done, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DefragPhase {
    /// Fragmented metaslabs are emptied, so that there is room for files in one piece.
    #[default]
    Space,
    /// Files are laid out.
    Files,
    /// Metaslabs are emptied once more: files have left their old places.
    SpaceAgain,
    /// Nothing is left.
    Done,
}

impl DefragPhase {
    pub(crate) fn next(self) -> DefragPhase {
        match self {
            DefragPhase::Space => DefragPhase::Files,
            DefragPhase::Files => DefragPhase::SpaceAgain,
            DefragPhase::SpaceAgain | DefragPhase::Done => DefragPhase::Done,
        }
    }
}

/// A defragmentation: what was asked for, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefragRecord {
    /// Its state.
    pub state: DefragState,
    /// When it began, seconds since 1970.
    pub start: u64,
    /// When it was paused, or ended; 0 while it runs.
    pub end: u64,
    /// Files with a lower layout score are laid out; in thousandths.
    pub target: u64,
    /// What it is doing.
    pub phase: DefragPhase,
    /// Of the phase of files: those before this head and object are done.
    pub position: (u64, u64),
    /// Bytes that are expected to move, once they were estimated.
    pub to_move: Option<u64>,
    /// Allocated bytes that were moved, without blocks of pointers.
    pub moved: u64,
    /// Allocated bytes of blocks of pointers that were rewritten.
    pub metadata: u64,
    /// Files that were laid out.
    pub files: u64,
    /// Metaslabs that were emptied.
    pub metaslabs: u64,
    /// Blocks that stayed where they were: without a fitting place, cloned, or never moved.
    pub kept: u64,
    /// Blocks of files that have a predecessor, and of these the ones in sequence: when they were
    /// looked at, and after they were laid out.
    pub steps: u64,
    /// See `steps`.
    pub in_sequence: u64,
    /// See `steps`.
    pub in_sequence_now: u64,
    /// Heads, by their objects, to which it is limited; empty for the whole pool.
    pub datasets: Vec<u64>,
}

impl DefragRecord {
    /// Whether all datasets and the free space are worked on.
    pub fn is_whole_pool(&self) -> bool {
        self.datasets.is_empty()
    }

    pub(crate) fn words(&self) -> Vec<u64> {
        let phase = match self.phase {
            DefragPhase::Space => 0,
            DefragPhase::Files => 1,
            DefragPhase::SpaceAgain => 2,
            DefragPhase::Done => 3,
        };
        let mut words = vec![
            VERSION,
            self.state as u64,
            self.start,
            self.end,
            self.target,
            phase,
            self.position.0,
            self.position.1,
            self.to_move.map_or(0, |bytes| bytes.saturating_add(1)),
            self.moved,
            self.metadata,
            self.files,
            self.metaslabs,
            self.kept,
            self.steps,
            self.in_sequence,
            self.in_sequence_now,
        ];
        words.resize(FIXED, 0);
        words.extend(&self.datasets);
        words
    }

    /// The record in these numbers.
    ///
    /// # Errors
    /// `Corrupt` if they are none.
    pub(crate) fn from_words(words: &[u64]) -> Result<DefragRecord> {
        let odd = || Error::corrupt("the record of a defragmentation is damaged");
        let (fixed, datasets) = words.split_first_chunk::<FIXED>().ok_or_else(odd)?;
        let state = match fixed[1] {
            1 => DefragState::Active,
            2 => DefragState::Complete,
            3 => DefragState::Canceled,
            4 => DefragState::Paused,
            _ => return Err(odd()),
        };
        let phase = match fixed[5] {
            0 => DefragPhase::Space,
            1 => DefragPhase::Files,
            2 => DefragPhase::SpaceAgain,
            3 => DefragPhase::Done,
            _ => return Err(odd()),
        };
        if fixed[0] != VERSION || fixed[4] > WHOLE_SCORE || datasets.len() > DATASETS_MAX {
            return Err(odd());
        }
        Ok(DefragRecord {
            state,
            start: fixed[2],
            end: fixed[3],
            target: fixed[4],
            phase,
            position: (fixed[6], fixed[7]),
            to_move: fixed[8].checked_sub(1),
            moved: fixed[9],
            metadata: fixed[10],
            files: fixed[11],
            metaslabs: fixed[12],
            kept: fixed[13],
            steps: fixed[14],
            in_sequence: fixed[15],
            in_sequence_now: fixed[16],
            datasets: datasets.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_back_and_damaged_ones_refused() {
        let record = DefragRecord {
            state: DefragState::Paused,
            start: 7,
            end: 9,
            target: 950,
            phase: DefragPhase::Files,
            position: (54, 3),
            to_move: Some(1 << 40),
            moved: 5,
            metadata: 6,
            files: 8,
            metaslabs: 10,
            kept: 11,
            steps: 100,
            in_sequence: 12,
            in_sequence_now: 13,
            datasets: vec![54, 70],
        };
        let words = record.words();
        assert_eq!(DefragRecord::from_words(&words).unwrap(), record);
        let begun = DefragRecord { to_move: None, ..record };
        assert_eq!(DefragRecord::from_words(&begun.words()).unwrap(), begun);
        for (at, value) in [(0, 2), (1, 0), (1, 5), (4, 1001), (5, 4)] {
            let mut damaged = words.clone();
            damaged[at] = value;
            assert!(DefragRecord::from_words(&damaged).is_err(), "{at}");
        }
        assert!(DefragRecord::from_words(&words[..FIXED - 1]).is_err());
        let many = [words, vec![1; DATASETS_MAX]].concat();
        assert!(DefragRecord::from_words(&many).is_err());
    }
}
