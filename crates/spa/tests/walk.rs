//! The walk in order meets what the traversal meets, and continues wherever it stopped.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::collections::BTreeSet;

use base::rt::Mutex;
use base::{Error, Result, Txg};
use common::scans::*;
use common::shapes::*;
use dmu::traverse::{self, Bookmark, Flow, Visitor};
use dmu::{Io, OnError, OrderedWalk, WalkVisitor, walk_in_order};
use ondisk::BlkPtr;

#[derive(Default)]
struct All(Mutex<BTreeSet<Bookmark>>);

impl Visitor for All {
    fn visit(&self, bp: &BlkPtr, at: Bookmark) -> Result<Flow> {
        if !bp.is_hole() {
            assert!(self.0.lock().insert(at), "{at:?} is visited twice");
        }
        Ok(Flow::Descend)
    }
}

/// Visits at most `left` pointers, but at least one that was not visited before.
struct Steps {
    met: Vec<Bookmark>,
    left: usize,
}

impl WalkVisitor for Steps {
    fn visit(&mut self, _: &BlkPtr, at: Bookmark) {
        self.met.push(at);
        self.left = self.left.saturating_sub(1);
    }
    fn unreadable(&mut self, error: Error, at: Bookmark) -> OnError {
        panic!("{at:?}: {error}");
    }
    fn stop(&mut self) -> bool {
        self.left == 0
    }
}

#[test]
fn a_walk_that_stops_anywhere_continues_there() {
    let shape = PoolShape { name: "mirror", disks: 2, ashift: 12 };
    let (d, w) = shape.make("walk", 96 * MB);
    // Files of several levels, ZAPs and spill blocks are in the MOS.
    let files = KnownFiles::make(&w, &shape.pool(), 12, 700_000);
    let zio = w.zio();
    let read = |bp: &BlkPtr, dnodes: bool| match dnodes {
        true => zio.read_dnodes(bp, Io::WAIT),
        false => zio.read(bp, Io::WAIT),
    };
    let roots = [(0, w.published().uberblock.root_bp), (files.os.id(), files.os.root_bp())];
    for (objset, root) in roots {
        let all = All::default();
        traverse::traverse(zio, objset, &root, &all, traverse::Options::default()).unwrap();
        let all = all.0.into_inner();
        assert!(all.len() > 30, "{objset}: {} blocks", all.len());
        let start = Bookmark { objset, object: 0, level: 0, blkid: 0 };
        let walk = |from: Bookmark, left: usize| {
            let min_txg = Txg::ZERO;
            let what = OrderedWalk { objset, root: &root, from, min_txg, threads: 4, read: &read };
            let mut some = Steps { met: Vec::new(), left };
            let position = walk_in_order(&what, &mut some);
            (some.met, position)
        };
        let (whole, end) = walk(start, usize::MAX);
        assert_eq!(end, None);
        assert_eq!(whole.len(), all.len(), "{objset}: each block once");
        assert_eq!(whole.iter().copied().collect::<BTreeSet<_>>(), all, "{objset}");
        // In steps of every size: each step gets further, and together they meet everything.
        // A step may be shorter than the way to the position, which is visited again: a resilver
        // whose slices were as short did not end.
        for step in 0..whole.len() + 1 {
            let (mut from, mut met, mut steps) = (start, BTreeSet::new(), 0);
            loop {
                let (some, position) = walk(from, step);
                met.extend(some);
                steps += 1;
                assert!(steps <= whole.len() + 1, "{objset}: steps of {step} do not end");
                match position {
                    Some(position) => from = position,
                    None => break,
                }
            }
            assert_eq!(met, all, "{objset}: steps of {step}");
        }
    }
    drop(files);
    w.stop();
    std::fs::remove_dir_all(&d.dir).unwrap();
}
