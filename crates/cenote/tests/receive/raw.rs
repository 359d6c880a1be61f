//! Raw streams of encrypted datasets: what is received is sent again byte for byte, and zdb, which
//! gets the key, finds every MAC right.

use std::process::Command;

use cenote::create::NewKind;
use cenote::inspect::nvlist::{NvList, Order, Value};
use cenote::inspect::ondisk::Endian;
use cenote::stream::{
    Begin, Features, FreeObjects, HeaderKind, ResumeToken, StreamRecord, StreamWriter, Write,
    record_flags,
};
use cenote::{ErrorKind, PackageOptions, Pool, PropData, ReceiveOptions, SendOptions};
use testkit::{Rng, golden_streams, side_by_side};

use super::hostile::{StreamPiece, assembled, pieces};
use super::made::{MadeObject, made, some_objects};
use super::{ALL, TestPool, kinds, sent, text};

const RAW: SendOptions = SendOptions { raw: true, ..ALL };

fn nightly() -> bool {
    std::env::var_os("CENOTE_NIGHTLY").is_some()
}

fn stream(name: &str) -> Option<Vec<u8>> {
    golden_streams().into_iter().find(|(known, _)| known == name).map(|(_, bytes)| bytes)
}

/// The stream with this name of its snapshot, and `edit` applied to the list of its beginning.
fn with_beginning(stream: &[u8], name: &str, edit: impl Fn(&mut NvList)) -> Vec<u8> {
    let mut list = pieces(stream);
    let StreamRecord::Begin(begin) = &mut list[0].0 else { panic!() };
    let old = *begin;
    let features = old.features();
    *begin = Begin::new(HeaderKind::Substream, features, name).unwrap();
    (begin.creation_time, begin.objset_type, begin.flags) =
        (old.creation_time, old.objset_type, old.flags);
    (begin.to_guid, begin.from_guid) = (old.to_guid, old.from_guid);
    let mut payload = NvList::unpack(&list[0].1).unwrap();
    edit(&mut payload);
    list[0].1 = payload.pack_native(Order::Little);
    assembled(&list)
}

fn named(stream: &[u8], name: &str) -> Vec<u8> {
    with_beginning(stream, name, |_| {})
}

/// Sets a number of a raw stream's keys.
fn with_key_number(stream: &[u8], key: &str, value: u64) -> Vec<u8> {
    let name = match pieces(stream)[0].0 {
        StreamRecord::Begin(begin) => begin.to_name().unwrap().to_owned(),
        _ => panic!(),
    };
    with_beginning(stream, &name, |payload| {
        let old = payload.remove("crypt_keydata").unwrap();
        let Value::List(old) = old else { panic!() };
        let mut new = NvList::new();
        for (name, of) in old.iter() {
            let name = name.to_str().unwrap();
            new.insert(name, if name == key { Value::Uint64(value) } else { of.clone() });
        }
        payload.add_list("crypt_keydata", new);
    })
}

fn prop(pool: &Pool, name: &str, prop: &str) -> PropData {
    pool.dataset(name).unwrap().prop(prop).unwrap().unwrap_or_default().value
}

/// Panics at the first record in which two streams differ.
fn assert_equal(ours: &[u8], theirs: &[u8], what: &str) {
    if ours == theirs {
        return;
    }
    let (a, b) = (pieces(ours), pieces(theirs));
    for (i, (a, b)) in a.iter().zip(&b).enumerate() {
        assert!(a == b, "{what}: record {i}: {:?} and {:?}", a.0, b.0);
    }
    panic!("{what}: {} and {} records", a.len(), b.len());
}

/// zdb decrypts a dataset without finding a wrong MAC.
fn assert_unlocks(to: TestPool, key: &str, datasets: &[&str]) {
    let TestPool { scratch, engine, pool } = to;
    let name = pool.name().to_owned();
    pool.export().unwrap();
    drop(pool);
    super::judge(&engine, scratch.path(), &name, &["-bcc"]);
    side_by_side(datasets, |dataset| {
        let out = Command::new("zdb")
            .args(["-K", key, "-e", "-p"])
            .arg(scratch.path())
            .args(["-dddd", dataset])
            .output();
        let Ok(out) = out else { return };
        let text = String::from_utf8_lossy(&out.stdout).into_owned()
            + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{dataset}: {text}");
        assert!(text.contains("Unlocked encryption root"), "{dataset}: {text}");
        // What only the key shows.
        assert!(text.contains("crtime\t"), "{dataset}: {text}");
        assert!(!text.contains("(bonus encrypted)"), "{dataset}: {text}");
    });
}

/// A full and an incremental stream of OpenZFS, and what it says of the dataset.
#[test]
fn streams_of_openzfs() {
    let (Some(full), Some(incremental)) = (stream("raw-full"), stream("raw-incr")) else { return };
    let to = TestPool::new("raw");
    let got = to.receive("tank/copy", &full).unwrap();
    assert!(got[0].sent.is_raw && got[0].is_new);
    let again = |name: &str, from: Option<&str>, theirs: &[u8]| {
        let ours = sent(&to.pool, name, from, RAW);
        assert_equal(&ours, &named(theirs, name), name);
    };
    again("tank/copy@one", None, &full);
    to.receive("tank/copy", &incremental).unwrap();
    again("tank/copy@one", None, &full);
    again("tank/copy@two", Some("tank/copy@one"), &incremental);
    let text = |name: &str| PropData::Str(name.to_owned());
    for (name, wanted) in [
        ("encryption", PropData::Num(8)),
        ("keyformat", PropData::Num(3)),
        ("pbkdf2iters", PropData::Num(350_000)),
        ("keystatus", PropData::Num(1)),
        ("encryptionroot", text("tank/copy")),
        ("keylocation", text("prompt")),
    ] {
        assert_eq!(prop(&to.pool, "tank/copy", name), wanted, "{name}");
    }
    let e = to.pool.dataset("tank/copy").unwrap().open_fs().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Locked, "{e}");
    // The whole of it once more, as it is now.
    let whole = sent(&to.pool, "tank/copy@two", None, RAW);
    to.receive("tank/second", &whole).unwrap();
    assert_equal(
        &sent(&to.pool, "tank/second@two", None, RAW),
        &named(&whole, "tank/second@two"),
        "the second copy",
    );
    // A crash and an import leave it as it is.
    let to = to.crashed();
    assert_equal(
        &sent(&to.pool, "tank/copy@two", Some("tank/copy@one"), RAW),
        &named(&incremental, "tank/copy@two"),
        "after an import",
    );
    assert_unlocks(to, "correct horse battery", &["tank/copy", "tank/second", "tank/copy@one"]);
}

/// All ciphers, a volume, a clone and a child: OpenZFS's datasets are sent from its pool, received
/// and sent again.
#[test]
fn every_cipher() {
    let Some(of) = TestPool::golden("crypt2") else { return };
    let to = TestPool::of("ciphers", Some(NewKind::Mirror), 2, 9);
    for name in ["aes-128-ccm", "aes-128-gcm", "aes-192-ccm", "aes-192-gcm", "aes-256-ccm", "vol"] {
        // Heads have no identity of initialisation vectors.
        let head = sent(&of.pool, &format!("crypt2/{name}"), None, RAW);
        let target = format!("tank/{name}@s");
        let bytes = with_key_number(&named(&head, &target), "to_ivset_guid", 77);
        to.receive(&target, &bytes).unwrap();
        assert_equal(&sent(&to.pool, &target, None, RAW), &bytes, name);
    }
    for (name, target) in
        [("aes-256-gcm/child@one", "tank/child@one"), ("rawrecv@two", "tank/rawrecv@two")]
    {
        let bytes = sent(&of.pool, &format!("crypt2/{name}"), None, RAW);
        to.receive(target, &bytes).unwrap();
        assert_equal(&sent(&to.pool, target, None, RAW), &named(&bytes, target), name);
    }
    // A clone shares its origin's key.
    let clone =
        sent(&of.pool, "crypt2/aes-256-gcm/clone", Some("crypt2/aes-256-gcm/child@one"), RAW);
    let clone = with_key_number(&named(&clone, "tank/clone@s"), "to_ivset_guid", 78);
    to.receive("tank/clone@s", &clone).unwrap();
    assert_eq!(prop(&to.pool, "tank/clone", "origin"), PropData::Str("tank/child@one".into()));
    assert_eq!(prop(&to.pool, "tank/clone", "encryptionroot"), PropData::Str("tank/child".into()));
    assert_equal(&sent(&to.pool, "tank/clone@s", Some("tank/child@one"), RAW), &clone, "the clone");
    to.pool.destroy_dataset("tank/clone", true, None).unwrap();
    assert_unlocks(to, "correct horse battery", &["tank/child", "tank/rawrecv"]);
}

/// The stream with dnodes of the other byte order, in those blocks that `is_big` says.
fn with_orders(stream: &[u8], is_big: impl Fn(u64) -> bool) -> Vec<u8> {
    let mut list = pieces(stream);
    for (record, _) in &mut list {
        if let StreamRecord::ObjectRange(range) = record
            && is_big(range.first / 32)
        {
            range.flags = record_flags::RAW_BYTESWAP;
        }
    }
    assembled(&list)
}

/// The records that carry content, without what depends on the pool.
fn carried(stream: &[u8]) -> Vec<StreamPiece> {
    let plain = |(record, payload): StreamPiece| {
        let record = match record {
            StreamRecord::Write(r) => StreamRecord::Write(Write {
                checksum_type: 0,
                key_checksum: [0; 4],
                key_prop: 0,
                ..r
            }),
            StreamRecord::Object(_) | StreamRecord::ObjectRange(_) | StreamRecord::Spill(_) => {
                record
            }
            _ => return None,
        };
        Some((record, payload))
    };
    pieces(stream).into_iter().filter_map(plain).collect()
}

/// On every kind of vdev: blocks of any size and copies, spill blocks, deep and sparse trees, and
/// an incremental stream that gives objects other shapes. Some blocks of dnodes come from a host
/// of the other byte order, first or later.
#[test]
fn made_up_streams_on_every_kind() {
    let mut cases: Vec<_> =
        kinds().into_iter().flat_map(|kind| [(9, kind.clone()), (12, kind)]).collect();
    if !nightly() {
        cases = vec![cases[1].clone(), cases[2].clone(), cases[5].clone()];
    }
    let (one, two) = ((11, 111), (12, 112));
    let first = some_objects();
    let mut second = first.clone();
    // Another size of block, of indirect block and of dnode; fewer levels; fewer blocks; a spill
    // block less and one more; more levels over the same data.
    second[0] = MadeObject { block: 8192, seed: 21, ..second[0] };
    second[1] = MadeObject { blocks: 3, seed: 22, ..second[1] };
    second[2] = MadeObject { shift: 13, levels: 3, blocks: 200, seed: 23, ..second[2] };
    second[3] = MadeObject { slots: 2, bonus: 500, has_spill: false, seed: 24, ..second[3] };
    second[4] = MadeObject { levels: 1, blocks: 1, seed: 25, ..second[4] };
    second[5] = MadeObject { levels: 3, seed: 26, ..second[5] };
    second[6] = MadeObject { has_spill: true, seed: 27, ..second[6] };
    second.truncate(20);
    let full = with_orders(&made(one, None, &first), |block| block == 0 || block == 3);
    let mut then = pieces(&made(two, Some(one), &second));
    let rest = FreeObjects { first: second[19].id + 1, count: 1 << 20, to_guid: two.0 };
    then.insert(then.len() - 1, (StreamRecord::FreeObjects(rest), vec![]));
    let is_big = |block: u64| block == 0 || block == 2;
    let then = with_orders(&assembled(&then), is_big);
    let second = with_orders(&made(two, None, &second), is_big);
    side_by_side(&cases, |(ashift, (name, kind, width))| {
        let to = TestPool::of(&format!("raw-{name}-{ashift}"), kind.clone(), *width, *ashift);
        let copies = [("copies".to_owned(), PropData::Num(3))];
        to.pool.create_filesystem("tank/three", &copies, None).unwrap();
        for target in ["tank/made", "tank/three/made"] {
            to.receive(target, &full).unwrap();
            let snap = |s: &str| format!("{target}@{s}");
            let again = sent(&to.pool, &snap("s"), None, RAW);
            assert!(carried(&again) == carried(&full), "{name} {ashift}");
            to.receive(&snap("t"), &then).unwrap();
            let again = sent(&to.pool, &snap("t"), Some(&snap("s")), RAW);
            assert!(carried(&again) == carried(&then), "{name} {ashift}");
            assert_eq!(sent(&to.pool, &snap("s"), None, RAW).len(), full_len(&to.pool, &snap("s")));
        }
        // What was sent again is received as the same once more.
        let whole = sent(&to.pool, "tank/made@t", None, RAW);
        to.receive("tank/other", &whole).unwrap();
        let other = sent(&to.pool, "tank/other@t", None, RAW);
        assert_equal(&other, &named(&whole, "tank/other@t"), name);
        assert!(carried(&whole) == carried(&second), "{name} {ashift}");
        to.pool.destroy_dataset("tank/made", true, None).unwrap();
        let to = to.crashed();
        assert_equal(&sent(&to.pool, "tank/other@t", None, RAW), &other, name);
        to.judged();
    });
}

fn full_len(pool: &Pool, name: &str) -> usize {
    pool.dataset(name).unwrap().send_size(None, RAW).unwrap() as usize
}

/// What does not fit is refused in OpenZFS's words, and changes nothing.
#[test]
fn raw_streams_that_do_not_fit() {
    let (one, two, three) = ((11, 111), (12, 112), (13, 113));
    let objects = some_objects();
    let full = made(one, None, &objects);
    let then = made(two, Some(one), &objects[..3]);
    let to = TestPool::new("raw-refused");
    to.pool.create_filesystem("tank/plain", &[], None).unwrap();
    to.snapshot("tank/plain@s");
    let plain = sent(&to.pool, "tank/plain@s", None, ALL);
    to.receive("tank/made", &full).unwrap();
    let refused = |target: &str, options: &ReceiveOptions, stream: &[u8], kind, words: &str| {
        let before = to.datasets();
        let e = to.receive_with(target, options, stream).unwrap_err();
        assert_eq!(e.kind(), kind, "{e}");
        assert!(text(&e).contains(words), "{words}: {e}");
        assert_eq!(to.datasets(), before, "{e}");
    };
    let force = ReceiveOptions { force: true, ..ReceiveOptions::default() };
    let usual = ReceiveOptions::default();
    let overwrites = "zfs receive -F cannot be used to destroy an encrypted filesystem or \
                      overwrite an unencrypted one with an encrypted one";
    refused("tank/plain@t", &force, &full, ErrorKind::Invalid, overwrites);
    refused("tank/made@t", &force, &plain, ErrorKind::Invalid, overwrites);
    refused("tank/made/new", &usual, &plain, ErrorKind::Locked, "inherited key must be loaded");
    let off = ReceiveOptions {
        props: vec![("encryption".into(), PropData::Num(2))],
        ..ReceiveOptions::default()
    };
    to.receive_with("tank/made/new", &off, &plain).unwrap();
    assert_eq!(prop(&to.pool, "tank/made/new", "encryption"), PropData::Num(2));
    let words = "encryption property 'encryption' cannot be set or excluded for raw streams.";
    refused("tank/x", &off, &full, ErrorKind::Invalid, words);
    let without = ReceiveOptions { inherits: vec!["keyformat".into()], ..usual.clone() };
    refused("tank/x", &without, &full, ErrorKind::Invalid, "'keyformat' cannot be set or excluded");
    // An incremental stream onto another base, another key, another lineage.
    let wrong = |key: &str, value: u64| with_key_number(&then, key, value);
    let mismatch = "IV set guid mismatch";
    refused("tank/made@t", &usual, &wrong("from_ivset_guid", 1), ErrorKind::Invalid, mismatch);
    let missing = "IV set guid missing";
    refused("tank/made@t", &usual, &wrong("from_ivset_guid", 0), ErrorKind::Invalid, missing);
    refused("tank/made@t", &usual, &wrong("to_ivset_guid", 0), ErrorKind::Invalid, missing);
    let other = "encryption key does not match existing key";
    refused("tank/made@t", &usual, &wrong("DSL_CRYPTO_GUID", 1), ErrorKind::Locked, other);
    refused("tank/made@t", &usual, &wrong("DSL_CRYPTO_SUITE", 3), ErrorKind::Locked, other);
    let old = "format that is not known";
    refused("tank/made@t", &usual, &wrong("DSL_CRYPTO_VERSION", 0), ErrorKind::Unsupported, old);
    let shape = "the tree of dnodes has another shape";
    refused("tank/made@t", &usual, &wrong("mdn_nlevels", 5), ErrorKind::Corrupt, shape);
    // The plain dataset has the same snapshot as far as the guid goes.
    let of_plain = match pieces(&plain)[0].0 {
        StreamRecord::Begin(begin) => begin.to_guid,
        _ => panic!(),
    };
    let onto = made(two, Some((of_plain, 1)), &objects[..3]);
    let words = "raw streams cannot be received on top of an unencrypted dataset";
    refused("tank/plain@t", &usual, &onto, ErrorKind::Invalid, words);
    // Later snapshots cannot be discarded.
    to.receive("tank/made@t", &then).unwrap();
    let third = made(three, Some(one), &objects[..3]);
    refused("tank/made@u", &force, &third, ErrorKind::Busy, "has been modified");
    let mut list = pieces(&plain);
    let StreamRecord::Begin(begin) = &mut list[0].0 else { panic!() };
    (begin.from_guid, begin.to_guid) = (two.0, 99);
    let words = "only raw streams can be received into it";
    refused("tank/made@u", &usual, &assembled(&list), ErrorKind::Locked, words);
    // Flags.
    let mut list = pieces(&full);
    let StreamRecord::Begin(begin) = &mut list[0].0 else { panic!() };
    begin.flags = 4;
    let words = "Spill block flag missing for raw send.";
    refused("tank/x", &usual, &assembled(&list), ErrorKind::Invalid, words);
    let StreamRecord::Begin(begin) = &mut list[0].0 else { panic!() };
    begin.flags = 0xc;
    begin.version_info |= Features::EMBED_DATA.0 << 2;
    let words = "incompatible embedded data stream feature with encrypted receive.";
    refused("tank/x", &usual, &assembled(&list), ErrorKind::Invalid, words);
    // The last range of objects that 64 bits can name: the number behind it overflowed.
    let mut list = pieces(&full);
    for (record, _) in &mut list {
        if let StreamRecord::ObjectRange(range) = record {
            range.first = u64::MAX - 31;
        }
    }
    let words = "OBJECT_RANGE record of a bad range";
    refused("tank/x", &usual, &assembled(&list), ErrorKind::Corrupt, words);
    to.judged();
}

/// Cut off, resumed, crashed in between; discarded.
#[test]
fn raw_receives_are_resumed() {
    let one = (11, 111);
    let objects = some_objects();
    let full = made(one, None, &objects);
    let then = made((12, 112), Some(one), &objects);
    let options = ReceiveOptions { resumable: true, ..ReceiveOptions::default() };
    let mut to = TestPool::new("raw-resume");
    let mut rng = Rng::new(3);
    for (target, stream) in [("tank/made@s", &full), ("tank/made@t", &then)] {
        let cut = stream.len() / 2 + rng.index(stream.len() / 4);
        let e = to.receive_with(target, &options, &stream[..cut]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Interrupted, "{e}");
        to = to.crashed();
        let token = to.pool.dataset("tank/made").unwrap().resume_token().unwrap().unwrap();
        assert!(token.raw);
        to.receive_with(target, &options, &rest_of(stream, &token)).unwrap();
        let from = (target == "tank/made@t").then_some("tank/made@s");
        assert!(carried(&sent(&to.pool, target, from, RAW)) == carried(stream), "{target}");
    }
    let e = to.receive_with("tank/gone@s", &options, &full[..full.len() / 2]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Interrupted, "{e}");
    to.pool.discard_partial("tank/gone", None).unwrap();
    to.judged();
}

/// The stream without what is before a partial state's place.
fn rest_of(stream: &[u8], token: &ResumeToken) -> Vec<u8> {
    let mut rest = Vec::new();
    for (mut record, payload) in pieces(stream) {
        let object = record.object().unwrap_or(u64::MAX);
        match &mut record {
            StreamRecord::Begin(begin) => {
                begin.version_info |= Features::RESUMING.0 << 2;
                let mut list = NvList::unpack(&payload).unwrap();
                list.add_u64("resume_object", token.object);
                list.add_u64("resume_offset", token.offset);
                rest.push((record, list.pack_native(Order::Little)));
                continue;
            }
            StreamRecord::ObjectRange(r) if r.first + 32 <= token.object => continue,
            StreamRecord::Write(r) if (r.object, r.offset) < (token.object, token.offset) => {
                continue;
            }
            _ if object < token.object => continue,
            _ => {}
        }
        rest.push((record, payload));
    }
    assembled(&rest)
}

/// What an interrupted raw receive has left is sent on without the key, and continued at both
/// places with the first sender's stream.
#[test]
fn partial_raw_state_is_sent_on() {
    let objects = some_objects();
    let (one, two) = ((11, 111), (12, 112));
    let full = with_orders(&made(one, None, &objects), |block| block == 1);
    let then = made(two, Some(one), &objects);
    let resumable = ReceiveOptions { resumable: true, ..ReceiveOptions::default() };
    let (first, second) = (TestPool::new("raw-saved-1"), TestPool::new("raw-saved-2"));
    for (target, stream, tenths) in [("tank/made@s", &full, 7), ("tank/made@t", &then, 4)] {
        let cut = stream.len() / 10 * tenths;
        let e = first.receive_with(target, &resumable, &stream[..cut]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Interrupted, "{e}");
        let dataset = first.pool.dataset("tank/made").unwrap();
        let token = dataset.resume_token().unwrap().unwrap();
        let part = dataset.plan_saved(SendOptions::default()).unwrap();
        let mut saved = Vec::new();
        part.send(&mut saved, &mut |_| true).unwrap();
        assert_eq!(part.size().unwrap(), saved.len() as u64);
        drop(part);
        let e = second.receive_with(target, &resumable, &saved).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Interrupted, "{e}");
        let theirs = second.pool.dataset("tank/made").unwrap().resume_token().unwrap().unwrap();
        assert!(theirs.raw);
        let place = |token: &ResumeToken| (token.to_guid, token.object, token.offset);
        assert_eq!(place(&theirs), place(&token));
        // Without the identity of initialisation vectors nothing ends.
        let nameless = with_key_number(&rest_of(stream, &token), "to_ivset_guid", 0);
        let e = second.receive_with(target, &resumable, &nameless).unwrap_err();
        assert!(text(&e).contains("IV set guid missing"), "{e}");
        let from = (target == "tank/made@t").then_some("tank/made@s");
        for to in [&first, &second] {
            let token = to.pool.dataset("tank/made").unwrap().resume_token().unwrap().unwrap();
            to.receive_with(target, &resumable, &rest_of(stream, &token)).unwrap();
            assert!(carried(&sent(&to.pool, target, from, RAW)) == carried(stream), "{target}");
        }
    }
    first.judged();
    second.judged();
}

/// A package: which of its datasets are encryption roots is the sender's to say.
#[test]
fn roots_of_a_package() {
    let objects = &some_objects()[..4];
    let of = TestPool::new("raw-package-of");
    let of_each = [("top", 11), ("top/child", 12), ("top/child/deep", 13), ("top/own", 14)];
    for (name, id) in of_each {
        of.receive(&format!("tank/{name}@s"), &made((id, id + 100), None, objects)).unwrap();
    }
    let root = |pool: &Pool, name: &str| match prop(pool, name, "encryptionroot") {
        PropData::Str(root) => root,
        other => panic!("{other:?}"),
    };
    let writer = of.pool.writer().unwrap();
    writer.set_encryption_root("tank/top/child", true).unwrap();
    assert_eq!(root(&of.pool, "tank/top/child"), "tank/top");
    assert_eq!(root(&of.pool, "tank/top/child/deep"), "tank/top/child/deep");
    assert_eq!(prop(&of.pool, "tank/top/child", "keylocation"), PropData::Str("none".into()));
    writer.set_encryption_root("tank/top/child/deep", true).unwrap();
    // It takes what has its root along, and so back.
    writer.set_encryption_root("tank/top/child", false).unwrap();
    assert_eq!(root(&of.pool, "tank/top/child/deep"), "tank/top/child");
    writer.set_encryption_root("tank/top/child", true).unwrap();
    writer.set_encryption_root("tank/top/child", true).unwrap();
    assert_eq!(root(&of.pool, "tank/top/child/deep"), "tank/top");
    let package =
        PackageOptions { recursive: true, props: true, raw: true, ..PackageOptions::default() };
    let plan = of.pool.dataset("tank/top@s").unwrap().plan_send(None, &package).unwrap();
    let mut bytes = Vec::new();
    plan.send(RAW, &mut bytes, &mut |_, _| true).unwrap();
    drop(plan);
    let to = TestPool::new("raw-package-to");
    to.receive("tank/copy", &bytes).unwrap();
    for (name, wanted) in [
        ("copy", "copy"),
        ("copy/child", "copy"),
        ("copy/child/deep", "copy"),
        ("copy/own", "copy/own"),
    ] {
        assert_eq!(root(&to.pool, &format!("tank/{name}")), format!("tank/{wanted}"));
        let place = prop(&to.pool, &format!("tank/{name}"), "keylocation");
        let own = if name == wanted { "prompt" } else { "none" };
        assert_eq!(place, PropData::Str(own.into()), "{name}");
    }
    of.judged();
    to.judged();
}

fn twist(record: &mut StreamRecord, rng: &mut Rng) {
    let odd = [0, 1, 2, 12, 13, 17, 31, 32, 511, 512, 4096, 1 << 20, 1 << 40, u64::MAX];
    let n = odd[rng.index(odd.len())];
    let m = odd[rng.index(odd.len())];
    match record {
        StreamRecord::Begin(r) => match rng.below(3) {
            0 => r.flags = n as u32,
            1 => r.objset_type = n as u32,
            _ => r.from_guid = n,
        },
        StreamRecord::Object(r) => match rng.below(12) {
            0 => r.object = n,
            1 => r.object_type = n as u32 & 0xff,
            2 => r.bonus_type = n as u32 & 0xff,
            3 => r.block_size = n as u32,
            4 => r.bonus_len = n as u32,
            5 => r.slots = n as u8,
            6 => r.flags = n as u8,
            7 => r.raw_bonus_len = n as u32,
            8 => r.indirect_shift = n as u8,
            9 => r.levels = n as u8,
            10 => r.pointers = n as u8,
            _ => r.max_block = n,
        },
        StreamRecord::Write(r) => match rng.below(6) {
            0 => r.object = n,
            1 => r.offset = n,
            2 => r.logical_size = n,
            3 => r.compression = n as u8,
            4 => r.compressed_size = n,
            _ => r.object_type = n as u32 & 0xff,
        },
        StreamRecord::Spill(r) => match rng.below(4) {
            0 => r.object = n,
            1 => r.length = n,
            2 => r.compression = n as u8,
            _ => r.compressed_size = n,
        },
        StreamRecord::ObjectRange(r) => match rng.below(3) {
            0 => r.first = n & !31,
            1 => r.flags = n as u8,
            _ => r.slots = n,
        },
        StreamRecord::Free(r) => match rng.below(3) {
            0 => r.object = n,
            1 => r.offset = n,
            _ => r.length = n,
        },
        StreamRecord::FreeObjects(r) => (r.first, r.count) = (n, m),
        _ => {}
    }
}

/// Records with other fields and in another order. What is refused changes nothing; whatever is
/// received, the pool stays sound.
#[test]
fn twisted_raw_records() {
    let one = (11, 111);
    let objects = &some_objects()[..12];
    let full = made(one, None, objects);
    let then = made((12, 112), Some(one), objects);
    let to = TestPool::new("raw-twist");
    to.receive("tank/base", &full).unwrap();
    let mut rng = Rng::new(11);
    let mut received = 0;
    for n in 0..if nightly() { 5000 } else { 80 } {
        let (stream, target) = match n & 1 {
            0 => (&full, "tank/new@x"),
            _ => (&then, "tank/base@x"),
        };
        let mut list = pieces(stream);
        for _ in 0..1 + rng.below(3) {
            let last = list.len() - 1;
            let (a, b) = (1 + rng.index(last - 1), 1 + rng.index(last - 1));
            match rng.below(8) {
                0 => list.swap(a, b),
                1 => list.insert(b, list[a].clone()),
                2 => drop(list.remove(a)),
                3 => twist(&mut list[0].0, &mut rng),
                _ => twist(&mut list[a].0, &mut rng),
            }
        }
        let mut legible = true;
        for (record, payload) in &mut list {
            match record.payload_len() {
                Err(_) => legible = false,
                Ok(len) => payload.resize(len, 0x5a),
            }
        }
        if !legible {
            continue;
        }
        let before = to.datasets();
        match to.receive(target, &assembled(&list)) {
            Err(e) => {
                assert!(!matches!(e.kind(), ErrorKind::Bug | ErrorKind::Io), "{n}: {e}");
                assert_eq!(to.datasets(), before, "{n}: {e}");
            }
            Ok(_) if n & 1 == 0 => to.pool.destroy_dataset("tank/new", true, None).unwrap(),
            Ok(_) => {
                received += 1;
                to.pool.destroy_dataset("tank/base", true, None).unwrap();
                to.receive("tank/base", &full).unwrap();
            }
        }
    }
    assert!(received > 0);
    to.judged();
}

/// The order of bytes of a raw stream's content is kept, whatever that of its headers.
#[test]
fn headers_in_the_other_byte_order() {
    let objects = &some_objects()[..4];
    let full = made((11, 111), None, objects);
    let mut list = pieces(&full);
    for (record, _) in &mut list {
        match record {
            StreamRecord::ObjectRange(r) => r.flags ^= record_flags::RAW_BYTESWAP,
            StreamRecord::Write(r) => r.flags ^= record_flags::RAW_BYTESWAP,
            StreamRecord::Spill(r) => r.flags ^= record_flags::RAW_BYTESWAP,
            _ => {}
        }
    }
    let mut writer = StreamWriter::with_order(Vec::new(), Endian::Big);
    for (record, payload) in &list {
        writer.write(record, payload).unwrap();
    }
    let to = TestPool::new("raw-big");
    to.receive("tank/made", &writer.into_inner()).unwrap();
    assert!(carried(&sent(&to.pool, "tank/made@s", None, RAW)) == carried(&full));
    to.judged();
}
