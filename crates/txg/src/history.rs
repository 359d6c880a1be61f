//! The history of txgs, for the kstat `txgs` (chapter 09 §6).

/// The state of a txg, as the kstat shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxgState {
    /// Open for holds.
    Open,
    /// Closed; its last holders finish.
    Quiescing,
    /// Without holders; it waits for the sync thread.
    WaitingForSync,
    /// It is being written.
    Syncing,
    /// It is on disk.
    Committed,
}

impl TxgState {
    /// The letter in the kstat's column `state`.
    pub fn letter(self) -> char {
        match self {
            TxgState::Open => 'O',
            TxgState::Quiescing => 'Q',
            TxgState::WaitingForSync => 'W',
            TxgState::Syncing => 'S',
            TxgState::Committed => 'C',
        }
    }
}

/// The device operations of a txg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoTotals {
    /// Bytes read.
    pub nread: u64,
    /// Bytes written.
    pub nwritten: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// One line of the kstat. Durations of steps that have not ended are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxgRecord {
    /// The txg.
    pub txg: u64,
    /// When it opened, nanoseconds since [`crate::Txgs::epoch`].
    pub birth: u64,
    /// Its state.
    pub state: TxgState,
    /// Dirty bytes when it began to sync; before that, the current dirty bytes.
    pub ndirty: u64,
    /// Its device operations.
    pub io: IoTotals,
    /// Nanoseconds open.
    pub otime: u64,
    /// Nanoseconds quiescing.
    pub qtime: u64,
    /// Nanoseconds between quiesced and syncing.
    pub wtime: u64,
    /// Nanoseconds syncing.
    pub stime: u64,
}

/// The times of a living txg, nanoseconds since the epoch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) birth: u64,
    pub(crate) closed: Option<u64>,
    pub(crate) quiesced: Option<u64>,
    pub(crate) started: Option<u64>,
    pub(crate) ndirty: u64,
    pub(crate) io: IoTotals,
}

impl Times {
    /// The txg's line, given the time at which it synced and its current dirty bytes.
    pub(crate) fn record(&self, txg: u64, synced: Option<u64>, dirty: u64) -> TxgRecord {
        let span = |from: Option<u64>, to: Option<u64>| {
            from.zip(to).map_or(0, |(from, to)| to.saturating_sub(from))
        };
        let state = match (self.closed, self.quiesced, self.started, synced) {
            (_, _, _, Some(_)) => TxgState::Committed,
            (_, _, Some(_), _) => TxgState::Syncing,
            (_, Some(_), _, _) => TxgState::WaitingForSync,
            (Some(_), _, _, _) => TxgState::Quiescing,
            _ => TxgState::Open,
        };
        TxgRecord {
            txg,
            birth: self.birth,
            state,
            ndirty: if self.started.is_some() { self.ndirty } else { dirty },
            io: self.io,
            otime: span(Some(self.birth), self.closed),
            qtime: span(self.closed, self.quiesced),
            wtime: span(self.quiesced, self.started),
            stime: span(self.started, synced),
        }
    }
}
