//! What the pool stores of a job, so that it continues after an export or a crash.
//!
//! # Theory
//! The record is an array of numbers in the object directory, under a name that no other program
//! looks up; it refers to no object. It is stored when a job begins, is paused, continued,
//! stopped, or over, and whenever a part of the work is done. Progress since then is lost in a
//! crash: work that is done is found done when it is looked at again.

use base::{Error, Guid, Result};

/// Its name in the object directory.
pub(crate) const RECORD: &str = "org.cenote:move_job";
/// Numbers before the datasets.
const FIXED: usize = 20;
/// The first number.
const VERSION: u64 = 1;
/// Datasets that a request can name.
pub const DATASETS_MAX: usize = 256;
/// A layout score of 1.
pub const WHOLE_SCORE: u64 = 1000;

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveRequest {
    /// What the job is for.
    pub work: MoveWork,
    /// Of a defragmentation: files with a lower layout score are laid out; in thousandths.
    pub target: u64,
    /// Of a defragmentation: the heads whose files are laid out; empty for all, and the free
    /// space.
    pub datasets: Vec<u64>,
}

/// What a job is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MoveWork {
    /// Files are laid out, and free space is joined (`zpool defrag`).
    #[default]
    Defrag,
    /// Top-level vdevs get equal shares of what is used (`zpool rebalance`).
    Rebalance,
    /// What the special class takes moves to it (`zpool rebalance --special`).
    ToSpecial,
    /// Everything leaves the special class (`zpool rebalance --from-special`).
    FromSpecial,
    /// No pointer names a removed vdev any more (`zpool defrag --unmap`).
    Unmap,
    /// A top-level vdev is emptied, and leaves a hole (`zpool remove`).
    Remove {
        /// The vdev.
        vdev: Guid,
    },
    /// The end of a top-level vdev is emptied and cut off (`zpool shrink`).
    Shrink {
        /// The vdev.
        vdev: Guid,
        /// Its new size, in bytes.
        size: u64,
    },
}

impl MoveWork {
    /// Its number on disk, the vdev, and the size.
    fn words(self) -> [u64; 3] {
        match self {
            MoveWork::Defrag => [0, 0, 0],
            MoveWork::Rebalance => [1, 0, 0],
            MoveWork::ToSpecial => [2, 0, 0],
            MoveWork::FromSpecial => [3, 0, 0],
            MoveWork::Unmap => [4, 0, 0],
            MoveWork::Remove { vdev } => [5, vdev.0, 0],
            MoveWork::Shrink { vdev, size } => [6, vdev.0, size],
        }
    }

    fn from_words(words: [u64; 3]) -> Option<MoveWork> {
        Some(match words {
            [0, 0, 0] => MoveWork::Defrag,
            [1, 0, 0] => MoveWork::Rebalance,
            [2, 0, 0] => MoveWork::ToSpecial,
            [3, 0, 0] => MoveWork::FromSpecial,
            [4, 0, 0] => MoveWork::Unmap,
            [5, vdev, 0] => MoveWork::Remove { vdev: Guid(vdev) },
            [6, vdev, size] => MoveWork::Shrink { vdev: Guid(vdev), size },
            _ => return None,
        })
    }
}

/// The state of a job, with its number on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveState {
    /// It runs, or waits until it can.
    Active = 1,
    /// It came to its end.
    Complete = 2,
    /// It was stopped.
    Canceled = 3,
    /// It was interrupted, and continues when it is started again.
    Paused = 4,
    /// It could not go on.
    Failed = 5,
}

/// What is being done. A defragmentation of a pool has all phases, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MovePhase {
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

impl MovePhase {
    pub(crate) fn next(self) -> MovePhase {
        match self {
            MovePhase::Space => MovePhase::Files,
            MovePhase::Files => MovePhase::SpaceAgain,
            MovePhase::SpaceAgain | MovePhase::Done => MovePhase::Done,
        }
    }
}

/// A job: what was asked for, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveRecord {
    /// What it is for.
    pub work: MoveWork,
    /// Its state.
    pub state: MoveState,
    /// When it began, seconds since 1970.
    pub start: u64,
    /// When it was paused, or ended; 0 while it runs.
    pub end: u64,
    /// See [`MoveRequest::target`].
    pub target: u64,
    /// What it is doing.
    pub phase: MovePhase,
    /// Of the phase of files: those before this head and object are done. Of a removal: the id of
    /// the vdev, and 0.
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

impl MoveRecord {
    /// A job that begins now.
    pub(crate) fn begin(request: &MoveRequest, phase: MovePhase) -> MoveRecord {
        MoveRecord {
            work: request.work,
            state: MoveState::Active,
            start: base::rt::wall_clock().as_secs(),
            end: 0,
            target: request.target.min(WHOLE_SCORE),
            phase,
            position: (0, 0),
            to_move: None,
            moved: 0,
            metadata: 0,
            files: 0,
            metaslabs: 0,
            kept: 0,
            steps: 0,
            in_sequence: 0,
            in_sequence_now: 0,
            datasets: request.datasets.clone(),
        }
    }

    /// Whether all datasets and the free space are worked on.
    pub fn is_whole_pool(&self) -> bool {
        self.datasets.is_empty()
    }

    pub(crate) fn words(&self) -> Vec<u64> {
        let phase = match self.phase {
            MovePhase::Space => 0,
            MovePhase::Files => 1,
            MovePhase::SpaceAgain => 2,
            MovePhase::Done => 3,
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
        words.extend(self.work.words());
        debug_assert_eq!(words.len(), FIXED);
        words.extend(&self.datasets);
        words
    }

    /// The record in these numbers.
    ///
    /// # Errors
    /// `Corrupt` if they are none.
    pub(crate) fn from_words(words: &[u64]) -> Result<MoveRecord> {
        let odd = || Error::corrupt("the record of a job that moves blocks is damaged");
        let (fixed, datasets) = words.split_first_chunk::<FIXED>().ok_or_else(odd)?;
        let state = match fixed[1] {
            1 => MoveState::Active,
            2 => MoveState::Complete,
            3 => MoveState::Canceled,
            4 => MoveState::Paused,
            5 => MoveState::Failed,
            _ => return Err(odd()),
        };
        let phase = match fixed[5] {
            0 => MovePhase::Space,
            1 => MovePhase::Files,
            2 => MovePhase::SpaceAgain,
            3 => MovePhase::Done,
            _ => return Err(odd()),
        };
        let work = MoveWork::from_words([fixed[17], fixed[18], fixed[19]]).ok_or_else(odd)?;
        if fixed[0] != VERSION || fixed[4] > WHOLE_SCORE || datasets.len() > DATASETS_MAX {
            return Err(odd());
        }
        Ok(MoveRecord {
            work,
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
        let record = MoveRecord {
            work: MoveWork::Shrink { vdev: Guid(77), size: 1 << 30 },
            state: MoveState::Paused,
            start: 7,
            end: 9,
            target: 950,
            phase: MovePhase::Files,
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
        assert_eq!(MoveRecord::from_words(&words).unwrap(), record);
        let begun = MoveRecord { to_move: None, ..record };
        assert_eq!(MoveRecord::from_words(&begun.words()).unwrap(), begun);
        for (at, value) in [(0, 2), (1, 0), (1, 6), (4, 1001), (5, 4), (17, 7), (17, 5)] {
            let mut damaged = words.clone();
            damaged[at] = value;
            assert!(MoveRecord::from_words(&damaged).is_err(), "{at}");
        }
        assert!(MoveRecord::from_words(&words[..FIXED - 1]).is_err());
        let many = [words, vec![1; DATASETS_MAX]].concat();
        assert!(MoveRecord::from_words(&many).is_err());
    }
}
