//! The registry of kstats.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use base::rt::{self, Instant, RwLock};
use base::{Error, Result};

use crate::Kstat;

/// Most kstats of one registry.
const ENTRIES_MAX: usize = 1 << 16;
/// Longest path, bytes.
const PATH_MAX: usize = 1024;

/// The kind of an entry at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Dir,
    /// A kstat.
    File,
}

type ReadFn = dyn Fn() -> Option<Kstat> + Send + Sync;
type Alive = dyn Fn() -> bool + Send + Sync;

struct KstatSource {
    kid: u32,
    crtime: u64,
    read: Box<ReadFn>,
    alive: Box<Alive>,
}

/// Kstats by path, such as `arcstats` and `tank/objset-0x36`.
pub struct Registry {
    began: Instant,
    next: AtomicU32,
    sources: RwLock<BTreeMap<String, Arc<KstatSource>>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("names", &self.names()).finish()
    }
}

impl Default for Registry {
    fn default() -> Registry {
        Registry::new()
    }
}

/// Nanoseconds, saturated.
fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Checks that a path has only ordinary components, because it may contain a pool's
/// name.
fn check(path: &str) -> Result<()> {
    let good = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
    if path.len() <= PATH_MAX && path.split('/').all(good) {
        return Ok(());
    }
    Err(Error::invalid(format!("'{path}' cannot name a kstat")))
}

impl Registry {
    /// An empty one.
    pub fn new() -> Registry {
        Registry {
            began: rt::now(),
            next: AtomicU32::new(1),
            sources: RwLock::new(BTreeMap::new()),
        }
    }

    fn insert(&self, path: &str, read: Box<ReadFn>, alive: Box<Alive>) -> Result<()> {
        check(path)?;
        let kid = self.next.fetch_add(1, Relaxed);
        let source = KstatSource { kid, crtime: nanos(self.began), read, alive };
        let mut sources = self.sources.write();
        sources.retain(|_, s| (s.alive)());
        if sources.len() >= ENTRIES_MAX && !sources.contains_key(path) {
            return Err(Error::limit(format!("more than {ENTRIES_MAX} kstats")));
        }
        sources.insert(path.to_owned(), Arc::new(source));
        Ok(())
    }

    /// Registers the kstat that `read` makes from `owner`, as long as another reference
    /// to the owner exists. Replaces an earlier kstat at the path.
    ///
    /// # Errors
    /// `Invalid` for an impossible path, `Limit` for the 65,537th kstat.
    pub fn register<T: Send + Sync + 'static>(
        &self,
        path: &str,
        owner: &Arc<T>,
        read: impl Fn(&T) -> Kstat + Send + Sync + 'static,
    ) -> Result<()> {
        let weak: Weak<T> = Arc::downgrade(owner);
        let alive = weak.clone();
        let read = move || weak.upgrade().map(|owner| read(&owner));
        self.insert(path, Box::new(read), Box::new(move || alive.strong_count() > 0))
    }

    /// Registers a kstat that has no owner and is never removed.
    ///
    /// # Errors
    /// As [`Registry::register`].
    pub fn register_static(
        &self,
        path: &str,
        read: impl Fn() -> Kstat + Send + Sync + 'static,
    ) -> Result<()> {
        self.insert(path, Box::new(move || Some(read())), Box::new(|| true))
    }

    /// The paths, sorted.
    pub fn names(&self) -> Vec<String> {
        let sources = self.sources.read();
        sources.iter().filter(|(_, s)| (s.alive)()).map(|(n, _)| n.clone()).collect()
    }

    /// The kstat at a path, read now.
    pub fn get(&self, path: &str) -> Option<Kstat> {
        let source = Arc::clone(self.sources.read().get(path)?);
        let mut kstat = (source.read)()?;
        kstat.kid = source.kid;
        kstat.crtime = source.crtime;
        kstat.snaptime = nanos(self.began);
        Some(kstat)
    }

    /// Every kstat that `wanted` accepts by its path, read now, in order.
    pub fn all(&self, wanted: impl Fn(&str) -> bool) -> Vec<(String, Kstat)> {
        let names = self.names().into_iter().filter(|n| wanted(n));
        names.filter_map(|n| self.get(&n).map(|k| (n, k))).collect()
    }

    /// The kind of the entry at a path; the empty path is the root.
    pub fn node(&self, path: &str) -> Option<Node> {
        if path.is_empty() {
            return Some(Node::Dir);
        }
        let sources = self.sources.read();
        if sources.get(path).is_some_and(|s| (s.alive)()) {
            return Some(Node::File);
        }
        let below = format!("{path}/");
        let mut after = sources.range(below.clone()..).take_while(|(n, _)| n.starts_with(&below));
        after.any(|(_, s)| (s.alive)()).then_some(Node::Dir)
    }

    /// The names directly below a directory, sorted.
    pub fn list(&self, dir: &str) -> Vec<(String, Node)> {
        let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let mut out: BTreeMap<String, Node> = BTreeMap::new();
        for name in self.names() {
            let Some(rest) = name.strip_prefix(&prefix) else { continue };
            match rest.split_once('/') {
                Some((first, _)) => out.entry(first.to_owned()).or_insert(Node::Dir),
                None => out.entry(rest.to_owned()).or_insert(Node::File),
            };
        }
        out.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counter;

    #[test]
    fn a_source_disappears_with_its_owner() {
        let registry = Registry::new();
        let owner = Arc::new(Counter::new());
        registry
            .register("tank/objset-0x36", &owner, |c| Kstat::numbers([("reads", c.get())]))
            .unwrap();
        registry.register_static("arcstats", || Kstat::numbers([("hits", 1)])).unwrap();
        owner.add(5);
        assert_eq!(registry.names(), ["arcstats", "tank/objset-0x36"]);
        assert_eq!(registry.get("tank/objset-0x36").unwrap().number("reads"), Some(5));
        assert_eq!(registry.node("tank"), Some(Node::Dir));
        assert_eq!(registry.node("tan"), None);
        assert_eq!(registry.node("arcstats"), Some(Node::File));
        let list = registry.list("");
        assert_eq!(list, [("arcstats".to_owned(), Node::File), ("tank".to_owned(), Node::Dir)]);
        assert_eq!(registry.list("tank"), [("objset-0x36".to_owned(), Node::File)]);
        drop(owner);
        assert_eq!(registry.names(), ["arcstats"]);
        assert_eq!((registry.node("tank"), registry.get("tank/objset-0x36")), (None, None));
        assert_eq!(registry.all(|_| true).len(), 1);
    }

    #[test]
    fn paths_are_checked_and_times_run() {
        let registry = Registry::new();
        for bad in ["", "/", "a//b", "..", "a/../b", "a/", "a\0b", &"x".repeat(2000)] {
            assert!(registry.register_static(bad, || Kstat::numbers([])).is_err(), "{bad:?}");
        }
        registry.register_static("a", || Kstat::numbers([])).unwrap();
        registry.register_static("b", || Kstat::numbers([])).unwrap();
        let (a, b) = (registry.get("a").unwrap(), registry.get("b").unwrap());
        assert_ne!(a.kid, b.kid);
        assert!(a.crtime <= a.snaptime && a.snaptime <= b.snaptime);
    }
}
