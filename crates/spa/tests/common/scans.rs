//! Helpers of the tests of scrub and resilver.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use base::{Guid, ObjectId};
use dmu::Objset;
use ondisk::scan::ScanState;
use spa::engine::{AttachMode, NewMember, ScanProgress, ScanRequest};
use spa::write::topology::build_member;

use super::shapes::*;
use super::*;

pub const MB: u64 = 1 << 20;
const LABEL_START: u64 = 4 * MB;
pub const LIMIT: Duration = Duration::from_secs(120);

/// Objects with known content.
pub struct KnownFiles {
    pub os: Arc<Objset>,
    pub all: Vec<(ObjectId, u64)>,
    pub len: usize,
}

impl KnownFiles {
    pub fn make(w: &Arc<Writer>, pool: &str, count: u64, len: usize) -> KnownFiles {
        let mut files = KnownFiles { os: head_of(w, pool), all: Vec::new(), len };
        files.add(w, 0..count);
        files
    }

    pub fn add(&mut self, w: &Arc<Writer>, seeds: std::ops::Range<u64>) {
        for n in seeds {
            self.all.push((write_new(w, &self.os, &content(n, 0, self.len)), n));
        }
        w.sync().unwrap();
    }

    pub fn check(&self, what: &str) {
        for &(id, n) in &self.all {
            let read = read(&self.os, id, self.len);
            assert!(read.is_ok_and(|r| r == content(n, 0, self.len)), "{what}: file {n}");
        }
    }

    /// Opens them after an import.
    pub fn open(w: &Arc<Writer>, pool: &str, all: &[(ObjectId, u64)], len: usize) -> KnownFiles {
        KnownFiles { os: head_of(w, pool), all: all.to_vec(), len }
    }
}

/// Waits for the end of the scan, and of one that follows at once.
pub fn finished(w: &Writer, what: &str) -> ScanProgress {
    loop {
        let ended = base::rt::poll(LIMIT, || w.running_scan().is_none());
        assert!(ended, "{what}: the scan does not end");
        let done = w.scan_progress().unwrap();
        if done.scan.state != ScanState::Scanning {
            assert_eq!(done.scan.state, ScanState::Finished, "{what}");
            return done;
        }
    }
}

pub fn scrub(w: &Arc<Writer>, what: &str) -> ScanProgress {
    w.scan(ScanRequest::Scrub, None).unwrap();
    finished(w, what)
}

/// Overwrites stretches of the data of a leaf.
pub fn damage(d: &FileDisks, leaf: usize, stretch: usize, every: usize) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&d.paths[leaf]).unwrap();
    let size = file.metadata().unwrap().len() as usize;
    let noise = content(99, leaf as u64, stretch);
    for at in (LABEL_START as usize..size - (512 << 10) - stretch).step_by(every) {
        file.write_all_at(&noise, at as u64).unwrap();
    }
}

pub fn guid_of(w: &Writer, d: &FileDisks, leaf: usize) -> Guid {
    let path = d.paths[leaf].to_str().unwrap();
    let tree = w.zio().tree();
    let found = tree.leaves().find(|(_, n)| n.path() == Some(path)).map(|(_, n)| n.guid());
    found.unwrap()
}

/// Checksum errors of each leaf, by disk.
pub fn errors(w: &Writer, d: &FileDisks) -> Vec<u64> {
    let tree = w.zio().tree();
    (0..d.paths.len()).map(|i| tree.find(guid_of(w, d, i)).unwrap().errors().cksum).collect()
}

pub fn clear_errors(w: &Writer) {
    w.zio().tree().nodes().for_each(|(_, n)| n.clear_errors());
}

/// Whether a leaf misses txgs.
pub fn is_behind(w: &Writer, d: &FileDisks, leaf: usize) -> bool {
    let tree = w.zio().tree();
    !tree.find(guid_of(w, d, leaf)).unwrap().dtl().is_empty()
}

/// Leaves that may be lost.
pub fn redundancy(shape: &PoolShape) -> usize {
    match shape.name {
        "mirror" | "mirrors" | "raidz1" | "raidz1w5" | "draid1" => 1,
        "mirror3" | "raidz2" => 2,
        "raidz3" => 3,
        _ => 0,
    }
}

pub fn redundant_shapes() -> Vec<PoolShape> {
    shapes().into_iter().filter(|s| redundancy(s) > 0).collect()
}

pub fn export(w: Arc<Writer>) {
    w.export(ondisk::config::PoolState::Exported).unwrap();
}

/// A disk is taken away while the pool is exported, or brought back.
pub fn take_away(d: &FileDisks, leaf: usize) {
    std::fs::rename(&d.paths[leaf], away(d, leaf)).unwrap();
}

pub fn bring_back(d: &FileDisks, leaf: usize) {
    std::fs::rename(away(d, leaf), &d.paths[leaf]).unwrap();
}

/// Attaches a new file to a leaf.
pub fn attach_file(w: &Writer, d: &mut FileDisks, old: usize, mode: AttachMode) -> usize {
    let path = d.dir.join(format!("d{}", d.paths.len()));
    let size = std::fs::metadata(&d.paths[0]).unwrap().len();
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    let options = OpenOptions { write: true, ..OpenOptions::default() };
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, &options).unwrap());
    let facts = |_: &Path| Ok(LeafFacts::of(&*device, false));
    let taken: Vec<Guid> = w.published().config.vdev_tree.walk().map(|v| v.guid).collect();
    let new = NewVdev::new(NewKind::File(path.clone()));
    let (vdev, facts) = build_member(&new, w.txgs().open_txg(), taken, &facts).unwrap();
    let new = NewMember {
        vdev,
        device: Some(Arc::clone(&device)),
        facts: Some(facts),
        ashift: None,
        sequential: false,
    };
    w.attach(guid_of(w, d, old), new, mode, None).unwrap();
    d.paths.push(path);
    d.paths.len() - 1
}

fn away(d: &FileDisks, leaf: usize) -> PathBuf {
    let dir = d.dir.with_extension("away");
    std::fs::create_dir_all(&dir).unwrap();
    dir.join(format!("d{leaf}"))
}
