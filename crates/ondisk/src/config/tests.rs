use super::*;
use base::ErrorKind;
use proptest::prelude::*;

fn leaf(id: u64, guid: u64) -> NvList {
    let mut list = NvList::new();
    list.add_str("type", "file").add_u64("id", id).add_u64("guid", guid);
    list.add_str("path", "/img/disk").add_u64("create_txg", 4);
    list
}

fn top(kind: &str, id: u64, guid: u64, children: usize) -> NvList {
    let mut list = NvList::new();
    list.add_str("type", kind).add_u64("id", id).add_u64("guid", guid);
    list.add_u64("metaslab_array", 70)
        .add_u64("metaslab_shift", 25)
        .add_u64("ashift", 9)
        .add_u64("asize", 517_996_544)
        .add_u64("is_log", 0);
    if children > 0 {
        let children = (0..children as u64).map(|i| leaf(i, guid * 100 + i)).collect();
        list.add_lists("children", children);
    }
    list
}

fn raidz(children: usize, nparity: u64) -> NvList {
    let mut list = top("raidz", 0, 9, children);
    list.add_u64("nparity", nparity);
    list
}

fn label(tree: NvList) -> NvList {
    let mut list = NvList::new();
    list.add_u64("version", 5000)
        .add_str("name", "tank")
        .add_u64("state", 1)
        .add_u64("txg", 63)
        .add_u64("pool_guid", 5)
        .add_u64("errata", 0)
        .add_str("org.example:unknown", "kept")
        .add_u64("top_guid", 9)
        .add_u64("guid", 900)
        .add_u64("vdev_children", 1)
        .add_list("vdev_tree", tree);
    let mut features = NvList::new();
    features.add_flag("com.delphix:hole_birth");
    list.add_list("features_for_read", features);
    list
}

fn root(children: Vec<NvList>) -> NvList {
    let mut list = label(NvList::new());
    list.remove("top_guid");
    list.remove("guid");
    list.add_u64("vdev_children", children.len() as u64);
    let mut tree = NvList::new();
    tree.add_str("type", "root")
        .add_u64("id", 0)
        .add_u64("guid", 5)
        .add_lists("children", children);
    list.add_list("vdev_tree", tree);
    list
}

#[test]
fn a_label_is_understood_and_written_back() {
    let mut tree = raidz(4, 1);
    tree.insert("raidz_expand_txgs", vec![46u64]).add_u64("org.example:too", 7);
    let list = label(tree);
    let LabelConfig::Member(config) = LabelConfig::parse(&list).unwrap() else { unreachable!() };
    assert_eq!(
        (config.name.as_str(), config.txg, config.state),
        ("tank", Txg(63), PoolState::Exported)
    );
    assert_eq!(config.features_for_read, ["com.delphix:hole_birth"]);
    let top = &config.vdev_tree;
    assert_eq!((top.kind, top.nparity(), top.children.len()), (VdevType::Raidz, 1, 4));
    assert_eq!(top.top.as_ref().unwrap().ashift, 9);
    assert_eq!(top.raidz.as_ref().unwrap().expand_txgs, [Txg(46)]);
    assert_eq!(top.leaves().count(), 4);
    assert_eq!(top.find(Guid(902)).unwrap().id, 2);
    // Unknown pairs stay in place.
    assert_eq!(config.to_nvlist(), list);
}

#[test]
fn the_mos_config_sums_its_guids() {
    let mut hole = NvList::new();
    hole.add_str("type", "hole").add_u64("id", 1).add_u64("guid", 0);
    for key in ["whole_disk", "metaslab_array", "metaslab_shift", "ashift", "asize", "is_log"] {
        hole.add_u64(key, 0);
    }
    hole.add_u64("is_hole", 1);
    let mut gone = top("indirect", 2, 7, 0);
    gone.add_u64("com.delphix:indirect_object", 132).add_u64("com.delphix:prev_indirect_vdev", 0);
    gone.add_lists("children", Vec::new());
    let mirror = top("mirror", 0, 9, 2);
    let mut list = root(vec![mirror, hole, gone]);
    list.insert("hole_array", vec![1u64]);
    let config = PoolConfig::from_mos(&list).unwrap();
    assert_eq!(config.guid_sum(), 5 + 9 + 900 + 901 + 7);
    let gone = config.vdev_tree.children[2].top.as_ref().unwrap();
    assert_eq!(gone.indirect.mapping, Some(ObjectId(132)));
    assert_eq!(gone.indirect.prev, Some(0));
    assert_eq!(config.to_nvlist(), list);
    list.add_u64("pool_guid", 6);
    assert!(PoolConfig::from_mos(&list).is_err());
}

#[test]
fn changes_are_written() {
    let mut config = PoolConfig::from_label(&label(top("mirror", 0, 9, 2))).unwrap();
    config.txg = Txg(64);
    config.state = PoolState::Active;
    config.hostid = 17;
    config.vdev_tree.children[0].leaf.offline = true;
    config.vdev_tree.children[1].leaf.dtl = Some(ObjectId(44));
    config.vdev_tree.top.as_mut().unwrap().removing = true;
    let list = config.to_nvlist();
    let again = PoolConfig::from_label(&list).unwrap();
    assert_eq!((again.txg, again.state, again.hostid), (Txg(64), PoolState::Active, 17));
    assert!(again.vdev_tree.children[0].leaf.offline);
    assert_eq!(again.vdev_tree.children[1].leaf.dtl, Some(ObjectId(44)));
    // And undone: the keys disappear.
    let mut again = again;
    again.vdev_tree.children[0].leaf.offline = false;
    again.vdev_tree.top.as_mut().unwrap().removing = false;
    let list = again.to_nvlist();
    let tree = list.list("vdev_tree").unwrap();
    assert!(!tree.contains("removing"));
    assert!(!tree.lists("children").unwrap()[0].contains("offline"));
}

#[test]
fn aux_labels() {
    let mut list = NvList::new();
    list.add_u64("version", 5000).add_u64("state", 4).add_u64("guid", 3).add_u64("ashift", 12);
    list.add_str("path", "/img/cache");
    let LabelConfig::Aux(aux) = LabelConfig::parse(&list).unwrap() else { unreachable!() };
    assert_eq!((aux.state, aux.ashift), (PoolState::L2cache, Some(12)));
    assert_eq!(aux.to_nvlist(), list);
    let mut spares = NvList::new();
    let mut spare = leaf(0, 3);
    spare.remove("id");
    spare.add_u64("is_spare", 1);
    spares.add_lists("spares", vec![spare.clone()]);
    let parsed = parse_aux_list(&spares, "spares").unwrap();
    assert!(parsed[0].leaf.is_spare);
    assert_eq!(parsed[0].to_nvlist(), spare);
    assert!(parse_aux_list(&spares, "l2cache").unwrap().is_empty());
}

#[test]
fn impossible_trees_are_refused() {
    let parse = |tree: NvList| VdevConfig::parse_top(&tree).map_err(|e| e.kind());
    let with = |mut tree: NvList, key: &str, value: u64| {
        tree.add_u64(key, value);
        tree
    };
    assert!(parse(raidz(2, 1)).is_ok());
    let mut unknown = leaf(0, 1);
    unknown.add_str("type", "anyraid");
    assert_eq!(parse(unknown), Err(ErrorKind::Unsupported));
    let mut expanding = raidz(2, 1);
    expanding.add_flag("raidz_expanding");
    let mut nested_root = top("mirror", 0, 9, 2);
    nested_root.add_str("type", "root");
    let mut misplaced = top("mirror", 0, 9, 2);
    misplaced.add_lists("children", vec![leaf(1, 5)]);
    let mut leaf_with = top("file", 0, 9, 0);
    leaf_with.add_lists("children", vec![leaf(0, 5)]);
    for bad in [
        raidz(2, 2),
        raidz(5, 4),
        raidz(3, 0),
        top("mirror", 0, 9, 0),
        with(top("mirror", 0, 9, 2), "ashift", 8),
        with(top("mirror", 0, 9, 2), "ashift", 17),
        with(top("mirror", 0, 9, 2), "metaslab_shift", 64),
        with(with(top("mirror", 0, 9, 2), "metaslab_shift", 9), "asize", 1 << 62),
        with(top("mirror", 0, 9, 2), "guid", 0),
        expanding,
        nested_root,
        misplaced,
        leaf_with,
    ] {
        assert_eq!(parse(bad.clone()), Err(ErrorKind::Corrupt), "{bad}");
    }
    assert_eq!(parse(with(top("mirror", 0, 9, 2), "id", 1 << 40)), Err(ErrorKind::Limit));
}

/// Chapter 02 §11.1: 11 children, 2 spares, 4 + 2.
#[test]
fn draid_parameters() {
    let draid = |ndata: u64, nspares: u64, ngroups: u64| {
        let mut list = top("draid", 0, 9, 11);
        list.add_u64("nparity", 2)
            .add_u64("draid_ndata", ndata)
            .add_u64("draid_nspares", nspares)
            .add_u64("draid_ngroups", ngroups);
        VdevConfig::parse_top(&list).map(|v| v.draid.unwrap())
    };
    assert_eq!(draid(4, 2, 3).unwrap().ngroups, 3);
    assert!(draid(4, 2, 2).is_err(), "12 columns do not fill 9 disks");
    assert!(draid(4, 101, 1).is_err());
    assert!(draid(0, 2, 3).is_err());
    assert!(draid(8, 2, 9).is_err());
}

#[test]
fn depth_and_size_are_limited() {
    let mut tree = leaf(0, 1);
    for _ in 0..base::limits::VDEV_DEPTH_MAX {
        let mut outer = top("mirror", 0, 9, 0);
        outer.add_lists("children", vec![tree]);
        tree = outer;
    }
    assert_eq!(VdevConfig::parse_top(&tree).unwrap_err().kind(), ErrorKind::Limit);
    let inner = tree.lists("children").unwrap()[0].clone();
    assert!(VdevConfig::parse_top(&inner).is_ok());
    let wide = top("mirror", 0, 9, VDEV_COUNT_MAX);
    assert_eq!(VdevConfig::parse_top(&wide).unwrap_err().kind(), ErrorKind::Limit);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// Random values and types in a valid configuration.
    #[test]
    fn mutated_configs_never_panic(
        key in prop::sample::select(vec![
            "type", "id", "guid", "nparity", "ashift", "asize", "metaslab_shift", "children",
            "raidz_expand_txgs", "draid_ndata", "draid_nspares", "draid_ngroups", "draid_nchildren",
            "com.delphix:prev_indirect_vdev", "spareid", "top_guid",
        ]),
        value in prop_oneof![
            prop_oneof![0u64..12, any::<u64>()].prop_map(nvlist::Value::from),
            prop::collection::vec(any::<u64>(), 0..4).prop_map(nvlist::Value::from),
            prop::sample::select(vec!["raidz", "draid", "dspare", "hole", "indirect", "root", "x"])
                .prop_map(nvlist::Value::from),
            (0usize..3).prop_map(|n| nvlist::Value::from(vec![leaf(0, 1); n])),
        ],
        more in prop::collection::vec((any::<prop::sample::Index>(), 0u64..300), 0..4),
    ) {
        let mut tree = raidz(5, 2);
        tree.insert(key, value);
        for (at, value) in more {
            let keys = ["draid_ndata", "draid_nspares", "draid_ngroups", "draid_nchildren", "id"];
            tree.add_u64(keys[at.index(keys.len())], value);
        }
        for list in [label(tree.clone()), root(vec![tree])] {
            crate::fuzzing::fuzz_config(&list.pack_xdr());
        }
    }
}
