//! `zdb -i`: the intent log of a dataset (chapter 06 §16-19).

use std::fmt::Write;

use base::{Result, Txg};
use cenote::inspect::dmu::Objset;
use cenote::inspect::ondisk::zil::{Body, LogPtr, Record, ZilHeader};
use cenote::inspect::spa::Spa;
use cenote::inspect::spa::audit::log::{LogVisitor, log_header, walk_log};

use super::{Ask, bptext};
use crate::ui;
use crate::ui::time::ctime;

/// Names of record types, by number, as `zdb` prints them.
pub(crate) const RECORD_TYPES: [&str; 25] = [
    "Total",
    "TX_CREATE",
    "TX_MKDIR",
    "TX_MKXATTR",
    "TX_SYMLINK",
    "TX_REMOVE",
    "TX_RMDIR",
    "TX_LINK",
    "TX_RENAME",
    "TX_WRITE",
    "TX_TRUNCATE",
    "TX_SETATTR",
    "TX_ACL_V0",
    "TX_ACL_ACL",
    "TX_CREATE_ACL",
    "TX_CREATE_ATTR",
    "TX_CREATE_ACL_ATTR",
    "TX_MKDIR_ACL",
    "TX_MKDIR_ATTR",
    "TX_MKDIR_ACL_ATTR",
    "TX_WRITE2",
    "TX_SETSAXATTR",
    "TX_RENAME_EXCHANGE",
    "TX_RENAME_WHITEOUT",
    "TX_CLONE_RANGE",
];

/// Shows a dataset's log, if it has one.
pub(super) fn show(ask: &Ask, spa: &Spa, os: &Objset) -> Result<()> {
    let header = log_header(&os.phys())?;
    if header.log.is_end() {
        return Ok(());
    }
    let level = ask.level('i').max(ask.level('d'));
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
        let mut lines = Lines { level, header: &header, first, counts: [0; RECORD_TYPES.len()] };
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
}

impl Lines<'_> {
    fn any(&self) -> bool {
        self.counts.iter().any(|&c| c > 0)
    }

    fn totals(&self) {
        let mut out = String::new();
        for (name, count) in RECORD_TYPES.iter().zip(self.counts) {
            if self.any() && (count > 0 || self.level >= 4) {
                let _ = writeln!(out, "\t\t{name:<17} {count:4}");
            }
        }
        let gap = if self.level >= 4 { "\n" } else { "" };
        let end = if self.any() { "\n" } else { "" };
        ui::out(&format!("{gap}{out}{end}"));
    }

    /// What claiming does with something of this birth.
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

impl Lines<'_> {
    fn body(&self, record: &Record<'_>, body: &Body<'_>, out: &mut String) {
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let _ = match body {
            Body::Create(c) => {
                let arrow = c.target.map_or_else(String::new, |t| format!(" -> {}", text(t)));
                let [seconds, _] = c.crtime;
                writeln!(
                    out,
                    "\t\t\t{}{arrow}\n\t\t\t{}\n\t\t\tdoid {}, foid {}, slots {}, mode {:o}\n\
                     \t\t\tuid {}, gid {}, gen {}, rdev 0x{:x}",
                    text(c.name),
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
            Body::Remove { directory, name } => {
                writeln!(out, "\t\t\tdoid {}, name {}", directory.0, text(name))
            }
            Body::Link { directory, object, name } => writeln!(
                out,
                "\t\t\tdoid {}, link_obj {}, name {}",
                directory.0,
                object.0,
                text(name)
            ),
            Body::Rename(n) => writeln!(
                out,
                "\t\t\tsdoid {}, tdoid {}\n\t\t\tsrc {} tgt {}",
                n.from_dir.0,
                n.to_dir.0,
                text(n.from),
                text(n.to)
            ),
            Body::Write(w) | Body::Write2(w) => {
                let _ = writeln!(
                    out,
                    "\t\t\tfoid {}, offset {:x}, length {:x}",
                    w.object.0, w.offset, w.length
                );
                self.pointers(record, out)
            }
            Body::Truncate { object, offset, length } => {
                writeln!(out, "\t\t\tfoid {}, offset 0x{offset:x}, length 0x{length:x}", object.0)
            }
            Body::SetAttr(s) => writeln!(
                out,
                "\t\t\tfoid {}, mask 0x{:x}\n\t\t\tmode {:o}, uid {}, gid {}, size {}",
                s.object.0, s.mask, s.mode, s.uid, s.gid, s.size
            ),
            Body::Acl { object, info, .. } => {
                writeln!(out, "\t\t\tfoid {}, aclcnt {}", object.0, info.count)
            }
            Body::SetSaXattr { object, name, value } => writeln!(
                out,
                "\t\t\tfoid {}\n\t\t\tXAT_NAME  {}\n\t\t\tXAT_VALUE  {}",
                object.0,
                text(name),
                value.map_or_else(|| "NULL".to_owned(), |v| v.escape_ascii().to_string())
            ),
            Body::CloneRange(c) => {
                let _ = writeln!(
                    out,
                    "\t\t\tfoid {}, offset {:x}, length {:x}, blksz {:x}",
                    c.object.0, c.offset, c.length, c.block_size
                );
                self.pointers(record, out)
            }
            _ => Ok(()),
        };
    }

    fn pointers(&self, record: &Record<'_>, out: &mut String) -> std::fmt::Result {
        let Ok(pointers) = record.pointers() else { return Ok(()) };
        for bp in pointers.flatten() {
            let claim = self.claim(bp.birth());
            writeln!(out, "\t\t\thas blkptr, {claim}\n\t\t\t{}", bptext::long(&bp))?;
        }
        Ok(())
    }
}
