//! Every kind of vdev; pools that grow and change.

use cenote::Guid;
use cenote::create::{AddRequest, NewKind, NewVdev, PoolSetting, Role};
use testkit::{engine, import_from};

use crate::{DiskFiles, MB, judge, make, noise, request, writing, zdb_text};

/// Creates a pool, uses it in two sessions, and checks it.
fn story(name: &str, disks: &DiskFiles, vdevs: Vec<NewVdev>, ashift: Option<u64>) {
    let engine = engine();
    let settings = ashift.map(|a| PoolSetting::Stored("ashift", a)).into_iter().collect();
    let pool = engine.create_pool(&request(vdevs, settings)).unwrap().unwrap();
    let data = pool.create_filesystem("tank/data", &[], None).unwrap();
    let objects = data.open_rw().unwrap();
    let mut contents = Vec::new();
    for i in 0..6 {
        let id = objects.create(&Default::default()).unwrap();
        let bytes = noise(i, 400_000 + i as usize * 77_777);
        objects.write(id, 0, &bytes).unwrap();
        contents.push((id, bytes));
    }
    pool.snapshot(&["tank/data@one".into()], &[], None).unwrap();
    let patch = noise(99, 150_000);
    for (id, bytes) in &mut contents {
        objects.write(*id, 100_000, &patch).unwrap();
        bytes[100_000..250_000].copy_from_slice(&patch);
    }
    pool.export().unwrap();
    drop((objects, data, pool));
    judge(&engine, &disks.path());
    let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
    let objects = pool.dataset("tank/data").unwrap().open_rw().unwrap();
    for (id, bytes) in &contents {
        assert!(objects.read_vec(*id, 0, 1 << 22).unwrap() == *bytes, "{name}");
    }
    for (id, _) in &contents[1..] {
        objects.remove(*id).unwrap();
    }
    pool.destroy_snapshots(&["tank/data@one".into()], false, None).unwrap();
    pool.export().unwrap();
    drop((objects, pool));
    judge(&engine, &disks.path());
}

fn raidz(nparity: u32) -> NewKind {
    NewKind::Raidz { nparity }
}

#[test]
fn mirrors() {
    let disks = DiskFiles::new("pools-mirror", 4, 128 * MB);
    let vdevs = vec![disks.group(NewKind::Mirror, 0..2), disks.group(NewKind::Mirror, 2..4)];
    story("mirror", &disks, vdevs, None);
}

#[test]
fn raidz_of_every_parity() {
    let all = [(1, 3, None), (2, 5, Some(12)), (3, 6, None)];
    testkit::side_by_side(&all, |&(parity, width, ashift)| {
        let disks = DiskFiles::new(&format!("pools-raidz{parity}"), width, 128 * MB);
        story("raidz", &disks, vec![disks.group(raidz(parity), 0..width)], ashift);
    });
}

#[test]
fn draid() {
    let disks = DiskFiles::new("pools-draid", 7, 192 * MB);
    let kind = NewKind::Draid { nparity: 1, ndata: Some(2), nspares: 1 };
    story("draid", &disks, vec![disks.group(kind, 0..7)], None);
}

#[test]
fn every_class() {
    let disks = DiskFiles::new("pools-classes", 6, 128 * MB);
    let vdevs = vec![
        disks.leaf(0),
        disks.leaf(1).for_role(Role::Log),
        disks.group(NewKind::Mirror, 2..4).for_role(Role::Special),
        disks.leaf(4).for_role(Role::Cache),
        disks.leaf(5).for_role(Role::Spare),
    ];
    story("classes", &disks, vdevs, Some(12));
}

#[test]
fn a_pool_grows_and_changes() {
    let disks = DiskFiles::new("pools-grow", 6, 128 * MB);
    let engine = engine();
    let pool = make(&engine, vec![disks.leaf(0)]);
    let objects = pool.root().unwrap().open_rw().unwrap();
    let bytes = noise(5, 3_000_000);
    let id = objects.create(&Default::default()).unwrap();
    objects.write(id, 0, &bytes).unwrap();
    let add = AddRequest {
        vdevs: vec![
            disks.group(NewKind::Mirror, 1..3),
            disks.leaf(3).for_role(Role::Special),
            disks.leaf(4).for_role(Role::Log),
            disks.leaf(5).for_role(Role::Spare),
        ],
        force: cenote::create::Force::ALL,
        dry_run: false,
        ashift: None,
        command: Some("zpool add tank ...".into()),
    };
    // The added vdevs had sectors of 512 bytes, and `zpool rebalance` could not move blocks to them.
    pool.set(&PoolSetting::Stored("ashift", 13), None).unwrap();
    engine.add_vdevs(&pool, &add).unwrap();
    let config = pool.writer().unwrap().published().config;
    let shifts = config.vdev_tree.children.iter().map(|v| v.top.as_ref().unwrap().ashift);
    assert_eq!(shifts.skip(1).collect::<Vec<_>>(), [13, 13, 13]);
    for i in 0..40 {
        let more = objects.create(&Default::default()).unwrap();
        objects.write(more, 0, &noise(i, 1_500_000)).unwrap();
    }
    objects.sync().unwrap();
    let by_id = |id: u32| pool.writer().unwrap().space().vdev_totals(base::VdevId(id)).unwrap();
    assert!(by_id(1).allocated > 0 && by_id(2).allocated > 0, "the new vdevs are used");
    pool.reguid(Some(Guid(12_345)), Some("zpool reguid tank")).unwrap();
    assert_eq!(pool.guid(), Guid(12_345));
    pool.set(&PoolSetting::Comment("hello".into()), Some("zpool set comment=hello tank")).unwrap();
    pool.set(&PoolSetting::Stored("autotrim", 1), None).unwrap();
    pool.set(&PoolSetting::User("a:b".into(), "c".into()), None).unwrap();
    pool.set(&PoolSetting::Bootfs("tank".into()), None).unwrap();
    pool.sync().unwrap();
    pool.export().unwrap();
    drop((objects, pool));
    judge(&engine, &disks.path());
    if let Some(text) = zdb_text(&disks.path(), &["-C", "tank"]) {
        assert!(text.contains("comment: 'hello'") && text.contains("pool_guid: 12345"), "{text}");
    }
    if let Some(text) = zdb_text(&disks.path(), &["-h", "tank"]) {
        for line in ["zpool create tank", "zpool add tank", "zpool reguid tank", "vdev add"] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
    let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
    let objects = pool.root().unwrap().open_rw().unwrap();
    assert!(objects.read_vec(id, 0, 1 << 22).unwrap() == bytes);
    assert_eq!(pool.status().unwrap().aux.len(), 1);
    drop(objects);
    engine.destroy_pool(pool, Some("zpool destroy tank")).unwrap();
    assert!(testkit::discover(&engine, &disks.path()).is_empty());
}
