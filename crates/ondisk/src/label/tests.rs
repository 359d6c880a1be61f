use super::*;
use proptest::prelude::*;

/// Chapter 01 §5.1.
fn spare() -> NvList {
    let mut list = NvList::new();
    list.add_u64("version", 5000)
        .add_u64("state", 3)
        .add_u64("guid", 0x2508_0dca_1870_b468)
        .add_str("path", "/img/spare0");
    list
}

fn words(region: &[u8]) -> [u64; 4] {
    Endian::Little.reader(&region[region.len() - 32..], "words").u64s().unwrap()
}

#[test]
fn geometry() {
    let psize = usable_size((64 << 20) + 4097);
    assert_eq!(psize, 64 << 20);
    let at: Vec<_> = (0..5).map(|l| label_offset(psize, l)).collect();
    assert_eq!(at, [Some(0), Some(0x40000), Some(0x3f8_0000), Some(0x3fc_0000), None]);
    assert_eq!(leaf_asize(psize), Some(62_390_272));
    assert_eq!(ASIZE_MIN, 62_390_272);
    assert_eq!(leaf_asize(psize - LABEL_SIZE), None);
    assert_eq!(label_offset(0, 0), None);
    assert_eq!(LABEL_START_SIZE, 0x40_0000);
    for (ashift, size, count) in [
        (9, 1024, 128),
        (10, 1024, 128),
        (11, 2048, 64),
        (12, 4096, 32),
        (13, 8192, 16),
        (16, 8192, 16),
    ] {
        assert_eq!((slot_size(ashift), slot_count(ashift)), (size, count));
        assert_eq!(slot_offset(ashift, count), None);
    }
    let plain = ScratchState::Unused;
    assert_eq!(slot_of_txg(12, Txg(64), false, plain), 0);
    assert_eq!(slot_of_txg(12, Txg(64), true, plain), 2);
    assert_eq!(slot_of_txg(12, Txg(64), false, ScratchState::Valid), 31);
}

/// The four checksums of chapter 01 §5.1, and the blank block of §2.1.
#[test]
fn checksums_of_the_specification() {
    let expected = [
        [
            0x4939_661e_63ce_ffdc,
            0x6a1e_3432_90ed_faf7,
            0x1647_05bc_639f_8c8e,
            0xb03e_d9de_4264_a5fb,
        ],
        [
            0x97f2_adf4_b391_257e,
            0xeabe_7808_cd0c_c384,
            0x0aa4_8370_3210_a5b9,
            0xa3c8_6b47_97f5_8165,
        ],
        [
            0xe0d3_437f_ee64_b937,
            0x2f8a_8f94_e514_0a63,
            0xc880_2895_537a_38a1,
            0xd159_50e0_ba01_904a,
        ],
        [
            0xa6f0_0ab3_f461_2eb4,
            0x4d09_3a36_f1ec_0db5,
            0xc090_b961_ca63_8a8c,
            0x1444_90b1_a9ce_f53c,
        ],
    ];
    let mut region = vec![0xee; VDEV_PHYS_SIZE];
    for (label, sum) in expected.into_iter().enumerate() {
        let at = label_offset(64 << 20, label).unwrap() + VDEV_PHYS_OFFSET;
        encode_vdev_phys(&spare(), &mut region, at).unwrap();
        assert_eq!(words(&region), sum, "label {label}");
        assert_eq!(parse_vdev_phys(&region, at).unwrap(), spare());
        // The same bytes at another offset are invalid.
        let e = parse_vdev_phys(&region, at + LABEL_SIZE).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Checksum);
        assert_eq!(parse_vdev_phys_unverified(&region).unwrap(), spare());
    }
    let mut blank = vec![0; BOOTENV_SIZE];
    seal_region(&mut blank, BOOTENV_OFFSET).unwrap();
    assert_eq!(
        words(&blank),
        [
            0x97f4_8f80_7f6e_2a3f,
            0xaf90_9f16_58aa_cefc,
            0xcbd1_ea57_ff6d_b48b,
            0x6ec6_92db_0d46_5fab
        ]
    );
    let env = parse_bootenv(&blank, BOOTENV_OFFSET).unwrap();
    assert_eq!((env.u64("version"), env.str("grub:envmap")), (Some(0), Some("")));
}

#[test]
fn a_config_that_does_not_fit_is_refused() {
    let mut list = NvList::new();
    list.insert("x", vec![0u8; VDEV_PHYS_NVLIST_MAX]);
    let mut region = vec![0; VDEV_PHYS_SIZE];
    let e = encode_vdev_phys(&list, &mut region, 0x4000).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NameTooLong);
    assert!(encode_vdev_phys(&spare(), &mut region[1..], 0x4000).is_err());
}

#[test]
fn label_choice_follows_the_limit() {
    let with = |txg: Option<u64>| {
        let mut list = spare();
        if let Some(txg) = txg {
            list.add_u64("txg", txg);
        }
        Some(list)
    };
    let labels = [with(Some(12)), with(Some(10)), with(Some(12)), None];
    assert_eq!(choose_label(&labels, Txg::MAX), Some(0));
    assert_eq!(choose_label(&labels, Txg(11)), Some(1));
    assert_eq!(choose_label(&labels, Txg(9)), None);
    // A label without txg is used only if no other was chosen.
    assert_eq!(choose_label(&[None, with(None), with(Some(3)), None], Txg::MAX), Some(1));
    assert_eq!(choose_label(&[with(Some(3)), with(Some(0)), None, None], Txg::MAX), Some(0));
    assert_eq!(choose_label(&[None, None, None, None], Txg::MAX), None);
}

#[test]
fn boot_environments_round_trip() {
    let mut env = NvList::new();
    env.add_u64("version", 1).add_str("freebsd:bootonce", "zfs:tank/ROOT/next:");
    let mut region = vec![7; BOOTENV_SIZE];
    encode_bootenv(&env, &mut region, 0x2000).unwrap();
    assert_eq!(parse_bootenv(&region, 0x2000).unwrap(), env);
    let mut raw = NvList::new();
    raw.add_u64("version", 0).add_str("grub:envmap", "saved=1");
    encode_bootenv(&raw, &mut region, 0x2000).unwrap();
    assert_eq!(parse_bootenv(&region, 0x2000).unwrap(), raw);
    let mut old = vec![0; BOOTENV_SIZE];
    old[..4].copy_from_slice(b"boot");
    let seen = parse_bootenv_unverified(&old).unwrap();
    assert_eq!(seen.str("freebsd:bootonce"), Some("boot"));
    old[0] = 0;
    assert_eq!(parse_bootenv_unverified(&old).unwrap().len(), 1);
    raw.insert("grub:envmap", "x".repeat(BOOTENV_SIZE).as_str());
    assert_eq!(encode_bootenv(&raw, &mut region, 0).unwrap_err().kind(), ErrorKind::Limit);
}

fn uberblock(txg: u64) -> Uberblock {
    let mut words = [0; crate::uberblock::UBERBLOCK_WORDS];
    words[..3].copy_from_slice(&[crate::uberblock::MAGIC, 5000, txg]);
    Uberblock::from_words(&words).unwrap()
}

#[test]
fn rings_give_their_valid_slots() {
    for ashift in [9, 11, 12, 16] {
        let at = 0x40000 + RING_OFFSET;
        let size = slot_size(ashift);
        let mut ring = vec![0; RING_SIZE];
        for txg in [4, 7, 9] {
            let n = slot_of_txg(ashift, Txg(txg), false, ScratchState::Unused);
            let slot = &mut ring[n * size..][..size];
            encode_slot(&uberblock(txg), slot, at + (n * size) as u64).unwrap();
        }
        ring[7 * size + 100] ^= 1;
        let found: Vec<_> = uberblocks(&ring, ashift, at).map(|(n, ub)| (n, ub.txg.0)).collect();
        assert_eq!(found, [(4, 4), (9, 9)]);
        assert_eq!(uberblocks(&ring, ashift, 0).count(), 0);
        assert_eq!(uberblocks(&[], ashift, 0).count(), 0);
    }
}

/// The ring of a fresh device is a single region (chapter 01 §2.2); none of its slots
/// is valid.
#[test]
fn a_fresh_ring_has_no_slot() {
    let mut ring = vec![0; RING_SIZE];
    ring[..UBERBLOCK_SIZE].copy_from_slice(&uberblock(0).encode().unwrap());
    seal_region(&mut ring, RING_OFFSET).unwrap();
    for ashift in 9..=16 {
        assert_eq!(uberblocks(&ring, ashift, RING_OFFSET).count(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn hostile_regions_never_panic(
        len in 0usize..VDEV_PHYS_SIZE + 100,
        cuts in prop::collection::vec((0usize..400, any::<u8>()), 0..6),
        ashift in any::<u32>(),
        offset in any::<u64>(),
    ) {
        let mut region = vec![0; VDEV_PHYS_SIZE];
        encode_vdev_phys(&spare(), &mut region, 0x4000).unwrap();
        for (at, byte) in cuts {
            region[at] = byte;
        }
        region.resize(len, 1);
        let _ = parse_vdev_phys(&region, offset);
        let _ = parse_vdev_phys_unverified(&region);
        let _ = parse_bootenv(&region, offset);
        let _ = parse_bootenv_unverified(&region);
        let _ = uberblocks(&region, ashift, offset).count();
        let _ = label_offset(offset, len);
        let _ = slot_of_txg(ashift, Txg(offset), true, ScratchState::Valid);
    }
}
