//! Block pointers in zdb's two notations, and its small numbers.

use std::fmt::Write;

use base::Dva;
use cenote::inspect::codec::checksum::Checksum;
use cenote::inspect::codec::compress::Compression;
use cenote::inspect::ondisk::blkptr::{Block, Protection};
use cenote::inspect::ondisk::{BlkPtr, Endian};

/// Names of checksum ids.
const CHECKSUMS: [&str; 15] = [
    "inherit",
    "on",
    "off",
    "label",
    "gang_header",
    "zilog",
    "fletcher2",
    "fletcher4",
    "sha256",
    "zilog2",
    "noparity",
    "sha512",
    "skein",
    "edonr",
    "blake3",
];

/// A compression's name.
pub(crate) fn compression(id: u8) -> &'static str {
    Compression::id_name(id)
}

/// A checksum's name.
pub(crate) fn checksum(id: u8) -> &'static str {
    match Checksum::from_id(id) {
        Some(Checksum::Off) => "off",
        _ => CHECKSUMS.get(usize::from(id)).copied().unwrap_or("invalid"),
    }
}

fn dva(d: Dva) -> String {
    format!("{}:{:x}:{:x}", d.vdev.0, d.offset, d.asize.0)
}

fn words(block: &Block) -> String {
    let words: Vec<String> = block.words.iter().map(|w| format!("{w:016x}")).collect();
    words.join(":")
}

fn type_name(bp: &BlkPtr) -> String {
    let head = bp.head();
    format!("[L{} {}]", head.level, head.object_type.name())
}

/// The long notation: `DVA[0]=<0:400:200> [L0 type] fletcher4 ...`.
pub(crate) fn long(bp: &BlkPtr) -> String {
    let head = bp.head();
    let kind = type_name(bp);
    match bp {
        BlkPtr::Hole(h) if h.head == Default::default() => "<hole>".to_owned(),
        BlkPtr::Hole(_) => {
            format!("HOLE {kind} size={:x}L birth={}L", head.lsize.0, head.birth)
        }
        BlkPtr::Embedded(e) => format!(
            "EMBEDDED {kind} et=0 {} size={:x}L/{:x}P birth={}L",
            compression(e.compression),
            head.lsize.0,
            e.payload().len(),
            head.birth
        ),
        BlkPtr::Redacted(_) => {
            format!("REDACTED {kind} size={:x}L birth={}L", head.lsize.0, head.birth)
        }
        BlkPtr::Block(b) => long_block(b, &kind),
    }
}

fn long_block(b: &Block, kind: &str) -> String {
    let mut out = String::new();
    for (i, d) in b.dvas().enumerate() {
        let _ = write!(out, "DVA[{i}]=<{}> ", dva(d));
    }
    if let Some(([salt, iv0], iv1, _)) = b.crypt_params() {
        let _ = write!(out, "salt={salt:x} iv={iv0:x}:{iv1:x} ");
    }
    let protection = match b.protection {
        Protection::None => "unencrypted",
        Protection::Encrypted => "encrypted",
        Protection::Authenticated => "authenticated",
        Protection::IndirectMac => "indirect-MAC",
    };
    let copies = ["none", "single", "double", "triple"];
    let _ = write!(
        out,
        "{kind} {} {} {protection} {} {} {} {} size={:x}L/{:x}P birth={}L/{}P fill={} cksum={}",
        checksum(b.checksum),
        compression(b.compression),
        if b.endian == Endian::Little { "LE" } else { "BE" },
        if b.is_gang() { "gang" } else { "contiguous" },
        if b.dedup { "dedup" } else { "unique" },
        copies.get(b.dvas().len()).copied().unwrap_or("many"),
        b.head.lsize.0,
        b.psize.0,
        b.head.birth,
        b.effective_physical_birth(),
        b.fill,
        words(b)
    );
    out
}

/// The short notation in lists of indirect blocks: `0:400:200 200L/200P F=1 B=4/4`; with `all`
/// every address, else only the first.
pub(crate) fn compact(bp: &BlkPtr, all: bool) -> String {
    let head = bp.head();
    match bp {
        BlkPtr::Hole(_) => format!("{:x}L B={}", head.lsize.0, head.birth),
        BlkPtr::Embedded(e) => {
            let psize = e.payload().len();
            format!("EMBEDDED et=0 {:x}L/{psize:x}P B={}", head.lsize.0, head.birth)
        }
        BlkPtr::Redacted(_) => format!("REDACTED {:x}L B={}", head.lsize.0, head.birth),
        BlkPtr::Block(b) => {
            let mut out = String::new();
            for d in b.dvas().take(if all { 3 } else { 1 }) {
                let _ = write!(out, "{}{} ", dva(d), if d.gang { "G" } else { "" });
            }
            let _ = write!(
                out,
                "{:x}L/{:x}P F={} B={}/{} cksum={}",
                head.lsize.0,
                b.psize.0,
                b.fill,
                head.birth,
                b.effective_physical_birth(),
                words(b)
            );
            out
        }
    }
}

/// A size in the form for people, or exact with `-P`.
pub(crate) fn size(n: u64, exact: bool) -> String {
    if exact { n.to_string() } else { cenote::props::nicenum(n) }
}

/// The stars of a histogram: at most 40, and at least one for a count that is not zero.
pub(crate) fn stars(count: u64, max: u64) -> String {
    let wide = max.max(40);
    let n = (u128::from(count) * 40).div_ceil(u128::from(wide));
    "*".repeat(usize::try_from(n).unwrap_or(40))
}

/// Rows from the first to the last that is not empty, in zdb's format.
pub(crate) fn histogram(rows: &[(usize, u64)]) -> String {
    let used = |r: &&(usize, u64)| r.1 > 0;
    let (Some(first), Some(last)) = (rows.iter().find(used), rows.iter().rev().find(used)) else {
        return String::new();
    };
    let max = rows.iter().map(|r| r.1).max().unwrap_or(0);
    let mut out = String::new();
    for (index, count) in rows.iter().filter(|r| r.0 >= first.0 && r.0 <= last.0) {
        let _ = writeln!(out, "\t\t\t{index:3}: {count:6} {}", stars(*count, max));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_are_as_zdb_draws_them() {
        assert_eq!(stars(6, 32), "******");
        assert_eq!(stars(1, 8179), "*");
        assert_eq!(stars(212, 8179), "**");
        assert_eq!(stars(1292, 8179), "*******");
        assert_eq!(stars(0, 5), "");
        assert_eq!(
            histogram(&[(8, 0), (9, 1), (10, 0), (11, 2), (12, 0)]),
            "\t\t\t  9:      1 *\n\t\t\t 10:      0 \n\t\t\t 11:      2 **\n"
        );
    }
}
