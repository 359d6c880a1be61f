//! Snapshots whose blocks may be cloned (chapter 08 §C.2).
//!
//! # Theory
//! A snapshot's blocks do not change, so every one that is in its tree can be cloned, as long as
//! the snapshot exists. Its destruction frees blocks that no change of an object set frees, as that
//! of a head does, and a clone must not be made of a pointer that was read before a free that is
//! processed already ([`dmu::Objset::clone_block`]).
//!
//! Many handles of a snapshot may be open, and a snapshot can be destroyed in many ways: by
//! name, with the last hold or the last clone, with its dataset, by a receive. So what is open has
//! an entry here, by object and guid, with a flag that its handles share. After the tasks of a
//! txg, all of which may have destroyed snapshots, the sync thread looks for each entry's snapshot
//! in the MOS, and sets the flags of those that are gone.
//!
//! # Argument
//! A task puts the blocks of a destroyed snapshot on the list of frees in the background, or on
//! the next deadlist. Frees of that list are processed later in the txg than the flags are set.
//! A clone is noted first, and then the flag is checked. If it is not set yet, the note is
//! there before any of these frees is processed, which it defers or counts (`block_refs`). If it
//! is set, the note is cancelled.
//!
//! An entry is made while no task runs ([`Writer::names`]), and only for a snapshot that exists;
//! so a destruction comes before, and the entry is not made, or after, and the flag is set.
//!
//! Lock order: `names` → the table, which is a leaf.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use base::rt::Mutex;
use dmu::Objset;
use dsl::write::MosRead;

use super::Writer;

/// The flags of open snapshots, with their guids, by object.
#[derive(Default)]
pub(super) struct CloneSources(Mutex<BTreeMap<u64, (u64, Weak<AtomicBool>)>>);

impl CloneSources {
    /// The flag of a snapshot that exists.
    fn flag(&self, object: u64, guid: u64) -> Arc<AtomicBool> {
        let mut table = self.0.lock();
        let known = table.get(&object).filter(|(of, _)| *of == guid);
        if let Some(flag) = known.and_then(|(_, flag)| flag.upgrade()) {
            return flag;
        }
        let flag = Arc::new(AtomicBool::new(false));
        table.insert(object, (guid, Arc::downgrade(&flag)));
        flag
    }
}

fn exists(mos: &dyn MosRead, object: u64, guid: u64) -> bool {
    mos.dataset(object).is_ok_and(|s| s.is_snapshot() && s.guid == guid)
}

impl Writer {
    /// Lets blocks of a snapshot, which the caller opened, be cloned as long as it exists.
    pub fn allow_clones_of(&self, snapshot: &Objset, guid: u64) {
        let _names = self.names();
        if exists(&self.mos, snapshot.id(), guid) {
            snapshot.allow_clones(self.clone_sources.flag(snapshot.id(), guid));
        }
    }

    /// Ends the clones of blocks of snapshots that the txg's tasks have destroyed.
    pub(super) fn end_clones_of_snapshots(&self, mos: &dyn MosRead) {
        self.clone_sources.0.lock().retain(|object, (guid, flag)| {
            let Some(flag) = flag.upgrade() else { return false };
            let there = exists(mos, *object, *guid);
            if !there {
                flag.store(true, SeqCst);
            }
            there
        });
    }
}
