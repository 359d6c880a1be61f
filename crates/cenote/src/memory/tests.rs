use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use testkit::Scratch;

use super::*;

const GIB: u64 = 1 << 30;
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Cache {
    c: AtomicU64,
    looks: AtomicU64,
    problems: AtomicU64,
    no_grow: AtomicU64,
}

struct Hooks(Arc<Cache>);

impl MemoryHooks for Hooks {
    fn sizes(&mut self) -> (u64, u64) {
        let c = self.0.c.load(SeqCst);
        (c, c)
    }

    fn act(&mut self, action: Action, status: &Status) {
        if let Action::ShrinkTo(c) = action {
            self.0.c.store(c, SeqCst);
        }
        self.0.no_grow.store(u64::from(status.no_grow), SeqCst);
        self.0.looks.fetch_add(1, SeqCst);
    }

    fn problem(&mut self, _: &Error) {
        self.0.problems.fetch_add(1, SeqCst);
    }
}

fn available(scratch: &Scratch, bytes: u64) {
    let dir = scratch.path().join("proc");
    std::fs::create_dir_all(&dir).unwrap();
    let text = format!("MemTotal: {} kB\nMemAvailable: {} kB\n", 16 * GIB / 1024, bytes / 1024);
    // Atomically, as the kernel's own file changes.
    std::fs::write(dir.join("new"), text).unwrap();
    std::fs::rename(dir.join("new"), dir.join("meminfo")).unwrap();
}

fn wait(what: &str, f: impl Fn() -> bool) -> Duration {
    let start = rt::now();
    while !f() {
        assert!(start.elapsed() < PATIENCE, "{what} does not happen");
        rt::sleep(Duration::from_millis(2));
    }
    start.elapsed()
}

#[test]
fn a_shortage_reaches_the_cache_and_the_thread_ends() {
    // In virtual time: the monitor has looked again when two of its intervals are over.
    let run = rt::sim::run(1, shortage);
    assert_eq!(run.outcome, rt::sim::Outcome::Done(()));
}

fn shortage() {
    let scratch = Scratch::new("monitor");
    available(&scratch, 8 * GIB);
    let cache = Arc::new(Cache::default());
    cache.c.store(4 * GIB, SeqCst);
    let config = Arc::new(Mutex::new(arc::Config::sized(GIB, 8 * GIB)));
    let monitor =
        Monitor::start(scratch.path().to_owned(), Arc::clone(&config), Hooks(Arc::clone(&cache)))
            .unwrap();
    wait("the first look", || cache.looks.load(SeqCst) > 0);
    assert_eq!((cache.c.load(SeqCst), cache.no_grow.load(SeqCst)), (4 * GIB, 0));

    available(&scratch, 0);
    let short = arc::pressure::sys_free(16 * GIB);
    wait("the shrink", || cache.c.load(SeqCst) == 4 * GIB - short);
    assert_eq!(cache.no_grow.load(SeqCst), 1);

    // The least size changes while it runs; the shortage continues.
    config.lock().arc_min = 3 * GIB;
    wait("the least size", || cache.c.load(SeqCst) == 3 * GIB);

    std::fs::write(scratch.path().join("proc/meminfo"), "nonsense").unwrap();
    wait("the problem", || cache.problems.load(SeqCst) == 1);
    monitor.look();
    rt::sleep(2 * INTERVAL);
    assert_eq!(cache.problems.load(SeqCst), 1, "notified once");
    let looks = cache.looks.load(SeqCst);
    available(&scratch, 8 * GIB);
    monitor.look();
    wait("another look", || cache.looks.load(SeqCst) > looks);

    drop(monitor);
    assert_eq!(Arc::strong_count(&cache), 1, "the thread has let go of its hooks");
}

#[test]
fn this_machine_has_memory() {
    let (sample, warning) = probe(Path::new("/"));
    let sample = sample.unwrap();
    assert_eq!(warning, None);
    assert!(sample.total > 64 << 20 && sample.available <= sample.scope as i64, "{sample:?}");
    let (min, max, c) = arc::pressure::default_sizes(Some(&sample));
    assert!(min <= c && c <= max && max <= sample.total / 2);
}
