//! Checks the order of locks in debug builds, as Linux's lockdep does.
//!
//! # Theory
//! Locks form classes: all locks that one line creates for one type of content. When a thread
//! waits for a lock of class B while it holds one of class A, the pair A → B is recorded, for
//! all threads and for the life of the process. A pair that closes a cycle is an inversion:
//! two threads can wait for each other. The second order is reported by a panic, whether or
//! not the two threads meet. So every test that takes locks checks their order, and no list
//! of ranks has to be kept by hand; docs/design/lock-order.md states the order that results.
//!
//! Not recorded: pairs within a class (an order by address or id is the code's to keep), and
//! locks taken by `try_lock`, which does not wait. They count as held.
//!
//! # Invariants
//! * Release builds have none of it, nor do runs under the shuttle scheduler, whose state
//!   must not outlive an iteration.
//! * A pair is recorded before the thread waits, so a deadlock is reported and not met.
//!
//! Lock order: `GRAPH` is a leaf; it is a lock of the standard library.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

type ClassId = u32;

/// The class of a lock, which is a part of the lock.
#[derive(Debug)]
pub(super) struct LockClass {
    created: &'static Location<'static>,
    /// 0 until the lock is taken for the first time.
    id: AtomicU32,
}

/// All classes and pairs.
struct Graph {
    ids: BTreeMap<(usize, &'static str), ClassId>,
    names: Vec<String>,
    /// For each class those that were waited for while it was held.
    after: Vec<BTreeSet<ClassId>>,
}

static GRAPH: Mutex<Graph> =
    Mutex::new(Graph { ids: BTreeMap::new(), names: Vec::new(), after: Vec::new() });

/// A thread's locks in the order in which it took them, with their addresses.
type HeldLocks = Vec<(ClassId, usize)>;

std::thread_local! {
    static HELD: RefCell<(HeldLocks, BTreeSet<(ClassId, ClassId)>)> =
        const { RefCell::new((Vec::new(), BTreeSet::new())) };
}

impl LockClass {
    #[track_caller]
    pub(super) const fn new() -> LockClass {
        LockClass { created: Location::caller(), id: AtomicU32::new(0) }
    }

    fn id(&self, content: &'static str) -> ClassId {
        match self.id.load(Relaxed) {
            0 => {
                let id = GRAPH.lock().unwrap_or_else(PoisonError::into_inner).id(self, content);
                self.id.store(id, Relaxed);
                id
            }
            id => id,
        }
    }

    /// The calling thread is about to wait for the lock at `address`.
    ///
    /// # Panics
    /// When some thread took locks of this class and of one that is held in the other order.
    #[expect(clippy::panic, reason = "this module is in debug builds alone")]
    pub(super) fn before_wait(&self, content: &'static str) {
        let id = self.id(content);
        let inverted = HELD.try_with(|held| {
            let (locks, known) = &mut *held.borrow_mut();
            let new = |&(of, _): &(ClassId, usize)| of != id && !known.contains(&(of, id));
            let unknown: Vec<ClassId> = locks.iter().filter(|l| new(l)).map(|l| l.0).collect();
            if unknown.is_empty() {
                return None;
            }
            let mut graph = GRAPH.lock().unwrap_or_else(PoisonError::into_inner);
            for of in unknown {
                if let Some(cycle) = graph.path(id, of) {
                    return Some(graph.describe(&cycle, id));
                }
                graph.after[of as usize - 1].insert(id);
                known.insert((of, id));
            }
            None
        });
        if let Ok(Some(cycle)) = inverted
            && !std::thread::panicking()
        {
            panic!("lock order inversion: {cycle}");
        }
    }

    /// The calling thread has the lock at `address`.
    pub(super) fn acquired(&self, content: &'static str, address: usize) {
        let id = self.id(content);
        let _ending = HELD.try_with(|held| held.borrow_mut().0.push((id, address)));
    }
}

/// The calling thread releases the lock at `address`.
pub(super) fn released(address: usize) {
    let _ending = HELD.try_with(|held| {
        let locks = &mut held.borrow_mut().0;
        if let Some(at) = locks.iter().rposition(|l| l.1 == address) {
            locks.remove(at);
        }
    });
}

impl Graph {
    fn id(&mut self, class: &LockClass, content: &'static str) -> ClassId {
        let key = (std::ptr::from_ref(class.created) as usize, content);
        if let Some(&id) = self.ids.get(&key) {
            return id;
        }
        let id = self.names.len() as ClassId + 1;
        self.names.push(format!("{content}, created at {}", class.created));
        self.after.push(BTreeSet::new());
        self.ids.insert(key, id);
        id
    }

    /// The classes on a path of recorded pairs between two, both included.
    fn path(&self, from: ClassId, to: ClassId) -> Option<Vec<ClassId>> {
        let mut came_from = BTreeMap::from([(from, 0)]);
        let mut queue = vec![from];
        while let Some(at) = queue.pop() {
            if at == to {
                let mut path = vec![to];
                while let Some(&before) = path.last().and_then(|l| came_from.get(l))
                    && before != 0
                {
                    path.push(before);
                }
                path.reverse();
                return Some(path);
            }
            for &next in &self.after[at as usize - 1] {
                came_from.entry(next).or_insert_with(|| {
                    queue.push(next);
                    at
                });
            }
        }
        None
    }

    fn describe(&self, path: &[ClassId], waited_for: ClassId) -> String {
        let name = |id: &ClassId| self.names[*id as usize - 1].as_str();
        let taken: Vec<&str> = path.iter().map(name).collect();
        format!(
            "[{}] was taken in this order, and now [{}] is waited for while [{}] is held",
            taken.join("] → ["),
            name(&waited_for),
            path.last().map_or("", name)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Mutex, RwLock, spawn};
    use std::sync::Arc;

    /// Whether taking the second lock of each pair while the first is held is refused: in
    /// turn, on threads of their own, so that they never meet.
    fn refused(pairs: Vec<Box<dyn FnOnce() + Send>>) -> Vec<bool> {
        pairs.into_iter().map(|pair| spawn("pair", pair).unwrap().join().is_none()).collect()
    }

    #[test]
    fn an_inversion_is_found_although_the_threads_never_meet() {
        struct Outer;
        struct Inner;
        let (a, b) = (Arc::new(Mutex::new(Outer)), Arc::new(RwLock::new(Inner)));
        let forward = {
            let (a, b) = (Arc::clone(&a), Arc::clone(&b));
            move || drop((a.lock(), b.read()))
        };
        let backward = {
            let (a, b) = (Arc::clone(&a), Arc::clone(&b));
            move || {
                let held = b.write();
                drop(a.lock());
                drop(held);
            }
        };
        let again = forward.clone();
        let found = refused(vec![Box::new(forward), Box::new(again), Box::new(backward)]);
        assert_eq!(found, [false, false, true]);
        // What the panic unwound is free.
        assert!(a.try_lock().is_some());
    }

    #[test]
    fn a_cycle_of_three_is_found() {
        let locks: [Arc<Mutex<u8>>; 3] =
            [Arc::new(Mutex::new(1)), Arc::new(Mutex::new(2)), Arc::new(Mutex::new(3))];
        let pair = |i: usize, j: usize| -> Box<dyn FnOnce() + Send> {
            let (first, second) = (Arc::clone(&locks[i]), Arc::clone(&locks[j]));
            Box::new(move || drop((first.lock(), second.lock())))
        };
        assert_eq!(refused(vec![pair(0, 1), pair(1, 2), pair(2, 0)]), [false, false, true]);
    }

    #[test]
    fn tries_and_locks_of_one_class_are_no_inversion() {
        struct Same(u8);
        let both: Vec<_> = (0..2).map(|n| Arc::new(Mutex::new(Same(n)))).collect();
        let pair = |i: usize, j: usize| -> Box<dyn FnOnce() + Send> {
            let (first, second) = (Arc::clone(&both[i]), Arc::clone(&both[j]));
            Box::new(move || assert_ne!(first.lock().0, second.lock().0))
        };
        let other = Arc::new(Mutex::new("other"));
        let (first, second) = (Arc::clone(&both[0]), Arc::clone(&other));
        let forward: Box<dyn FnOnce() + Send> =
            Box::new(move || drop((first.lock(), second.lock())));
        let (first, second) = (Arc::clone(&both[0]), other);
        let tries: Box<dyn FnOnce() + Send> = Box::new(move || {
            let held = second.lock();
            assert!(first.try_lock().is_some());
            drop(held);
        });
        assert_eq!(refused(vec![pair(0, 1), pair(1, 0), forward, tries]), [false; 4]);
    }
}
