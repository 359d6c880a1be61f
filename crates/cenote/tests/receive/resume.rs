//! Receives that are interrupted: by a crash, or resumably.

use std::io::Read;

use cenote::inspect::nvlist::NvList;
use cenote::stream::{ResumeToken, StreamRecord};
use cenote::{ErrorKind, NewObject, ReceiveOptions, SendOptions};
use testkit::{Rng, Scratch};

use super::hostile::{StreamPiece, assembled, pieces};
use super::{ALL, TestPool, assert_same, noise, sent};

/// A pool with `tank/src@a` and `@b`, of some hundred records.
fn source(name: &str) -> TestPool {
    let of = TestPool::new(name);
    of.pool.create_filesystem("tank/src", &[], None).unwrap();
    let rw = of.pool.dataset("tank/src").unwrap().open_rw().unwrap();
    let make = |seed: u64, blocks: u64| {
        let id = rw.create(&NewObject { block_size: Some(16384) }).unwrap();
        for block in 0..blocks {
            rw.write(id, block * 32768, &noise(seed + block, 16384)).unwrap();
        }
    };
    (0..8).for_each(|n| make(100 * n, 20));
    of.snapshot("tank/src@a");
    (0..8).for_each(|n| make(1000 * n, 30));
    of.snapshot("tank/src@b");
    of
}

/// The rest of a stream from a token on, as a sender makes it (chapter 07 §8.6).
fn rest(stream: &[u8], token: &ResumeToken) -> Vec<u8> {
    let keeps = |record: &StreamRecord| match record {
        StreamRecord::Begin(_) | StreamRecord::End(_) => true,
        StreamRecord::FreeObjects(r) => r.first > token.object,
        StreamRecord::Object(r) => r.object >= token.object,
        StreamRecord::Write(r) => (r.object, r.offset) >= (token.object, token.offset),
        StreamRecord::WriteEmbedded(r) => (r.object, r.offset) >= (token.object, token.offset),
        StreamRecord::Free(r) => {
            r.length == u64::MAX && r.object >= token.object
                || (r.object, r.offset) >= (token.object, token.offset)
        }
        other => other.object().is_some_and(|object| object >= token.object),
    };
    let mut list: Vec<StreamPiece> =
        pieces(stream).into_iter().filter(|(record, _)| keeps(record)).collect();
    let StreamRecord::Begin(begin) = &mut list[0].0 else { panic!() };
    begin.version_info |= cenote::stream::Features::RESUMING.0 << 2;
    let mut payload = NvList::new();
    payload.add_u64("resume_object", token.object).add_u64("resume_offset", token.offset);
    list[0].1 = payload.pack_native(cenote::inspect::nvlist::Order::Little);
    assembled(&list)
}

fn resumable() -> ReceiveOptions {
    ReceiveOptions { resumable: true, ..ReceiveOptions::default() }
}

/// Cut off again and again, with crashes in between, until the stream is complete.
#[test]
fn resumed_until_it_is_complete() {
    let of = source("resume-src");
    let mut to = TestPool::new("resume");
    let mut rng = Rng::new(9);
    let mut resumed = 0;
    for (snap, from) in [("a", None), ("b", Some("tank/src@a"))] {
        let name = format!("tank/src@{snap}");
        let stream = sent(&of.pool, &name, from, ALL);
        let mut next = stream.clone();
        loop {
            let end = match rng.below(4) {
                0 => next.len(),
                _ => next.len() / 8 + rng.index(next.len()),
            };
            if end >= next.len() {
                to.receive_with("tank/dst", &resumable(), &next).unwrap();
                break;
            }
            let e = to.receive_with("tank/dst", &resumable(), &next[..end]).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Interrupted, "{e}");
            if rng.below(2) == 0 {
                to = to.crashed();
            }
            let dataset = to.pool.dataset("tank/dst").unwrap();
            let token = dataset.resume_token().unwrap().unwrap();
            assert_eq!(ResumeToken::decode(&token.encode()).unwrap(), token);
            assert_eq!(token.to_name, name);
            assert!(token.compressed && token.embedded);
            let prop = dataset.prop("receive_resume_token").unwrap().unwrap().value;
            assert_eq!(prop, cenote::PropData::Str(token.encode()));
            // Nothing else is received there meanwhile.
            let e = to.receive("tank/dst", &stream).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
            assert!(e.message().contains("contains partially-complete state"), "{e}");
            next = rest(&stream, &token);
            resumed += 1;
        }
        let copy = format!("tank/dst@{snap}");
        assert_same((&of.pool, &name), (&to.pool, &copy));
        assert_eq!(to.pool.dataset("tank/dst").unwrap().resume_token().unwrap(), None);
    }
    assert!(resumed > 2, "{resumed}");
    to.judged();
}

#[test]
fn partial_state_is_discarded() {
    let of = source("discard-src");
    let to = TestPool::new("discard");
    let a = sent(&of.pool, "tank/src@a", None, ALL);
    let b = sent(&of.pool, "tank/src@b", Some("tank/src@a"), ALL);
    let e = to.pool.discard_partial("tank/dst", None).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    to.receive_with("tank/dst", &resumable(), &a[..a.len() / 2]).unwrap_err();
    to.pool.discard_partial("tank/dst", None).unwrap();
    assert!(to.pool.dataset("tank/dst").is_err());
    to.receive("tank/dst", &a).unwrap();
    let why = "'tank/dst' does not have any resumable receive state to abort";
    let e = to.pool.discard_partial("tank/dst", None).unwrap_err();
    assert_eq!((e.kind(), e.message()), (ErrorKind::Invalid, why));
    let before = to.datasets();
    to.receive_with("tank/dst", &resumable(), &b[..b.len() / 2]).unwrap_err();
    assert_ne!(to.datasets(), before);
    to.pool.discard_partial("tank/dst", None).unwrap();
    assert_eq!(to.datasets(), before);
    // A dataset goes with what is received into it.
    to.receive_with("tank/dst", &resumable(), &b[..b.len() / 2]).unwrap_err();
    to.pool.destroy_dataset("tank/dst", true, None).unwrap();
    to.judged();
}

/// Input in whose middle the disks are copied.
struct CrashingInput<'a> {
    bytes: &'a [u8],
    left: usize,
    to: &'a TestPool,
    image: Option<Scratch>,
}

impl Read for CrashingInput<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 && self.image.is_none() {
            // What was applied is on disk.
            self.to.pool.writer().unwrap().sync().unwrap();
            self.image = Some(self.to.image());
        }
        let n = self.bytes.read(out)?;
        self.left = self.left.saturating_sub(n);
        Ok(n)
    }
}

/// A crash at any record leaves the pool as it was before.
#[test]
fn a_crash_undoes_a_receive() {
    let of = source("crash-src");
    let to = TestPool::new("crash");
    let a = sent(&of.pool, "tank/src@a", None, ALL);
    let b = sent(&of.pool, "tank/src@b", Some("tank/src@a"), ALL);
    for (stream, kept) in [(&a, Vec::new()), (&b, a.clone())] {
        if !kept.is_empty() {
            to.receive("tank/dst", &kept).unwrap();
        }
        let before = to.datasets();
        for part in 1..8 {
            let left = stream.len() * part / 8;
            // The end is missing, so that this pool stays as it is, too.
            let bytes = &stream[..stream.len() - 1];
            let mut input = CrashingInput { bytes, left, to: &to, image: None };
            let (names, options) = (cenote::ReceiveNames::Whole, ReceiveOptions::default());
            to.pool.receive("tank/dst", names, &options, &mut input).unwrap_err();
            let crashed = TestPool::imported(input.image.take().unwrap());
            assert_eq!(crashed.datasets(), before, "after {left} bytes");
            assert_eq!(to.datasets(), before);
            if part % 3 == 0 {
                crashed.judged();
            }
        }
    }
    to.receive("tank/dst", &b).unwrap();
    assert_same((&of.pool, "tank/src@b"), (&to.pool, "tank/dst@b"));
    to.judged();
}

/// What an interrupted receive has left is sent on, and continued there with the first sender's
/// stream.
#[test]
fn partial_state_is_sent_on() {
    let of = source("saved-src");
    let (first, second) = (TestPool::new("saved-first"), TestPool::new("saved-second"));
    let options = SendOptions::default();
    let e = of.pool.dataset("tank/src").unwrap().plan_saved(options).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    let cases = [
        ("tank/src@a", None, ALL),
        ("tank/src@b", Some("tank/src@a"), SendOptions { compressed: false, ..ALL }),
    ];
    for (name, from, how) in cases {
        let stream = sent(&of.pool, name, from, how);
        let cut = stream.len() * 2 / 3;
        let e = first.receive_with("tank/dst", &resumable(), &stream[..cut]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Interrupted, "{e}");
        let dataset = first.pool.dataset("tank/dst").unwrap();
        let token = dataset.resume_token().unwrap().unwrap();
        let part = dataset.plan_saved(options).unwrap();
        assert_eq!(part.name(), name);
        // It stays as it is meanwhile.
        let e = first.pool.discard_partial("tank/dst", None).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        let rest = rest(&stream, &token);
        let e = first.receive_with("tank/dst", &resumable(), &rest).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        let mut saved = Vec::new();
        part.send(&mut saved, &mut |_| true).unwrap();
        assert_eq!(part.size().unwrap(), saved.len() as u64);
        drop(part);
        let e = second.receive_with("tank/copy", &resumable(), &saved).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Interrupted, "{e}");
        let theirs = second.pool.dataset("tank/copy").unwrap().resume_token().unwrap().unwrap();
        let place = |token: &ResumeToken| (token.to_guid, token.object, token.offset);
        assert_eq!(place(&theirs), place(&token));
        assert_eq!((theirs.to_name.as_str(), theirs.from_guid), (name, token.from_guid));
        for (to, target) in [(&first, "tank/dst"), (&second, "tank/copy")] {
            to.receive_with(target, &resumable(), &rest).unwrap();
            let copy = name.replace("tank/src", target);
            assert_same((&of.pool, name), (&to.pool, &copy));
        }
    }
    first.judged();
    second.judged();
}
