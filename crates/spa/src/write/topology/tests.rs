//! Shapes, sizes and shifts of new vdevs.

use super::*;
use ondisk::config::PoolConfig;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn facts_of(size: u64) -> LeafFacts {
    LeafFacts { size, logical_shift: 9, physical_shift: 9 }
}

fn facts(_: &Path) -> Result<LeafFacts> {
    Ok(facts_of(128 * MIB))
}

fn file(name: &str) -> NewVdev {
    NewVdev::new(NewKind::File(Path::new("/f").join(name)))
}

fn files(n: usize) -> Vec<NewVdev> {
    (0..n).map(|i| file(&i.to_string())).collect()
}

fn inner(kind: NewKind, n: usize) -> NewVdev {
    NewVdev::new(kind).with_children(files(n))
}

fn draid(nparity: u32, ndata: Option<u32>, nspares: u32) -> NewKind {
    NewKind::Draid { nparity, ndata, nspares }
}

/// Chapter 05 §1.1.
#[test]
fn metaslab_shift_vectors() {
    for (asize, shift) in [
        (1_054_867_456, 26),
        (67_108_864, 24),
        (10 << 30, 29),
        (1 << 40, 33),
        (8 << 40, 34),
        (4 << 50, 36),
    ] {
        assert_eq!(metaslab_shift(asize), shift, "{asize}");
    }
}

/// Chapter 02 §11.1: the vector, and the golden dRAID.
#[test]
fn draid_sizes() {
    let d = draid_layout(11, 2, Some(4), 2).unwrap();
    assert_eq!((d.ngroups, d.nspares), (3, 2));
    assert_eq!(asize_of(&draid(2, Some(4), 2), Some(&d), 263_716_864, 11), 1_912_602_624);
    let golden = draid_layout(8, 2, Some(3), 1).unwrap();
    assert_eq!(golden.ngroups, 7);
    assert_eq!(draid_layout(12, 2, None, 1).unwrap().ndata, 8);
    assert_eq!(draid_layout(3, 1, None, 0).unwrap().ndata, 2);
}

#[test]
fn sizes_of_the_others() {
    let build = |vdev: NewVdev| {
        let options = BuildOptions { create_txg: Txg(4), ..BuildOptions::default() };
        let built = build(&[vdev], options, [], &|p: &Path| {
            let n: u64 = p.file_name().unwrap().to_str().unwrap().parse().unwrap();
            Ok(facts_of((128 + n) * MIB + 5))
        });
        built.unwrap().tops[0].0.top.clone().unwrap().asize
    };
    let leaf = 128 * MIB - 4_718_592;
    assert_eq!(build(file("0")), leaf);
    assert_eq!(build(inner(NewKind::Mirror, 3)), leaf);
    assert_eq!(build(inner(NewKind::Raidz { nparity: 2 }, 5)), 5 * leaf);
}

/// The words as OpenZFS 2.3.2 prints them.
#[test]
fn wrong_shapes() {
    let err = |vdev: NewVdev| check_shape(&[vdev]).unwrap_err().message().to_owned();
    let spec = "invalid vdev specification: ";
    assert_eq!(err(inner(NewKind::Mirror, 1)), format!("{spec}mirror requires at least 2 devices"));
    assert_eq!(
        err(inner(NewKind::Raidz { nparity: 2 }, 2)),
        format!("{spec}raidz2 requires at least 3 devices")
    );
    assert_eq!(
        err(inner(draid(3, None, 0), 3)),
        format!("{spec}draid3 requires at least 4 devices")
    );
    assert_eq!(
        err(inner(draid(1, Some(3), 0), 3)),
        "requested number of dRAID data disks per group 3 is too high,\nat most 2 disks are \
         available for data"
    );
    assert_eq!(
        err(inner(draid(1, Some(2), 1), 3)),
        "requested number of dRAID data disks per group 2 is too high,\nat most 1 disks are \
         available for data"
    );
    assert_eq!(
        err(inner(draid(1, None, 1), 2)),
        "request number of distributed spares 1 and parity level 1\nleaves no disks available \
         for data"
    );
    assert_eq!(
        err(inner(draid(1, None, 101), 4)),
        "invalid number of dRAID spares 101; additional disks would be required"
    );
    assert_eq!(
        err(inner(NewKind::Raidz { nparity: 1 }, 2).for_role(Role::Log)),
        format!("{spec}unsupported 'log' device: raidz")
    );
    assert!(err(inner(NewKind::Mirror, 2).for_role(Role::Spare)).contains("single devices"));
    assert!(err(NewVdev::new(NewKind::File("x".into()))).contains("not an absolute path"));
    let nested = NewVdev::new(NewKind::Mirror).with_children(vec![inner(NewKind::Mirror, 2); 2]);
    assert!(err(nested).contains("cannot be inside"));
    assert!(err(inner(NewKind::Raidz { nparity: 3 }, 256)).contains("no more than 255"));
}

#[test]
fn shifts() {
    let leaf = |logical_shift, physical_shift| LeafFacts { size: 0, logical_shift, physical_shift };
    assert_eq!(choose_ashift(None, &[leaf(9, 9)]).unwrap(), 9);
    assert_eq!(choose_ashift(None, &[leaf(9, 9), leaf(9, 12)]).unwrap(), 12);
    assert_eq!(choose_ashift(None, &[leaf(12, 17)]).unwrap(), 12, "too large to follow");
    assert_eq!(choose_ashift(Some(9), &[leaf(9, 12)]).unwrap(), 9);
    assert_eq!(choose_ashift(Some(16), &[leaf(9, 12)]).unwrap(), 16);
    for (requested, logical) in [(Some(9), 12), (Some(17), 9), (Some(8), 9), (None, 17)] {
        let e = choose_ashift(requested, &[leaf(logical, logical)]).unwrap_err();
        assert_eq!(e.message(), "block size out of range or does not match");
    }
}

#[test]
fn too_small_devices() {
    let small = |size| {
        build(&[file("a")], BuildOptions::default(), [], &|_: &Path| Ok(facts_of(size))).map(drop)
    };
    assert!(small(64 * MIB).is_ok());
    assert!(small(65 * MIB - 1).is_ok(), "a remainder is cut off");
    for size in [0, 64 * MIB - 1] {
        let e = small(size).unwrap_err();
        assert_eq!(e.message(), "one or more devices is less than the minimum size (64M)");
    }
    // Each child is large enough, but a dRAID leaves 32 MiB and the rest of the last row
    // unused.
    let kind = draid(1, None, 0);
    let e =
        build(&[inner(kind, 2)], BuildOptions::default(), [], &|_: &Path| Ok(facts_of(64 * MIB)));
    assert!(e.unwrap_err().message().contains("minimum size"));
}

#[test]
fn roles_go_where_they_belong() {
    let options = BuildOptions { ashift: Some(12), first_id: 3, create_txg: Txg(9) };
    let vdevs = [
        inner(NewKind::Mirror, 2),
        file("log").for_role(Role::Log),
        file("spare").for_role(Role::Spare),
        file("cache").for_role(Role::Cache),
        inner(draid(1, Some(1), 1), 4).for_role(Role::Special),
    ];
    let built = build(&vdevs, options, [Guid(1)], &facts).unwrap();
    let roles: Vec<(u32, Role)> = built.tops.iter().map(|(t, r)| (t.id, *r)).collect();
    assert_eq!(roles, [(3, Role::Data), (4, Role::Log), (5, Role::Special)]);
    assert_eq!(Role::Special.allocation_bias(), Some("special"));
    let log = &built.tops[1].0;
    assert!(log.top.as_ref().unwrap().is_log && log.create_txg == Txg(9));
    // The requested spare and the dRAID's own, as OpenZFS stores them.
    let spares: Vec<NvList> = built.spares.iter().map(VdevConfig::to_nvlist).collect();
    assert_eq!(spares[0].str("path"), Some("/f/spare"));
    assert_eq!((spares[0].u64("is_spare"), spares[0].u64("ashift")), (Some(1), Some(12)));
    assert!(!spares[0].contains("id"));
    assert_eq!(spares[1].str("type"), Some("dspare"));
    assert_eq!(spares[1].str("path"), Some("draid1-5-0"));
    assert_eq!(spares[1].u64("top_guid"), Some(built.tops[2].0.guid.0));
    assert_eq!((spares[1].u64("spareid"), spares[1].u64("whole_disk")), (Some(0), Some(1)));
    let cache = built.caches[0].to_nvlist();
    assert!(!cache.contains("is_spare") && cache.u64("ashift") == Some(12));
}

fn any_vdev() -> impl Strategy<Value = NewVdev> {
    let kind = prop_oneof![
        Just(NewKind::Mirror),
        (0u32..5).prop_map(|nparity| NewKind::Raidz { nparity }),
        (0u32..5, prop::option::of(0u32..12), 0u32..6)
            .prop_map(|(nparity, ndata, nspares)| NewKind::Draid { nparity, ndata, nspares }),
        Just(NewKind::File("/f/leaf".into())),
        Just(NewKind::Disk("/dev/leaf".into())),
    ];
    let role = prop::sample::select(vec![
        Role::Data,
        Role::Log,
        Role::Cache,
        Role::Spare,
        Role::Special,
        Role::Dedup,
    ]);
    (kind, role, 0usize..14).prop_map(|(kind, role, n)| {
        let n = if kind.path().is_some() { 0 } else { n };
        inner(kind, n).for_role(role)
    })
}

proptest! {
    /// Every configuration that is built parses again to the same value, and guids are
    /// unique.
    #[test]
    fn what_is_built_is_a_configuration(
        vdevs in prop::collection::vec(any_vdev(), 0..6),
        size in 60u64..4096,
        ashift in prop::option::of(8u32..18),
    ) {
        let options = BuildOptions { ashift, first_id: 0, create_txg: Txg(4) };
        let result = build(&vdevs, options, [], &|_: &Path| Ok(facts_of(size * MIB)));
        if let Ok(built) = result {
            let mut root = plain_node(VdevType::Root, Guid(1), Txg(4));
            root.children = built.tops.iter().map(|(top, _)| top.clone()).collect();
            let again = VdevConfig::parse_root(&root.to_nvlist()).unwrap();
            prop_assert_eq!(again.to_nvlist(), root.to_nvlist());
            let mut guids: Vec<Guid> = root.walk().map(|v| v.guid).collect();
            guids.extend(built.spares.iter().chain(&built.caches).map(|v| v.guid));
            let count = guids.len();
            guids.sort_unstable();
            guids.dedup();
            prop_assert_eq!(guids.len(), count);
            for top in &root.children {
                let t = top.top.as_ref().unwrap();
                prop_assert!(t.asize >> t.metaslab_shift >= 2 && t.asize % LABEL_SIZE == 0);
                for (_, list) in super::super::config::members(&pool(), top) {
                    PoolConfig::from_label(&list).unwrap();
                }
            }
        }
    }
}

fn pool() -> super::super::config::PoolFacts {
    super::super::config::PoolFacts {
        version: 5000,
        name: "tank".into(),
        state: ondisk::config::PoolState::Active,
        txg: Txg(4),
        pool_guid: Guid(1),
        errata: 0,
        hostid: 7,
        hostname: Some(NvStr::new(b"host").unwrap()),
        comment: None,
        compatibility: None,
        vdev_children: 9,
        hole_array: vec![1],
        split_guid: None,
        features_for_read: vec!["com.delphix:hole_birth".into()],
    }
}
