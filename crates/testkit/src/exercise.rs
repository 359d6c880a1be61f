//! Reads the whole content of a pool, up to fixed limits.
//!
//! For hostile pools: errors are expected and counted. The number of requests is limited
//! here; the engine must limit everything else.

use std::collections::BTreeMap;

use cenote::inspect::{dsl, zpl};
use cenote::{Dataset, DatasetKind, FileSystem, Io, ObjectId, Pool, Result, Volume};

/// Maximum number of datasets, directory entries and reads of one pool.
const DATASETS_MAX: usize = 2_000;
const ENTRIES_MAX: usize = 20_000;
const READS_MAX: usize = 2_000;
/// Levels of directories.
const DEPTH_MAX: usize = 64;

/// The number of calls, and of errors.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Calls that worked.
    pub ok: usize,
    /// Calls that failed, by the kind of error.
    pub failed: BTreeMap<String, usize>,
    entries: usize,
    reads: usize,
}

impl Tally {
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => {
                self.ok += 1;
                Some(value)
            }
            Err(e) => {
                // Formatting an error must not fail either.
                let _ = format!("{e} {e:?}");
                *self.failed.entry(format!("{:?}", e.kind())).or_default() += 1;
                None
            }
        }
    }

    /// Calls that failed.
    pub fn failures(&self) -> usize {
        self.failed.values().sum()
    }
}

/// Reads everything.
pub fn exercise(pool: &Pool) -> Tally {
    let mut t = Tally::default();
    pool_wide(pool, &mut t);
    let mut datasets = Vec::new();
    let walked = pool.for_each_dataset(&mut |dataset| {
        datasets.push(dataset);
        if datasets.len() > DATASETS_MAX {
            return Err(cenote::Error::limit("enough datasets for a test"));
        }
        Ok(())
    });
    t.note(walked);
    for dataset in &datasets {
        one(dataset, &mut t);
        for list in [dataset.snapshots(), dataset.bookmarks(), dataset.children()] {
            for below in t.note(list).unwrap_or_default().iter().take(64) {
                if below.kind() == DatasetKind::Bookmark || below.kind() == DatasetKind::Snapshot {
                    one(below, &mut t);
                }
            }
        }
    }
    t
}

fn pool_wide(pool: &Pool, t: &mut Tally) {
    let spa = pool.spa();
    t.note(pool.status());
    t.note(pool.props());
    t.note(pool.space_map());
    t.note(spa.history());
    t.note(spa.dedup_entries());
    t.note(spa.dedup_statistics());
    t.note(spa.dedup_table_size());
    t.note(spa.dedup_cached());
    t.note(spa.prefetch_dedup());
    if let Ok(tables) = spa.dedup_tables() {
        for table in &tables {
            let visit = |class| spa.for_each_dedup_entry(table, class, |_, _, _| Ok(()));
            for class in &table.classes {
                t.note(visit(class));
            }
        }
    }
    for (_, table) in t.note(spa.clone_tables()).unwrap_or_default() {
        t.note(spa.clone_counts(&table));
    }
    if let Some(space) = t.note(spa.load_space()) {
        let _ = (space.size(), space.allocated(), space.usable(), space.slop());
        let _ = space.fragmentation();
        for vdev in &space.vdevs {
            for m in &vdev.metaslabs {
                t.note(spa.for_each_metaslab_entry(vdev, m, &mut |_| Ok(())));
            }
        }
    }
    for name in ["sync_bplist", "free_bpobj"] {
        if let Some(Some(object)) = t.note(spa.mos().lookup(name)) {
            t.note(dsl::bpobj::for_each(spa.mos(), object, &mut |_| Ok(())));
        }
    }
}

fn one(dataset: &Dataset, t: &mut Tally) {
    let _ = (dataset.name(), dataset.object(), dataset.createtxg(), dataset.is_locked());
    t.note(dataset.props());
    t.note(dataset.prop("written"));
    t.note(dataset.prop("user:example"));
    if dataset.kind() == DatasetKind::Bookmark {
        return;
    }
    if dataset.kind() == DatasetKind::Volume {
        if let Some(volume) = t.note(dataset.open_volume()) {
            read_volume(&volume, t);
        }
        return;
    }
    if let Some(fs) = t.note(dataset.open_fs()) {
        for kind in [zpl::SpaceKind::User, zpl::SpaceKind::Group, zpl::SpaceKind::Project] {
            t.note(fs.userspace(kind, Io::WAIT));
        }
        t.note(fs.fuid_domains(Io::WAIT));
        tree(&fs, fs.root(), 0, t);
    }
}

fn read_volume(volume: &Volume, t: &mut Tally) {
    let mut at = 0;
    for _ in 0..64 {
        let Some(Some(extent)) = t.note(volume.extent(at, Io::WAIT)) else { return };
        t.note(volume.read(extent.offset, (extent.len as usize).min(1 << 20), Io::WAIT));
        assert!(extent.len > 0, "an extent without length at {at}");
        at = extent.offset + extent.len;
    }
}

fn tree(fs: &FileSystem, id: ObjectId, depth: usize, t: &mut Tally) {
    let Some(attrs) = t.note(fs.attrs(id, Io::WAIT)) else { return };
    for name in t.note(fs.list_xattrs(id, Io::WAIT)).unwrap_or_default() {
        t.note(fs.get_xattr(id, &name, Io::WAIT));
    }
    match attrs.mode & 0o170_000 {
        0o040_000 => directory(fs, id, depth, t),
        0o120_000 => {
            t.note(fs.readlink(id, Io::WAIT));
        }
        0o100_000 => content(fs, id, t),
        _ => {}
    }
}

fn directory(fs: &FileSystem, id: ObjectId, depth: usize, t: &mut Tally) {
    if depth >= DEPTH_MAX {
        return;
    }
    let mut cookie = 0;
    while t.entries < ENTRIES_MAX {
        let Some(page) = t.note(fs.readdir(id, cookie, Io::WAIT)) else { return };
        for entry in &page.entries {
            t.entries += 1;
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            t.note(fs.lookup(id, &entry.name, Io::WAIT));
            if t.entries < ENTRIES_MAX {
                tree(fs, entry.id, depth + 1, t);
            }
        }
        match page.next {
            Some(next) => {
                assert!(next > cookie, "a listing went from {cookie} back to {next}");
                cookie = next;
            }
            None => return,
        }
    }
}

fn content(fs: &FileSystem, id: ObjectId, t: &mut Tally) {
    let mut at = 0;
    for _ in 0..64 {
        if t.reads > READS_MAX {
            return;
        }
        t.reads += 1;
        let Some(Some(extent)) = t.note(fs.extent(id, at, Io::WAIT)) else { return };
        assert!(extent.len > 0, "an extent without length at {at}");
        let len = (extent.len as usize).min(1 << 20);
        t.note(fs.read(id, extent.offset, len, Io::WAIT));
        let Some(next) = extent.offset.checked_add(extent.len) else { return };
        at = next;
    }
}
