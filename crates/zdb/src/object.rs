//! Output for one object: its row in the table, its bonus buffer, content and blocks.

use std::cell::Cell;
use std::fmt::Write;
use std::sync::Arc;

use base::{Error, ErrorKind, ObjectId, Result};
use cenote::inspect::dmu::{Io, Object, Objset};
use cenote::inspect::dsl::DslDataset;
use cenote::inspect::nvlist::NvList;
use cenote::inspect::ondisk::dnode::{DNODES_PER_BLOCK, Dnode, dnodes_in_block, flags};
use cenote::inspect::ondisk::dslphys::{DslDatasetPhys, DslDirPhys};
use cenote::inspect::ondisk::objset::ObjsetType;
use cenote::inspect::ondisk::{BlkPtr, ObjType};
use cenote::inspect::spa::Spa;
use cenote::inspect::zpl::FileSystem;
use ui::Exit;
use ui::time::ctime;

use super::{DumpOptions, bptext, exit, zaps};

/// The verbosity of `-O` without more `-d`s.
pub(super) const PATH_LEVEL: usize = 2;
/// Maximum number of directories climbed to find a file's path.
const PATH_MAX: usize = 512;

const HEADER: &str = "\n    Object  lvl   iblk   dblk  dsize  dnsize  lsize   %full  type\n";

/// An object; without its key only its dnode is known.
struct Handle {
    id: i64,
    dnode: Arc<Dnode>,
    object: Option<Object>,
}

/// Prints objects of one object set.
pub(super) struct Dump<'a> {
    spa: &'a Spa,
    os: &'a Arc<Objset>,
    fs: Option<Arc<FileSystem>>,
    level: usize,
    exact: bool,
    /// The header has not been printed yet.
    header: Cell<bool>,
}

impl<'a> Dump<'a> {
    /// The printer for an object set.
    pub(super) fn new(
        opts: &DumpOptions,
        spa: &'a Spa,
        os: &'a Arc<Objset>,
        _dataset: Option<&DslDataset>,
    ) -> Dump<'a> {
        // A locked file system shows only its dnodes.
        let fs = (os.kind() == ObjsetType::Zfs && opts.level('d') >= 4 || opts.has('O'))
            .then(|| FileSystem::open(Arc::clone(os), Io::WAIT).ok())
            .flatten();
        Dump { spa, os, fs, level: opts.level('d'), exact: opts.has('P'), header: Cell::new(true) }
    }

    /// Sets the minimum verbosity.
    pub(super) fn at_least(mut self, level: usize) -> Self {
        self.level = self.level.max(level);
        self
    }

    /// Every object, the meta-dnode first and the accounting objects next.
    pub(super) fn all(&self) -> Result<Exit> {
        let mut result = Exit::OK;
        for id in [0, -1, -2, -3] {
            if let Ok(handle) = self.open(id) {
                self.show(&handle)?;
            }
        }
        let (mut used, mut max, mut next) = (0u64, 0, 0);
        let meta = self.os.meta_object();
        while let Some(blkid) = meta.next_data_block(next, Io::WAIT)? {
            next = blkid + 1;
            let found = match self.dnodes(blkid) {
                Ok(found) => found,
                Err(e) => {
                    ui::err(&format!("zdb: block {blkid} of dnodes: {e}"));
                    result = exit::READ;
                    continue;
                }
            };
            for (slot, dnode) in found {
                let id = blkid * DNODES_PER_BLOCK + slot;
                let shown = dnode.and_then(|d| {
                    used += u64::from(d.slots);
                    max = id + u64::from(d.slots) - 1;
                    self.show(&self.handle(id, d))
                });
                if let Err(e) = shown {
                    ui::err(&format!("zdb: object {id}: {e}"));
                    result = exit::READ;
                }
            }
        }
        let empty = if max == 0 { 0.0 } else { 100.0 - used as f64 * 100.0 / max as f64 };
        ui::out(&format!(
            "\n    Dnode slots:\n\tTotal used:    {used:10}\n\tMax used:      {max:10}\n\tPercent \
             empty:  {empty:.6}\n"
        ));
        Ok(result)
    }

    /// The dnodes of one block. Of a locked dataset's dnodes everything but the bonus buffer is
    /// readable.
    fn dnodes(&self, blkid: u64) -> Result<Vec<(u64, Result<Dnode>)>> {
        let bp = self.os.meta_object().block_pointer(0, blkid, Io::WAIT)?;
        let block = self.os.zio().read_dnodes(&bp, Io::WAIT)?;
        Ok(dnodes_in_block(&block, bp.endian()).collect())
    }

    /// An object by its dnode; without content if its key is not loaded.
    fn handle(&self, id: u64, dnode: Dnode) -> Handle {
        let object = self.os.object(ObjectId(id), Io::WAIT).ok();
        Handle { id: id.cast_signed(), dnode: Arc::new(dnode), object }
    }

    fn open(&self, id: i64) -> Result<Handle> {
        let missing = || Error::not_found("no such object");
        let object = match id {
            0 => self.os.meta_object(),
            -3..=-1 => self.os.special(id).ok_or_else(missing)?,
            _ => {
                let id = id.cast_unsigned();
                let found = self.dnodes(id / DNODES_PER_BLOCK)?;
                let mut wanted = found.into_iter().filter(|(s, _)| *s == id % DNODES_PER_BLOCK);
                let (_, dnode) = wanted.next().ok_or_else(missing)?;
                return Ok(self.handle(id, dnode?));
            }
        };
        Ok(Handle { id, dnode: Arc::clone(object.dnode()), object: Some(object) })
    }

    fn size(&self, n: u64) -> String {
        bptext::size(n, self.exact)
    }

    /// One object.
    pub(super) fn one(&self, id: i64) -> Result<()> {
        self.show(&self.open(id)?)
    }

    fn show(&self, handle: &Handle) -> Result<()> {
        let (id, dnode) = (handle.id, &handle.dnode);
        if self.header.replace(self.level >= 4) {
            ui::out(HEADER);
        }
        let mut out = self.row(id, dnode);
        if self.level >= 4 {
            if dnode.bonus_type != ObjType::NONE {
                let name = dnode.bonus_type.name();
                let size = self.size(dnode.bonus.len() as u64);
                let _ = writeln!(out, "{:41}{:>9}   bonus  {name}", "", size);
            }
            out.push_str(&flag_line(dnode));
            let _ = writeln!(out, "\tdnode maxblkid: {}", dnode.max_blkid);
        }
        ui::out(&out);
        if self.level >= 4 {
            match &handle.object {
                Some(object) => {
                    self.bonus(object);
                    self.znode(object);
                    self.content(object);
                }
                None => {
                    if dnode.bonus_type.is_encrypted() {
                        ui::out("\t\t(bonus encrypted)\n");
                    }
                    if dnode.object_type.is_encrypted() {
                        ui::out("\t\t(object encrypted)\n");
                    }
                }
            }
        }
        if self.level >= 5 {
            self.blocks(dnode);
        }
        Ok(())
    }

    fn row(&self, id: i64, dnode: &Dnode) -> String {
        let lsize = dnode.max_blkid.saturating_add(1).saturating_mul(dnode.data_block_size.into());
        let fill: u64 = dnode.blkptrs.iter().map(BlkPtr::fill).fold(0, u64::saturating_add);
        let unit = if dnode.object_type == ObjType::DNODE { 512 } else { dnode.data_block_size };
        let full = 100.0 * fill as f64 * f64::from(unit) / (lsize.max(1)) as f64;
        let mut how = String::new();
        if dnode.checksum != 0 || self.level >= 6 {
            let _ = write!(how, " (K={})", bptext::checksum(dnode.checksum));
        }
        if dnode.compression != 0 || self.level >= 6 {
            let _ = write!(how, " (Z={})", bptext::compression(dnode.compression));
        }
        let size = |n: u64| self.size(n);
        format!(
            "{id:10}  {:3}  {:>5}  {:>5}  {:>5}  {:>6}  {:>5}  {full:6.2}  {}{how}\n",
            dnode.levels,
            size(1 << dnode.indirect_shift),
            size(dnode.data_block_size.into()),
            size(dnode.used),
            size(u64::from(dnode.slots) * 512),
            size(lsize),
            type_name(dnode.object_type)
        )
    }

    fn bonus(&self, object: &Object) {
        let (dnode, mut out) = (object.dnode(), String::new());
        let endian = dnode.endian;
        match dnode.bonus_type {
            ObjType::DSL_DIR => {
                if let Ok(phys) = DslDirPhys::parse(&dnode.bonus, endian) {
                    self.dir(&phys, &mut out);
                }
            }
            ObjType::DSL_DATASET => {
                if let Ok(phys) = DslDatasetPhys::parse(&dnode.bonus, endian) {
                    self.dataset(&phys, &mut out);
                }
            }
            ObjType::BPOBJ_HDR => {
                let names = [
                    "num_blkptrs",
                    "bytes",
                    "comp",
                    "uncomp",
                    "subobjs",
                    "num_subobjs",
                    "num_freed",
                ];
                for (i, name) in names.iter().enumerate() {
                    let value = endian.u64(&dnode.bonus, i * 8).unwrap_or(0);
                    let sized = matches!(i, 1..=3);
                    let text = if sized { self.size(value) } else { value.to_string() };
                    let _ = writeln!(out, "\t\t{name} = {text}");
                }
            }
            // SPA history offsets.
            ObjType(30) => {
                let names = ["pool_create_len", "phys_max_off", "bof", "eof", "records_lost"];
                for (i, name) in names.iter().enumerate() {
                    let value = endian.u64(&dnode.bonus, i * 8).unwrap_or(0);
                    let _ = writeln!(out, "\t\t{name} = {value}");
                }
            }
            _ => {}
        }
        ui::out(&out);
    }

    fn dir(&self, p: &DslDirPhys, out: &mut String) {
        let size = |n: u64| self.size(n);
        let rows = [
            ("creation_time", ctime(p.creation_time)),
            ("head_dataset_obj", p.head_dataset_obj.to_string()),
            ("parent_dir_obj", p.parent_obj.to_string()),
            ("origin_obj", p.origin_obj.to_string()),
            ("child_dir_zapobj", p.child_dir_zapobj.to_string()),
            ("used_bytes", size(p.used_bytes)),
            ("compressed_bytes", size(p.compressed_bytes)),
            ("uncompressed_bytes", size(p.uncompressed_bytes)),
            ("quota", size(p.quota)),
            ("reserved", size(p.reserved)),
            ("props_zapobj", p.props_zapobj.to_string()),
            ("deleg_zapobj", p.deleg_zapobj.to_string()),
            ("flags", format!("{:x}", p.flags)),
        ];
        for (name, value) in rows {
            let _ = writeln!(out, "\t\t{name} = {value}");
        }
        let kinds = ["HEAD", "SNAP", "CHILD", "CHILD_RSRV", "REFRSRV"];
        for (kind, n) in kinds.iter().zip(p.used_breakdown) {
            let _ = writeln!(out, "\t\tused_breakdown[{kind}] = {}", size(n));
        }
        let _ = writeln!(out, "\t\tclones = {}", p.clones);
    }

    fn dataset(&self, p: &DslDatasetPhys, out: &mut String) {
        let size = |n: u64| self.size(n);
        let rows = [
            ("dir_obj", p.dir_obj.to_string()),
            ("prev_snap_obj", p.prev_snap_obj.to_string()),
            ("prev_snap_txg", p.prev_snap_txg.to_string()),
            ("next_snap_obj", p.next_snap_obj.to_string()),
            ("snapnames_zapobj", p.snapnames_zapobj.to_string()),
            ("num_children", p.num_children.to_string()),
            ("userrefs_obj", p.userrefs_obj.to_string()),
            ("creation_time", ctime(p.creation_time)),
            ("creation_txg", p.creation_txg.to_string()),
            ("deadlist_obj", p.deadlist_obj.to_string()),
            ("used_bytes", size(p.referenced_bytes)),
            ("compressed_bytes", size(p.compressed_bytes)),
            ("uncompressed_bytes", size(p.uncompressed_bytes)),
            ("unique", size(p.unique_bytes)),
            ("fsid_guid", p.fsid_guid.to_string()),
            ("guid", p.guid.to_string()),
            ("flags", format!("{:x}", p.flags)),
            ("next_clones_obj", p.next_clones_obj.to_string()),
            ("props_obj", p.props_obj.to_string()),
            ("bp", bptext::long(&p.bp)),
        ];
        for (name, value) in rows {
            let _ = writeln!(out, "\t\t{name} = {value}");
        }
    }

    /// The attributes and the path of a file.
    fn znode(&self, object: &Object) {
        let kind = object.dnode().bonus_type;
        let (true, Some(fs)) = (matches!(kind, ObjType::SA | ObjType::ZNODE), &self.fs) else {
            return;
        };
        let a = match fs.attrs(object.id(), Io::WAIT) {
            Ok(a) => a,
            Err(e) if e.kind() == ErrorKind::Locked => {
                ui::out("\t\t(bonus encrypted)\n");
                return;
            }
            Err(e) => {
                ui::out(&format!("\t(attributes cannot be read: {e})\n"));
                return;
            }
        };
        let time = |t: cenote::inspect::zpl::Time| ctime(u64::try_from(t.seconds).unwrap_or(0));
        let mut out = String::new();
        if self.level >= 5 {
            let _ = writeln!(out, "\tpath\t{}", self.path(fs, object.id()));
        }
        if a.mode & 0o170_000 == 0o120_000
            && let Ok(target) = fs.readlink(object.id(), Io::WAIT)
        {
            let _ = writeln!(out, "\ttarget\t{}", String::from_utf8_lossy(&target));
        }
        let _ = writeln!(out, "\tuid     {}\n\tgid     {}", a.owner_fuid, a.group_fuid);
        for (name, t) in
            [("atime", a.atime), ("mtime", a.mtime), ("ctime", a.ctime), ("crtime", a.crtime)]
        {
            let _ = writeln!(out, "\t{name}\t{}", time(t));
        }
        let _ = writeln!(
            out,
            "\tgen\t{}\n\tmode\t{:o}\n\tsize\t{}\n\tparent\t{}\n\tlinks\t{}\n\tpflags\t{:x}",
            a.generation, a.mode, a.size, a.parent.0, a.nlink, a.pflags
        );
        if a.pflags & cenote::inspect::ondisk::znode::ZFS_PROJID != 0 {
            let _ = writeln!(out, "\tprojid\t{}", a.project);
        }
        ui::out(&out);
    }

    /// The path of a file, found by climbing from directory to directory.
    fn path(&self, fs: &FileSystem, id: ObjectId) -> String {
        let lost = || "???<object#".to_owned() + &id.to_string() + ">";
        let (mut at, mut parts) = (id, Vec::new());
        for _ in 0..PATH_MAX {
            if at == fs.root() {
                parts.reverse();
                return format!("/{}", parts.join("/"));
            }
            let Ok(a) = fs.attrs(at, Io::WAIT) else { return lost() };
            let Some(name) = self.name_in(a.parent, at) else { return lost() };
            parts.push(name);
            at = a.parent;
        }
        lost()
    }

    fn name_in(&self, directory: ObjectId, id: ObjectId) -> Option<String> {
        let object = self.os.object(directory, Io::WAIT).ok()?;
        let zap = cenote::inspect::dmu::Zap::open(object, Io::WAIT).ok()?;
        let mut found = None;
        let is_it = |v: u64| v & ((1 << 48) - 1) == id.0;
        let searched = zap.for_each(|e| {
            if found.is_none() && e.value.first_u64().is_some_and(is_it) {
                found = Some(String::from_utf8_lossy(&e.name).into_owned());
            }
            Ok(())
        });
        searched.ok().and(found)
    }

    fn content(&self, object: &Object) {
        let kind = object.object_type();
        let shown = if kind.is_zap() {
            zaps::show(object)
        } else if kind == ObjType::PACKED_NVLIST {
            self.spa.mos().packed_nvlist(object.id().0).map(|l: NvList| {
                ui::out(&l.indented(8).to_string());
            })
        } else {
            Ok(())
        };
        match shown {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::Locked => ui::out("\t(object encrypted)\n"),
            Err(e) => ui::out(&format!("\t(content cannot be read: {e})\n")),
        }
    }

    /// Every pointer of the object's tree, and the runs of data.
    fn blocks(&self, dnode: &Dnode) {
        ui::out("Indirect blocks:\n");
        let mut runs = Runs { open: None, out: String::new(), exact: self.exact };
        for (i, bp) in dnode.blkptrs.iter().enumerate() {
            self.tree(dnode, bp, dnode.levels - 1, i as u64, &mut runs);
        }
        if let Some(spill) = &dnode.spill {
            ui::out(&format!("\nSpill block: {}\n", bptext::long(spill)));
        }
        runs.close();
        ui::out(&format!("\n{}", runs.out));
    }

    fn tree(&self, dnode: &Dnode, bp: &BlkPtr, level: u8, blkid: u64, runs: &mut Runs) {
        let shift = dnode.epb_shift() * u32::from(level);
        let size = u64::from(dnode.data_block_size);
        let first = blkid.checked_shl(shift).unwrap_or(0);
        let span = 1u64.checked_shl(shift).unwrap_or(0);
        if bp.is_hole() {
            runs.close();
            if bp.birth() == base::Txg::ZERO {
                return;
            }
        }
        let mut line = format!("{:16x} ", first.wrapping_mul(size));
        for l in (0..dnode.levels).rev() {
            if l == level {
                let _ = write!(line, "L{l}");
            } else {
                line.push(' ');
            }
        }
        ui::out(&format!("{line} {}\n", bptext::compact(bp, self.level >= 6)));
        if bp.is_hole() {
            return;
        }
        if level == 0 && dnode.object_type == ObjType::DNODE {
            // Of a block of dnodes, the slots in use count as data.
            for (slot, dnode) in self.dnodes(blkid).unwrap_or_default() {
                let slots = dnode.map_or(1, |d| u64::from(d.slots));
                let at = blkid.saturating_mul(DNODES_PER_BLOCK).saturating_add(slot);
                runs.data(at.saturating_mul(512), slots * 512);
            }
            return;
        }
        if level == 0 {
            runs.data(first.wrapping_mul(size), span.wrapping_mul(size));
            return;
        }
        let head = bp.head();
        if head.level != level || head.lsize.0 != dnode.block_size(level) {
            ui::out("(pointer of the wrong level or size for its place)\n");
            return;
        }
        match self.os.zio().read(bp, Io::WAIT) {
            Ok(block) => {
                for i in 0..1u64 << dnode.epb_shift() {
                    let child = BlkPtr::parse_nth(&block, i as usize, bp.endian());
                    let at = blkid.saturating_mul(1 << dnode.epb_shift()) + i;
                    match child {
                        Ok(child) => self.tree(dnode, &child, level - 1, at, runs),
                        Err(e) => ui::out(&format!("(entry {i}: {e})\n")),
                    }
                }
            }
            Err(e) => ui::out(&format!("(block cannot be read: {e})\n")),
        }
    }
}

/// Collects runs of data for the lines at the end.
struct Runs {
    open: Option<(u64, u64)>,
    out: String,
    exact: bool,
}

impl Runs {
    fn data(&mut self, from: u64, len: u64) {
        self.open = match self.open {
            Some((start, end)) if end == from => Some((start, end.saturating_add(len))),
            _ => {
                self.close();
                Some((from, from.saturating_add(len)))
            }
        };
    }

    fn close(&mut self) {
        if let Some((start, end)) = self.open.take() {
            let size = bptext::size(end - start, self.exact);
            let _ = writeln!(self.out, "\t\tsegment [{start:016x}, {end:016x}) size {size:>5}");
        }
    }
}

/// zdb's names: new-style ZAPs are `zap` and the like.
fn type_name(kind: ObjType) -> &'static str {
    kind.name()
}

fn flag_line(dnode: &Dnode) -> String {
    let mut out = "\tdnode flags: ".to_owned();
    for (bit, name) in [
        (flags::USED_BYTES, "USED_BYTES "),
        (flags::USERUSED_ACCOUNTED, "USERUSED_ACCOUNTED "),
        (flags::USEROBJUSED_ACCOUNTED, "USEROBJUSED_ACCOUNTED "),
        (flags::SPILL_BLKPTR, "SPILL_BLKPTR"),
    ] {
        if dnode.flags & bit != 0 {
            out.push_str(name);
        }
    }
    out.push('\n');
    out
}
