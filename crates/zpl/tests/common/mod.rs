//! Opens a pool of one disk without the pool layer: from the best uberblock to the meta
//! object set and every dataset.

#[path = "../../../testkit/src/need.rs"]
mod need;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Guid, ObjectId};
use codec::checksum::{Checksum, SaltTemplate, compute};
use device::{Device, FileDevice, Lock, OpenOptions};
use dmu::{Io, Objset, Zap};
use ondisk::dslphys::{DslDatasetPhys, DslDirPhys};
use ondisk::label;
use vdev::{Spec, Tree, VdevKind};
use zio::{BlockCache, Zio};

pub(crate) use need::{Need, skip};

/// The directory with unpacked pools (`NAME/disk1.img`) and manifests, if given.
pub(crate) fn pools() -> Option<PathBuf> {
    let dir = std::env::var_os("CENOTE_POOLS").map(PathBuf::from);
    if dir.is_none() {
        skip(Need::Unpacked, "CENOTE_POOLS names no directory with unpacked pools");
    }
    dir
}

/// SHA-256 in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let words = compute(Checksum::Sha256, bytes, &SaltTemplate::new(&[0; 32]), false);
    words.iter().map(|w| format!("{w:016x}")).collect()
}

/// The meta object set of the pool on one disk.
pub(crate) fn open_mos(image: &Path) -> Arc<Objset> {
    let file = std::fs::File::open(image).expect("the disk opens");
    let mut front = vec![0; label::LABEL_SIZE as usize];
    file.read_exact_at(&mut front, 0).expect("the label reads");
    let phys = &front[label::VDEV_PHYS_OFFSET as usize..][..label::VDEV_PHYS_SIZE];
    let config = label::parse_vdev_phys(phys, label::VDEV_PHYS_OFFSET).expect("a label");
    let top = config.list("vdev_tree").expect("a vdev tree");
    let ashift = top.u64("ashift").expect("ashift") as u32;
    let guid = Guid(top.u64("guid").expect("guid"));
    let ring = &front[label::RING_OFFSET as usize..];
    let best = label::uberblocks(ring, ashift, label::RING_OFFSET)
        .max_by_key(|(_, ub)| ub.rank())
        .expect("an uberblock")
        .1;
    let leaf =
        Spec::new(VdevKind::File, 0, guid).with_space(ashift, top.u64("asize").expect("asize"));
    let root = Spec::new(VdevKind::Root, 0, Guid(1)).with_children(vec![leaf]);
    let path = image.to_owned();
    let opener = move |_: &vdev::LeafSpec| -> base::Result<Arc<dyn Device>> {
        let options = OpenOptions { lock: Lock::None, ..OpenOptions::default() };
        Ok(Arc::new(FileDevice::open(&path, &options)?))
    };
    let tree = Tree::build(&root, &opener).expect("a tree");
    let zio = Arc::new(Zio::new(tree, Arc::new(BlockCache::of(256 << 20).unwrap())));
    let mos = Objset::open(Arc::clone(&zio), 0, best.root_bp, Io::WAIT).expect("the MOS");
    if let Some(salt) = directory(&mos).lookup(b"org.illumos:checksum_salt").expect("salt") {
        zio.set_salt(salt.as_bytes().and_then(|b| b.first_chunk()).expect("32 bytes"));
    }
    mos
}

fn directory(mos: &Arc<Objset>) -> Zap {
    Zap::open(mos.object(ObjectId(1), Io::WAIT).expect("object 1"), Io::WAIT).expect("a ZAP")
}

/// Every dataset's name, relative to the root's (empty), and object set.
pub(crate) fn datasets(mos: &Arc<Objset>) -> Vec<(String, Arc<Objset>)> {
    let root = directory(mos).lookup_u64("root_dataset").expect("reads").expect("root");
    let mut out = Vec::new();
    let mut dirs = vec![(String::new(), root)];
    while let Some((name, id)) = dirs.pop() {
        let object = mos.object(ObjectId(id), Io::WAIT).expect("a dsl_dir");
        let dnode = object.dnode();
        let dir = DslDirPhys::parse(&dnode.bonus, dnode.endian).expect("a dsl_dir");
        let head = mos.object(ObjectId(dir.head_dataset_obj), Io::WAIT).expect("a dataset");
        let dnode = head.dnode();
        let ds = DslDatasetPhys::parse(&dnode.bonus, dnode.endian).expect("a dataset");
        let os = Objset::open(Arc::clone(mos.zio()), dir.head_dataset_obj, ds.bp, Io::WAIT);
        out.push((name.clone(), os.expect("an object set")));
        let children = mos.object(ObjectId(dir.child_dir_zapobj), Io::WAIT).expect("children");
        for e in Zap::open(children, Io::WAIT).and_then(|z| z.entries()).expect("a ZAP") {
            let child = String::from_utf8(e.name).expect("a dataset's name");
            if !child.starts_with('$') {
                let sep = if name.is_empty() { "" } else { "/" };
                dirs.push((format!("{name}{sep}{child}"), e.value.as_u64().expect("an object")));
            }
        }
    }
    out.sort_by(|a, b| a.0.cmp(&b.0));
    out
}
