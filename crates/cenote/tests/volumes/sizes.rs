//! `volsize` and the reservation that follows it.

use super::*;
use cenote::REFRESERVATION_AUTO;
use zvol::create::full_reservation;

#[test]
fn volumes_grow_and_shrink() {
    let rig = VolumeRig::new("sizes", 256 * MB, 8 * MB, 16 << 10, &[("compression", 2)]);
    let volume = rig.volume();
    let data = noise(3, 8 * MB as usize);
    volume.write(0, &data).unwrap();
    volume.flush().unwrap();
    let used = |rig: &VolumeRig| {
        rig.pool.writer().unwrap().sync().unwrap();
        rig.prop("referenced")
    };
    let full = used(&rig);
    for bad in [0, 16 * 1024 + 1, 1 << 63] {
        assert_eq!(kind(rig.set(&[("volsize", bad)])), ErrorKind::Invalid, "{bad}");
    }
    rig.set(&[("volsize", 2 * MB)]).unwrap();
    assert_eq!((volume.size(), rig.prop("volsize")), (2 * MB, 2 * MB));
    assert_eq!(kind(volume.write(2 * MB, b"x")), ErrorKind::NoSpace);
    assert!(used(&rig) < full / 3, "the end was not freed");
    rig.set(&[("volsize", 64 * MB)]).unwrap();
    assert_eq!(volume.size(), 64 * MB);
    let seen = read(&volume);
    assert!(seen[..2 * MB as usize] == data[..2 * MB as usize]);
    assert!(seen[2 * MB as usize..].iter().all(|b| *b == 0), "old bytes came back");
    volume.write(63 * MB, &data[..MB as usize]).unwrap();
    volume.flush().unwrap();
    // The log's records are inside the volume on disk.
    let scratch = rig.cut("grown");
    let engine = testkit::engine();
    let pool = import(&engine, &scratch);
    assert!(read(&open(&pool))[63 * MB as usize..] == data[..MB as usize]);
    pool.export().unwrap();
    drop(pool);
    rig.set(&[("readonly", 1)]).unwrap();
    assert_eq!(kind(rig.set(&[("volsize", MB)])), ErrorKind::NotPermitted);
    drop(volume);
    rig.end();
}

#[test]
fn the_reservation_follows_the_size() {
    let rig = VolumeRig::of("reserved", KINDS[0], 12, 256 * MB);
    let auto = [("refreservation", REFRESERVATION_AUTO)];
    rig.pool.create_volume(VOLUME, 16 * MB, Some(8 << 10), &numbers(&auto), None).unwrap();
    let full = |mb: u64| full_reservation(mb * MB, 8 << 10, 1);
    assert_eq!(rig.prop("refreservation"), full(16));
    rig.set(&[("volsize", 32 * MB)]).unwrap();
    assert_eq!(rig.prop("refreservation"), full(32));
    rig.set(&[("volsize", 4 * MB)]).unwrap();
    assert_eq!(rig.prop("refreservation"), full(4));
    // No room: nothing changes.
    assert_eq!(kind(rig.set(&[("volsize", 1024 * MB)])), ErrorKind::NoSpace);
    assert_eq!((rig.prop("refreservation"), rig.prop("volsize")), (full(4), 4 * MB));
    // Another reservation stays as it is.
    rig.set(&[("refreservation", 5 * MB)]).unwrap();
    rig.set(&[("volsize", 8 * MB)]).unwrap();
    assert_eq!(rig.prop("refreservation"), 5 * MB);
    rig.set(&auto).unwrap();
    assert_eq!(rig.prop("refreservation"), full(8));
    rig.set(&[("refreservation", 0)]).unwrap();
    // A sparse volume may be larger than the pool.
    rig.set(&[("volsize", 1 << 40)]).unwrap();
    assert_eq!(rig.prop("refreservation"), 0);
    rig.volume().write((1 << 40) - 3, b"end").unwrap();
    rig.set(&[("volsize", 1 << 20)]).unwrap();
    rig.end();
}

#[test]
fn cut_while_the_size_changes() {
    let rig = VolumeRig::new("cut-size", 128 * MB, 4 * MB, 16 << 10, &[]);
    quiet(&rig.pool);
    let volume = rig.volume();
    volume.write(0, &noise(1, 4 * MB as usize)).unwrap();
    volume.flush().unwrap();
    volume.write(3 * MB, b"behind the end soon").unwrap();
    rig.set(&[("volsize", 2 * MB)]).unwrap();
    volume.write(100, b"later").unwrap();
    volume.flush().unwrap();
    rig.set(&[("volsize", 6 * MB)]).unwrap();
    volume.write(5 * MB, b"new end").unwrap();
    volume.flush().unwrap();
    let wanted = read(&volume);
    let scratch = rig.cut("size");
    let engine = testkit::engine();
    let pool = import(&engine, &scratch);
    assert!(read(&open(&pool)) == wanted);
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &scratch);
    drop(volume);
    rig.end();
}
