use super::*;
use crate::draid::DraidParams;
use device::MemDevice;

fn leaf(guid: u64, id: u64) -> Spec {
    Spec::new(VdevKind::Disk, id, Guid(guid))
}

fn root(tops: Vec<Spec>) -> Spec {
    Spec::new(VdevKind::Root, 0, Guid(1)).with_children(tops)
}

/// Leaves with guids below 50 open, others do not.
fn build(spec: &Spec) -> Result<Arc<Tree>> {
    Tree::build(spec, &|leaf| {
        if leaf.guid.0 < 50 {
            let device: Arc<dyn Device> = Arc::new(MemDevice::new("leaf", 64 << 20));
            Ok(device)
        } else if leaf.guid.0 == 99 {
            Err(Error::corrupt("label of another pool"))
        } else {
            Err(Error::not_found("no such device"))
        }
    })
}

fn state(tree: &Tree, guid: u64) -> (State, Aux) {
    let node = tree.find(Guid(guid)).unwrap();
    (node.state(), node.aux().clone())
}

#[test]
fn states_follow_from_the_leaves() {
    let raidz = |guid, leaves: [u64; 4]| {
        let children = leaves.iter().enumerate().map(|(i, g)| leaf(*g, i as u64)).collect();
        let kind = VdevKind::Raidz { nparity: 1, expand_txgs: vec![], reflow: None };
        Spec::new(kind, 0, Guid(guid)).with_children(children).with_space(12, 1 << 30)
    };
    let tree = build(&root(vec![raidz(5, [10, 11, 12, 13])])).unwrap();
    assert_eq!(state(&tree, 1), (State::Online, Aux::None));
    let tree = build(&root(vec![raidz(5, [10, 60, 12, 13])])).unwrap();
    assert_eq!(state(&tree, 60), (State::Unavail, Aux::OpenFailed("no such device".into())));
    assert_eq!(state(&tree, 5), (State::Degraded, Aux::None));
    assert_eq!(state(&tree, 1), (State::Degraded, Aux::None));
    let tree = build(&root(vec![raidz(5, [10, 60, 99, 13])])).unwrap();
    assert_eq!(state(&tree, 99).1, Aux::CorruptData("label of another pool".into()));
    assert_eq!(state(&tree, 5), (State::Unavail, Aux::NoReplicas));
    assert_eq!(state(&tree, 1), (State::Unavail, Aux::NoReplicas));
}

#[test]
fn a_missing_log_only_degrades_the_pool() {
    let data = leaf(10, 0).with_space(9, 1 << 20);
    let mut log = leaf(70, 1).with_space(9, 1 << 20);
    log.is_log = true;
    let tree = build(&root(vec![data.clone(), log.clone()])).unwrap();
    assert_eq!(state(&tree, 1).0, State::Degraded);
    log.is_log = false;
    let tree = build(&root(vec![data, log])).unwrap();
    assert_eq!(state(&tree, 1).0, State::Unavail);
}

#[test]
fn flags_and_verdicts_decide() {
    let mut offline = leaf(11, 1);
    offline.persistent.offline = true;
    let mirror = Spec::new(VdevKind::Mirror, 0, Guid(5))
        .with_children(vec![leaf(10, 0), offline])
        .with_space(12, 1 << 20);
    let tree = build(&root(vec![mirror])).unwrap();
    assert_eq!(state(&tree, 11), (State::Offline, Aux::Persistent));
    assert_eq!(state(&tree, 5).0, State::Degraded);
    tree.find(Guid(10)).unwrap().live.cksum_errors.store(3, Relaxed);
    let verdict =
        Verdict { guid: Guid(10), state: State::Unavail, aux: Aux::CorruptData("stale".into()) };
    let after = tree.with_verdicts(&[verdict]);
    assert_eq!(state(&after, 5), (State::Unavail, Aux::NoReplicas));
    assert_eq!(state(&tree, 5).0, State::Degraded, "a snapshot does not change");
    assert_eq!(after.find(Guid(10)).unwrap().errors().cksum, 3, "counters are shared");
    // A leaf that is not open cannot be declared online.
    let up = Verdict { guid: Guid(11), state: State::Online, aux: Aux::None };
    assert_eq!(state(&tree.with_verdicts(&[up]), 11).0, State::Offline);
}

#[test]
fn impossible_trees_are_refused() {
    let kind = |spec: Spec| build(&spec).map(|_| ()).map_err(|e| e.kind());
    let disk = || leaf(10, 0).with_space(9, 1 << 20);
    assert_eq!(kind(root(vec![disk()])), Ok(()));
    assert_eq!(kind(root(vec![disk(), disk()])), Err(ErrorKind::Corrupt));
    assert_eq!(kind(root(vec![leaf(10, 0).with_space(63, 1)])), Err(ErrorKind::Corrupt));
    assert_eq!(kind(root(vec![leaf(10, u64::MAX).with_space(9, 1)])), Err(ErrorKind::Limit));
    assert_eq!(kind(disk()), Err(ErrorKind::Corrupt));
    assert_eq!(kind(root(vec![root(vec![])])), Err(ErrorKind::Corrupt));
    let mut deep = disk();
    for i in 0..20 {
        deep = Spec::new(VdevKind::Mirror, 0, Guid(100 + i)).with_children(vec![deep]);
        deep.ashift = 9;
    }
    assert_eq!(kind(root(vec![deep])), Err(ErrorKind::Limit));
    let raidz = |nparity, width: u64, txgs: Vec<Txg>| {
        let kind = VdevKind::Raidz { nparity, expand_txgs: txgs, reflow: None };
        let children = (0..width).map(|i| leaf(10 + i, i)).collect();
        root(vec![Spec::new(kind, 0, Guid(5)).with_children(children).with_space(9, 1 << 20)])
    };
    assert_eq!(kind(raidz(1, 3, vec![Txg(1)])), Ok(()));
    assert_eq!(kind(raidz(1, 3, vec![Txg(1), Txg(2)])), Err(ErrorKind::Corrupt));
    assert_eq!(kind(raidz(1, 5, vec![Txg(3), Txg(2)])), Err(ErrorKind::Corrupt));
    assert_eq!(kind(raidz(0, 3, vec![])), Err(ErrorKind::Corrupt));
    assert_eq!(kind(raidz(3, 3, vec![])), Err(ErrorKind::Corrupt));
    let params = DraidParams { ndata: 8, nparity: 2, nspares: 0, ngroups: 1, failure_group: 0 };
    let draid = Spec::new(VdevKind::Draid(params), 0, Guid(5)).with_space(9, 1 << 20);
    assert_eq!(kind(root(vec![draid])), Err(ErrorKind::Corrupt));
}

#[test]
fn sizes_of_plain_vdevs() {
    let tree = build(&root(vec![leaf(10, 3).with_space(12, 1 << 20)])).unwrap();
    let vdev = VdevId(3);
    assert_eq!(tree.asize(vdev, Psize(1), Txg(1)).unwrap(), Asize(4096));
    assert_eq!(tree.deflate_ratio(vdev).unwrap(), 512);
    assert_eq!(tree.min_alloc(vdev).unwrap(), Asize(4096));
    assert_eq!(tree.top_ids().collect::<Vec<_>>(), [vdev]);
    assert!(tree.asize(VdevId(0), Psize(1), Txg(1)).is_err());
    // Chapter 01 §1: 64 MiB minus labels and boot region.
    let (id, _) = tree.leaves().next().unwrap();
    assert_eq!(tree.available(id), Some(62_390_272));
}

/// A disk image of a raidz was truncated behind its first labels. It opened as if it
/// were whole, and every read from its missing part failed.
#[test]
fn a_leaf_must_have_room_for_its_share() {
    // Devices have 64 MiB, that is 62390272 bytes for data.
    let leaves = |n: u64| (0..n).map(|i| leaf(10 + i, i)).collect::<Vec<_>>();
    let raidz = VdevKind::Raidz { nparity: 1, expand_txgs: vec![], reflow: None };
    let params = DraidParams { ndata: 2, nparity: 1, nspares: 0, ngroups: 1, failure_group: 0 };
    let cases = [
        (VdevKind::Mirror, 2, 62_390_272),
        (raidz, 3, 3 * 62_390_272),
        // 32 MiB of each child are not used; the rest counts in rows of 16 MiB.
        (VdevKind::Draid(params), 3, 3 << 24),
    ];
    for (kind, width, most) in cases {
        for (min, state) in [(0, State::Online), (most, State::Online), (most + 1, State::Unavail)]
        {
            let mut top = Spec::new(kind.clone(), 0, Guid(5))
                .with_children(leaves(width))
                .with_space(9, 3 << 24);
            top.min_asize = min;
            let tree = build(&root(vec![top])).unwrap();
            assert_eq!(tree.find(Guid(10)).unwrap().state(), state, "{kind:?} {min}");
        }
    }
}
