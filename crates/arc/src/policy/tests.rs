//! Compares the policies with naive models, and checks their invariants under random
//! use.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

/// ARC literally from figure 4 of the paper, with pages of size 1.
#[derive(Default)]
struct NaiveArc {
    t1: Vec<u32>,
    t2: Vec<u32>,
    b1: Vec<u32>,
    b2: Vec<u32>,
    c: usize,
    p: f64,
}

fn cut(list: &mut Vec<u32>, x: u32) -> bool {
    list.iter().position(|&y| y == x).map(|at| list.remove(at)).is_some()
}

impl NaiveArc {
    // Lists run from the least to the most recent.
    fn replace(&mut self, in_b2: bool) {
        let t1 = self.t1.len() as f64;
        if !self.t1.is_empty() && (t1 > self.p || (in_b2 && t1 == self.p)) {
            self.b1.push(self.t1.remove(0));
        } else if !self.t2.is_empty() {
            self.b2.push(self.t2.remove(0));
        } else {
            self.b1.push(self.t1.remove(0));
        }
    }

    fn access(&mut self, x: u32) -> bool {
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if cut(&mut self.t1, x) || cut(&mut self.t2, x) {
            self.t2.push(x);
            return true;
        }
        if self.b1.contains(&x) {
            self.p = (self.p + (b2 / b1).floor().max(1.0)).min(self.c as f64);
            self.replace(false);
            cut(&mut self.b1, x);
            self.t2.push(x);
        } else if self.b2.contains(&x) {
            self.p = (self.p - (b1 / b2).floor().max(1.0)).max(0.0);
            self.replace(true);
            cut(&mut self.b2, x);
            self.t2.push(x);
        } else {
            let l1 = self.t1.len() + self.b1.len();
            let all = l1 + self.t2.len() + self.b2.len();
            if l1 == self.c {
                if self.t1.len() < self.c {
                    self.b1.remove(0);
                    self.replace(false);
                } else {
                    self.t1.remove(0);
                }
            } else if all >= self.c {
                if all == 2 * self.c {
                    self.b2.remove(0);
                }
                self.replace(false);
            }
            self.t1.push(x);
        }
        false
    }
}

/// A directory in which a block's number is its key.
struct Direct<P> {
    policy: P,
}

impl<P: Policy> Direct<P> {
    fn access(&mut self, id: Id, size: u32) -> bool {
        if matches!(self.policy.state(id), PolicyState::Mru | PolicyState::Mfu) {
            self.policy.hit(id);
            while self.policy.forget().is_some() {}
            return true;
        }
        self.policy.admit(id, size);
        while self.policy.evict(&mut |_| false).is_some() {}
        while self.policy.forget().is_some() {}
        false
    }
}

/// Whether all four lists hold the same blocks as the model's.
fn same_lists(arc: &Reference, model: &NaiveArc, ids: Id) -> bool {
    let lists = [
        (PolicyState::Mru, &model.t1),
        (PolicyState::Mfu, &model.t2),
        (PolicyState::MruGhost, &model.b1),
        (PolicyState::MfuGhost, &model.b2),
    ];
    let fits = |(state, list): (PolicyState, &Vec<u32>)| {
        (0..ids).all(|id| (arc.state(id) == state) == list.contains(&id))
    };
    lists.into_iter().all(fits)
}

proptest! {
    #[test]
    fn the_reference_is_the_papers(
        ids in prop::collection::vec((0u32..40, 0u32..40), 1..900), c in 1usize..24,
    ) {
        let mut model = NaiveArc { c, ..NaiveArc::default() };
        let mut arc = Direct { policy: Reference::new(c as u64) };
        for (a, b) in ids {
            // The smaller of two, so that some blocks are hotter than others.
            let id = a.min(b);
            prop_assert_eq!(arc.access(id, 1), model.access(id));
            prop_assert!(same_lists(&arc.policy, &model, 40));
        }
    }

    #[test]
    fn both_keep_their_invariants(
        ops in prop::collection::vec((0u8..20, 0u32..80, 0u32..15), 1..900),
        adaptive in any::<bool>(),
    ) {
        let mut policy: Box<dyn Policy> =
            if adaptive { Box::new(super::Default::new(1 << 20)) } else { Box::new(Reference::new(1 << 20)) };
        let mut sizes: HashMap<Id, u32> = HashMap::new();
        let mut largest = 0;
        for (op, id, log) in ops {
            let size = 512u32 << log;
            let held: HashSet<Id> = if op % 3 == 0 { [id, id / 2, id + 1].into() } else { [id].into() };
            let resident = matches!(policy.state(id), PolicyState::Mru | PolicyState::Mfu);
            match op {
                0 => { policy.remove(id); sizes.remove(&id); prop_assert_eq!(policy.state(id), PolicyState::Unknown); }
                1 => policy.set_target(u64::from(id) << 16),
                2 if !resident => { policy.remember(id, size); sizes.insert(id, size); }
                3 if resident => { policy.resize(id, size); sizes.insert(id, size); }
                _ if resident => policy.hit(id),
                _ => { policy.admit(id, size); sizes.insert(id, size); }
            }
            while let Some(out) = policy.evict(&mut |x| held.contains(&x)) {
                prop_assert!(!held.contains(&out));
                prop_assert!(!matches!(policy.state(out), PolicyState::Mru | PolicyState::Mfu));
                if policy.state(out) == PolicyState::Unknown { sizes.remove(&out); }
            }
            while let Some(out) = policy.forget() {
                prop_assert_eq!(policy.state(out), PolicyState::Unknown);
                prop_assert!(sizes.remove(&out).is_some());
            }
            let mut sums: HashMap<String, u64> = HashMap::new();
            for id in 0..81 {
                let state = policy.state(id);
                prop_assert_eq!(state == PolicyState::Unknown, !sizes.contains_key(&id));
                *sums.entry(format!("{state:?}")).or_default() += sizes.get(&id).map_or(0, |&s| u64::from(s));
            }
            for state in [PolicyState::Mru, PolicyState::Mfu, PolicyState::MruGhost, PolicyState::MfuGhost] {
                prop_assert_eq!(policy.bytes(state), sums.get(&format!("{state:?}")).copied().unwrap_or(0));
            }
            largest = largest.max(size);
            let still: u64 = held.iter().filter(|x| matches!(policy.state(**x), PolicyState::Mru | PolicyState::Mfu))
                .map(|x| u64::from(sizes[x])).sum();
            prop_assert!(policy.resident() <= policy.target().max(still));
            let ghosts = policy.bytes(PolicyState::MruGhost) + policy.bytes(PolicyState::MfuGhost);
            prop_assert!(ghosts <= policy.target() * 5 + u64::from(largest), "{ghosts} {}", policy.target());
        }
    }
}

#[test]
fn a_scan_does_not_evict_what_is_used_again() {
    let policies: [Box<dyn Policy>; 2] =
        [Box::new(Reference::new(100)), Box::new(super::Default::new(100))];
    for policy in policies {
        let mut cache = Direct { policy };
        for _ in 0..3 {
            (0..50).for_each(|id| {
                cache.access(id, 1);
            });
        }
        (1000..3000).for_each(|id| {
            cache.access(id, 1);
        });
        let kept = (0..50).filter(|&id| cache.access(id, 1)).count();
        assert!(kept >= 45, "{kept} of 50 survive the scan");
    }
}

impl Policy for Box<dyn Policy> {
    fn set_target(&mut self, bytes: u64) {
        (**self).set_target(bytes);
    }
    fn target(&self) -> u64 {
        (**self).target()
    }
    fn hit(&mut self, id: Id) {
        (**self).hit(id);
    }
    fn admit(&mut self, id: Id, size: u32) -> PolicyState {
        (**self).admit(id, size)
    }
    fn remember(&mut self, id: Id, size: u32) {
        (**self).remember(id, size);
    }
    fn resize(&mut self, id: Id, size: u32) {
        (**self).resize(id, size);
    }
    fn evict(&mut self, held: &mut dyn FnMut(Id) -> bool) -> Option<Id> {
        (**self).evict(held)
    }
    fn forget(&mut self) -> Option<Id> {
        (**self).forget()
    }
    fn remove(&mut self, id: Id) {
        (**self).remove(id);
    }
    fn state(&self, id: Id) -> PolicyState {
        (**self).state(id)
    }
    fn bytes(&self, state: PolicyState) -> u64 {
        (**self).bytes(state)
    }
    fn mru_target(&self) -> u64 {
        (**self).mru_target()
    }
    fn overhead(&self) -> u64 {
        (**self).overhead()
    }
}
