//! Space maps made anew.

use super::*;
use cenote::ErrorKind;
use cenote::inspect::codec::checksum::fletcher::fletcher4;
use cenote::inspect::ondisk::ObjType;
use cenote::inspect::ondisk::blkptr::{BlkPtr, COMPRESS_OFF};
use cenote::inspect::spa::engine::TaskCx;
use cenote::inspect::spa::space::PoolSpace;
use cenote::inspect::vdev::{WritePriority, WriteReq};
use testkit::Disk;
use testkit::disk::DATA_START;
use testkit::forge::{Forge, MetadataBlock};

const FILES: &[(&str, u64, u64)] = &[("a", 1, 14 * MB), ("b", 2, 3 * MB), ("c", 3, 4096)];

fn rebuilding() -> ImportOptions {
    ImportOptions { rebuild_space: true, ..writing() }
}

/// A pool with something in several metaslabs, all changes in the maps themselves.
fn rig(name: &str, shape: Shape, ashift: u64) -> LostPool {
    let rig = LostPool::new(name, shape, ashift);
    for (name, seed, len) in FILES {
        rig.write(name, *seed, *len);
    }
    rig.write("gone", 9, 5 * MB);
    rig.remove("gone");
    rig.export().up(&writing())
}

fn space(rig: &LostPool) -> PoolSpace {
    rig.pool.spa().load_space().unwrap()
}

/// A metaslab's map that the groups under way do not change: most is allocated there.
fn quiet_map(rig: &LostPool) -> u64 {
    let space = space(rig);
    let used = space.vdevs[0].metaslabs.iter().filter(|m| m.space_map != 0);
    used.max_by_key(|m| m.allocated()).unwrap().space_map
}

/// Overwrites a block on the disks with noise, all of its copies.
fn spoil(rig: &LostPool, bp: &BlkPtr) {
    let block = bp.as_block().unwrap();
    let tree = rig.pool.spa().zio().tree();
    let mut rng = Rng::new(77);
    for dva in block.dvas() {
        let bytes: Vec<u8> = (0..block.psize.0).map(|_| rng.number() as u8).collect();
        let data = base::BufMut::copy_of(&bytes).freeze();
        let req = WriteReq {
            vdev: dva.vdev,
            offset: dva.offset,
            data,
            birth: block.effective_physical_birth(),
            priority: WritePriority::SyncWrite,
        };
        let (send, receive) = std::sync::mpsc::channel();
        tree.write(req, move |report| send.send(report.result.is_ok()).unwrap());
        assert!(receive.recv().unwrap());
    }
    let tops: Vec<_> = tree.top_ids().collect();
    tree.flush(&tops);
}

/// Does something to the MOS in a group of its own.
fn task(rig: &LostPool, act: impl FnOnce(&mut TaskCx<'_>) -> cenote::Result<()> + Send + 'static) {
    let writer = rig.pool.writer().unwrap();
    writer.sync_task(|_| Ok(()), move |cx, ()| act(cx)).unwrap();
}

/// Overwrites the words of an array.
fn spoil_words(rig: &LostPool, object: u64) {
    task(rig, move |cx| {
        let os = cx.writer.mos().objset();
        os.write(cx.tx, ObjectId(object), 0, &(1u64 << 40).to_le_bytes().repeat(4))
    });
}

/// Kinds of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    MapBlock,
    MapDnode,
    MapHeader,
    Histogram,
    Log,
    Array,
    Unflushed,
    Leak,
    Overlap,
}

const ALL: &[Damage] = &[
    Damage::MapBlock,
    Damage::MapDnode,
    Damage::MapHeader,
    Damage::Histogram,
    Damage::Log,
    Damage::Array,
    Damage::Unflushed,
    Damage::Leak,
    Damage::Overlap,
];

/// The first data block of an object of the MOS.
fn first_block(rig: &LostPool, object: u64) -> BlkPtr {
    let object = rig.pool.spa().mos().object(object).unwrap();
    object.block_pointer(0, 0, Io::WAIT).unwrap()
}

fn vdev_word(rig: &LostPool, key: &str) -> u64 {
    let spa = rig.pool.spa();
    let zap = spa.config().vdev_tree.children[0].top.as_ref().unwrap().zap.unwrap();
    spa.mos().zap(zap.0).unwrap().lookup_u64(key).unwrap().unwrap()
}

fn damage(rig: &LostPool, damage: Damage) {
    let map = quiet_map(rig);
    match damage {
        Damage::MapBlock => spoil(rig, &first_block(rig, map)),
        Damage::MapDnode => {
            task(rig, move |cx| cx.writer.mos().objset().free_object(cx.tx, ObjectId(map)))
        }
        Damage::MapHeader | Damage::Histogram => task(rig, move |cx| {
            let mut bonus = cx.read().info(map)?.bonus;
            // smp_alloc, or a bucket.
            let at = if damage == Damage::MapHeader { 16 } else { 80 };
            bonus[at..at + 8].copy_from_slice(&(1u64 << 40).to_le_bytes());
            cx.cx.mos.set_bonus(map, &bonus)
        }),
        Damage::Log => {
            // Its entries are those of the last groups.
            rig.write("c", 3, 4096);
            let logs = rig.pool.spa().load_space().unwrap().logs;
            let (_, object) = logs.last_key_value().expect("there is a log");
            spoil(rig, &first_block(rig, *object));
        }
        // Arrays as small as these are embedded in their pointers: their words are wrong.
        Damage::Array => {
            let top = rig.pool.spa().config().vdev_tree.children[0].top.as_ref();
            spoil_words(rig, top.unwrap().metaslab_array);
        }
        Damage::Unflushed => {
            spoil_words(rig, vdev_word(rig, "com.delphix:ms_unflushed_phys_txgs"));
        }
        Damage::Leak => task(rig, |cx| {
            let sector = 8192;
            let at = cx.writer.space();
            let mut left = 3;
            // Some space that nothing uses, near the end.
            for ms in (0..1024u64).rev() {
                if left == 0 {
                    break;
                }
                let dva = base::Dva {
                    vdev: base::VdevId(0),
                    offset: ms * (1 << 20) + 65536,
                    asize: base::Asize(sector),
                    gang: false,
                };
                if matches!(at.claim(cx.cx.txg, dva), Ok(None)) {
                    left -= 1;
                }
            }
            assert_eq!(left, 0);
            Ok(())
        }),
        Damage::Overlap => {
            let fs = rig.fs();
            let id = fs.lookup(fs.root(), b"a", Io::WAIT).unwrap().id;
            let block = data_block(&fs, id);
            task(rig, move |cx| cx.writer.space().free(cx.cx.txg, block.as_block().unwrap().dva()));
        }
    }
}

/// A data block of a file.
fn data_block(fs: &FileSystem, id: ObjectId) -> BlkPtr {
    let object = fs.objset().object(id, Io::WAIT).unwrap();
    object.block_pointer(0, 3, Io::WAIT).unwrap()
}

fn check(name: &str, shape: Shape, ashift: u64, kind: Damage) {
    let what = format!("{kind:?} on {shape:?}, ashift {ashift}");
    let rig = rig(name, shape, ashift);
    damage(&rig, kind);
    let down = rig.crash();
    let before = down.content(&testkit::readonly());
    assert_eq!(before, files(FILES), "{what}");
    let rig = down.up(&rebuilding());
    let report = rig.pool.spa().rebuilt().unwrap();
    match kind {
        Damage::Leak => assert!(report.leaked.unwrap() >= 3 * 8192, "{what}: {report:?}"),
        Damage::Overlap => {
            assert!(report.unprotected.unwrap() >= 128 << 10, "{what}: {report:?}");
        }
        _ => {}
    }
    assert_eq!(report.given_up, 0, "{what}");
    assert_eq!(content(&rig.pool), files(FILES), "{what}");
    rig.write("new", 5, 2 * MB);
    let down = rig.export();
    assert_eq!(down.content(&testkit::readonly()), files(&[FILES, &[("new", 5, 2 * MB)]].concat()));
    down.judge();
}

#[test]
fn every_kind_of_damage_on_a_single_disk() {
    testkit::side_by_side(ALL, |kind| {
        check(&format!("single-{kind:?}"), Shape::Single, 9, *kind);
    });
}

/// All layouts; each kind of damage on one of them, all on all in nightly runs.
#[test]
fn every_layout() {
    let shapes = [
        (Shape::Single, 12),
        (Shape::Mirror, 9),
        (Shape::Mirror, 12),
        (Shape::Raidz(1, 3), 9),
        (Shape::Raidz(1, 5), 12),
        (Shape::Raidz(2, 5), 9),
        (Shape::Draid, 12),
        (Shape::Draid, 9),
        (Shape::Raidz(3, 5), 12),
    ];
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let mut all = Vec::new();
    for i in 0..shapes.len() {
        let kinds = ALL.iter().enumerate().filter(|(j, _)| nightly || j % shapes.len() == i);
        all.extend(kinds.map(|(_, kind)| (i, *kind)));
    }
    testkit::side_by_side(&all, |&(i, kind)| {
        let (shape, ashift) = shapes[i];
        check(&format!("layout-{i}-{kind:?}"), shape, ashift, kind);
    });
}

/// Damage to the directory of the logs of space maps (chapter 05 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectoryDamage {
    /// Its block fails its checksum.
    Unreadable,
    /// Its block is no ZAP's, under a right checksum.
    Wrong,
    /// There is no such object.
    Gone,
}

/// Gives the directory of the logs another block, or none, in the image of a single disk.
fn forge_directory(down: &Down, object: u64, damage: DirectoryDamage) {
    let disk = Disk::new(down.dir().join("d0"));
    let mut forge = Forge::new(&disk, 0);
    let block = |n: &MetadataBlock| {
        (n.position.objset, n.position.object, n.position.level, n.position.blkid)
    };
    let id = forge.find(|n| block(n) == (0, 0, 0, object / 32)).unwrap();
    let mut dnodes = forge.nodes[id].content.clone();
    let at = (object % 32) as usize * 512;
    if damage == DirectoryDamage::Gone {
        dnodes[at..at + 512].fill(0);
    } else {
        // Its pointer may hold the few entries themselves: it gets a block of its own.
        let sectors = u16::from_le_bytes([dnodes[at + 8], dnodes[at + 9]]);
        let bytes = noise(5, usize::from(sectors) * 512);
        let len = bytes.len() as u64;
        // Where nothing was ever written, and nothing is.
        let is_free = |at: &u64| disk.read(at + DATA_START, 65536).iter().all(|b| *b == 0);
        let offset = (64..100).map(|n| n * MB).find(is_free).unwrap();
        forge.overwrite(offset, &bytes);
        let dva = base::Dva { vdev: base::VdevId(0), offset, asize: base::Asize(len), gang: false };
        let mut bp = forge.nodes[id].bp.with_dvas(&[dva]);
        bp.head.object_type = ObjType::OTN_ZAP_METADATA;
        (bp.head.lsize, bp.psize, bp.fill) = (base::Lsize(len), base::Psize(len), 1);
        bp.compression = COMPRESS_OFF;
        bp.words = fletcher4(&bytes, false);
        if damage == DirectoryDamage::Unreadable {
            bp.words[0] ^= 1;
        }
        dnodes[at + 64..at + 192].copy_from_slice(&BlkPtr::Block(bp).encode().unwrap());
    }
    forge.change(id, dnodes);
}

/// A pool whose list of log space maps was damaged: `--rebuild-space` made everything else
/// anew and left the list behind, as an object that nothing names and that cannot be read.
#[test]
fn the_directory_of_logs() {
    let all = [DirectoryDamage::Unreadable, DirectoryDamage::Wrong, DirectoryDamage::Gone];
    testkit::side_by_side(&all, |&damage| {
        let rig = rig(&format!("directory-{damage:?}"), Shape::Single, 9);
        // The log of the last groups is there.
        rig.write("c", 3, 4096);
        let object = rig.pool.spa().mos().lookup("com.delphix:log_spacemap_zap").unwrap().unwrap();
        let down = rig.crash();
        forge_directory(&down, object, damage);
        let why = {
            let up = down.import(&writing()).unwrap();
            up.pool.read_only_because().unwrap().to_owned()
        };
        assert!(why.contains("--rebuild-space"), "{damage:?}: {why}");
        let rig = down.up(&rebuilding());
        let report = rig.pool.spa().rebuilt().unwrap();
        assert!(report.unreadable.is_some() && report.given_up == 0, "{damage:?}: {report:?}");
        assert_eq!(content(&rig.pool), files(FILES), "{damage:?}");
        rig.write("new", 5, 2 * MB);
        let down = rig.export();
        let due = files(&[FILES, &[("new", 5, 2 * MB)]].concat());
        assert_eq!(down.content(&testkit::readonly()), due, "{damage:?}");
        down.judge();
    });
}

/// `-n` says what it would do, and writes nothing.
#[test]
fn a_dry_run_only_tells() {
    let rig = rig("dry", Shape::Mirror, 9);
    damage(&rig, Damage::Leak);
    let down = rig.crash();
    let image = std::fs::read(down.dir().join("d0")).unwrap();
    let dry = ImportOptions { dry_run: true, ..rebuilding() };
    let report = down.import(&dry).unwrap().pool.spa().rebuilt().unwrap();
    assert!(report.leaked.unwrap() >= 3 * 8192, "{report:?}");
    assert!(image == std::fs::read(down.dir().join("d0")).unwrap());
}

/// Maps lost a block of a file; new data was written there. Both users are named, and the
/// one that lost its content is called damaged.
#[test]
fn blocks_that_share_space_are_named() {
    let rig = rig("shared", Shape::Single, 9);
    damage(&rig, Damage::Overlap);
    let fs = rig.fs();
    let hurt = fs.lookup(fs.root(), b"a", Io::WAIT).unwrap().id;
    let block = *data_block(&fs, hurt).as_block().unwrap();
    drop(fs);
    // New blocks go to the metaslab with the space that seems free, until it is used again.
    let vdev = space(&rig).vdevs.remove(0);
    let there = block.dva().offset >> vdev.metaslab_shift;
    for ms in (0..vdev.metaslabs.len() as u64).filter(|ms| *ms != there) {
        let key = metaslab::MsKey { vdev: vdev.vdev, ms };
        rig.pool.writer().unwrap().space().disable(key, true).unwrap();
    }
    let mut i = 0;
    while rig.pool.spa().zio().check_copies(&block).readable > 0 {
        i += 1;
        assert!(i < 12, "the space is not used again");
        rig.write(&format!("n{i}"), 100 + i, 256 << 10);
    }
    let down = rig.crash();
    let refusal = down.import(&rebuilding()).err().unwrap();
    assert_eq!(refusal.kind(), ErrorKind::Corrupt, "{refusal}");
    let text = refusal.to_string();
    assert!(text.contains(&format!("{DATASET}, object {hurt}, block 3 (damaged)")), "{text}");
    assert!(text.contains("(whole)"), "{text}");
    // Whatever is whole can be read.
    let readable = down.import(&testkit::readonly()).unwrap();
    let fs = readable.pool.dataset(DATASET).unwrap().open_fs().unwrap();
    let id = fs.lookup(fs.root(), b"b", Io::WAIT).unwrap().id;
    assert_eq!(digest(&read(&fs, id)), files(FILES)["b"]);
}

/// A map object says that it is of another kind: the import without the option tells of it.
#[test]
fn an_ordinary_import_says_how() {
    let rig = rig("says-how", Shape::Single, 9);
    damage(&rig, Damage::MapDnode);
    let down = rig.crash();
    let why = {
        let up = down.import(&writing()).unwrap();
        up.pool.read_only_because().unwrap().to_owned()
    };
    assert!(why.contains("--rebuild-space"), "{why}");
    assert!(why.contains("space map"), "{why}");
}
