//! `rewrite`: blocks move and get the present properties; nothing else changes.
//!
//! zdb of OpenZFS 2.3 stops at a pointer with the rewrite flag, which it does not know. So a
//! pool with such pointers is judged by its own audit ([`PosixFixture::again`]), and zdb judges
//! it after another rewrite cleared the flags.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::Txg;
use ondisk::BlkPtr;
use zpl::Whence;
use zpl::rw::{Rewrite, RewriteSummary};

use super::*;

const PLAIN: Rewrite = Rewrite { keep_birth: false, skip_snapshots: false };
const PHYSICAL: Rewrite = Rewrite { keep_birth: true, ..PLAIN };
const SKIP: Rewrite = Rewrite { skip_snapshots: true, ..PLAIN };
/// Values of properties in their stored form.
const COMPRESS_OFF: (&str, u64) = ("compression", 2);
const COMPRESS_LZ4: (&str, u64) = ("compression", 15);

/// Rewrites a range of a file, call by call; the sums, or the first error.
fn rewrite_range(
    fs: &FileSystem,
    id: ObjectId,
    range: Range<u64>,
    how: Rewrite,
) -> base::Result<RewriteSummary> {
    let mut all = RewriteSummary { next: Some(range.start), ..RewriteSummary::default() };
    while let Some(at) = all.next {
        let done = fs.rewrite(id, at..range.end, how)?;
        assert!(done.next.is_none_or(|next| next > at), "no progress at {at}");
        all.next = done.next;
        all.blocks += done.blocks;
        all.bytes += done.bytes;
        all.skipped += done.skipped;
    }
    Ok(all)
}

fn rewrite(fs: &FileSystem, id: ObjectId, how: Rewrite) -> RewriteSummary {
    rewrite_range(fs, id, 0..u64::MAX, how).unwrap()
}

/// The pointers to a file's data blocks, holes left out, by block.
fn pointers(fs: &FileSystem, id: ObjectId) -> Vec<(u64, BlkPtr)> {
    let object = fs.objset().object(id, Io::WAIT).unwrap();
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(blkid) = object.next_data_block(at, Io::WAIT).unwrap() {
        out.push((blkid, object.block_pointer(0, blkid, Io::WAIT).unwrap()));
        at = blkid + 1;
    }
    out
}

/// The txg in which a block's bytes were written.
fn physical(bp: &BlkPtr) -> Txg {
    bp.as_block().map_or(Txg::ZERO, |b| b.effective_physical_birth())
}

fn number_of(rig: &PosixFixture, name: &str, prop: &str) -> u64 {
    match rig.pool.dataset(name).unwrap().prop(prop).unwrap().unwrap().value {
        PropData::Num(n) => n,
        other => panic!("{prop} of {name}: {other:?}"),
    }
}

fn snapshot(rig: &PosixFixture, name: &str) -> Arc<FileSystem> {
    let full = format!("{DATASET}@{name}");
    rig.pool.snapshot(std::slice::from_ref(&full), &[], None).unwrap();
    rig.pool.dataset(&full).unwrap().open_fs().unwrap()
}

/// Text that compresses to about a half.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut out = noise(seed, len);
    out.chunks_mut(64).for_each(|c| c.iter_mut().skip(32).for_each(|b| *b = 7));
    out
}

/// Files of several shapes. Records of 1 MiB only if they are `large`: on dRAID a small pool has
/// no room for their reservations beside a snapshot.
fn files(rig: &PosixFixture, large: bool) -> Vec<ObjectId> {
    let mut out = Vec::new();
    for (record, len) in [(128 << 10, 700_000), (4096, 100_000), (1 << 20, 1_200_000), (512, 9000)]
    {
        if record > 128 << 10 && !large {
            continue;
        }
        rig.set(&[("recordsize", record)]);
        let file = rig.file(rig.root(), &format!("f{record}"));
        rig.write(file, 0, &text(record, len));
        out.push(file);
    }
    rig.set(&[("recordsize", 128 << 10)]);
    // One block of an odd size, and one that is embedded in its pointer.
    for (name, len) in [("odd", 5000), ("tiny", 60)] {
        let file = rig.file(rig.root(), name);
        rig.write(file, 0, &vec![5; len]);
        out.push(file);
    }
    let holes = rig.file(rig.root(), "holes");
    for at in [0, 3 << 20, 1 << 40] {
        rig.write(holes, at, &text(at, 100_000));
    }
    rig.resize(holes, 1 << 41);
    out.push(holes);
    out
}

/// The offsets at which data and holes begin.
fn edges(fs: &FileSystem, id: ObjectId) -> Vec<u64> {
    let (mut out, mut at) = (Vec::new(), 0);
    for whence in [Whence::Data, Whence::Hole].into_iter().cycle() {
        match fs.seek(id, at, whence, Io::WAIT) {
            Ok(found) => at = found,
            Err(_) => return out,
        }
        out.push(at);
    }
    out
}

/// Every kind of vdev: blocks get new addresses and births, contents and times stay, a
/// snapshot keeps its own blocks. A physical rewrite keeps the logical births.
fn on_vdevs(which: usize, ashift: u64) {
    let (rig, name, _) = super::widths::make("rewrite", which, ashift).unwrap();
    let large = which != 20;
    let ids = files(&rig, large);
    rig.sync();
    let before = walk(&rig.fs);
    let old: Vec<_> = ids.iter().map(|id| pointers(&rig.fs, *id)).collect();
    let holes: Vec<_> = ids.iter().map(|id| edges(&rig.fs, *id)).collect();
    let snap = snapshot(&rig, "s");
    let own = number_of(&rig, &format!("{DATASET}@s"), "unique");

    // Physical: all logical births stay.
    let mut moved = 0;
    for (id, old) in ids.iter().zip(&old) {
        let done = rewrite(&rig.fs, *id, PHYSICAL);
        let blocks = old.iter().filter(|(_, bp)| bp.as_block().is_some()).count() as u64;
        assert_eq!((done.blocks, done.skipped), (blocks, old.len() as u64 - blocks), "{name}");
        moved += done.blocks;
        // Before the txg is written, too.
        assert_eq!(walk(&rig.fs), before, "{name}");
    }
    assert!(moved > 40);
    rig.sync();
    let newest = old.iter().flatten().map(|(_, bp)| physical(bp)).max().unwrap();
    for ((id, old), holes) in ids.iter().zip(&old).zip(&holes) {
        let new = pointers(&rig.fs, *id);
        assert_eq!(new.len(), old.len());
        for ((blkid, new), (old_blkid, old)) in new.iter().zip(old) {
            assert_eq!((blkid, new.birth()), (old_blkid, old.birth()), "{name}");
            if let Some(block) = new.as_block() {
                assert!(block.rewritten && physical(new) > newest, "{name}: {new:?}");
                assert_eq!(new.allocation_birth(), physical(new));
                assert_ne!(block.dva(), old.as_block().unwrap().dva());
            } else {
                assert_eq!(new, old);
            }
        }
        assert_eq!(&edges(&rig.fs, *id), holes, "{name}");
    }
    assert_eq!(walk(&rig.fs), before, "{name}");
    assert_eq!(walk(&snap), before, "{name}: the snapshot");
    // The old blocks belong to the snapshot alone now.
    let (_, dead) = space_of(&rig, old.iter().flatten().map(|(_, bp)| bp));
    let used = number_of(&rig, &format!("{DATASET}@s"), "unique") - own;
    assert!(dead <= used && used <= dead + 2 * MB, "{name}: {used} of {dead}");

    // Logical: the births are new, and there is no flag any more.
    let middle: Vec<_> = ids.iter().map(|id| pointers(&rig.fs, *id)).collect();
    let newest = middle.iter().flatten().map(|(_, bp)| physical(bp)).max().unwrap();
    for id in &ids {
        rewrite(&rig.fs, *id, PLAIN);
    }
    rig.sync();
    for id in &ids {
        for (_, new) in pointers(&rig.fs, *id) {
            if let Some(block) = new.as_block() {
                assert!(!block.rewritten && new.birth() > newest, "{name}: {new:?}");
            }
        }
    }
    assert_eq!(walk(&rig.fs), before, "{name}");
    // The blocks in between were freed, not kept for a snapshot that never had them.
    let later = number_of(&rig, &format!("{DATASET}@s"), "unique") - own;
    assert!(later <= dead + 2 * MB, "{name}: {later} of {dead}");

    // What a physical rewrite left is freed like other blocks: by a later snapshot's
    // destruction, by overwriting, and with the file.
    for id in &ids {
        rewrite(&rig.fs, *id, PHYSICAL);
    }
    drop(snap);
    let mut snaps = vec![format!("{DATASET}@s"), format!("{DATASET}@t")];
    if !large {
        rig.pool.destroy_snapshots(&[snaps.remove(0)], false, None).unwrap();
        rig.sync();
    }
    drop(snapshot(&rig, "t"));
    rig.sync();
    ids.iter().take(3).for_each(|id| rig.write(*id, 0, &text(9, 140_000)));
    let first = if large { "f1048576" } else { "f131072" };
    rig.fs.unlink(&Caller::root(), rig.root(), first.as_bytes()).unwrap();
    rig.sync();
    let rig = rig.again();
    for snap in snaps {
        rig.pool.destroy_snapshots(&[snap], false, None).unwrap();
    }
    rig.fs.unlink(&Caller::root(), rig.root(), b"f4096").unwrap();
    let left = list(&rig.fs, rig.root());
    for name in left {
        let id = rig.fs.lookup(rig.root(), name.as_bytes(), Io::WAIT).unwrap().id;
        match large {
            true => assert!(rewrite(&rig.fs, id, PLAIN).next.is_none()),
            false => drop(rig.fs.unlink(&Caller::root(), rig.root(), name.as_bytes()).unwrap()),
        }
    }
    rig.finish();
}

/// Bytes before and after deflation that data blocks take.
fn space_of<'a>(rig: &PosixFixture, blocks: impl Iterator<Item = &'a BlkPtr>) -> (u64, u64) {
    let tree = rig.pool.spa().zio().tree();
    let mut sums = (0, 0);
    for dva in blocks.filter_map(|bp| bp.as_block()).flat_map(|b| b.dvas()) {
        sums.0 += dva.asize.0;
        sums.1 += (dva.asize.0 >> 9) * tree.deflate_ratio(dva.vdev).unwrap_or(512);
    }
    sums
}

#[test]
fn blocks_move_on_every_kind_of_vdev() {
    // raidz1 of 3, raidz2 of 6, raidz3 of 6 and 9, draid1, a mirror, a mirror and a disk.
    let kinds = [0, 10, 16, 19, 20, 22, 23];
    let cases: Vec<_> = kinds.iter().flat_map(|k| [(*k, 9), (*k, 12)]).collect();
    testkit::side_by_side(&cases, |&(which, ashift)| on_vdevs(which, ashift));
}

/// Compression, checksum and copies become the present ones; an identical block is not kept.
#[test]
fn blocks_get_the_present_properties() {
    let rig = PosixFixture::with("rewrite-props", 256 * MB, 5000, &[COMPRESS_OFF]);
    let file = rig.file(rig.root(), "f");
    let data = text(1, 20 << 20);
    rig.write(file, 0, &data);
    let tiny = rig.file(rig.root(), "tiny");
    rig.write(tiny, 0, &[3; 100]);
    // Zeros that were stored.
    let zeros = rig.file(rig.root(), "zeros");
    rig.write(zeros, 0, &[0; 1 << 20]);
    rig.sync();
    let before = walk(&rig.fs);
    assert_eq!(edges(&rig.fs, zeros)[0], 0);
    let full = number_of(&rig, DATASET, "referenced");
    rig.set(&[COMPRESS_LZ4]);
    for id in [file, tiny, zeros] {
        let done = rewrite(&rig.fs, id, PLAIN);
        assert!(done.blocks > 0 && done.skipped == 0);
    }
    rig.sync();
    let small = number_of(&rig, DATASET, "referenced");
    assert!(small < full * 2 / 3, "{small} of {full}");
    assert!(matches!(pointers(&rig.fs, tiny)[..], [(0, BlkPtr::Embedded(_))]));
    // As if they had been read and written back.
    assert_eq!(pointers(&rig.fs, zeros), []);
    assert_eq!(walk(&rig.fs), before);

    // SHA-256 proves that a block would be the same, and it moves nevertheless.
    rig.set(&[("checksum", 8), ("copies", 2)]);
    let mut last = Vec::new();
    for round in 0..3 {
        let how = if round == 1 { PHYSICAL } else { PLAIN };
        rewrite(&rig.fs, file, how);
        rig.sync();
        let new = pointers(&rig.fs, file);
        for (_, bp) in &new {
            let block = bp.as_block().unwrap();
            assert_eq!((block.checksum, block.compression, block.dvas().len()), (8, 15, 2));
            assert_eq!(block.rewritten, round == 1);
        }
        let at: BTreeSet<_> = last.iter().chain(&new).map(|(_, bp)| physical(bp)).collect();
        assert!(last.is_empty() || at.len() >= 2, "{at:?}");
        let same = |((_, a), (_, b)): &(&(u64, BlkPtr), &(u64, BlkPtr))| physical(a) == physical(b);
        assert_eq!(last.iter().zip(&new).filter(same).count(), 0);
        last = new;
    }
    // Embedded blocks are left as long as they would be embedded again.
    let old = pointers(&rig.fs, tiny);
    assert_eq!(rewrite(&rig.fs, tiny, PLAIN).skipped, 1);
    rig.set(&[COMPRESS_OFF]);
    assert_eq!(rewrite(&rig.fs, tiny, PHYSICAL).blocks, 1);
    rig.sync();
    let new = pointers(&rig.fs, tiny);
    assert_eq!(new[0].1.birth(), old[0].1.birth());
    assert!(new[0].1.as_block().unwrap().rewritten);
    assert_eq!(walk(&rig.fs), before);
    let rig = rig.again();
    rewrite(&rig.fs, tiny, PLAIN);
    assert_eq!(walk(&rig.fs), before);
    rig.finish();
}

/// `-S`: what a snapshot has is left, and what was written since is rewritten.
#[test]
fn blocks_of_snapshots_are_skipped() {
    let rig = PosixFixture::new("rewrite-skip", 192 * MB);
    let file = rig.file(rig.root(), "f");
    rig.write(file, 0, &noise(1, 40 * (128 << 10)));
    rig.sync();
    assert_eq!(rewrite(&rig.fs, file, SKIP).blocks, 40);
    rig.sync();
    drop(snapshot(&rig, "s"));
    let used = number_of(&rig, &format!("{DATASET}@s"), "unique");
    let done = rewrite(&rig.fs, file, SKIP);
    assert_eq!((done.blocks, done.skipped), (0, 40));
    rig.write(file, 7 * (128 << 10), &noise(2, 3 * (128 << 10)));
    rig.sync();
    let old = pointers(&rig.fs, file);
    let done = rewrite(&rig.fs, file, SKIP);
    assert_eq!((done.blocks, done.skipped), (3, 37));
    rig.sync();
    for ((blkid, new), (_, old)) in pointers(&rig.fs, file).iter().zip(&old) {
        assert_eq!(new == old, !(7..10).contains(blkid));
    }
    // A block that moved physically since is not the snapshot's, although its birth is older.
    rewrite_range(&rig.fs, file, 0..128 << 10, PHYSICAL).unwrap();
    rig.sync();
    let done = rewrite(&rig.fs, file, SKIP);
    assert_eq!((done.blocks, done.skipped), (4, 36));
    rig.sync();
    let grown = number_of(&rig, &format!("{DATASET}@s"), "unique") - used;
    assert!((4 * (128 << 10)..4 * (128 << 10) + 2 * MB).contains(&grown), "{grown}");
    rig.finish();
}

/// `-o` and `-l`: blocks that the range touches, and no others. Blocks that are dirty already
/// are not written twice.
#[test]
fn ranges_touch_their_blocks_alone() {
    let rig = PosixFixture::with("rewrite-range", 128 * MB, 5000, &[("recordsize", 8192)]);
    let file = rig.file(rig.root(), "f");
    let mut data = noise(5, 100 * 8192 + 100);
    rig.write(file, 0, &data);
    rig.sync();
    let cases = [
        (0..1, 0..1),
        (8191..8193, 0..2),
        (8192..16384, 1..2),
        (50 * 8192..u64::MAX, 50..101),
        (100 * 8192 + 99..100 * 8192 + 100, 100..101),
        (100 * 8192 + 8000..u64::MAX, 100..101),
        (101 * 8192..u64::MAX, 0..0),
        (5..5, 0..0),
        (u64::MAX - 1..u64::MAX, 0..0),
    ];
    for (range, due) in cases {
        let old = pointers(&rig.fs, file);
        let done = rewrite_range(&rig.fs, file, range.clone(), PLAIN).unwrap();
        rig.sync();
        let changed = pointers(&rig.fs, file);
        let changed = changed.iter().zip(&old).filter(|(a, b)| a != b).map(|(a, _)| a.0);
        let changed: Vec<u64> = changed.collect();
        assert_eq!(changed, due.clone().collect::<Vec<_>>(), "{range:?}: {done:?}");
    }
    // A change and a rewrite of one block in one txg, in either order, physical or not.
    for (i, how) in [PLAIN, PHYSICAL, PLAIN, PHYSICAL].into_iter().enumerate() {
        let at = (10 + i) * 8192;
        let piece = noise(i as u64 + 50, 100);
        if i < 2 {
            rewrite(&rig.fs, file, how);
        }
        rig.write(file, at as u64 + 11, &piece);
        data[at + 11..at + 111].copy_from_slice(&piece);
        if i >= 2 {
            rewrite(&rig.fs, file, how);
        }
        let old = pointers(&rig.fs, file);
        rig.sync();
        let new = &pointers(&rig.fs, file)[10 + i].1;
        // The content changed, so the block must look changed.
        assert!(new.birth() > old[10 + i].1.birth() && !new.as_block().unwrap().rewritten);
        assert!(rig.read(file) == data);
    }
    // Both kinds in one txg: the block looks changed.
    rewrite(&rig.fs, file, PHYSICAL);
    rewrite_range(&rig.fs, file, 0..8192, PLAIN).unwrap();
    rewrite(&rig.fs, file, PHYSICAL);
    rig.sync();
    let new = pointers(&rig.fs, file);
    let flags: Vec<_> = new.iter().map(|(_, bp)| bp.as_block().unwrap().rewritten).collect();
    assert!(!flags[0] && flags[1..].iter().all(|f| *f));
    // Truncated and extended in the txg of a rewrite.
    rewrite(&rig.fs, file, PHYSICAL);
    rig.resize(file, 3 * 8192 + 5);
    rewrite(&rig.fs, file, PLAIN);
    rig.resize(file, 9 * 8192);
    data.truncate(3 * 8192 + 5);
    data.resize(9 * 8192, 0);
    rig.sync();
    assert!(rig.read(file) == data);
    rig.finish();
}

/// Story: a pool becomes full in the middle of a rewrite, because a snapshot keeps the old
/// blocks. The file stays what it was, and the pool can be used.
#[test]
fn running_out_of_space_loses_nothing() {
    for (name, how) in [("space", PLAIN), ("space-physical", PHYSICAL), ("quota", PLAIN)] {
        let rig = PosixFixture::new(&format!("rewrite-{name}"), 256 * MB);
        let file = rig.file(rig.root(), "f");
        rig.write(file, 0, &noise(3, 70 << 20));
        rig.sync();
        drop(snapshot(&rig, "s"));
        let due = if name == "quota" {
            rig.set(&[("quota", 100 * MB)]);
            ErrorKind::Quota
        } else {
            ErrorKind::NoSpace
        };
        let before = walk(&rig.fs);
        let old = pointers(&rig.fs, file);
        let mut at = 0;
        let refused = loop {
            match rig.fs.rewrite(file, at..u64::MAX, how) {
                Ok(done) => at = done.next.expect("the space suffices"),
                Err(e) => break e,
            }
        };
        assert_eq!(refused.kind(), due, "{refused}");
        assert!(at > 0 && at < 70 << 20);
        rig.sync();
        assert_eq!(walk(&rig.fs), before);
        let new = pointers(&rig.fs, file);
        let moved = new.iter().zip(&old).filter(|(a, b)| a != b).count();
        assert_eq!(moved as u64, at / (128 << 10));
        rig.pool.destroy_snapshots(&[format!("{DATASET}@s")], false, None).unwrap();
        rig.sync();
        rewrite(&rig.fs, file, how);
        let rig = rig.again();
        rewrite(&rig.fs, file, PLAIN);
        rig.finish();
    }
}

/// Programs read and overwrite a file while it is rewritten again and again.
#[test]
fn readers_and_writers_see_their_own_bytes() {
    const BLOCKS: usize = 48;
    const SIZE: usize = 16 << 10;
    let rig = PosixFixture::with("rewrite-busy", 256 * MB, 5000, &[("recordsize", SIZE as u64)]);
    let file = rig.file(rig.root(), "f");
    // Block b holds the number of its last write in every word.
    let content = |n: u64| n.to_le_bytes().repeat(SIZE / 8);
    for b in 0..BLOCKS {
        rig.write(file, (b * SIZE) as u64, &content(1));
    }
    rig.sync();
    let acked: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(1)).collect();
    let begun: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(1)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for part in 0..2 {
            let (rig, acked, begun, over) = (&rig, &acked, &begun, &over);
            scope.spawn(move || {
                let mut rng = Rng::new(part);
                let mut n = 1;
                while !over.load(Ordering::SeqCst) {
                    let b = (rng.below(BLOCKS as u64 / 2) * 2 + part) as usize;
                    n += 1;
                    begun[b].store(n, Ordering::SeqCst);
                    rig.write(file, (b * SIZE) as u64, &content(n));
                    acked[b].store(n, Ordering::SeqCst);
                }
            });
        }
        let (rig, acked, begun, over) = (&rig, &acked, &begun, &over);
        scope.spawn(move || {
            let mut rng = Rng::new(9);
            while !over.load(Ordering::SeqCst) {
                let b = rng.below(BLOCKS as u64) as usize;
                let least = acked[b].load(Ordering::SeqCst);
                let pieces = rig.fs.read(file, (b * SIZE) as u64, SIZE, Io::WAIT).unwrap();
                let most = begun[b].load(Ordering::SeqCst);
                let bytes: Vec<u8> = pieces.iter().flat_map(|p| p.iter().copied()).collect();
                let seen: BTreeSet<u64> = bytes
                    .chunks_exact(8)
                    .map(|c| u64::from_le_bytes(c.try_into().unwrap()))
                    .collect();
                assert!(seen.iter().all(|n| (least..=most).contains(n)), "{seen:?} {least} {most}");
            }
        });
        for round in 0..60 {
            rewrite(&rig.fs, file, if round % 2 == 0 { PHYSICAL } else { PLAIN });
            if round % 3 == 0 {
                rig.sync();
            }
        }
        over.store(true, Ordering::SeqCst);
    });
    let due: Vec<u8> = acked.iter().flat_map(|n| content(n.load(Ordering::SeqCst))).collect();
    assert!(rig.read(file) == due);
    rig.sync();
    assert!(rig.read(file) == due);
    rig.finish();
}

#[test]
fn refusals() {
    let rig = PosixFixture::new("rewrite-refused", 96 * MB);
    let file = rig.file(rig.root(), "f");
    rig.write(file, 0, &noise(1, 300_000));
    let dir = rig.dir(rig.root(), "d");
    let link = rig.fs.make(&Caller::root(), rig.root(), b"l", &New::symlink(b"f")).unwrap().id;
    let of = |fs: &FileSystem, id, how| kind(fs.rewrite(id, 0..u64::MAX, how));
    assert_eq!(of(&rig.fs, dir, PLAIN), ErrorKind::IsDir);
    assert_eq!(of(&rig.fs, link, PLAIN), ErrorKind::Invalid);
    assert_eq!(of(&rig.fs, ObjectId(9999), PLAIN), ErrorKind::NotFound);
    rig.sync();
    let snap = snapshot(&rig, "s");
    assert_eq!(of(&snap, file, PLAIN), ErrorKind::ReadOnly);
    rig.set(&[("readonly", 1)]);
    assert_eq!(of(&rig.fs, file, PLAIN), ErrorKind::ReadOnly);
    drop(snap);
    rig.finish();

    // A pool without features: births cannot be kept.
    let rig = PosixFixture::with("rewrite-old", 96 * MB, 28, &[]);
    let file = rig.file(rig.root(), "f");
    rig.write(file, 0, &noise(1, 300_000));
    rig.sync();
    assert_eq!(of(&rig.fs, file, PHYSICAL), ErrorKind::Unsupported);
    assert_eq!(rewrite(&rig.fs, file, PLAIN).blocks, 3);
    rig.finish();
}
