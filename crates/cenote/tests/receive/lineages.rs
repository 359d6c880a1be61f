//! Random histories that are sent in every way: cut at random bytes and resumed by the sender, in
//! packages with properties, and whole trees with clones, promotions and renames.

use std::collections::{BTreeMap, BTreeSet};

use cenote::stream::ResumeToken;
use cenote::{
    Dataset, ErrorKind, NewObject, PackageOptions, Pool, PropData, ReceiveNames, ReceiveOptions,
    SendOptions,
};
use testkit::{Rng, side_by_side};

use super::history::{History, options, short};
use super::{TestPool, assert_same, noise, sent};

fn nightly() -> bool {
    std::env::var_os("CENOTE_NIGHTLY").is_some()
}

/// Seeds of a test: `CENOTE_SEED` alone, or so many from `first` on.
fn seeds(first: u64, count: u64, at_night: u64) -> Vec<u64> {
    match std::env::var("CENOTE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (first..first + if nightly() { at_night } else { count }).collect(),
    }
}

fn package(
    pool: &Pool,
    to: &str,
    from: Option<&str>,
    of: &PackageOptions,
    how: SendOptions,
) -> Vec<u8> {
    let from = from.map(|from| pool.dataset(from).unwrap());
    let plan = pool.dataset(to).unwrap().plan_send(from.as_ref(), of).unwrap();
    let mut out = Vec::new();
    plan.send(how, &mut out, &mut |_, _| true).unwrap();
    out
}

/// What the sender makes of a token.
fn resumed(pool: &Pool, token: &ResumeToken) -> Vec<u8> {
    let resumed = pool.resume_send(token).unwrap();
    let mut out = Vec::new();
    resumed.send(&mut out, &mut |_| true).unwrap();
    assert_eq!(resumed.size().unwrap(), out.len() as u64, "{token:?}");
    out
}

/// Receives a stream that is cut at random bytes, again and again, into `tank/copy`.
fn receive_in_parts(
    mut to: TestPool,
    source: &Pool,
    stream: Vec<u8>,
    rng: &mut Rng,
    cuts: &mut u64,
) -> TestPool {
    let resumable = ReceiveOptions { resumable: true, ..ReceiveOptions::default() };
    let mut next = stream;
    for _ in 0..rng.below(4) {
        let end = rng.index(next.len());
        let e = to.receive_with("tank/copy", &resumable, &next[..end]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Interrupted, "{e}");
        if rng.below(3) == 0 {
            to = to.crashed();
        }
        let token = match to.pool.dataset("tank/copy") {
            Ok(dataset) => dataset.resume_token().unwrap(),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
                None
            }
        };
        // A BEGIN that was cut off leaves nothing.
        if let Some(token) = token {
            *cuts += 1;
            assert_eq!(ResumeToken::decode(&token.encode()).unwrap(), token);
            next = resumed(source, &token);
        }
    }
    to.receive_with("tank/copy", &resumable, &next).unwrap();
    to
}

#[test]
fn streams_that_are_cut_are_resumed_by_the_sender() {
    let (rounds, ops) = if nightly() { (30, 200) } else { (3, 40) };
    side_by_side(&seeds(21, 1, 60), |seed| {
        let mut source = History::new(&format!("parts{seed}"), *seed);
        let mut rng = Rng::new(seed ^ 0x5a5a);
        let mut to = TestPool::new(&format!("parts{seed}"));
        let (mut last, mut cuts): (Option<String>, u64) = (None, 0);
        for round in 0..rounds {
            source.step(ops);
            let snapshot = source.snapshot();
            if rng.below(5) == 0 && round + 1 < rounds {
                continue;
            }
            let how = options(rng.below(4));
            let from = last.as_deref();
            if rng.below(4) == 0 {
                let of = PackageOptions { props: true, ..PackageOptions::default() };
                let bytes = package(&source.pool.pool, &snapshot, from, &of, how);
                to.receive("tank/copy", &bytes).unwrap();
            } else {
                let bytes = sent(&source.pool.pool, &snapshot, from, how);
                to = receive_in_parts(to, &source.pool.pool, bytes, &mut rng, &mut cuts);
            }
            let copy = format!("tank/copy@{}", short(&snapshot));
            assert_same((&source.pool.pool, &snapshot), (&to.pool, &copy));
            last = Some(snapshot);
        }
        println!("RESUMED seed {seed}: {cuts} cuts");
        to.judged();
    });
}

/// A tree of file systems whose lineage changes at random.
struct Forest {
    pool: TestPool,
    rng: Rng,
    made: usize,
    done: BTreeMap<&'static str, usize>,
}

const TOP: &str = "tank/t";

impl Forest {
    fn new(seed: u64) -> Forest {
        let pool = TestPool::new(&format!("forest{seed}"));
        pool.pool.create_filesystem(TOP, &[], None).unwrap();
        Forest { pool, rng: Rng::new(seed), made: 0, done: BTreeMap::new() }
    }

    fn name(&mut self) -> String {
        self.made += 1;
        format!("{TOP}/d{}", self.made)
    }

    fn members(&self) -> Vec<Dataset> {
        tree(&self.pool.pool, TOP)
    }

    fn pick<T>(&mut self, mut from: Vec<T>) -> Option<T> {
        (!from.is_empty()).then(|| from.swap_remove(self.rng.index(from.len())))
    }

    fn note<T>(&mut self, what: &'static str, done: cenote::Result<T>) {
        match done {
            Ok(_) => *self.done.entry(what).or_default() += 1,
            // A dataset with clones, a promotion that makes names clash.
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::Exists | ErrorKind::Busy), "{what}: {e}")
            }
        }
    }

    /// One change of the lineage.
    fn change(&mut self) {
        let members = self.members();
        let snaps: Vec<String> = members
            .iter()
            .flat_map(|fs| fs.snapshots().unwrap())
            .map(|snap| snap.name().to_owned())
            .collect();
        match self.rng.below(9) {
            0 | 1 => {
                let name = self.name();
                let made = self.pool.pool.create_filesystem(&name, &[], None);
                self.note("create", made);
            }
            2..=4 => {
                let Some(snap) = self.pick(snaps) else { return };
                let name = self.name();
                let made = self.pool.pool.clone_snapshot(&snap, &name, &[], None);
                self.note("clone", made);
            }
            5 | 6 => {
                // A package cannot have a dataset below that of which it is a clone.
                let fits =
                    |fs: &Dataset| origin(fs).is_some_and(|of| !of.starts_with(&format!("{TOP}@")));
                let clones: Vec<Dataset> = members.into_iter().filter(fits).collect();
                let Some(clone) = self.pick(clones) else { return };
                let done = self.pool.pool.promote(clone.name(), None);
                self.note("promote", done);
            }
            7 => {
                let Some(fs) = self.pick(members[1..].to_vec()) else { return };
                let name = self.name();
                let done = self.pool.pool.rename_dataset(fs.name(), &name, None);
                self.note("rename", done);
            }
            _ => {
                let Some(fs) = self.pick(members[1..].to_vec()) else { return };
                let done = self.pool.pool.destroy_dataset(fs.name(), true, None);
                self.note("destroy", done);
            }
        }
    }

    /// Writes to some members.
    fn write(&mut self) {
        for fs in self.members() {
            if self.rng.below(3) == 0 {
                continue;
            }
            let rw = fs.open_rw().unwrap();
            let id = rw.create(&NewObject::default()).unwrap();
            let seed = self.rng.number();
            rw.write(id, 0, &noise(seed, 1 + (seed % 30_000) as usize)).unwrap();
        }
    }

    /// A snapshot of all members.
    fn snapshot(&mut self, round: usize) -> String {
        let short = format!("r{round}");
        let names: Vec<String> =
            self.members().iter().map(|fs| format!("{}@{short}", fs.name())).collect();
        self.pool.pool.snapshot(&names, &[], None).unwrap();
        format!("{TOP}@{short}")
    }
}

/// A dataset and all below it.
fn tree(pool: &Pool, top: &str) -> Vec<Dataset> {
    let mut out = vec![pool.dataset(top).unwrap()];
    let mut at = 0;
    while at < out.len() {
        let below = out[at].children().unwrap();
        out.extend(below);
        at += 1;
    }
    out
}

fn origin(fs: &Dataset) -> Option<String> {
    match fs.prop("origin").unwrap()?.value {
        PropData::Str(name) => Some(name),
        _ => None,
    }
}

/// A name, an origin, and snapshots with their guids.
type Lineage = (String, Option<String>, Vec<(String, u64)>);

/// Names below `top`, with origins and with the guids of snapshots.
fn lineages(pool: &Pool, top: &str) -> BTreeSet<Lineage> {
    let below = |name: &str| name.strip_prefix(top).unwrap().to_owned();
    let one = |fs: Dataset| {
        let snaps = fs.snapshots().unwrap().into_iter();
        let snaps = snaps.map(|s| (short(s.name()).to_owned(), s.guid())).collect();
        (below(fs.name()), origin(&fs).map(|name| below(&name)), snaps)
    };
    tree(pool, top).into_iter().map(one).collect()
}

#[test]
fn trees_with_clones_and_promotions() {
    let rounds = if nightly() { 25 } else { 5 };
    side_by_side(&seeds(41, 1, 60), |seed| {
        let mut forest = Forest::new(*seed);
        let to = TestPool::new(&format!("forest-copy{seed}"));
        let force = ReceiveOptions { force: true, ..ReceiveOptions::default() };
        let mut last: Option<String> = None;
        for round in 0..rounds {
            for _ in 0..forest.rng.below(5) {
                forest.change();
            }
            forest.write();
            let snapshot = forest.snapshot(round);
            if forest.rng.below(4) == 0 && round + 1 < rounds {
                continue;
            }
            let of =
                PackageOptions { recursive: true, intermediate: true, ..PackageOptions::default() };
            let how = options(forest.rng.below(4));
            let bytes = package(&forest.pool.pool, &snapshot, last.as_deref(), &of, how);
            let context = format!("seed {seed}, {snapshot} from {last:?}, {:?}", forest.done);
            to.pool
                .receive("tank/copy", ReceiveNames::Whole, &force, bytes.as_slice())
                .unwrap_or_else(|e| panic!("{context}: {e}"));
            let (ours, theirs) =
                (lineages(&to.pool, "tank/copy"), lineages(&forest.pool.pool, TOP));
            assert_eq!(ours, theirs, "{context}");
            for fs in forest.members() {
                let theirs = format!("{}@r{round}", fs.name());
                let ours = theirs.replacen(TOP, "tank/copy", 1);
                assert_same((&forest.pool.pool, &theirs), (&to.pool, &ours));
            }
            last = Some(snapshot);
        }
        println!("FOREST seed {seed}: {:?}", forest.done);
        to.judged();
    });
}
