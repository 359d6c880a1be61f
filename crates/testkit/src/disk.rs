//! Disk images: their content, damaging them, and editing their labels.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::Guid;
use cenote::inspect::nvlist::NvList;
use cenote::inspect::ondisk::label::{
    LABEL_SIZE, LABELS, VDEV_PHYS_OFFSET, VDEV_PHYS_SIZE, encode_slot, encode_vdev_phys,
    label_offset, parse_vdev_phys, slot_count, slot_offset, slot_size, usable_size,
};
use cenote::inspect::ondisk::uberblock::Uberblock;

use crate::rng::Rng;

/// Bytes before the space that a pool allocates from.
pub const DATA_START: u64 = 4 << 20;
/// Bytes behind it.
pub const DATA_END: u64 = 512 << 10;

/// A disk image.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Its path.
    pub path: PathBuf,
}

impl Disk {
    /// The image at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Disk {
        Disk { path: path.into() }
    }

    fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.path).unwrap()
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        std::fs::metadata(&self.path).unwrap().len()
    }

    /// The ranges that are no holes, of the file or of a part of it.
    pub fn extents(&self, within: Range<u64>) -> Vec<Range<u64>> {
        extents(&File::open(&self.path).unwrap(), within)
    }

    /// The ranges with content in the area from which a pool allocates.
    pub fn data(&self) -> Vec<Range<u64>> {
        self.extents(DATA_START..self.size() - DATA_END)
    }

    /// Reads.
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        File::open(&self.path).unwrap().read_exact_at(&mut out, at).unwrap();
        out
    }

    /// Writes.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.open().write_all_at(bytes, at).unwrap();
    }

    /// Makes a range a hole.
    pub fn zero(&self, range: Range<u64>) {
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let file = self.open();
        rustix::fs::fallocate(&file, flags, range.start, range.end - range.start).unwrap();
    }

    /// Zeros the area from which a pool allocates.
    pub fn zero_data(&self) {
        self.zero(DATA_START..self.size() - DATA_END);
    }

    /// Flips bits of one byte in every `every`th stretch of `stretch` bytes with content;
    /// returns the number of bytes changed.
    pub fn flip_data(&self, seed: u64, stretch: usize, every: u64) -> usize {
        let (mut rng, mut count, file) = (Rng::new(seed), 0, self.open());
        for range in self.data() {
            let mut at = range.start;
            while at < range.end {
                let len = (range.end - at).min(1 << 20) as usize;
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, at).unwrap();
                for part in bytes.chunks_mut(stretch) {
                    if part.iter().all(|&b| b == 0) || rng.below(every) != 0 {
                        continue;
                    }
                    let i = rng.index(part.len());
                    part[i] ^= 1 << rng.below(8);
                    count += 1;
                }
                file.write_all_at(&bytes, at).unwrap();
                at += len as u64;
            }
        }
        count
    }

    /// Offset of a label.
    pub fn label_offset(&self, label: usize) -> u64 {
        label_offset(usable_size(self.size()), label).unwrap()
    }

    /// A label's configuration.
    pub fn label(&self, label: usize) -> Option<NvList> {
        let at = self.label_offset(label) + VDEV_PHYS_OFFSET;
        parse_vdev_phys(&self.read(at, VDEV_PHYS_SIZE), at).ok()
    }

    /// Overwrites a label with noise.
    pub fn destroy_label(&self, label: usize) {
        let mut rng = Rng::new(label as u64);
        let noise: Vec<u8> = (0..LABEL_SIZE).map(|_| rng.number() as u8).collect();
        self.write(self.label_offset(label), &noise);
    }

    /// Changes the configuration in all labels that have one, and fixes the checksums.
    pub fn edit_labels(&self, edit: impl Fn(&mut NvList)) {
        for label in 0..LABELS {
            let Some(mut config) = self.label(label) else { continue };
            edit(&mut config);
            let at = self.label_offset(label) + VDEV_PHYS_OFFSET;
            let mut region = vec![0; VDEV_PHYS_SIZE];
            encode_vdev_phys(&config, &mut region, at).unwrap();
            self.write(at, &region);
        }
    }

    /// The disk's guid, from its labels.
    pub fn guid(&self) -> Option<Guid> {
        (0..LABELS).find_map(|l| self.label(l)?.u64("guid")).map(Guid)
    }

    /// log2 of the sector size of its vdev, from its labels.
    pub fn ashift(&self) -> u32 {
        let of = |l| self.label(l)?.list("vdev_tree")?.u64("ashift");
        (0..LABELS).find_map(of).unwrap_or(9) as u32
    }

    /// Every valid uberblock: label, slot, content.
    pub fn uberblocks(&self) -> Vec<(usize, usize, Uberblock)> {
        let ashift = self.ashift();
        let mut out = Vec::new();
        for label in 0..LABELS {
            for slot in 0..slot_count(ashift) {
                let at = self.slot_offset(label, slot);
                let bytes = self.read(at, slot_size(ashift));
                let parsed = cenote::inspect::ondisk::label::parse_slot(&bytes, at);
                out.extend(parsed.map(|ub| (label, slot, ub)));
            }
        }
        out
    }

    fn slot_offset(&self, label: usize, slot: usize) -> u64 {
        self.label_offset(label) + slot_offset(self.ashift(), slot).unwrap()
    }

    /// Writes an uberblock with a right checksum.
    pub(crate) fn write_uberblock(&self, label: usize, slot: usize, ub: &Uberblock) {
        let at = self.slot_offset(label, slot);
        let mut bytes = vec![0; slot_size(self.ashift())];
        encode_slot(ub, &mut bytes, at).unwrap();
        self.write(at, &bytes);
    }

    /// Damages every uberblock for which `which` returns true.
    pub fn damage_uberblocks(&self, which: impl Fn(&Uberblock) -> bool) -> usize {
        let all = self.uberblocks();
        let chosen: Vec<_> = all.iter().filter(|(_, _, ub)| which(ub)).collect();
        for (label, slot, _) in &chosen {
            self.write(self.slot_offset(*label, *slot) + 16, &[0xa5; 8]);
        }
        chosen.len()
    }
}

pub(crate) fn extents(file: &File, within: Range<u64>) -> Vec<Range<u64>> {
    use rustix::fs::SeekFrom;
    let (mut out, mut at) = (Vec::new(), within.start);
    while at < within.end {
        let Ok(start) = rustix::fs::seek(file, SeekFrom::Data(at)) else { break };
        if start >= within.end {
            break;
        }
        let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap().min(within.end);
        out.push(start..end);
        at = end;
    }
    out
}

/// Puts the images of `from` into `dir`: copies of those that `copied` selects, hard links
/// for the others.
pub fn stage(from: &[PathBuf], dir: &Path, copied: impl Fn(usize) -> bool) -> Vec<Disk> {
    let position = |(i, path): (usize, &PathBuf)| {
        let to = dir.join(path.file_name().unwrap());
        if copied(i) {
            crate::copy_file(path, &to);
        } else {
            std::fs::hard_link(path, &to).unwrap();
        }
        Disk::new(to)
    };
    from.iter().enumerate().map(position).collect()
}
