//! Data is stored as the properties say, and read back.

use cenote::{NewObject, PropData};
use testkit::{engine, import_from};

use crate::{DiskFiles, MB, judge, make, noise, writing};

fn number(name: &str, n: u64) -> (String, PropData) {
    (name.to_owned(), PropData::Num(n))
}

/// Half noise, half text, with a hole.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut out = noise(seed, len);
    for (i, piece) in out.chunks_mut(3000).enumerate() {
        match i % 4 {
            0 => piece.fill(0),
            1 | 2 => {
                for (j, byte) in piece.iter_mut().enumerate() {
                    *byte = b"the quick brown fox "[(j + seed as usize) % 20];
                }
            }
            _ => {}
        }
    }
    out
}

#[test]
fn every_property_of_storage() {
    let disks = DiskFiles::new("storage", 2, 1024 * MB);
    let engine = engine();
    let pool = make(&engine, vec![disks.leaf(0), disks.leaf(1)]);
    let mut sets: Vec<(String, Vec<(String, PropData)>)> = Vec::new();
    for shift in 9..=24 {
        sets.push((format!("r{shift}"), vec![number("recordsize", 1 << shift)]));
    }
    // off lzjb zle lz4, gzip 1, 6 and 9; zstd, zstd-19 and zstd-fast-10 by their codes.
    let zstd = |level: u64| 16 | level << 7;
    for c in [2, 3, 14, 15, 5, 10, 13, zstd(0), zstd(19), zstd(110)] {
        sets.push((format!("c{c}"), vec![number("compression", c)]));
    }
    for c in [2, 6, 7, 8, 11, 12, 13, 14] {
        sets.push((format!("k{c}"), vec![number("checksum", c)]));
    }
    for n in 1..=3 {
        sets.push((format!("n{n}"), vec![number("copies", n)]));
        sets.push((format!("m{n}"), vec![number("redundant_metadata", n)]));
    }
    for n in [1, 1024, 2048, 4096, 8192, 16384] {
        sets.push((format!("d{n}"), vec![number("dnodesize", n)]));
    }
    let mut written = Vec::new();
    for (i, (name, props)) in sets.iter().enumerate() {
        let name = format!("tank/{name}");
        let dataset = pool.create_filesystem(&name, props, None).unwrap();
        let objects = dataset.open_rw().unwrap();
        let bytes = content(i as u64, 700_000);
        let id = objects.create(&NewObject::default()).unwrap();
        objects.write(id, 0, &bytes).unwrap();
        let small = objects.create(&NewObject { block_size: Some(1024) }).unwrap();
        objects.write(small, 0, b"tiny").unwrap();
        written.push((name, id, bytes, small));
    }
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &disks.path());
    let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
    for (name, id, bytes, small) in &written {
        let objects = pool.dataset(name).unwrap().open_rw().unwrap();
        assert!(objects.read_vec(*id, 0, 1 << 20).unwrap() == *bytes, "{name}");
        assert_eq!(objects.read_vec(*small, 0, 100).unwrap(), b"tiny");
        let slots = objects.objset().object(*id, cenote::Io::WAIT).unwrap().dnode().slots;
        let wanted = match name.strip_prefix("tank/d").map(|n| n.parse::<u32>().unwrap()) {
            None => 1,
            Some(1) => 2,
            Some(bytes) => bytes / 512,
        };
        assert_eq!(u32::from(slots), wanted, "{name}");
    }
    // A changed property applies to data written from now on.
    pool.set_props("tank", &[number("compression", 2), number("copies", 2)], None).unwrap();
    let props = |name: &str| {
        let objects = pool.dataset(name).unwrap().open_rw().unwrap();
        objects.objset().props().unwrap()
    };
    assert_eq!((props("tank/r9").copies, props("tank/n3").copies), (2, 3));
    pool.inherit("tank/n3", &["copies"], None).unwrap();
    assert_eq!(props("tank/n3").copies, 2);
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &disks.path());
}
