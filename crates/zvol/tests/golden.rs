//! Volumes against the digests that OpenZFS's kernel module gave. Runs when
//! `CENOTE_POOLS` names a directory with `zvol/disk1.img` and `zvol.sha256`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "../../zpl/tests/common/mod.rs"]
mod common;

use common::{Need, skip};
use dmu::Io;
use zvol::Volume;

#[test]
fn volumes_are_what_openzfs_saw() {
    let Some(dir) = common::pools() else { return };
    let image = dir.join("zvol/disk1.img");
    let Ok(digests) = std::fs::read_to_string(dir.join("zvol.sha256")) else {
        skip(Need::Unpacked, "there is no zvol.sha256");
        return;
    };
    let mut seen = 0;
    for (name, os) in common::datasets(&common::open_mos(&image)) {
        let Ok(volume) = Volume::open(os, dmu::PrefetchMode::All, Io::WAIT) else {
            assert_eq!(name, "", "only the root dataset is a file system");
            continue;
        };
        let (mut bytes, mut at) = (Vec::new(), 0);
        // Runs of data and holes cover the volume, and holes read as zeros.
        while let Some(extent) = volume.extent(at, Io::WAIT).unwrap() {
            assert!(extent.offset == at && extent.len > 0);
            at += extent.len;
            let before = bytes.len();
            while (bytes.len() as u64) < at {
                let want = (at - bytes.len() as u64).min(1_000_001) as usize;
                for buf in volume.read(bytes.len() as u64, want, Io::WAIT).unwrap() {
                    bytes.extend_from_slice(&buf);
                }
            }
            assert!(extent.data || bytes[before..].iter().all(|b| *b == 0));
        }
        assert_eq!(bytes.len() as u64, volume.size());
        assert!(volume.read(at, 1, Io::WAIT).unwrap().is_empty());
        let line = format!("{}  /dev/zvol/zvol/{name}", common::sha256(&bytes));
        assert!(digests.lines().any(|l| l == line), "{line}");
        println!("{name}: {at} bytes in blocks of {} are equal", volume.block_size());
        seen += 1;
    }
    assert_eq!(seen, 2);
}
