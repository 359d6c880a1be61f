//! Labels of fresh, spare and cleared devices.

use super::*;
use device::MemDevice;
use ondisk::config::{LabelConfig, PoolState, VdevType};
use ondisk::label::{parse_bootenv, parse_vdev_phys};

use super::super::config::{PoolFacts, aux, initial};
use super::super::topology::plain_node;

const SIZE: usize = 64 << 20;

fn leaf() -> ondisk::config::VdevConfig {
    let mut leaf = plain_node(VdevType::File, Guid(5), Txg(4));
    leaf.path = Some(nvlist::NvStr::new(b"/img/spare0").unwrap());
    leaf
}

fn member_list() -> NvList {
    let mut top = leaf();
    top.top = Some(ondisk::config::Top {
        metaslab_shift: 24,
        ashift: 9,
        asize: 62_390_272,
        zap: Some(base::ObjectId(3)),
        ..Default::default()
    });
    let pool = PoolFacts {
        version: 5000,
        name: "tank".into(),
        state: PoolState::Active,
        txg: Txg(4),
        pool_guid: Guid(9),
        errata: 0,
        hostid: 0,
        hostname: None,
        comment: None,
        compatibility: None,
        vdev_children: 1,
        hole_array: Vec::new(),
        split_guid: None,
        features_for_read: Vec::new(),
    };
    initial(&pool, &top, Txg(4)).remove(0).1
}

#[test]
fn a_fresh_member_belongs_to_no_pool_yet() {
    let device = MemDevice::from_bytes("d", vec![0xaa; SIZE + 1000]);
    init(&device, &member_list()).unwrap();
    for at in offsets(&device).unwrap() {
        assert_eq!(device.peek(at, 8192).unwrap(), vec![0xaa; 8192], "vl_pad1 is not ours");
        let phys = device.peek(at + VDEV_PHYS_OFFSET, VDEV_PHYS_SIZE).unwrap();
        let list = parse_vdev_phys(&phys, at + VDEV_PHYS_OFFSET).unwrap();
        assert_eq!((list.u64("txg"), list.u64("create_txg")), (Some(0), Some(4)));
        let tree = list.list("vdev_tree").unwrap();
        assert!(!tree.contains("com.delphix:vdev_zap_top"), "the MOS alone has ZAPs");
        let env = device.peek(at + BOOTENV_OFFSET, BOOTENV_SIZE).unwrap();
        assert_eq!(parse_bootenv(&env, at + BOOTENV_OFFSET).unwrap().u64("version"), Some(0));
    }
    let labels = LeafLabels::read(&device).unwrap();
    assert!(labels.discovery_config().is_none() && labels.uberblocks(9).is_empty());
    assert_eq!(device.peek(2 * LABEL_SIZE, 64).unwrap(), [0xaa; 64]);
    assert_eq!(device.peek(SIZE as u64, 1000).unwrap(), [0xaa; 1000]);
    // A list with a committed txg is refused.
    let mut list = member_list();
    list.add_u64("txg", 4);
    assert!(init(&device, &list).is_err());
}

/// Chapter 01 §2.1: the checksum of the blank boot environment of label 0.
#[test]
fn the_blank_boot_environment_is_openzfs_s() {
    let device = MemDevice::new("d", SIZE);
    init(&device, &member_list()).unwrap();
    let words = device.peek(8192 + BOOTENV_SIZE as u64 - 32, 32).unwrap();
    let first = u64::from_le_bytes(*words.first_chunk().unwrap());
    assert_eq!(first, 0x97f4_8f80_7f6e_2a3f);
}

#[test]
fn aux_labels() {
    let device = MemDevice::new("d", SIZE);
    let mut spare = leaf();
    spare.raw.add_u64("ashift", 12);
    let list = aux(PoolState::Spare, &spare);
    // Chapter 01 §5.1: the same list, of 164 bytes.
    assert_eq!(list.pack_xdr().len(), 164);
    init(&device, &list).unwrap();
    let labels = LeafLabels::read(&device).unwrap();
    let (config, count) = labels.discovery_config().unwrap();
    assert_eq!(count, 4);
    let LabelConfig::Aux(found) = LabelConfig::parse(config).unwrap() else { unreachable!() };
    assert_eq!((found.state, found.guid, found.ashift), (PoolState::Spare, Guid(5), None));
    let cache = aux(PoolState::L2cache, &spare);
    assert_eq!(cache.u64("ashift"), Some(12));
    assert_eq!(named(&labels), Some((None, Guid(5))));
}

#[test]
fn clearing() {
    let device = MemDevice::from_bytes("d", vec![0xaa; SIZE]);
    assert_eq!(clear(&device).unwrap(), 0);
    assert_eq!(device.peek(0, SIZE).unwrap(), vec![0xaa; SIZE], "nothing was there to clear");
    let mut cache = leaf();
    cache.raw.add_u64("ashift", 9);
    init(&device, &aux(PoolState::L2cache, &cache)).unwrap();
    // One label was damaged; three are cleared.
    device.poke(VDEV_PHYS_OFFSET, &[0xff; 512]).unwrap();
    assert_eq!(clear(&device).unwrap(), 3);
    assert_eq!(device.peek(LABEL_START_SIZE, L2_HEADER).unwrap(), [0; L2_HEADER]);
    assert_eq!(device.peek(LABEL_START_SIZE + 512, 8).unwrap(), [0xaa; 8]);
    let at = LABEL_SIZE;
    assert_eq!(device.peek(at, 8192).unwrap(), vec![0xaa; 8192]);
    let rest = (LABEL_SIZE - VDEV_PHYS_OFFSET) as usize;
    assert_eq!(device.peek(at + VDEV_PHYS_OFFSET, rest).unwrap(), vec![0; rest]);
    assert_eq!(clear(&device).unwrap(), 0);
    let tiny = MemDevice::new("t", 1 << 20);
    assert!(clear(&tiny).is_err() && init(&tiny, &member_list()).is_err());
}
