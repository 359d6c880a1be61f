//! The examples of chapter 06 §4, and property tests.

use proptest::prelude::*;

use super::*;
use crate::znode::Time;

pub(crate) const LAYOUT: [u16; 15] = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19];

pub(crate) fn tables() -> SaTables {
    let mut tables = SaTables::standard();
    tables.add_layout(2, &LAYOUT).unwrap();
    tables.add_layout(3, &[20]).unwrap();
    let link: Vec<u16> = LAYOUT.iter().copied().chain([17]).collect();
    tables.add_layout(4, &link).unwrap();
    tables
}

/// §4.6.
fn example() -> Vec<u8> {
    let mut out = vec![0x5a, 0x50, 0x2f, 0, 2, 4, 0x18, 0];
    let time = [1_774_905_017u64, 245_157_252];
    let words: Vec<u64> = [0x81a4, 11, 9, 0, 0, 34, 0x8408_0000_0004]
        .into_iter()
        .chain([time; 4].into_iter().flatten())
        .chain([1, 0, 3])
        .collect();
    out.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    for ace in
        [0x1000_0000u64, 0x2040_0000, 0x4000_0000].iter().zip([0x1e_019fu64, 0x12_0089, 0x12_0089])
    {
        out.extend((ace.0 | ace.1 << 32).to_le_bytes());
    }
    out
}

fn big_endian(little: &[u8]) -> Vec<u8> {
    let mut out = vec![0, 0x2f, 0x50, 0x5a, 4, 2, 0, 0x18];
    for word in little[8..0x98].chunks_exact(8) {
        out.extend(word.iter().rev());
    }
    for ace in little[0x98..].chunks_exact(8) {
        out.extend([ace[1], ace[0], ace[3], ace[2], ace[7], ace[6], ace[5], ace[4]]);
    }
    out
}

#[test]
fn bonus_of_the_chapter() {
    let tables = tables();
    let raw = example();
    assert_eq!(raw.len(), 176);
    assert_eq!(raw[0x38..0x40], [4, 0, 0, 0, 8, 0x84, 0, 0]);
    let sa = Sa::parse(&raw, None, &tables).unwrap();
    let z = ZnodeAttrs::from_sa(&sa).unwrap();
    assert_eq!((z.mode, z.size, z.generation, z.parent, z.links), (0o100644, 11, 9, 34, 1));
    assert_eq!((z.flags, z.projid, z.xattr, z.seq), (0x8408_0000_0004, Some(0), None, None));
    assert_eq!(z.crtime, Time { seconds: 1_774_905_017, nanoseconds: 245_157_252 });
    assert_eq!(z.acl.aces().unwrap(), crate::acl::trivial_acl(0o644, false));
    let values: Vec<&[u8]> = sa.iter().map(|i| i.bytes).collect();
    assert_eq!(encode_buffer(&tables, 2, &values).unwrap(), raw);
    // The buffer of a big-endian host has the same content.
    let foreign = big_endian(&raw);
    let sa = Sa::parse(&foreign, None, &tables).unwrap();
    assert_eq!(sa.bonus.endian(), Endian::Big);
    let other = ZnodeAttrs::from_sa(&sa).unwrap();
    assert_eq!(other.acl.aces().unwrap(), z.acl.aces().unwrap());
    assert_eq!(ZnodeAttrs { acl: z.acl.clone(), ..other }, z);
    assert_eq!(sa.u64(ZplAttr::Parent), Some(34));
    assert!(sa.get(ZplAttr::Symlink).is_none());
}

#[test]
fn spill_of_the_chapter() {
    let tables = tables();
    let mut bonus = example();
    bonus.extend([0xee; 16]); // stale
    let mut spill = vec![0x5a, 0x50, 0x2f, 0, 3, 4, 0x90, 5];
    spill.resize(8 + 1424, 7);
    spill.resize(1536, 0xee);
    let sa = Sa::parse(&bonus, Some(&spill), &tables).unwrap();
    let z = ZnodeAttrs::from_sa(&sa).unwrap();
    assert_eq!(z.dxattr.unwrap().as_ref(), [7; 1424]);
    assert!(SaBuffer::parse(&spill[..8 + 1423], &tables).is_err());
}

#[test]
fn two_variable_attributes() {
    let tables = tables();
    let plain = example();
    let sa = SaBuffer::parse(&plain, &tables).unwrap();
    let mut values: Vec<&[u8]> = sa.iter().map(|i| i.bytes).collect();
    values.push(b"../target");
    let raw = encode_buffer(&tables, 4, &values).unwrap();
    assert_eq!(raw[4..6], (2u16 << 10 | 4).to_le_bytes());
    assert_eq!(raw[6..10], [24, 0, 9, 0]);
    let sa = Sa::parse(&raw, None, &tables).unwrap();
    let z = ZnodeAttrs::from_sa(&sa).unwrap();
    assert_eq!(z.symlink.as_deref(), Some(&b"../target"[..]));
}

#[test]
fn damaged_buffers() {
    let tables = tables();
    let good = example();
    let with = |at: usize, v: u8| {
        let mut b = good.clone();
        b[at] = v;
        b
    };
    assert!(SaBuffer::parse(&with(0, 1), &tables).is_err());
    assert!(SaBuffer::parse(&with(4, 9), &tables).is_err(), "no such layout");
    assert!(SaBuffer::parse(&with(5, 8), &tables).is_err(), "header of 16 bytes");
    assert!(SaBuffer::parse(&with(7, 1), &tables).is_err(), "280 bytes of ACL");
    assert!(SaBuffer::parse(&good[..175], &tables).is_err());
    // No magic and no layout mean no attributes.
    for raw in [vec![0; 64], vec![], with(4, 1), with(4, 0)] {
        let b = SaBuffer::parse(&raw, &tables).unwrap();
        assert_eq!(b.iter().count(), 0);
        let sa = Sa { bonus: b, spill: None };
        assert!(ZnodeAttrs::from_sa(&sa).is_err());
    }
    let gen_zero = with(0x18, 0);
    let sa = Sa::parse(&gen_zero, None, &tables).unwrap();
    assert!(ZnodeAttrs::from_sa(&sa).is_err());
    // A damaged ACL does not make the file unreadable.
    let acl = with(0x90, 4);
    let z = ZnodeAttrs::from_sa(&Sa::parse(&acl, None, &tables).unwrap()).unwrap();
    assert!(z.acl.aces().is_err());
}

#[test]
fn registry_of_the_chapter() {
    for (attr, value) in [
        (ZplAttr::Atime, 0x1000_0000u64),
        (ZplAttr::Gid, 0x800_000d),
        (ZplAttr::Pad, 0x2000_000e),
        (ZplAttr::ZnodeAcl, 0x5803_000f),
        (ZplAttr::Symlink, 0x30011),
        (ZplAttr::Scanstamp, 0x2003_0012),
        (ZplAttr::DaclAces, 0x40013),
        (ZplAttr::Projid, 0x800_0015),
        (ZplAttr::Seq, 0x800_0016),
    ] {
        let decoded = SaAttr::decode(attr.name().as_bytes(), value).unwrap();
        assert_eq!(decoded, SaAttr::of_known(attr));
        assert_eq!(decoded.encode(), value);
    }
    assert!(SaAttr::decode(b"X", 5 << 16).is_err());
    assert!(SaAttr::decode(b"X", 1 << 40).is_err());
    assert!(SaAttr::decode(b"ZPL_MODE", 4 << 24 | 5).is_err());
}

#[test]
fn tables_from_zaps() {
    let standard = SaTables::standard();
    // Another order beyond the fixed numbers, and an unknown attribute.
    let mut registry: Vec<(Vec<u8>, u64)> =
        standard.attrs().map(|a| (a.name.to_vec(), a.encode())).collect();
    registry[20].1 = 0x30015;
    registry[21].1 = 0x800_0014;
    registry.push((b"NEW".to_vec(), 0x400_0017));
    let build = |registry: &[(Vec<u8>, u64)], layouts: &[(&'static str, Vec<u16>)]| {
        SaTables::new(
            registry.iter().map(|(n, v)| (n.as_slice(), *v)),
            layouts.iter().map(|(n, l)| (n.as_bytes(), l.clone())),
        )
    };
    let tables = build(&registry, &[("2", vec![5, 6, 23])]).unwrap();
    assert_eq!(tables.number(ZplAttr::Dxattr), Some(21));
    assert_eq!(tables.attr(20).unwrap().known, Some(ZplAttr::Projid));
    assert_eq!(tables.attr(23).unwrap().known, None);
    assert_eq!(tables.layout(2), Some(&[5, 6, 23][..]));
    assert_eq!((tables.find_layout(&[5, 6, 23]), tables.find_layout(&[6, 5])), (Some(2), None));
    assert_eq!(tables.next_layout(), Some(3));
    assert!(build(&registry, &[]).is_err());
    assert!(build(&[], &[("2", vec![5])]).is_err());
    for bad in
        [("1", vec![5]), ("x", vec![5]), ("1024", vec![5]), ("2", vec![99]), ("2", vec![5, 5])]
    {
        assert!(build(&registry, &[bad]).is_err());
    }
    registry[3].1 = registry[2].1;
    assert!(build(&registry, &[("2", vec![5])]).is_err());
}

/// §4.4: what fits besides the normal three entries.
#[test]
fn placement_of_the_chapter() {
    let list = |projid: bool, seq: bool, extra: usize| {
        let mut l: Vec<(usize, bool)> = vec![(8, false); 7];
        l.extend([(16, false); 4]);
        l.push((8, false));
        if projid {
            l.push((8, false));
        }
        l.extend([(8, false), (24, true)]);
        if seq {
            l.push((8, false));
        }
        l.push((extra, true));
        l
    };
    for (projid, seq, fits, full) in [
        (true, false, 136, 320),
        (false, false, 144, 320),
        (true, true, 128, 320),
        (true, false, 648, 832),
        (false, false, 656, 832),
        (true, true, 640, 832),
    ] {
        let l = list(projid, seq, fits);
        let p = place(&l, full).unwrap();
        assert_eq!((p.in_bonus, p.bonus_len), (l.len(), full), "{fits}");
        let l = list(projid, seq, fits + 1);
        let p = place(&l, full).unwrap();
        assert_eq!((p.in_bonus, p.bonus_len), (l.len() - 1, full - 128), "{}", fits + 1);
    }
    let plain = list(true, false, 0);
    let p = place(&plain[..15], 320).unwrap();
    assert_eq!((p.in_bonus, p.bonus_len), (15, 176));
    assert!(place(&[(131_073, true)], 320).is_err());
}

proptest! {
    #[test]
    fn placement_respects_capacity(
        attrs in prop::collection::vec((1usize..200, any::<bool>()), 0..30),
        full in prop_oneof![Just(320usize), Just(832)],
    ) {
        let p = place(&attrs, full).unwrap();
        let size = |part: &[(usize, bool)]| {
            let vars = part.iter().filter(|a| a.1).count();
            part.iter().fold(header_size(vars), |off, a| off.next_multiple_of(8) + a.0)
        };
        let spills = p.in_bonus < attrs.len();
        let room = if spills { full - 128 } else { full };
        prop_assert!(size(&attrs[..p.in_bonus]) <= room);
        prop_assert!(p.bonus_len <= full);
    }

    #[test]
    fn mutated_buffers_do_no_harm(
        big in any::<bool>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..10),
    ) {
        let mut raw = if big { big_endian(&example()) } else { example() };
        for (at, v) in flips {
            let at = at.index(raw.len());
            raw[at] = v;
        }
        raw.insert(0, 0);
        crate::fuzzing2::fuzz_sa(&raw);
    }
}
