//! The content of a ZAP, in the format of `zdb -dddd`.

use std::fmt::Write;

use base::Result;
use cenote::inspect::dmu::{Io, Object, Zap};
use cenote::inspect::ondisk::ObjType;
use cenote::inspect::ondisk::zap::ZapValue;

/// Kinds of directory entries (chapter 06 §7.1).
const KINDS: [&str; 16] = [
    "not specified",
    "FIFO",
    "Character Device",
    "3 (invalid)",
    "Directory",
    "5 (invalid)",
    "Block Device",
    "7 (invalid)",
    "Regular File",
    "9 (invalid)",
    "Symbolic Link",
    "11 (invalid)",
    "Socket",
    "Door",
    "Event Port",
    "15 (invalid)",
];

/// Prints a ZAP's statistics and entries.
///
/// # Errors
/// Those of reading it.
pub(super) fn show(object: &Object) -> Result<()> {
    let zap = Zap::open(object.clone(), Io::WAIT)?;
    let kind = object.object_type();
    match zap.fat_header()? {
        None => {
            let count = zap.entries()?.len();
            let size = object.block_size();
            ui::out(&format!("\tmicrozap: {size} bytes, {count} entries\n\n"));
        }
        Some(fat) => {
            let embedded = fat.zt_blk == 0;
            let blocks = 1u64.checked_shl(fat.zt_shift as u32).unwrap_or(0);
            ui::out(&format!(
                "\tFat ZAP stats:\n\t\tPointer table:\n\t\t\t{blocks} elements\n\t\t\tzt_blk: \
                 {}\n\t\t\tzt_numblks: {}\n\t\t\tzt_shift: {}\n\t\t\tzt_blks_copied: \
                 {}\n\t\t\tzt_nextblk: {}\n\t\tZAP entries: {}\n\t\tLeaf blocks: {}\n\t\tTotal \
                 blocks: {}\n\t\tzap_block_type: 0x8000000000000001\n\t\tzap_magic: \
                 0x2f52ab2ab\n\t\tzap_salt: 0x{:x}\n\n",
                fat.zt_blk,
                if embedded { 0 } else { fat.zt_numblks },
                fat.zt_shift,
                fat.zt_blks_copied,
                fat.zt_nextblk,
                fat.num_entries,
                fat.num_leafs,
                fat.freeblk,
                fat.salt
            ));
        }
    }
    let words = zap.has_word_keys()?;
    zap.for_each(|entry| {
        let name = if words {
            entry.name.iter().map(|b| format!("{b:02x}")).collect()
        } else {
            String::from_utf8_lossy(&entry.name).into_owned()
        };
        ui::out(&format!("\t\t{name} = {}\n", value(kind, &entry.value)));
        Ok(())
    })
}

fn value(kind: ObjType, value: &ZapValue) -> String {
    if kind == ObjType::DIRECTORY_CONTENTS
        && let Some(word) = value.first_u64()
    {
        let file = KINDS.get((word >> 60) as usize).copied().unwrap_or("?");
        return format!("{} (type: {file})", word & ((1 << 48) - 1));
    }
    // Attribute registrations: length, byte order class and number, packed.
    if kind == ObjType(46)
        && let Some(word) = value.as_u64()
    {
        let (len, swap, number) = (word >> 24 & 0xffff, word >> 16 & 0xff, word & 0xffff);
        return format!(" {word:x} : [{len}:{swap}:{number}]");
    }
    let mut out = String::new();
    if kind == ObjType(47) {
        out.push('[');
        for chunk in value.data.chunks_exact(2) {
            let n = chunk.iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
            let _ = write!(out, " {n} ");
        }
        return out + "]";
    }
    if let Some(words) = value.u64s() {
        for w in words {
            let _ = write!(out, "{w} ");
        }
    } else if let Some(text) = value.as_str_bytes()
        && !text.is_empty()
        && text.iter().all(|b| b.is_ascii_graphic() || *b == b' ')
    {
        out = String::from_utf8_lossy(text).into_owned();
    } else if let Some(bytes) = value.as_bytes() {
        out = bytes.iter().map(|b| format!("{b:02x}")).collect();
    } else {
        let width = usize::from(value.int_size).max(1);
        for chunk in value.data.chunks(width) {
            let n = chunk.iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
            let _ = write!(out, "{n} ");
        }
    }
    out
}
