//! `zdb -i`: the intent log of a dataset (chapter 06 §16-19).

use std::fmt::Write as _;

use base::{Result, Txg};
use cenote::Io;
use cenote::inspect::dmu::Objset;
use cenote::inspect::ondisk::BlkPtr;
use cenote::inspect::ondisk::zil::{
    CloneRange, LogPtr, RECORD_TYPES, RENAME_EXCHANGE, RENAME_WHITEOUT, Record, RecordBody, Write,
    ZilHeader,
};
use cenote::inspect::spa::Spa;
use cenote::inspect::spa::audit::log::{LogVisitor, log_header, walk_log};
use cenote::inspect::zio::Zio;
use ui::time::ctime;

use super::{DumpOptions, bptext};

/// Shows a dataset's log, if it has one.
pub(super) fn show(opts: &DumpOptions, spa: &Spa, os: &Objset) -> Result<()> {
    let header = log_header(&os.phys())?;
    if header.log.is_end() {
        return Ok(());
    }
    let level = opts.level('i').max(opts.level('d'));
    ui::out(&format!(
        "\n    ZIL header: claim_txg {}, claim_blk_seq {}, claim_lr_seq {} replay_seq {}, flags \
         0x{:x}\n",
        header.claim_txg,
        header.claim_blk_seq,
        header.claim_lr_seq,
        header.replay_seq,
        header.flags
    ));
    if level >= 2 {
        ui::out("\n");
        let first = spa.uberblock().txg.next();
        let (counts, zio) = ([0; RECORD_TYPES.len()], spa.zio());
        let mut lines = Lines { level, header: &header, first, counts, zio };
        walk_log(spa.zio(), &header, &mut lines)?;
        lines.totals();
    }
    Ok(())
}

struct Lines<'a> {
    level: usize,
    header: &'a ZilHeader,
    first: Txg,
    counts: [u64; RECORD_TYPES.len()],
    zio: &'a Zio,
}

/// Bytes of a write in zdb's format: printable characters, and the others as signed numbers.
fn dump(data: &[u8], most: usize) -> String {
    let mut out = "\t\t\t".to_owned();
    for byte in data.iter().take(most) {
        let _ = match byte {
            b' '..=b'~' => write!(out, "{} ", char::from(*byte)),
            0x80.. => write!(out, "FFFFFF{byte:X}"),
            _ => write!(out, "{byte:2X}"),
        };
    }
    out + "\n"
}

/// A value on lines of its own; as text if it is readable.
fn readable(value: &[u8]) -> String {
    let plain = |b: &u8| matches!(b, b' '..=b'~' | b'\n' | b'\t');
    let text = match std::str::from_utf8(value) {
        Ok(text) if value.iter().all(plain) => text.to_owned(),
        _ => value.escape_ascii().to_string(),
    };
    if text.ends_with('\n') { text } else { text + "\n" }
}

impl Lines<'_> {
    fn any(&self) -> bool {
        self.counts.iter().any(|&c| c > 0)
    }

    fn totals(&self) {
        let mut out = String::new();
        for (name, count) in RECORD_TYPES.iter().zip(self.counts) {
            if self.any() && (count > 0 || self.level >= 3) {
                let width = 22usize.saturating_sub(name.len());
                let _ = writeln!(out, "\t\t{name}{count:width$}");
            }
        }
        let gap = if self.level >= 4 { "\n" } else { "" };
        let end = if self.any() { "\n" } else { "" };
        ui::out(&format!("{gap}{out}{end}"));
    }

    /// The effect of claiming on a block with this birth.
    fn claim(&self, birth: Txg) -> &'static str {
        if self.header.claim_txg != Txg::ZERO {
            "already claimed"
        } else if birth >= self.first {
            "will claim"
        } else {
            "won't claim"
        }
    }
}

impl LogVisitor for Lines<'_> {
    fn block(&mut self, ptr: &LogPtr) -> Result<bool> {
        if self.level >= 4 {
            let text = if self.level >= 5 {
                format!(", {}", bptext::long(&ptr.bp))
            } else {
                String::new()
            };
            let claim = self.claim(ptr.bp.birth());
            ui::out(&format!("\tBlock seqno {}, {claim}{text}\n", ptr.seq()));
        }
        Ok(true)
    }

    fn record(&mut self, record: &Record<'_>, encrypted: bool) -> Result<()> {
        let header = &record.header;
        let index = usize::from(header.txtype);
        for i in [0, index] {
            if let Some(count) = self.counts.get_mut(i) {
                *count += 1;
            }
        }
        let name = RECORD_TYPES.get(index).copied().unwrap_or("TX_?");
        let ci = if header.case_insensitive { "CI-" } else { "" };
        let mut out = format!(
            "\t\t{ci}{name:<20}len {:6}, txg {}, seq {}\n",
            record.bytes.len(),
            header.txg,
            header.seq
        );
        if self.level >= 3 {
            if encrypted {
                out.push_str("\t\t\t(encrypted)\n");
            } else if let Ok(body) = record.body() {
                self.body(record, &body, &mut out);
            }
        }
        ui::out(&out);
        Ok(())
    }
}

/// The blocks of a clone, each with its index.
fn cloned(clone: &CloneRange<'_>, out: &mut String) {
    let pointers = clone.pointers();
    let n = pointers.len();
    for (i, bp) in pointers.enumerate() {
        let text = match bp {
            // For an empty block pointer zdb shows the size of a sector.
            Ok(bp) if bp == BlkPtr::default() => {
                "HOLE [L0 unallocated] size=200L birth=0L".to_owned()
            }
            Ok(bp) => bptext::long(&bp),
            Err(e) => format!("({})", e.message()),
        };
        let _ = writeln!(out, "\t\t\t[{}/{n}] {text}", i + 1);
    }
}

impl Lines<'_> {
    fn body(&self, record: &Record<'_>, body: &RecordBody<'_>, out: &mut String) {
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let _ = match body {
            RecordBody::Create(c) => {
                let arrow = c.target.map_or_else(String::new, |t| format!(" -> {}", text(t)));
                let [seconds, _] = c.crtime;
                // A directory of extended attributes has no name.
                if !c.name.is_empty() {
                    let _ = writeln!(out, "\t\t\t{}{arrow}", text(c.name));
                }
                writeln!(
                    out,
                    "\t\t\t{}\n\t\t\tdoid {}, foid {}, slots {}, mode {:o}\n\
                     \t\t\tuid {}, gid {}, gen {}, rdev 0x{:x}",
                    ctime(seconds),
                    c.directory.0,
                    c.object.0,
                    c.dnode_slots,
                    c.mode,
                    c.uid,
                    c.gid,
                    c.generation,
                    c.rdev
                )
            }
            RecordBody::Remove { directory, name } => {
                writeln!(out, "\t\t\tdoid {}, name {}", directory.0, text(name))
            }
            RecordBody::Link { directory, object, name } => writeln!(
                out,
                "\t\t\tdoid {}, link_obj {}, name {}",
                directory.0,
                object.0,
                text(name)
            ),
            RecordBody::Rename(n) | RecordBody::RenameWhiteout(n, _) => {
                let _ = writeln!(
                    out,
                    "\t\t\tsdoid {}, tdoid {}\n\t\t\tsrc {} tgt {}",
                    n.from_dir.0,
                    n.to_dir.0,
                    text(n.from),
                    text(n.to)
                );
                match record.header.txtype {
                    RENAME_EXCHANGE => writeln!(out, "\t\t\tflags RENAME_EXCHANGE"),
                    RENAME_WHITEOUT => writeln!(out, "\t\t\tflags RENAME_WHITEOUT"),
                    _ => Ok(()),
                }
            }
            RecordBody::Write(w) | RecordBody::Write2(w) => {
                let _ = writeln!(
                    out,
                    "\t\t\tfoid {}, offset {:x}, length {:x}",
                    w.object.0, w.offset, w.length
                );
                self.content(record, w, out)
            }
            RecordBody::Truncate { object, offset, length } => {
                writeln!(out, "\t\t\tfoid {}, offset 0x{offset:x}, length 0x{length:x}", object.0)
            }
            RecordBody::SetAttr(s) => {
                let _ = writeln!(out, "\t\t\tfoid {}, mask 0x{:x}", s.object.0, s.mask);
                // As zdb reads the mask on every system: with the bits of illumos.
                let time = |[seconds, nanoseconds]: [u64; 2]| {
                    format!("{seconds}.{nanoseconds:09} {}", ctime(seconds))
                };
                let lines = [
                    (0x2, format!("AT_MODE  {:o}", s.mode)),
                    (0x4, format!("AT_UID   {}", s.uid)),
                    (0x8, format!("AT_GID   {}", s.gid)),
                    (0x80, format!("AT_SIZE  {}", s.size)),
                    (0x100, format!("AT_ATIME {}", time(s.atime))),
                    (0x200, format!("AT_MTIME {}", time(s.mtime))),
                ];
                let mut set = lines.iter().filter(|(bit, _)| s.mask & bit != 0);
                set.try_for_each(|(_, line)| writeln!(out, "\t\t\t{line}"))
            }
            RecordBody::Acl { object, info, .. } => {
                writeln!(out, "\t\t\tfoid {}, aclcnt {}", object.0, info.count)
            }
            RecordBody::SetSaXattr { object, name, value } => write!(
                out,
                "\t\t\tfoid {}\n\t\t\tXAT_NAME  {}\n\t\t\tXAT_VALUE  {}",
                object.0,
                text(name),
                value.map_or_else(|| "NULL\n".to_owned(), readable)
            ),
            RecordBody::CloneRange(c) => {
                let _ = writeln!(
                    out,
                    "\t\t\tfoid {}, offset {:x}, length {:x}, blksize {:x}",
                    c.object.0, c.offset, c.length, c.block_size
                );
                if self.level >= 4 {
                    cloned(c, out);
                }
                Ok(())
            }
        };
    }

    /// The content of a write: its block, and with more detail its first bytes, or all of them.
    fn content(
        &self,
        record: &Record<'_>,
        write: &Write<'_>,
        out: &mut String,
    ) -> std::fmt::Result {
        if self.level < 4 {
            return Ok(());
        }
        self.pointers(record, out)?;
        let most = match self.level {
            ..5 => return Ok(()),
            5 => 20,
            _ => usize::MAX,
        };
        let most = most.min(usize::try_from(write.length).unwrap_or(usize::MAX));
        match (write.data, &write.block) {
            (Some(data), _) => out.push_str(&dump(data, most)),
            (None, Some(bp)) if bp.is_hole() => {
                let _ = writeln!(out, "\t\t\tLSIZE 0x{:x}\n\t\t\t<hole>", bp.head().lsize.0);
            }
            (None, Some(bp)) => {
                if let Ok(data) = self.zio.read(bp, Io::WAIT) {
                    out.push_str(&dump(&data, most));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn pointers(&self, record: &Record<'_>, out: &mut String) -> std::fmt::Result {
        let Ok(pointers) = record.pointers() else { return Ok(()) };
        for bp in pointers.flatten() {
            // A hole has nothing to claim.
            let claim = self.claim(if bp.is_hole() { Txg::ZERO } else { bp.birth() });
            writeln!(out, "\t\t\thas blkptr, {claim}\n\t\t\t{}", bptext::long(&bp))?;
        }
        Ok(())
    }
}
