//! Allocation: classes, vdevs, copies (§12.1, §12.4, §12.6).

use base::rt::atomic::Ordering;
use base::{Asize, Dva, Result, Txg, VdevId};

use crate::group::{MetaslabGroup, Refusal};
use crate::rotor::VdevRing;
use crate::space::{Space, SpaceLayout};
use crate::uses::MetaslabUse;
use crate::{Denied, MsKey, SpaceClass, Want};

/// How far apart a copy must be from the earlier copies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Apart {
    Vdev,
    Metaslab,
    Anyhow,
}

impl Space {
    /// Allocates space for all copies of a block. Any number of threads may call it
    /// concurrently.
    ///
    /// `asize_of` returns the bytes that the block takes on a vdev; they must be whole
    /// sectors, and on a dRAID whole rows.
    ///
    /// # Errors
    /// `Load` if a metaslab must be loaded first ([`Space::load_plan`]); call again
    /// afterwards. `NoSpace` if no vdev of the class, nor of its fallback classes, has
    /// room. Nothing is allocated then.
    pub fn allocate(
        &self,
        want: &Want,
        asize_of: &dyn Fn(VdevId) -> u64,
    ) -> Result<Vec<Dva>, Denied> {
        if self.force_ganging.hits(want) {
            return Err(Denied::NoSpace);
        }
        let layout = self.layout();
        let mut denied = Denied::NoSpace;
        for class in want.class.fallbacks() {
            match self.allocate_in(&layout, *class, want, asize_of) {
                Err(Denied::NoSpace) => denied = Denied::NoSpace,
                other => return other,
            }
        }
        Err(denied)
    }

    fn allocate_in(
        &self,
        layout: &SpaceLayout,
        class: SpaceClass,
        want: &Want,
        asize_of: &dyn Fn(VdevId) -> u64,
    ) -> Result<Vec<Dva>, Denied> {
        let ring = layout.ring(class);
        if ring.members.is_empty() {
            return Err(Denied::NoSpace);
        }
        let one = ring.members.iter().map(|&g| 1 << layout.groups[g].ashift).max().unwrap_or(0);
        let hardy = want.gang_child || class == SpaceClass::Log || want.psize <= one;
        let mut out: Vec<Dva> = Vec::with_capacity(usize::from(want.copies));
        for hard in [false, true] {
            if hard && !hardy {
                break;
            }
            match self.all_copies(layout, ring, want, asize_of, hard, &mut out) {
                Ok(()) => return Ok(out),
                Err(why) => {
                    self.give_back(layout, want.txg, &out);
                    out.clear();
                    if why != Denied::NoSpace {
                        return Err(why);
                    }
                }
            }
        }
        Err(Denied::NoSpace)
    }

    fn all_copies(
        &self,
        layout: &SpaceLayout,
        ring: &VdevRing,
        want: &Want,
        asize_of: &dyn Fn(VdevId) -> u64,
        hard: bool,
        out: &mut Vec<Dva>,
    ) -> Result<(), Denied> {
        let stream = self.stream(want.hint);
        let mut from = ring.current(stream);
        for copy in 0..usize::from(want.copies.clamp(1, 3)) {
            let (member, dva) =
                self.one_copy(layout, ring, want, asize_of, hard, (copy, from), out)?;
            if copy == 0 {
                let group = &layout.groups[ring.members[member]];
                let aliquot = group.aliquot.load(Ordering::Relaxed);
                ring.took(stream, member, dva.asize.0, aliquot);
            }
            out.push(dva);
            from = (member + 1) % ring.members.len();
        }
        Ok(())
    }

    /// Allocates one copy: on a vdev that has none yet, otherwise in another metaslab,
    /// otherwise anywhere. Vdevs are tried in the order of the ring, starting with
    /// `from`.
    fn one_copy(
        &self,
        layout: &SpaceLayout,
        ring: &VdevRing,
        want: &Want,
        asize_of: &dyn Fn(VdevId) -> u64,
        hard: bool,
        (copy, from): (usize, usize),
        before: &[Dva],
    ) -> Result<(usize, Dva), Denied> {
        let n = ring.members.len();
        let last = if before.is_empty() { Apart::Vdev } else { Apart::Anyhow };
        for apart in [Apart::Vdev, Apart::Metaslab, Apart::Anyhow] {
            // A vdev to be avoided is tried after all others.
            for avoided in [false, true] {
                if avoided && want.avoid.is_none() {
                    break;
                }
                for member in (0..n).map(|i| (from + i) % n) {
                    let group = &layout.groups[ring.members[member]];
                    let taken = before.iter().any(|d| d.vdev == group.vdev);
                    let wrong = (taken && apart == Apart::Vdev)
                        || (!taken && apart != Apart::Vdev)
                        || (want.avoid == Some(group.vdev)) != avoided
                        || !group.allocating.load(Ordering::Relaxed);
                    if wrong {
                        continue;
                    }
                    let not: &[Dva] = if apart == Apart::Metaslab { before } else { &[] };
                    let size = asize_of(group.vdev);
                    match self.take_from(group, want, size, hard, copy, not) {
                        Ok(dva) => return Ok((member, dva)),
                        Err(Denied::NoSpace) => {}
                        Err(load) => return Err(load),
                    }
                }
            }
            if apart == last {
                break;
            }
        }
        Err(Denied::NoSpace)
    }

    fn take_from(
        &self,
        group: &MetaslabGroup,
        want: &Want,
        size: u64,
        hard: bool,
        copy: usize,
        not: &[Dva],
    ) -> Result<Dva, Denied> {
        if size == 0 || !size.is_multiple_of(1 << group.ashift) {
            return Err(Denied::NoSpace);
        }
        let not: Vec<usize> = not
            .iter()
            .filter(|d| d.vdev == group.vdev)
            .filter_map(|d| usize::try_from(group.ms_of(d.offset)).ok())
            .collect();
        let purpose = MetaslabUse::of(want);
        let slot = group.slot(purpose, self.stream(want.hint), copy, self.streams());
        // Counted first, because the pass that writes it may run before this returns.
        group.counters.reserved.fetch_add(size, Ordering::Relaxed);
        let got = match want.class {
            SpaceClass::Log => group.allocate_log(slot, size, want.txg, &not, hard),
            _ => group.allocate(purpose, slot, size, want.txg, &not, hard),
        };
        if got.is_err() {
            group.counters.reserved.fetch_sub(size, Ordering::Relaxed);
        }
        match got {
            Ok((offset, first)) => {
                if first {
                    self.note_dirty(want.txg, MsKey { vdev: group.vdev, ms: group.ms_of(offset) });
                }
                Ok(Dva { vdev: group.vdev, offset, asize: Asize(size), gang: false })
            }
            Err(Refusal::Load(i)) => Err(Denied::Load(group.vdev, i as u64)),
            Err(Refusal::Full) => Err(Denied::NoSpace),
        }
    }

    /// Gives back copies of a block whose other copies found no space. A pass of `txg` may
    /// have recorded them since; such copies are freed, which the next pass records.
    fn give_back(&self, layout: &SpaceLayout, txg: Txg, dvas: &[Dva]) {
        for dva in dvas {
            let Ok(group) = layout.group(dva.vdev) else { continue };
            let (at, size) = (dva.offset, dva.asize.0);
            let Ok(slab) = group.slab_of(at, size) else { continue };
            let recorded = slab.change(|ms| match ms.is_allocating(at, size, txg) {
                true => ms.unallocate(at, size, txg).map(|()| None),
                false => ms.free(at, size, txg).map(Some),
            });
            match recorded {
                Ok(None) => drop(group.counters.reserved.fetch_sub(size, Ordering::Relaxed)),
                Ok(Some(first)) if first => {
                    self.note_dirty(txg, MsKey { vdev: dva.vdev, ms: group.ms_of(at) });
                }
                Ok(Some(_)) => {}
                Err(e) => drop(base::bug!("{dva} was not allocated in txg {txg}: {e}")),
            }
        }
    }

    /// Releases space that was allocated in `txg` and never written. Must be called
    /// before the pass that would record the allocation. Space that was not allocated
    /// this way is a bug and stays as it is.
    pub fn unallocate(&self, txg: Txg, dvas: &[Dva]) {
        let layout = self.layout();
        for dva in dvas {
            let Ok(group) = layout.group(dva.vdev) else { continue };
            let size = dva.asize.0;
            let slab = group.slab_of(dva.offset, size);
            let done = slab.and_then(|s| s.change(|ms| ms.unallocate(dva.offset, size, txg)));
            match done {
                Ok(()) => drop(group.counters.reserved.fetch_sub(size, Ordering::Relaxed)),
                Err(e) => drop(base::bug!("{dva} was not allocated in txg {txg}: {e}")),
            }
        }
    }

    /// Marks given space as allocated in `txg`: intent log blocks at import, before
    /// anything is allocated (chapter 05 §9.7).
    ///
    /// # Errors
    /// `Corrupt` if part of it is allocated or it is not valid space. `Ok(Some)` names
    /// the metaslab to load first.
    pub fn claim(&self, txg: Txg, dva: Dva) -> Result<Option<MsKey>> {
        let layout = self.layout();
        let group = layout.group(dva.vdev).map_err(|e| e.at_dva(dva))?;
        let (at, size) = (dva.offset, dva.asize.0);
        let slab = group.slab_of(at, size).map_err(|e| e.at_dva(dva))?;
        let key = MsKey { vdev: dva.vdev, ms: group.ms_of(at) };
        let first = slab.change(|ms| {
            if !ms.is_loaded() && ms.is_virgin() {
                ms.load_virgin()?;
            }
            if ms.is_loaded() { ms.claim(at, size, txg).map(Some) } else { Ok(None) }
        });
        let Some(first) = first.map_err(|e| e.at_dva(dva))? else { return Ok(Some(key)) };
        group.counters.reserved.fetch_add(size, Ordering::Relaxed);
        if first {
            self.note_dirty(txg, key);
        }
        Ok(None)
    }
}
