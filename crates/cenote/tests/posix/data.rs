//! Contents of files.

use base::{ErrorKind, ObjectId};
use dmu::Io;
use zpl::rw::{Caller, FILE_SIZE_MAX, Falloc, SetAttrs, WritePosition};

use super::{MB, PosixFixture, kind, noise};

fn root() -> Caller {
    Caller::root()
}

/// A file and its expected content.
struct Twin<'a> {
    rig: &'a PosixFixture,
    id: ObjectId,
    model: Vec<u8>,
}

impl<'a> Twin<'a> {
    fn new(rig: &'a PosixFixture, name: &str) -> Twin<'a> {
        Twin { rig, id: rig.file(rig.root(), name), model: Vec::new() }
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        self.rig.write(self.id, at, data);
        let end = at as usize + data.len();
        self.model.resize(self.model.len().max(end), 0);
        self.model[at as usize..end].copy_from_slice(data);
        self.check();
    }

    fn resize(&mut self, size: u64) {
        self.rig.resize(self.id, size);
        self.model.resize(size as usize, 0);
        self.check();
    }

    fn zero(&mut self, what: Falloc, at: u64, len: u64) {
        self.rig.fs.allocate(&root(), self.id, what, at, len).unwrap();
        if what == (Falloc::ZeroRange { keep_size: false }) {
            self.model.resize(self.model.len().max((at + len) as usize), 0);
        }
        let size = self.model.len();
        self.model[(at as usize).min(size)..((at + len) as usize).min(size)].fill(0);
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.rig.attrs(self.id).size, self.model.len() as u64);
        assert!(self.rig.read(self.id) == self.model, "content of {:?}", self.id);
    }

    fn block(&self) -> u32 {
        self.rig.attrs(self.id).block_size
    }
}

#[test]
fn the_only_block_grows_with_its_file() {
    let rig = PosixFixture::new("growth", 256 * MB);
    for (len, block) in [
        (1usize, 512),
        (511, 512),
        (512, 512),
        (513, 1024),
        (100_000, 100_352),
        (131_072, 131_072),
        (131_073, 131_072),
    ] {
        let mut f = Twin::new(&rig, &format!("once{len}"));
        f.write(0, &noise(len as u64, len));
        assert_eq!(f.block(), block, "{len} bytes");
    }
    let mut f = Twin::new(&rig, "appended");
    for i in 0..40u64 {
        let at = f.model.len() as u64;
        f.write(at, &noise(i, 5000));
        if i % 9 == 3 {
            rig.sync();
            f.check();
        }
    }
    assert_eq!(f.block(), 128 << 10);
    // An extending truncate grows the block, too; a shrinking one never shrinks it.
    let mut g = Twin::new(&rig, "resized");
    g.resize(70_000);
    assert_eq!(g.block(), 70_144);
    g.write(69_000, b"tail");
    g.resize(10);
    g.resize(200_000);
    assert_eq!(g.block(), 128 << 10);
    g.resize(0);
    g.write(0, b"again");
    // Another record size applies only to files of one block.
    rig.set(&[("recordsize", 16 << 10)]);
    let mut h = Twin::new(&rig, "smaller");
    h.write(0, &noise(5, 50_000));
    assert_eq!(h.block(), 16 << 10);
    f.write(1000, &noise(6, 300_000));
    assert_eq!(f.block(), 128 << 10);
    let mut k = Twin::new(&rig, "odd");
    rig.set(&[("recordsize", 128 << 10)]);
    k.write(0, &noise(7, 40_000));
    assert_eq!(k.block(), 40_448);
    rig.set(&[("recordsize", 16 << 10)]);
    k.write(40_000, &noise(8, 100_000));
    assert_eq!(k.block(), 64 << 10, "the next power of two");
    rig.set(&[("recordsize", 1 << 20)]);
    let mut m = Twin::new(&rig, "large");
    m.write(0, &noise(9, 3_000_001));
    assert_eq!(m.block(), 1 << 20);
    m.write(1_500_000, b"across blocks");
    rig.finish();
}

#[test]
fn appends_holes_and_zeros() {
    let rig = PosixFixture::new("holes", 256 * MB);
    let mut f = Twin::new(&rig, "f");
    f.write(0, &noise(1, 1_000_000));
    for (what, at, len) in [
        (Falloc::PunchHole, 100, 200),
        (Falloc::PunchHole, 131_072, 262_144),
        (Falloc::PunchHole, 500_001, 299_999),
        (Falloc::PunchHole, 900_000, 5_000_000),
        (Falloc::ZeroRange { keep_size: true }, 950_000, 1_000_000),
        (Falloc::ZeroRange { keep_size: false }, 10_000, 90_000),
        (Falloc::ZeroRange { keep_size: false }, 1_100_000, 300_000),
    ] {
        f.zero(what, at, len);
        rig.sync();
        f.check();
    }
    let extent = |at| rig.fs.extent(f.id, at, Io::WAIT).unwrap();
    assert!(extent(0).unwrap().data);
    let hole = extent(140_000).unwrap();
    assert!(!hole.data && hole.len == 393_216 - 140_000);
    assert!(extent(1_400_000).is_none());
    f.write(140_000, b"in the hole");
    f.resize(140_005);
    f.resize(400_000);
    let done = rig.fs.write(&root(), f.id, WritePosition::End, b"the end").unwrap();
    assert_eq!((done.offset, done.size), (400_000, 400_007));
    f.model.extend(b"the end");
    f.check();
    assert_eq!(kind(rig.fs.allocate(&root(), f.id, Falloc::PunchHole, 5, 0)), ErrorKind::Invalid);
    rig.finish();
}

#[test]
fn copies_keep_holes() {
    let rig = PosixFixture::new("copies", 256 * MB);
    let mut from = Twin::new(&rig, "from");
    from.write(0, &noise(1, 300_000));
    from.write(3_000_000, &noise(2, 400_000));
    rig.sync();
    let to = rig.file(rig.root(), "to");
    let copy = |f, t, len| rig.fs.copy_range(&root(), f, t, len);
    assert_eq!(copy((from.id, 0), (to, 0), u64::MAX).unwrap(), 3_400_000);
    assert!(rig.read(to) == from.model);
    assert!(!rig.fs.extent(to, 1 << 20, Io::WAIT).unwrap().unwrap().data);
    assert_eq!(copy((from.id, 299_000), (to, 11), 1500).unwrap(), 1500);
    let mut want = from.model.clone();
    want.copy_within(299_000..300_500, 11);
    assert!(rig.read(to) == want);
    assert_eq!(kind(copy((to, 0), (to, 500), 501)), ErrorKind::Invalid);
    assert_eq!(copy((to, 0), (to, 500), 500).unwrap(), 500);
    want.copy_within(0..500, 500);
    assert!(rig.read(to) == want);
    assert_eq!(copy((to, 3_400_000), (from.id, 0), 10).unwrap(), 0, "behind the end");
    rig.finish();
}

/// Story: a program read 1 MiB of a file with one call of `File::read_at`, and the dataset's
/// kstat showed nine reads: one for each block, and one for the end.
#[test]
fn a_read_is_counted_once() {
    let rig = PosixFixture::new("counted", 256 * MB);
    let mut f = Twin::new(&rig, "f");
    f.write(0, &noise(1, 1 << 20));
    let file = rig.fs.open_file(f.id, Io::WAIT).unwrap();
    let counted = || {
        let kstats = rig.engine.kstats().all(|path| path.contains("/objset-"));
        let of = |name| kstats.iter().filter_map(|(_, k)| k.number(name)).sum::<u64>();
        (of("reads"), of("nread"))
    };
    let (reads, bytes) = counted();
    let mut out = vec![0; 2 << 20];
    assert_eq!(file.read_at(0, &mut out, Io::WAIT).unwrap(), 1 << 20);
    assert!(out[..1 << 20] == f.model);
    assert_eq!(counted(), (reads + 1, bytes + (1 << 20)));
    assert_eq!(rig.fs.read(f.id, 0, 2 << 20, Io::WAIT).unwrap().len(), 8);
    assert_eq!(counted(), (reads + 2, bytes + (2 << 20)));
    assert_eq!(file.borrow(200_000, 1 << 20, Io::WAIT).unwrap().len(), 262_144 - 200_000);
    assert_eq!(counted(), (reads + 3, bytes + (2 << 20) + 62_144));
    drop(file);
    rig.end();
}

/// An open file keeps its size, and shows the content that it has when it is read.
#[test]
fn an_open_file_shows_later_writes() {
    let rig = PosixFixture::new("open", 256 * MB);
    let mut f = Twin::new(&rig, "f");
    f.write(0, b"a few bytes");
    let small = rig.fs.open_file(f.id, Io::WAIT).unwrap();
    f.resize(1 << 20);
    let hole = rig.fs.open_file(f.id, Io::WAIT).unwrap();
    f.write(500_000, &noise(2, 100_000));
    f.write(0, &noise(3, 2_000));
    for synced in [false, true] {
        if synced {
            rig.sync();
        }
        let mut out = vec![1; 2 << 20];
        assert_eq!(small.read_at(0, &mut out, Io::WAIT).unwrap(), 11);
        assert!(out[..11] == f.model[..11]);
        assert_eq!(hole.read_at(0, &mut out, Io::WAIT).unwrap(), 1 << 20);
        assert!(out[..1 << 20] == f.model);
        let mut at = 0;
        while at < f.model.len() {
            let piece = hole.borrow(at as u64, usize::MAX, Io::WAIT).unwrap();
            assert!(!piece.is_empty() && piece[..] == f.model[at..at + piece.len()]);
            at += piece.len();
        }
        assert!(hole.borrow(1 << 20, 1, Io::WAIT).unwrap().is_empty());
        assert!(hole.borrow(u64::MAX, usize::MAX, Io::WAIT).unwrap().is_empty());
    }
    drop((small, hole));
    rig.end();
}

#[test]
fn files_as_large_as_can_be() {
    let rig = PosixFixture::new("huge", 256 * MB);
    let mut small = Twin::new(&rig, "small");
    small.write(0, b"data");
    let id = rig.file(rig.root(), "huge");
    rig.resize(id, FILE_SIZE_MAX);
    let set = SetAttrs { size: Some(FILE_SIZE_MAX + 1), ..SetAttrs::default() };
    assert_eq!(kind(rig.fs.set_attrs(&root(), id, &set)), ErrorKind::TooLarge);
    let places = [0u64, 1 << 30, 1 << 45, (1 << 62) + 12_345, FILE_SIZE_MAX - 10];
    for at in places {
        rig.write(id, at, b"0123456789");
    }
    let w =
        rig.fs.write(&root(), id, WritePosition::Offset(FILE_SIZE_MAX - 3), b"abcdefgh").unwrap();
    assert_eq!((w.bytes, w.size), (3, FILE_SIZE_MAX), "as many as there may be");
    assert_eq!(kind(rig.fs.write(&root(), id, WritePosition::End, b"x")), ErrorKind::TooLarge);
    let check = |rig: &PosixFixture| {
        let mut file = [0; 10];
        let f = rig.fs.open_file(id, Io::WAIT).unwrap();
        for at in &places[..4] {
            assert_eq!(f.read_at(*at, &mut file, Io::WAIT).unwrap(), 10);
            assert_eq!(&file, b"0123456789");
        }
        assert_eq!(f.read_at(FILE_SIZE_MAX - 10, &mut file, Io::WAIT).unwrap(), 10);
        assert_eq!(&file, b"0123456abc");
        let next = rig.fs.extent(id, 2 << 30, Io::WAIT).unwrap().unwrap();
        assert!(!next.data && (2 << 30) + next.len == (1 << 45));
    };
    check(&rig);
    let rig = rig.again();
    check(&rig);
    rig.fs.allocate(&root(), id, Falloc::PunchHole, 1, FILE_SIZE_MAX - 1).unwrap();
    assert!(rig.fs.extent(id, 1 << 20, Io::WAIT).unwrap().is_some_and(|e| !e.data));
    rig.resize(id, (1 << 45) + 5);
    rig.resize(id, 3);
    assert_eq!(rig.read(id), b"0\0\0");
    rig.fs.unlink(&root(), rig.root(), b"huge").unwrap();
    rig.finish();
}

#[test]
fn writers_of_one_file_and_of_many() {
    let rig = PosixFixture::new("parallel", 512 * MB);
    let shared = rig.file(rig.root(), "shared");
    let log = rig.file(rig.root(), "log");
    let own: Vec<_> = (0..4).map(|i| rig.file(rig.root(), &format!("own{i}"))).collect();
    std::thread::scope(|s| {
        for (i, own) in own.iter().enumerate() {
            let rig = &rig;
            s.spawn(move || {
                for n in 0..60u64 {
                    // Pieces of 10,000 bytes, which share blocks with their neighbours.
                    let piece = n * 4 + i as u64;
                    rig.write(shared, piece * 10_000, &[i as u8 + 1; 10_000]);
                    let line = [i as u8 + 1; 37];
                    rig.fs.write(&root(), log, WritePosition::End, &line).unwrap();
                    rig.write(*own, n * 3000, &[n as u8; 3000]);
                    if n % 20 == 7 {
                        rig.fs.fsync(*own).unwrap();
                        let set = SetAttrs { mode: Some(0o600 + n as u32), ..SetAttrs::default() };
                        rig.fs.set_attrs(&root(), shared, &set).unwrap();
                    }
                }
            });
        }
        let rig = &rig;
        s.spawn(move || {
            for _ in 0..200 {
                // Whole pieces or none.
                let bytes = rig.read(shared);
                for piece in bytes.chunks(10_000) {
                    let whole = piece.iter().all(|b| *b == piece[0]);
                    assert!(whole || piece.iter().all(|b| *b <= 4));
                }
            }
        });
    });
    let check = |rig: &PosixFixture| {
        let bytes = rig.read(shared);
        assert_eq!(bytes.len(), 240 * 10_000);
        for (n, piece) in bytes.chunks(10_000).enumerate() {
            assert!(piece.iter().all(|b| usize::from(*b) == n % 4 + 1), "piece {n}");
        }
        let lines = rig.read(log);
        assert_eq!(lines.len(), 240 * 37);
        let mut count = [0; 5];
        for line in lines.chunks(37) {
            assert!(line.iter().all(|b| *b == line[0]));
            count[usize::from(line[0])] += 1;
        }
        assert_eq!(count, [0, 60, 60, 60, 60]);
        for id in &own {
            let bytes = rig.read(*id);
            assert!(bytes.chunks(3000).enumerate().all(|(n, c)| c.iter().all(|b| *b == n as u8)));
        }
    };
    check(&rig);
    let rig = rig.again();
    check(&rig);
    rig.finish();
}

/// Story: overwriting a file of half a gigabyte for minutes filled a cache of four
/// gigabytes with blocks that were free, and could never be requested again.
#[test]
fn blocks_that_were_freed_leave_the_cache() {
    let rig =
        PosixFixture::with("freed", 256 * MB, 5000, &[("recordsize", 8192), ("compression", 2)]);
    let id = rig.file(rig.root(), "f");
    let size = || {
        rig.sync();
        rig.engine.arc_stats().size
    };
    let noise = |round: u64| -> Vec<u8> {
        (0..4 * MB).map(|i| (i * 31 + i / 8192 * round) as u8).collect()
    };
    let write = |round| rig.write(id, 0, &noise(round));
    write(1);
    let first = size();
    assert!(first >= 4 * MB, "{first}: nothing is cached");
    (2..12).for_each(|round| {
        write(round);
        rig.sync();
    });
    // Blocks that the last txg freed are dropped with the next one.
    let last = size();
    assert!(last < first + 6 * MB, "{first} bytes became {last}");
    rig.finish();
}

#[test]
fn readers_ask_for_what_is_there() {
    // A file truncated and extended while it is read: each byte is zero or as written.
    let rig = PosixFixture::new("cut", 256 * MB);
    let f = rig.file(rig.root(), "f");
    rig.write(f, 0, &[7; 600_000]);
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0..60u64 {
                rig.resize(f, 1000 + i * 3001 % 300_000);
                rig.resize(f, 500_000);
                rig.write(f, 200_000, &[7; 300_000]);
            }
        });
        s.spawn(|| {
            for _ in 0..150 {
                let read = rig.fs.read(f, 0, 600_000, Io::WAIT);
                let ok = |b: &[u8]| b.iter().all(|b| *b == 7 || *b == 0);
                assert!(read.unwrap().iter().all(|b| ok(b)));
            }
        });
    });
    rig.finish();
}

/// Story: the kstat `txgs` had its heading alone, because nothing read the history.
#[test]
fn the_last_txgs_are_listed() {
    let rig = PosixFixture::new("txgs", 64 * MB);
    let file = rig.file(rig.root(), "f");
    rig.write(file, 0, &noise(1, MB as usize));
    rig.sync();
    let kstats = rig.engine.kstats().all(|path| path == "tank/txgs");
    let [(_, list)] = &kstats[..] else { panic!("{kstats:?}") };
    let text = kstat::text::render(list);
    let rows: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_ascii_whitespace().collect()).collect();
    assert_eq!(rows[0].len(), 12, "{text}");
    assert!(rows.iter().all(|row| row.len() == 12), "{text}");
    // The pool is so small that a megabyte may be written before the sync.
    let dirty = |row: &&Vec<&str>| row[3].parse::<u64>().is_ok_and(|n| n >= MB);
    let row = rows.iter().find(dirty).unwrap();
    let number = |column: usize| row[column].parse::<u64>().unwrap();
    // It is committed, had the dirty megabyte, and wrote it; it was open and syncing.
    assert_eq!(row[2], "C", "{text}");
    assert!(number(5) > MB && number(7) > 0, "{text}");
    assert!(number(8) > 0 && number(11) > 0, "{text}");
    assert_eq!(rows.last().unwrap()[2], "O", "{text}");
    rig.end();
}
