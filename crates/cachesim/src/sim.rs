//! One policy over one trace.

use arc::policy::{Default as Ours, Id, Policy, PolicyState, Reference};

use crate::rivals::{Lirs, Lru, Min, Rival, S3Fifo, Sieve, TwoQ, WTinyLfu};
use crate::trace::Trace;

/// The size of a page, bytes.
pub(crate) const PAGE_BYTES: u32 = 8192;
/// The size of a directory entry for a ghost key, bytes: the key and its entry in the
/// table.
pub(crate) const KEY_BYTES: u64 = 48;

/// A policy that can be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// The engine's published ARC.
    Arc,
    /// The engine's default.
    Default,
    /// Least recently used.
    Lru,
    /// LIRS.
    Lirs,
    /// 2Q.
    TwoQ,
    /// S3-FIFO.
    S3Fifo,
    /// SIEVE.
    Sieve,
    /// W-TinyLFU.
    WTinyLfu,
    /// Belady's optimum.
    Min,
}

impl PolicyKind {
    /// All of them, in the order of the tables.
    pub const ALL: [PolicyKind; 9] = [
        PolicyKind::Default,
        PolicyKind::Arc,
        PolicyKind::Lru,
        PolicyKind::Lirs,
        PolicyKind::TwoQ,
        PolicyKind::S3Fifo,
        PolicyKind::Sieve,
        PolicyKind::WTinyLfu,
        PolicyKind::Min,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Arc => "arc",
            PolicyKind::Default => "default",
            PolicyKind::Lru => "lru",
            PolicyKind::Lirs => "lirs",
            PolicyKind::TwoQ => "2q",
            PolicyKind::S3Fifo => "s3fifo",
            PolicyKind::Sieve => "sieve",
            PolicyKind::WTinyLfu => "wtinylfu",
            PolicyKind::Min => "min",
        }
    }

    /// The policy with this name.
    pub fn named(name: &str) -> Option<PolicyKind> {
        Self::ALL.into_iter().find(|p| p.name() == name)
    }
}

/// The result of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayResult {
    /// Requests.
    pub requests: u64,
    /// The number of hits.
    pub hits: u64,
    /// The maximum of memory charged for the policy's own use, bytes.
    pub charged: u64,
}

impl ReplayResult {
    /// Hits over requests; 0 for an empty trace.
    pub fn hit_ratio(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.hits as f64 / self.requests as f64 }
    }
}

/// Replays a trace with a cache of `size` pages.
pub fn simulate(policy: PolicyKind, trace: &Trace, size: usize) -> ReplayResult {
    let (size, keys) = (size.max(1), trace.keys);
    let bytes = size as u64 * u64::from(PAGE_BYTES);
    match policy {
        PolicyKind::Arc => EngineCache::new(Reference::new(bytes), trace, false).run(trace),
        PolicyKind::Default => EngineCache::new(Ours::new(bytes), trace, true).run(trace),
        PolicyKind::Lru => rival(Lru::new(size, keys), trace),
        PolicyKind::Lirs => rival(Lirs::new(size, keys), trace),
        PolicyKind::TwoQ => rival(TwoQ::new(size, keys), trace),
        PolicyKind::S3Fifo => rival(S3Fifo::new(size, keys), trace),
        PolicyKind::Sieve => rival(Sieve::new(size, keys), trace),
        PolicyKind::WTinyLfu => rival(WTinyLfu::new(size, keys), trace),
        PolicyKind::Min => {
            let hits = Min::hits(&trace.requests, keys, size);
            ReplayResult { requests: trace.requests.len() as u64, hits, charged: 0 }
        }
    }
}

fn rival(mut cache: impl Rival, trace: &Trace) -> ReplayResult {
    let hits = trace.requests.iter().filter(|&&key| cache.access(key)).count() as u64;
    ReplayResult { requests: trace.requests.len() as u64, hits, charged: 0 }
}

const NONE: Id = Id::MAX;

/// A directory of pages over one of the engine's policies.
pub(crate) struct EngineCache<P> {
    policy: P,
    /// The policy's id of each key, or `NONE`.
    ids: Vec<Id>,
    keys: Vec<u32>,
    free: Vec<Id>,
    /// All of the cache, bytes.
    bytes: u64,
    charge: bool,
    charged: u64,
    most_charged: u64,
    /// Keys that came back after they had left, by key.
    returned: Vec<bool>,
    /// Keys that left since they were taken last, and whether they had come back.
    evicted: Vec<(u32, bool)>,
}

impl<P: Policy> EngineCache<P> {
    pub(crate) fn new(policy: P, trace: &Trace, charge: bool) -> Self {
        let bytes = policy.target();
        EngineCache {
            policy,
            ids: vec![NONE; trace.keys],
            keys: Vec::new(),
            free: Vec::new(),
            bytes,
            charge,
            charged: 0,
            most_charged: 0,
            returned: vec![false; trace.keys],
            evicted: Vec::new(),
        }
    }

    fn run(mut self, trace: &Trace) -> ReplayResult {
        let hits = trace.requests.iter().filter(|&&key| self.access(key)).count() as u64;
        let requests = trace.requests.len() as u64;
        ReplayResult { requests, hits, charged: self.most_charged }
    }

    /// The keys that left the cache since the last call.
    pub(crate) fn take_evicted(&mut self) -> Vec<(u32, bool)> {
        std::mem::take(&mut self.evicted)
    }

    pub(crate) fn access(&mut self, key: u32) -> bool {
        self.evicted.clear();
        let mut id = self.ids[key as usize];
        if id != NONE && matches!(self.policy.state(id), PolicyState::Mru | PolicyState::Mfu) {
            self.policy.hit(id);
            // A hit may make the policy drop ids.
            self.forget();
            return true;
        }
        if id == NONE {
            id = self.free.pop().unwrap_or_else(|| {
                self.keys.push(key);
                self.keys.len() as Id - 1
            });
            self.keys[id as usize] = key;
            self.ids[key as usize] = id;
        }
        let was = self.policy.admit(id, PAGE_BYTES);
        self.returned[key as usize] = was != PolicyState::Unknown;
        self.settle();
        if self.charge {
            self.pay();
        }
        false
    }

    fn settle(&mut self) {
        while let Some(id) = self.policy.evict(&mut |_| false) {
            let key = self.keys[id as usize];
            self.evicted.push((key, self.returned[key as usize]));
            if self.policy.state(id) == PolicyState::Unknown {
                self.release(id);
            }
        }
        self.forget();
    }

    fn forget(&mut self) {
        while let Some(id) = self.policy.forget() {
            self.release(id);
        }
    }

    fn release(&mut self, id: Id) {
        self.ids[self.keys[id as usize] as usize] = NONE;
        self.free.push(id);
    }

    /// Subtracts the policy's memory from the cache, in whole pages.
    fn pay(&mut self) {
        let ghosts =
            self.policy.bytes(PolicyState::MruGhost) + self.policy.bytes(PolicyState::MfuGhost);
        let remembered = ghosts / u64::from(PAGE_BYTES);
        let due = self.policy.overhead() + remembered * KEY_BYTES;
        let due = due.next_multiple_of(u64::from(PAGE_BYTES));
        if due != self.charged {
            self.charged = due;
            self.most_charged = self.most_charged.max(due);
            let least = u64::from(PAGE_BYTES);
            self.policy.set_target(self.bytes.saturating_sub(due).max(least));
            self.settle();
        }
    }
}
