//! Structures that OpenZFS 2.4 wrote, cut from its pools (device paths replaced).

#![allow(clippy::unwrap_used, clippy::panic)]

use base::{Guid, ObjectId, Txg};
use nvlist::NvList;
use ondisk::Endian;
use ondisk::config::{LabelConfig, PoolConfig, PoolState, VdevType, parse_aux_list};
use ondisk::history::{HistoryHeader, Records};
use ondisk::label;
use ondisk::removal::{Mapping, MappingHeader};
use ondisk::uberblock::ScratchState;

fn fixture(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A label's configuration region: the packed list, zeros, the checksum.
fn region(name: &str) -> Vec<u8> {
    let stored = fixture(&format!("{name}.label"));
    let (packed, eck) = stored.split_at(stored.len() - 40);
    let mut region = packed.to_vec();
    region.resize(label::VDEV_PHYS_SIZE - 40, 0);
    region.extend(eck);
    region
}

const LABELS: [&str; 7] = [
    "kitchen-disk5",
    "kitchen-disk6",
    "kitchen-disk7",
    "kitchen-disk8",
    "expanded-disk1",
    "gdraid2w8-disk1",
    "removed-disk2",
];

/// The list is printed as by `zdb -l`, and packs to identical bytes.
#[test]
fn labels_print_and_pack_like_openzfs() {
    for name in LABELS {
        let region = region(name);
        let list = label::parse_vdev_phys(&region, label::VDEV_PHYS_OFFSET).unwrap();
        let text = String::from_utf8(fixture(&format!("{name}.txt"))).unwrap();
        assert_eq!(list.indented(4).to_string(), text, "{name}");
        let mut again = vec![0; label::VDEV_PHYS_SIZE];
        label::encode_vdev_phys(&list, &mut again, label::VDEV_PHYS_OFFSET).unwrap();
        assert_eq!(again, region, "{name}");
        // And through the typed form.
        let written = match LabelConfig::parse(&list).unwrap() {
            LabelConfig::Member(config) => config.to_nvlist(),
            LabelConfig::Aux(aux) => {
                assert!(matches!(aux.state, PoolState::Spare | PoolState::L2cache));
                continue;
            }
        };
        assert_eq!(written, list, "{name}");
    }
}

fn member(name: &str) -> PoolConfig {
    let list = label::parse_vdev_phys_unverified(&region(name)).unwrap();
    PoolConfig::from_label(&list).unwrap()
}

#[test]
fn labels_are_understood() {
    let draid = member("gdraid2w8-disk1");
    let d = draid.vdev_tree.draid.as_ref().unwrap();
    assert_eq!((d.nparity, d.ndata, d.nspares, d.ngroups), (2, 3, 1, 7));
    assert_eq!(draid.vdev_tree.children.len(), 8);
    let expanded = member("expanded-disk1");
    assert_eq!(expanded.vdev_tree.raidz.as_ref().unwrap().expand_txgs, [Txg(46)]);
    assert_eq!(expanded.vdev_tree.children[0].leaf.dtl, Some(ObjectId(88)));
    assert!(expanded.features_for_read.iter().any(|f| f == "org.openzfs:raidz_expansion"));
    let readable = |f: &String| ondisk::features::by_guid(f).is_some_and(|f| f.is_readable());
    assert!(expanded.features_for_read.iter().all(readable));
    let log = member("kitchen-disk5");
    assert!(log.member.unwrap().is_log && log.vdev_tree.top.unwrap().is_log);
}

#[test]
fn mos_configurations_are_understood() {
    let parse = |name: &str| {
        let packed = fixture(name);
        let list = NvList::unpack(&packed).unwrap();
        assert_eq!(list.pack_xdr(), packed, "{name}");
        let config = PoolConfig::from_mos(&list).unwrap();
        assert_eq!(config.to_nvlist(), list, "{name}");
        config
    };
    let removed = parse("mos-removed.nvlist");
    assert!(removed.has_per_vdev_zaps);
    let gone = &removed.vdev_tree.children[0];
    assert_eq!(gone.kind, VdevType::Indirect);
    let top = gone.top.as_ref().unwrap();
    assert_eq!(top.indirect.mapping, Some(ObjectId(132)));
    assert_eq!((top.indirect.births, top.zap), (Some(ObjectId(134)), Some(ObjectId(67))));
    assert_eq!(removed.vdev_tree.root_zap, Some(ObjectId(65)));
    let guids = [9_651_953_287_419_351_852, 17_355_996_904_739_340_755, 13_412_918_221_727_686_338];
    assert_eq!(removed.guid_sum(), guids.iter().fold(0u64, |sum, g| sum.wrapping_add(*g)));
    assert_eq!(removed.vdev_tree.guid, Guid(guids[0]));
    assert_eq!(parse("mos-kitchen.nvlist").vdev_tree.children.len(), 4);
    let spares = NvList::unpack(&fixture("spares.nvlist")).unwrap();
    let spares = parse_aux_list(&spares, "spares").unwrap();
    assert_eq!((spares.len(), spares[0].kind), (1, VdevType::File));
}

#[test]
fn an_uberblock_slot_verifies_and_is_written_alike() {
    let slot = fixture("uberblock-slot63-txg63");
    let n = label::slot_of_txg(9, Txg(63), false, ScratchState::Unused);
    let at = label::slot_offset(9, n).unwrap();
    let ub = label::parse_slot(&slot, at).unwrap();
    assert_eq!(ub.txg, Txg(63));
    let mut again = vec![1; slot.len()];
    label::encode_slot(&ub, &mut again, at).unwrap();
    assert_eq!(again, slot);
    assert!(label::parse_slot(&slot, at + 1024).is_none());
}

#[test]
fn a_mapping_is_read() {
    let raw = fixture("mapping");
    let words = |i: usize| u64::from_le_bytes(raw[24 * i..24 * i + 8].try_into().unwrap());
    // Entries ascend; the first zero after the start ends them.
    let n = (1..raw.len() / 24).take_while(|&i| words(i) != 0).count() as u64 + 1;
    let header =
        MappingHeader { max_offset: u64::MAX, bytes_mapped: 0, num_entries: n, counts: None };
    let map = Mapping::parse(&header, &raw, Endian::Little).unwrap();
    let first = map.resolve(0, 512).unwrap();
    assert_eq!((first[0].vdev.0, first[0].offset), (1, 0x3c << 9));
    assert!(map.entries().len() > 5);
}

/// The whole history of a pool, as `zpool history -i` lists it.
#[test]
fn a_history_is_read() {
    let raw = fixture("history");
    let header = HistoryHeader {
        pool_create_len: 13_136,
        phys_max_off: 131_072,
        bof: 13_136,
        eof: 14_464,
        records_lost: 0,
    };
    let bytes: Vec<u8> = header
        .extents()
        .into_iter()
        .flat_map(|r| raw[r.start as usize..r.end as usize].to_vec())
        .collect();
    let records: Vec<NvList> = Records::new(&bytes).map(Result::unwrap).collect();
    assert_eq!(records[0].u64("history txg"), Some(4));
    assert_eq!(records[0].str("internal_name"), Some("create"));
    let commands: Vec<&str> = records.iter().filter_map(|r| r.str("history command")).collect();
    assert!(commands[0].starts_with("zpool create"), "{commands:?}");
    assert!(commands.iter().any(|c| c.starts_with("zpool remove")), "{commands:?}");
}
