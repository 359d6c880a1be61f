use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Chapter 05 §2.7: metaslab 3 at 0xc000000, ashift 9.
const METASLAB: [u64; 25] = [
    0x8004_0000_0000_000a,
    0x0000_0000_004e_0011,
    0x0000_0000_006a_000d,
    0x0000_0000_0094_0009,
    0x0000_0000_00b6_0003,
    0x0000_0000_00c6_005d,
    0x0000_0000_0134_0003,
    0x0000_0000_0144_0007,
    0x0000_0000_0154_0037,
    0x9004_0000_0000_0012,
    0x0000_0000_004e_8003,
    0x0000_0000_0094_8009,
    0x0000_0000_00b6_8003,
    0x0000_0000_0144_8007,
    0x0000_0000_0160_801b,
    0x0000_0000_0180_800b,
    0x9004_0000_0000_001c,
    0x0000_0000_00c6_805d,
    0x0000_0000_0134_8003,
    0x0000_0000_0154_800b,
    0x0000_0000_017c_8003,
    0x9004_0000_0000_004a,
    0x0000_0000_0052_800d,
    0x9004_0000_0000_0075,
    0x0000_0000_006c_800b,
];

/// Chapter 05 §2.8.
const LOG: [u64; 14] = [
    0x9008_0000_0000_01c3,
    0xc000_0000_1700_0003,
    0x8000_0000_0014_0174,
    0xc000_0000_0f00_0003,
    0x8000_0000_0014_01c2,
    0x8008_0000_0000_01c3,
    0xc000_0000_7700_0003,
    0x0000_0000_0012_0262,
    0x9008_0000_0000_01c3,
    0xc000_0000_1700_0003,
    0x8000_0000_0012_0174,
    0x800c_0000_0000_01c3,
    0xc000_0000_0300_0003,
    0x0000_0000_0012_02da,
];

fn bytes(words: &[u64], endian: Endian) -> Vec<u8> {
    words.iter().flat_map(|&w| endian.bytes_of(w)).collect()
}

#[test]
fn the_metaslab_of_the_specification() {
    let params = Params::metaslab(0xc00_0000, 0x400_0000, 9);
    for endian in [Endian::Little, Endian::Big] {
        let raw = bytes(&METASLAB, endian);
        let mut entries = Entries::new(&raw, endian, params);
        let first = entries.next().unwrap().unwrap();
        assert_eq!(first, Entry::Debug { kind: Some(Kind::Alloc), pass: 1, txg: Txg(10) });
        let mut allocated = BTreeSet::new();
        for range in entries.ranges() {
            let range = range.unwrap();
            for unit in (range.offset..range.offset + range.len).step_by(512) {
                let changed = match range.kind {
                    Kind::Alloc => allocated.insert(unit),
                    Kind::Free => allocated.remove(&unit),
                };
                assert!(changed);
            }
        }
        assert_eq!(allocated.into_iter().collect::<Vec<_>>(), [0xc00_d400, 0xc00_d600]);
    }
    assert_eq!(reencode(&bytes(&METASLAB, Endian::Little), params), METASLAB);
}

#[test]
fn the_log_of_the_specification() {
    let raw = bytes(&LOG, Endian::Little);
    let ranges: Vec<Range> =
        Entries::new(&raw, Endian::Little, Params::log()).ranges().map(Result::unwrap).collect();
    assert_eq!(ranges.len(), 5);
    let vdev = VdevId(3);
    assert_eq!(ranges[0], Range { kind: Kind::Free, offset: 0x2802_e800, len: 0x3000, vdev });
    assert_eq!(ranges[4], Range { kind: Kind::Alloc, offset: 0x2405_b400, len: 0x800, vdev });
    assert_eq!(reencode(&raw, Params::log()), LOG);
    assert_eq!(log_key(Txg(451)), "1c3");
    assert_eq!(parse_log_key("1c3").unwrap(), Txg(451));
    for bad in ["", "0", "01", "1C3", "+1", "g", "10000000000000000"] {
        assert!(parse_log_key(bad).is_err(), "{bad}");
    }
}

/// Reads entries and writes them again, debug entries included.
fn reencode(raw: &[u8], params: Params) -> Vec<u64> {
    let mut encoder = Encoder::new(params, 0, 1 << 17, true).unwrap();
    for entry in Entries::new(raw, Endian::Little, params) {
        match entry.unwrap() {
            Entry::Debug { kind, pass, txg } => encoder.mark(kind.unwrap(), pass, txg),
            Entry::Range(range) => encoder.push(range).unwrap(),
        }
    }
    let (out, _) = encoder.finish();
    array(&out, Endian::Little).collect()
}

#[test]
fn entries_outside_their_space_end_the_map() {
    let params = Params::metaslab(0x1000, 0x1000, 9);
    let read = |words: &[u64], params| {
        Entries::new(&bytes(words, Endian::Little), Endian::Little, params)
            .map(|e| e.is_ok())
            .collect::<Vec<_>>()
    };
    assert_eq!(read(&[7, 8, 7], params), [true, false]);
    assert_eq!(read(&[8 << 16], params), [false]);
    // A two-word entry cut off, an offset whose bytes overflow, a wrong type.
    assert_eq!(read(&[TWO_WORD_PREFIX], params), [false]);
    assert_eq!(read(&[TWO_WORD_PREFIX, 1 << 60], params), [false]);
    assert_eq!(read(&[0, 1 << 15], Params::dtl()), [true, false]);
    assert_eq!(read(&[0], Params::checkpoint(1 << 20, 9)), [false]);
    assert_eq!(read(&[0], Params::log()), [false]);
    assert_eq!(read(&[PADDING, DEBUG_PREFIX | 2 << 60], params), [true, true]);
    assert_eq!(read(&[0], Params::metaslab(u64::MAX, 512, 9)), [false]);
}

#[test]
fn long_and_far_ranges() {
    let params = Params::metaslab(0, 1 << 60, 9);
    let push = |v2: bool, offset: u64, len: u64, at: u64| {
        let mut e = Encoder::new(params, at, 4096, v2).unwrap();
        let range = Range { kind: Kind::Alloc, offset, len, vdev: VdevId(0) };
        e.push(range).map(|()| array(&e.finish().0, Endian::Little).collect::<Vec<_>>())
    };
    // Without v2 a long run is cut; with it, it takes two words.
    assert_eq!(push(false, 512, 32_769 << 9, 0).unwrap(), [0x1_7fff, 0x8001_0000]);
    assert_eq!(push(true, 512, 32_769 << 9, 0).unwrap(), [TWO_WORD_PREFIX | 32_768 << 24, 1]);
    assert_eq!(push(true, 512, 32_768 << 9, 0).unwrap(), [0x1_7fff]);
    // The last word of a block is padded.
    assert_eq!(push(true, 512, 32_769 << 9, 4088).unwrap()[0], PADDING);
    assert!(push(false, 1 << 56, 512, 0).is_err());
    assert_eq!(push(true, 1 << 56, 512, 0).unwrap(), [TWO_WORD_PREFIX, 1 << 47]);
    assert!(push(true, 100, 512, 0).is_err() && push(true, 0, 0, 0).is_err());
    assert!(Encoder::new(Params::log(), 0, 4096, false).is_err());
}

#[test]
fn headers_and_histograms() {
    let mut header =
        Header { object: 9, length: 0xc8, alloc: -0x400, histogram: Some([0; HISTOGRAM_SIZE]) };
    let h = header.histogram.as_mut().unwrap();
    for size in [0x1800, 0xd400, 0x3ff_0000, 0, 1 << 43] {
        histogram_add(h, size, 9);
    }
    assert_eq!((h[3], h[6], h[16], h[31]), (1, 1, 1, 8));
    let raw = header.encode();
    assert_eq!(raw.len(), HEADER_SIZE);
    assert_eq!(Header::parse(&raw, Endian::Little).unwrap(), header);
    let short = Header::parse(&raw[..HEADER_V0_SIZE], Endian::Little).unwrap();
    assert_eq!(short, Header { histogram: None, ..header });
    assert_eq!(short.encode(), raw[..HEADER_V0_SIZE]);
    assert!(Header::parse(&raw[..23], Endian::Little).is_err());
    let mut odd = raw;
    odd[8] = 1;
    assert!(Header::parse(&odd, Endian::Little).is_err());
}

proptest! {
    /// Compares with the naive model: the list of ranges itself.
    #[test]
    fn encoding_round_trips(
        ranges in prop::collection::vec((any::<bool>(), 0u64..1 << 40, 1u64..100_000), 1..40),
        at in 0u64..512,
        v2 in any::<bool>(),
        log in any::<bool>(),
    ) {
        let v2 = v2 || log;
        let params = if log { Params::log() } else { Params::metaslab(1 << 20, 1 << 50, 9) };
        let mut encoder = Encoder::new(params, at * 8, 512, v2).unwrap();
        let (mut model, mut sum) = (Vec::new(), 0i64);
        for (i, (free, offset, run)) in ranges.into_iter().enumerate() {
            let kind = if free { Kind::Free } else { Kind::Alloc };
            let vdev = VdevId(if log { i as u32 } else { 0 });
            let offset = (offset << 9) + if log { 0 } else { 1 << 20 };
            let range = Range { kind, offset, len: run << 9, vdev };
            encoder.push(range).unwrap();
            sum += if free { -(range.len as i64) } else { range.len as i64 };
            model.push(range);
        }
        let (out, delta) = encoder.finish();
        prop_assert_eq!(delta, sum);
        // Read block by block, as a loader does.
        let mut raw = vec![0u8; at as usize % 64 * 8];
        let skip = raw.len() / 8;
        raw.fill(0);
        raw.chunks_exact_mut(8).for_each(|w| w.copy_from_slice(&PADDING.to_le_bytes()));
        raw.extend(out);
        let mut found: Vec<Range> = Vec::new();
        for block in raw.chunks(512) {
            for range in Entries::new(block, Endian::Little, params).ranges() {
                let range = range.unwrap();
                match found.last_mut() {
                    Some(last) if last.kind == range.kind
                        && last.vdev == range.vdev
                        && last.offset + last.len == range.offset
                        && last.len.is_multiple_of(32_768 << 9) => last.len += range.len,
                    _ => found.push(range),
                }
            }
        }
        prop_assert!(skip < 64);
        prop_assert_eq!(found, model);
    }

    #[test]
    fn hostile_words_are_bounded(
        words in prop::collection::vec(any::<u64>(), 0..50),
        shift in 0u32..64,
        start in any::<u64>(),
        size in any::<u64>(),
        big in any::<bool>(),
    ) {
        let endian = if big { Endian::Big } else { Endian::Little };
        let raw = bytes(&words, endian);
        for params in [Params::metaslab(start, size, shift), Params::log(), Params::dtl()] {
            for entry in Entries::new(&raw, endian, params).flatten() {
                if let Entry::Range(r) = entry {
                    prop_assert!(r.len > 0 && r.offset.checked_add(r.len).is_some());
                }
            }
        }
        let _ = Header::parse(&raw, endian);
    }
}
