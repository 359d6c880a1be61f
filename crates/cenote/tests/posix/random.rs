//! Thousands of operations of all kinds: one after the other against a simple model of a
//! tree, and by several threads in one directory.

use std::collections::BTreeMap;

use base::ErrorKind;
use base::rt::sim::Rng;
use dmu::Io;
use sim::posix::ops::{Scale, both, compare, draw, is_possible, perform};
use sim::posix::tree::Tree;
use zpl::FileType;

use super::{MB, PosixFixture};

/// Operations one after the other.
const OPS: usize = 3500;

/// Selects other random sequences than the usual ones.
fn seed() -> u64 {
    let set = std::env::var("CENOTE_SEED").ok();
    set.and_then(|s| s.parse().ok()).unwrap_or_default()
}

#[test]
fn a_tree_is_what_was_done_to_it() {
    let ops = if std::env::var_os("CENOTE_NIGHTLY").is_some() { 40 * OPS } else { OPS };
    let more = 2 * seed();
    let runs = [
        (1, &[("recordsize", 16 << 10), ("xattr", 2)][..]),
        (2, &[("recordsize", 128 << 10), ("xattr", 1), ("dnodesize", 1024)]),
    ];
    testkit::side_by_side(&runs, |&(seed, props)| {
        let mut rig = PosixFixture::with("tree", 512 * MB, 5000, props);
        let mut rng = Rng::new(seed + more);
        let scale =
            Scale { write: 200 << 10, file: 600 << 10, xattr: 40_000, names: 40, split: true };
        let mut tree = Tree::new(rig.root());
        let check = |rig: &PosixFixture, tree: &Tree, n: usize| {
            if let Err(e) = compare(&rig.fs, tree, true) {
                panic!("seed {seed} + {more}, after {n} operations: {e}");
            }
        };
        for n in 0..ops {
            let op = draw(&mut rng, &tree, &scale);
            if !is_possible(&tree, &op) {
                continue;
            }
            match both(&rig.fs, &tree, &op) {
                Ok(Some(next)) => tree = next,
                Ok(None) => {}
                Err(e) => panic!("seed {seed} + {more}, operation {n}: {e}"),
            }
            if n % 400 == 399 {
                check(&rig, &tree, n);
            }
            if n % 1500 == 1499 {
                rig = rig.again();
                // Closes the open files.
                for file in tree.files.values_mut() {
                    file.held = false;
                }
                tree.files.retain(|_, f| f.links > 0);
                check(&rig, &tree, n);
            }
        }
        check(&rig, &tree, ops);
        rig.finish();
    });
}

/// Rules for every tree: links and sizes agree with the content.
fn check_counts(rig: &PosixFixture) {
    let mut links = BTreeMap::<_, u32>::new();
    let mut todo = vec![rig.root()];
    while let Some(dir) = todo.pop() {
        let mut subdirs = 0;
        let names = rig.list(dir);
        for name in &names {
            let found = rig.fs.lookup(dir, name.as_bytes(), Io::WAIT).unwrap();
            *links.entry(found.id).or_default() += 1;
            if found.kind == FileType::Dir {
                assert_eq!(rig.attrs(found.id).parent, dir, "{name}");
                subdirs += 1;
                todo.push(found.id);
            }
        }
        let attrs = rig.attrs(dir);
        assert_eq!((attrs.nlink, attrs.size), (subdirs + 2, names.len() as u64 + 2), "{dir:?}");
    }
    for (id, count) in links {
        let attrs = rig.attrs(id);
        let due = if attrs.kind == FileType::Dir { 1 } else { attrs.nlink };
        assert_eq!(count, due, "{id:?}");
    }
}

#[test]
fn threads_in_one_place_leave_a_sound_tree() {
    let rig = PosixFixture::with("threads", 512 * MB, 5000, &[("recordsize", 16 << 10)]);
    let scale = Scale { write: 60 << 10, file: 300 << 10, xattr: 9000, names: 12, split: true };
    std::thread::scope(|s| {
        for t in 0..4 {
            let (rig, scale) = (&rig, &scale);
            s.spawn(move || {
                let mut rng = Rng::new(100 + 4 * seed() + t);
                // This thread's model, which is inexact because other threads change the
                // tree, too.
                let mut tree = Tree::new(rig.root());
                for _ in 0..2500 {
                    let op = draw(&mut rng, &tree, scale);
                    if !is_possible(&tree, &op) {
                        continue;
                    }
                    let mut next = tree.clone();
                    let due = next.apply(&op);
                    match perform(&rig.fs, &tree, &op) {
                        Ok(object) => {
                            let Ok(made) = due else { continue };
                            if let (Some(id), Some(object)) = (made, object)
                                && let Some(file) = next.files.get_mut(&id)
                            {
                                file.object = object;
                            }
                            tree = next;
                        }
                        Err(e) => {
                            let sound = !matches!(
                                e.kind(),
                                ErrorKind::Corrupt | ErrorKind::Bug | ErrorKind::Io
                            );
                            // An object id may belong to another file by now.
                            assert!(sound, "{op:?}: {e}");
                        }
                    }
                }
            });
        }
    });
    check_counts(&rig);
    let rig = rig.again();
    check_counts(&rig);
    rig.finish();
}
