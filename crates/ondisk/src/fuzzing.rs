//! Entry points for fuzzers and for the corpus test: each takes bytes and returns
//! nothing.
//!
//! # Invariants
//! Every function here returns for every input, without panic, in time and
//! memory linear in the input. What parses is also written and parsed again:
//! the result must be the same.

use std::hint::black_box;

use codec::checksum::Checksum;
use codec::checksum::embedded::compute_embedded;
use nvlist::{NvList, Order};

use crate::blkptr::BLKPTR_SIZE;
use crate::config::{LabelConfig, PoolConfig, parse_aux_list};
use crate::ddt;
use crate::endian::Endian;
use crate::label;
use crate::spacemap::{Encoder, Entries, Entry, Header, Params};
use crate::zil::{Create, LogBlock, LogPtr, RecordBody, Records, ZilHeader};

/// An entry point.
pub type Target = fn(&[u8]);

/// Every entry point with its name, which is also the name of its corpus directory.
pub const TARGETS: [(&str, Target); 6] = [
    ("nvlist", fuzz_nvlist),
    ("label", fuzz_label),
    ("config", fuzz_config),
    ("spacemap", fuzz_spacemap),
    ("zil", fuzz_zil),
    ("ddt", fuzz_ddt),
];

/// A packed list, by its header.
pub fn fuzz_nvlist(data: &[u8]) {
    let Ok(list) = NvList::unpack(data) else { return };
    let xdr = list.pack_xdr();
    assert_eq!(xdr.len(), list.xdr_size());
    // A NaN differs from itself; its bytes do not.
    let again = NvList::unpack(&xdr).map(|l| l.pack_xdr());
    assert!(again.is_ok_and(|a| a == xdr), "packing is stable");
    for order in [Order::Little, Order::Big] {
        let native = list.pack_native(order);
        let again = NvList::unpack(&native).map(|l| l.pack_xdr());
        assert!(again.is_ok_and(|a| a == xdr), "both packings agree");
    }
    black_box(list.to_string());
}

/// A label's configuration region, truncated, at device offset 0x4000; and the same
/// bytes as boot environment and as uberblock ring.
pub fn fuzz_label(data: &[u8]) {
    let _ = black_box(label::parse_vdev_phys(data, label::VDEV_PHYS_OFFSET));
    if let Ok(list) = label::parse_vdev_phys_unverified(data) {
        config(&list);
    }
    let _ = black_box(label::parse_bootenv_unverified(data));
    let ashift = 9 + data.first().map_or(0, |&b| u32::from(b % 8));
    black_box(label::uberblocks(data, ashift, label::RING_OFFSET).count());
    if let Ok(ub) = crate::uberblock::Uberblock::parse(data) {
        let _ = black_box(ub.reflow());
        if let Ok(bytes) = ub.encode() {
            assert!(
                crate::uberblock::Uberblock::parse(&bytes).is_ok_and(|u| u.rank() == ub.rank())
            );
        }
    }
}

fn config(list: &NvList) {
    let mut configs = Vec::new();
    if let Ok(LabelConfig::Member(config)) = LabelConfig::parse(list) {
        configs.push((false, *config));
    }
    configs.extend(PoolConfig::from_mos(list).ok().map(|config| (true, config)));
    for (mos, config) in configs {
        let written = config.to_nvlist();
        let parse = if mos { PoolConfig::from_mos } else { PoolConfig::from_label };
        let again = parse(&written);
        assert!(
            again.is_ok_and(|a| a.to_nvlist() == written && a.guid_sum() == config.guid_sum()),
            "a configuration survives being written"
        );
    }
    for key in ["spares", "l2cache"] {
        let _ = black_box(parse_aux_list(list, key));
    }
}

/// A packed configuration.
pub fn fuzz_config(data: &[u8]) {
    if let Ok(list) = NvList::unpack(data) {
        config(&list);
    }
}

/// A role byte, an ashift byte, and the words of a space map.
pub fn fuzz_spacemap(data: &[u8]) {
    let Some((&[role, ashift], words)) = data.split_first_chunk::<2>() else { return };
    let ashift = u32::from(ashift % 64);
    let params = match role & 7 {
        0 => Params::log(),
        1 => Params::dtl(),
        2 => Params::checkpoint(1 << 40, ashift),
        3 => Params::obsolete(1 << 40),
        4 => Params::metaslab(u64::MAX - 5, u64::MAX, ashift),
        _ => Params::metaslab(0, 1 << 62, ashift),
    };
    let endian = if role & 8 == 0 { Endian::Little } else { Endian::Big };
    let _ = black_box(Header::parse(words, endian));
    let _ = black_box(crate::dtl::Dtl::parse(words, endian));
    let Ok(mut encoder) = Encoder::new(params, 0, 1 << 17, true) else { return };
    let mut ranges = Vec::new();
    for entry in Entries::new(words, endian, params).map_while(Result::ok) {
        match entry {
            Entry::Debug { kind, pass, txg } => {
                kind.into_iter().for_each(|kind| encoder.mark(kind, pass, txg));
            }
            Entry::Range(range) => {
                assert!(range.len > 0 && range.offset.checked_add(range.len).is_some());
                if encoder.push(range).is_ok() {
                    ranges.push(range);
                }
            }
        }
    }
    let (bytes, _) = encoder.finish();
    let again: Vec<_> =
        Entries::new(&bytes, Endian::Little, params).ranges().map_while(Result::ok).collect();
    assert_eq!(again, ranges, "ranges survive being written");
}

/// A mode byte; then a chain block behind the pointer to it, a header, or records.
pub fn fuzz_zil(data: &[u8]) {
    let Some((&mode, data)) = data.split_first() else { return };
    let endian = if mode & 1 == 0 { Endian::Little } else { Endian::Big };
    if let Some(head) = data.first_chunk()
        && let Ok(header) = ZilHeader::parse(head, endian)
    {
        black_box((header.needs_replay(), header.block_limit(), header.record_limit()));
    }
    records(Records::new(data, endian));
    let Some((raw, block)) = data.split_first_chunk::<BLKPTR_SIZE>() else { return };
    let Some((ptr, checksum)) = log_pointer(raw, endian) else { return };
    // Mutations reach the content only with a matching checksum.
    let mut block = block.to_vec();
    if mode & 2 != 0
        && let Some(at) = codec::checksum::embedded::eck_offset(checksum, block.len())
    {
        let nused = Endian::Little.u64(&block, 136).and_then(|n| usize::try_from(n).ok());
        let covered = match checksum {
            Checksum::Zilog2 => nused.map_or(0, |n| n.min(block.len()).next_multiple_of(4096)),
            _ => block.len(),
        };
        let covered = covered.min(block.len());
        if let Some(region) = block.get_mut(..covered) {
            let _ = compute_embedded(checksum, region, at, ptr.verifier);
        }
    }
    if let Ok(block) = LogBlock::parse(&block, &ptr) {
        black_box((block.next.seq(), block.mac));
        records(block.records());
    }
}

fn log_pointer(raw: &[u8; BLKPTR_SIZE], endian: Endian) -> Option<(LogPtr, Checksum)> {
    let mut header = [0; crate::objset::ZIL_HEADER_SIZE];
    header.get_mut(16..16 + BLKPTR_SIZE)?.copy_from_slice(raw);
    let ptr = ZilHeader::parse(&header, endian).ok()?.log;
    Some((ptr, Checksum::from_id(ptr.bp.as_block()?.checksum)?))
}

fn records(records: Records<'_>) {
    for record in records.map_while(Result::ok) {
        match record.body() {
            Ok(RecordBody::CloneRange(clone)) => {
                let end = clone.offset + clone.length;
                let inside = |(at, len, _)| at >= clone.offset && at + len <= end;
                assert!(clone.pieces().filter_map(Result::ok).all(inside));
            }
            Ok(
                RecordBody::Acl { info, aces, .. }
                | RecordBody::Create(Create { acl: Some((info, aces)), .. }),
            ) => {
                if let Ok(acl) = record.acl(&info, aces) {
                    assert!(
                        acl.resolve(Ok).is_ok_and(|all| all.len() == acl.aces.len())
                            || !acl.fuids.is_empty()
                    );
                }
            }
            other => drop(black_box(other)),
        }
        if let Ok(pointers) = record.pointers() {
            black_box(pointers.filter_map(Result::ok).count());
        }
    }
}

/// A mode byte, and a value, a log block or a log header.
pub fn fuzz_ddt(data: &[u8]) {
    let Some((&mode, data)) = data.split_first() else { return };
    let endian = if mode & 1 == 0 { Endian::Little } else { Endian::Big };
    let flat = mode & 2 != 0;
    if let Ok(entry) = ddt::Entry::decode(data, flat) {
        assert!(ddt::Entry::decode(&entry.encode(), flat).is_ok_and(|again| again == entry));
        black_box(entry.total_refcnt());
        black_box(entry.phys().iter().flat_map(|p| p.addresses(false)).count());
    }
    let records = ddt::LogRecords::new(data, endian).count();
    assert!(records <= data.len() / ddt::LOG_RECORD_SIZE + 1);
    let _ = black_box(ddt::LogHeader::parse(data, endian));
    let _ = black_box(crate::brt::BrtVdev::parse(data, endian));
}
