//! Events as `zpool events` prints them (chapter 09 §4.7).

use std::fmt::Write;

use nvlist::{NvList, Value};

use crate::PoolEvent;

/// The states of vdevs by their numbers.
const STATES: [&str; 8] =
    ["UNKNOWN", "CLOSED", "OFFLINE", "REMOVED", "CANT_OPEN", "FAULTED", "DEGRADED", "ONLINE"];

/// The number of a vdev's state in events; `word` is that of `zpool status`.
pub fn state_number(word: &str) -> u64 {
    let word = if word == "UNAVAIL" { "CANT_OPEN" } else { word };
    STATES.iter().position(|s| *s == word).unwrap_or(0) as u64
}

/// The word of a state with this number, as `zpool status` has it.
pub fn state_word(number: u64) -> &'static str {
    match STATES.get(usize::try_from(number).unwrap_or(usize::MAX)) {
        Some(&"CANT_OPEN") => "UNAVAIL",
        Some(word) => word,
        None => "UNKNOWN",
    }
}

/// The values of an event, one a line, with an empty line at the end (`-v`).
pub fn values(event: &PoolEvent) -> String {
    let mut out = String::new();
    list(&mut out, &event.all_values(), 8);
    out.push('\n');
    out
}

fn list(out: &mut String, values: &NvList, depth: usize) {
    for (name, value) in values.iter() {
        let name = String::from_utf8_lossy(name.as_bytes());
        let _ = write!(out, "{:depth$}{name} = ", "");
        one(out, &name, value, depth);
        out.push('\n');
    }
}

fn numbers<T: Copy + Into<i128>>(out: &mut String, all: &[T], bits: u32) {
    for &n in all {
        let _ = write!(out, "{} ", hex(n.into(), bits));
    }
}

/// A number as C's `%x` shows it: negative ones in two's complement.
fn hex(n: i128, bits: u32) -> String {
    let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    format!("0x{:x}", (n as u64) & mask)
}

fn one(out: &mut String, name: &str, value: &Value, depth: usize) {
    let done = match value {
        Value::Boolean => write!(out, "1"),
        Value::BooleanValue(b) => write!(out, "{}", u8::from(*b)),
        Value::Byte(n) | Value::Uint8(n) => write!(out, "{}", hex((*n).into(), 8)),
        Value::Int8(n) => write!(out, "{}", hex((*n).into(), 8)),
        Value::Int16(n) => write!(out, "{}", hex((*n).into(), 16)),
        Value::Uint16(n) => write!(out, "{}", hex((*n).into(), 16)),
        Value::Int32(n) => write!(out, "{}", hex((*n).into(), 32)),
        Value::Uint32(n) => write!(out, "{}", hex((*n).into(), 32)),
        Value::Int64(n) | Value::Hrtime(n) => write!(out, "{}", hex((*n).into(), 64)),
        Value::Uint64(n) if name == "vdev_state" || name == "vdev_laststate" => {
            write!(out, "\"{}\" (0x{n:x})", state_word(*n))
        }
        Value::Uint64(n) => write!(out, "0x{n:x}"),
        Value::Double(n) => write!(out, "{n}"),
        Value::String(s) => write!(out, "\"{}\"", printable(s.as_bytes())),
        Value::ByteArray(all) | Value::Uint8Array(all) => {
            numbers(out, all, 8);
            Ok(())
        }
        Value::Int8Array(all) => {
            numbers(out, all, 8);
            Ok(())
        }
        Value::Int16Array(all) => {
            numbers(out, all, 16);
            Ok(())
        }
        Value::Uint16Array(all) => {
            numbers(out, all, 16);
            Ok(())
        }
        Value::Int32Array(all) => {
            numbers(out, all, 32);
            Ok(())
        }
        Value::Uint32Array(all) => {
            numbers(out, all, 32);
            Ok(())
        }
        Value::Int64Array(all) => {
            numbers(out, all, 64);
            Ok(())
        }
        Value::Uint64Array(all) => {
            numbers(out, all, 64);
            Ok(())
        }
        Value::BooleanArray(all) => {
            let bits: Vec<u8> = all.iter().map(|&b| b.into()).collect();
            numbers(out, &bits, 8);
            Ok(())
        }
        Value::StringArray(all) => {
            for s in all {
                let _ = write!(out, "\"{}\" ", printable(s.as_bytes()));
            }
            Ok(())
        }
        Value::List(inner) => {
            let _ = writeln!(out, "(embedded nvlist)");
            list(out, inner, depth + 8);
            write!(out, "{:depth$}(end {name})", "")
        }
        Value::ListArray(all) => {
            let _ = writeln!(out, "({} embedded nvlists)", all.len());
            for inner in all {
                list(out, inner, depth + 8);
            }
            write!(out, "{:depth$}(end {name})", "")
        }
    };
    // Writing to a string does not fail.
    let _ = done;
}

/// Text without control characters: names come from disks.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_by_type() {
        let mut inner = NvList::new();
        inner.add_u64("n", 5);
        let mut values = NvList::new();
        values.insert("version", Value::Uint8(0));
        values.add_str("pool", "ta\nnk").add_u64("pool_guid", 0x1234);
        values.add_u64("vdev_state", 7).add_u64("vdev_laststate", 4);
        values.insert("small", Value::Int32(-1));
        values.insert("ranges", Value::Uint32Array(vec![1, 16]));
        values.add_list("more", inner);
        let event = PoolEvent { eid: 3, time: (5, 6), class: "ereport.fs.zfs.io".into(), values };
        let expected = "        class = \"ereport.fs.zfs.io\"
        version = 0x0
        pool = \"ta?nk\"
        pool_guid = 0x1234
        vdev_state = \"ONLINE\" (0x7)
        vdev_laststate = \"UNAVAIL\" (0x4)
        small = 0xffffffff
        ranges = 0x1 0x10 \n        more = (embedded nvlist)
                n = 0x5
        (end more)
        time = 0x5 0x6 \n        eid = 0x3

";
        assert_eq!(super::values(&event), expected);
    }

    #[test]
    fn states_have_openzfs_numbers() {
        let known = [("OFFLINE", 2), ("UNAVAIL", 4), ("FAULTED", 5), ("ONLINE", 7), ("?", 0)];
        assert!(known.into_iter().all(|(word, n)| state_number(word) == n));
        assert_eq!((state_word(4), state_word(99)), ("UNAVAIL", "UNKNOWN"));
    }
}
