use super::*;
use base::ErrorKind;
use proptest::prelude::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap())
        .collect()
}

/// Chapter 01 §9.4.
const XDR: &str = "
    01010000 00000000 00000001 00000020 00000020 00000001 61000000 00000008
    00000001 00000000 00000001 00000060 00000030 00000001 6c000000 00000013
    00000001 00000000 00000001 00000018 00000018 00000001 62000000 00000001
    00000000 00000020 00000020 00000001 73000000 00000009 00000001 00000002
    68690000 00000000 00000000 00000058 00000058 00000003 61727200 00000014
    00000002 00000000 00000001 00000020 00000020 00000001 78000000 00000008
    00000001 00000000 00000002 00000000 00000000 00000000 00000001 00000000
    00000000 0000002c 00000028 00000001 75000000 00000010 00000002 00000002
    00000000 00000003 00000000 00000004 00000028 00000030 00000001 74000000
    00000011 00000002 00000001 70000000 00000002 71720000 00000000 00000000";

/// Chapter 01 §9.5.
const NATIVE: &str = "
    00010000 00000000 01000000 20000000 02000000 01000000 08000000 61000000
    00000000 01000000 00000000 30000000 02000000 01000000 13000000 6c000000
    00000000 00000000 01000000 00000000 00000000 00000000 00000000 18000000
    02000000 00000000 01000000 62000000 00000000 20000000 02000000 01000000
    09000000 73000000 00000000 68690000 00000000 00000000 58000000 04000000
    02000000 14000000 61727200 00000000 00000000 00000000 00000000 00000000
    00000000 01000000 00000000 00000000 00000000 00000000 00000000 01000000
    00000000 00000000 00000000 00000000 20000000 02000000 01000000 08000000
    78000000 00000000 02000000 00000000 00000000 00000000 28000000 02000000
    02000000 10000000 75000000 00000000 03000000 00000000 04000000 00000000
    30000000 02000000 02000000 11000000 74000000 00000000 00000000 00000000
    00000000 00000000 70007172 00000000 00000000";

/// Chapter 01 §5.1: the label of an unused spare.
const SPARE: &str = "
    01010000 00000000 00000001 00000024 00000020 00000007 76657273 696f6e00
    00000008 00000001 00000000 00001388 00000024 00000020 00000005 73746174
    65000000 00000008 00000001 00000000 00000003 00000020 00000020 00000004
    67756964 00000008 00000001 25080dca 1870b468 00000028 00000028 00000004
    70617468 00000009 00000001 0000000b 2f696d67 2f737061 72653000 00000000
    00000000";

fn example() -> NvList {
    let mut inner = NvList::new();
    inner.add_flag("b").add_str("s", "hi");
    let mut x = NvList::new();
    x.add_u64("x", 2);
    let mut list = NvList::new();
    list.add_u64("a", 1)
        .add_list("l", inner)
        .add_lists("arr", vec![x, NvList::new()])
        .insert("u", vec![3u64, 4])
        .insert("t", vec![NvStr::from("p"), NvStr::from("qr")]);
    list
}

#[test]
fn worked_examples_are_exact() {
    assert_eq!(example().pack_xdr(), hex(XDR));
    assert_eq!(example().pack_native(Order::Little), hex(NATIVE));
    assert_eq!(NvList::unpack(&hex(XDR)).unwrap(), example());
    assert_eq!(NvList::unpack(&hex(NATIVE)).unwrap(), example());
    let spare = NvList::unpack(&hex(SPARE)).unwrap();
    assert_eq!(spare.pack_xdr(), hex(SPARE));
    assert_eq!(spare.xdr_size(), 164);
    assert_eq!(spare.u64("state"), Some(3));
    assert_eq!(spare.str("path"), Some("/img/spare0"));
    assert_eq!(
        spare.to_string(),
        "version: 5000\nstate: 3\nguid: 2668397940861613160\npath: '/img/spare0'\n"
    );
}

#[test]
fn accessors_tell_types_apart() {
    let list = example();
    assert_eq!(list.u64("a"), Some(1));
    assert_eq!(list.i64("a"), None);
    assert!(list.list("l").unwrap().flag("b"));
    assert!(!list.flag("a"));
    assert_eq!(list.lists("arr").unwrap()[0].u64("x"), Some(2));
    assert_eq!(list.u64s("u"), Some(&[3, 4][..]));
    assert_eq!(list.need_u64("zz").unwrap_err().kind(), ErrorKind::Corrupt);
    let mut list = list;
    list.add_u64("a", 9);
    assert_eq!((list.len(), list.u64("a")), (5, Some(9)));
    assert_eq!(list.remove("a"), Some(Value::Uint64(9)));
    assert_eq!(list.remove("a"), None);
    assert!(list.try_insert(b"a\0b", Value::Boolean).is_err());
    assert!(list.try_insert(&[b'x'; NAME_MAX + 1], Value::Boolean).is_err());
}

/// A special case of chapter 01 §9.4: an empty array counts a word that it does not
/// have.
#[test]
fn empty_arrays_have_no_count_word() {
    let mut inner = NvList::new();
    inner.insert("e", Vec::<u64>::new());
    let mut list = NvList::new();
    list.add_list("n", inner).add_u64("after", 7);
    let packed = list.pack_xdr();
    assert_eq!(packed.len(), list.xdr_size());
    assert_eq!(packed[packed.len() - 4..], [0; 4]);
    let (back, used) = NvList::unpack_prefix(&packed).unwrap();
    assert_eq!((back, used), (list, packed.len() - 4));
}

#[test]
fn depth_is_limited() {
    let mut list = NvList::new();
    for _ in 0..base::limits::NVLIST_DEPTH_MAX {
        let mut outer = NvList::new();
        outer.add_list("l", list);
        list = outer;
    }
    for packed in [list.pack_xdr(), list.pack_native(Order::Big)] {
        assert_eq!(NvList::unpack(&packed).unwrap(), list);
    }
    let mut outer = NvList::new();
    outer.add_list("l", list);
    for packed in [outer.pack_xdr(), outer.pack_native(Order::Little)] {
        assert_eq!(NvList::unpack(&packed).unwrap_err().kind(), ErrorKind::Limit);
    }
}

#[test]
fn violations_are_refused() {
    // A wrong decoded size, a non-zero pad, a NUL in a name, a wrong version,
    // an unknown type, a count that is not there.
    for (at, byte) in [(19, 0x28), (25, 1), (24, 0), (7, 1), (31, 28), (35, 2)] {
        let mut bytes = hex(XDR);
        bytes[at] = byte;
        assert_eq!(NvList::unpack(&bytes).unwrap_err().kind(), ErrorKind::Corrupt, "at {at}");
    }
    for (at, byte) in [(4, 1), (12, 0x28), (16, 1), (20, 2), (24, 28)] {
        let mut bytes = hex(NATIVE);
        bytes[at] = byte;
        assert_eq!(NvList::unpack(&bytes).unwrap_err().kind(), ErrorKind::Corrupt, "at {at}");
    }
    assert!(NvList::unpack(&[2, 1, 0, 0]).is_err());
    assert!(NvList::unpack(&[]).is_err());
}

/// A count of two thousand million elements in a short list costs no memory.
#[test]
fn counts_are_believed_only_with_bytes_behind_them() {
    for code in 10..=26u32 {
        let mut bytes = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        for word in [0x20, 0x7fff_fff8, 1, 0x6100_0000, code, 0x7fff_ffff, 0x7fff_ffff] {
            bytes.extend_from_slice(&u32::to_be_bytes(word));
        }
        assert!(NvList::unpack(&bytes).is_err());
        let mut bytes = vec![0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        for word in [0x20, 2, 0x7fff_ffff, code, 0x61, 0, 0, 0] {
            bytes.extend_from_slice(&u32::to_le_bytes(word));
        }
        assert!(NvList::unpack(&bytes).is_err());
    }
}

fn any_string() -> impl Strategy<Value = NvStr> {
    prop::collection::vec(1u8.., 0..12).prop_map(|b| NvStr::new(&b).unwrap())
}

fn any_leaf() -> impl Strategy<Value = Value> {
    use prop::collection::vec;
    let scalars = prop_oneof![
        Just(Value::Boolean),
        any::<u8>().prop_map(Value::Byte),
        any::<i16>().prop_map(Value::Int16),
        any::<u16>().prop_map(Value::Uint16),
        any::<i32>().prop_map(Value::Int32),
        any::<u32>().prop_map(Value::Uint32),
        any::<i64>().prop_map(Value::Int64),
        any::<u64>().prop_map(Value::Uint64),
        any_string().prop_map(Value::String),
        any::<i64>().prop_map(Value::Hrtime),
        any::<bool>().prop_map(Value::BooleanValue),
        any::<i8>().prop_map(Value::Int8),
        any::<u8>().prop_map(Value::Uint8),
        any::<i32>().prop_map(|v| Value::Double(f64::from(v) / 3.0)),
    ];
    let arrays = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Value::ByteArray),
        vec(any::<i16>(), 0..5).prop_map(Value::Int16Array),
        vec(any::<u16>(), 0..5).prop_map(Value::Uint16Array),
        vec(any::<i32>(), 0..5).prop_map(Value::Int32Array),
        vec(any::<u32>(), 0..5).prop_map(Value::Uint32Array),
        vec(any::<i64>(), 0..5).prop_map(Value::Int64Array),
        vec(any::<u64>(), 0..5).prop_map(Value::Uint64Array),
        vec(any_string(), 0..5).prop_map(Value::StringArray),
        vec(any::<bool>(), 0..5).prop_map(Value::BooleanArray),
        vec(any::<i8>(), 0..9).prop_map(Value::Int8Array),
        vec(any::<u8>(), 0..9).prop_map(Value::Uint8Array),
    ];
    prop_oneof![scalars, arrays]
}

fn list_of(value: impl Strategy<Value = Value>) -> impl Strategy<Value = NvList> {
    (0u32..3, prop::collection::vec((any_string(), value), 0..6)).prop_map(|(flags, pairs)| {
        let mut list = NvList::with_flags(flags);
        for (name, value) in pairs {
            list.try_insert(name.as_bytes(), value).unwrap();
        }
        list
    })
}

fn any_list() -> impl Strategy<Value = NvList> {
    let value = any_leaf().prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            list_of(inner.clone()).prop_map(Value::List),
            prop::collection::vec(list_of(inner), 0..3).prop_map(Value::ListArray),
        ]
    });
    list_of(value)
}

/// A rough upper bound of the heap that a list holds.
fn footprint(list: &NvList) -> usize {
    let pairs = list.pairs.capacity() * std::mem::size_of::<(NvStr, Value)>();
    let values = list.iter().map(|(name, value)| {
        name.as_bytes().len()
            + match value {
                Value::List(l) => footprint(l),
                Value::ListArray(v) => {
                    v.iter().map(|l| std::mem::size_of::<NvList>() + footprint(l)).sum()
                }
                Value::StringArray(v) => v.iter().map(|s| 16 + s.as_bytes().len()).sum(),
                v => v.native_size(),
            }
    });
    pairs + values.sum::<usize>()
}

proptest! {
    #[test]
    fn packing_round_trips(list in any_list()) {
        let packed = list.pack_xdr();
        prop_assert_eq!(packed.len(), list.xdr_size());
        prop_assert_eq!(&NvList::unpack(&packed).unwrap(), &list);
        for order in [Order::Big, Order::Little] {
            let packed = list.pack_native(order);
            let (back, used) = NvList::unpack_prefix(&packed).unwrap();
            prop_assert_eq!(&back, &list);
            prop_assert_eq!(used, packed.len());
        }
        prop_assert_eq!(list.to_string().lines().count() < 10_000, true);
    }

    #[test]
    fn hostile_bytes_are_bounded(
        list in any_list(),
        which in 0usize..3,
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut bytes = match which {
            0 => list.pack_xdr(),
            1 => list.pack_native(Order::Little),
            _ => list.pack_native(Order::Big),
        };
        for (at, byte) in cuts {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(keep.index(bytes.len()) + 1);
        if let Ok(list) = NvList::unpack(&bytes) {
            // 48-byte pairs from 20 packed bytes, doubled by the vector's growth.
            prop_assert!(footprint(&list) <= 16 * bytes.len() + 512);
        }
    }

    #[test]
    fn random_bytes_never_panic(
        head in 0u8..2,
        order in 0u8..2,
        body in prop::collection::vec(prop_oneof![Just(0u8), 0u8..32, any::<u8>()], 0..200),
    ) {
        let mut bytes = vec![head, order, 0, 0];
        bytes.extend(body);
        let _ = NvList::unpack(&bytes);
    }
}
