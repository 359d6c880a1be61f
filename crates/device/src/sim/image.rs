//! The content of a disk, cheap to copy: two copies share pages until one of them is
//! written.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use base::{Error, Result};

const PAGE: usize = 4096;
/// Pages of a node.
const FAN: usize = 256;
const NODE: usize = PAGE * FAN;

type ImagePage = Arc<[u8; PAGE]>;
type ImageNode = Arc<Vec<Option<ImagePage>>>;

/// A disk of `size` bytes. Only written pages take memory. Cloning copies nothing;
/// pages are copied when they are written.
#[derive(Clone)]
pub struct Image {
    size: u64,
    nodes: Arc<Vec<Option<ImageNode>>>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} bytes, {} allocated)", self.size, self.allocated())
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Image) -> bool {
        self.size == other.size && {
            let pages = self.size.div_ceil(PAGE as u64) as usize;
            (0..pages).all(|i| match (self.page(i), other.page(i)) {
                (None, None) => true,
                (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
                (Some(a), None) | (None, Some(a)) => a.iter().all(|&x| x == 0),
            })
        }
    }
}
impl Eq for Image {}

/// The parts of a range by page: page index, first byte within the page, bytes.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let (mut at, mut left) = (offset, len);
    std::iter::from_fn(move || {
        let from = (at % PAGE as u64) as usize;
        let n = left.min(PAGE - from);
        let part = ((at / PAGE as u64) as usize, from, n);
        (at, left) = (at + n as u64, left - n);
        (n > 0).then_some(part)
    })
}

impl Image {
    /// `size` zero bytes.
    pub fn new(size: u64) -> Image {
        let nodes = size.div_ceil(NODE as u64) as usize;
        Image { size, nodes: Arc::new(vec![None; nodes]) }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of memory of its content, shared or not.
    pub fn allocated(&self) -> u64 {
        let pages = self.nodes.iter().flatten().flat_map(|n| n.iter()).flatten().count();
        (pages * PAGE) as u64
    }

    fn page(&self, page: usize) -> Option<&ImagePage> {
        self.nodes.get(page / FAN)?.as_ref()?.get(page % FAN)?.as_ref()
    }

    fn slot(&mut self, page: usize) -> Option<&mut Option<ImagePage>> {
        let node = Arc::make_mut(&mut self.nodes).get_mut(page / FAN)?;
        let node = node.get_or_insert_with(|| Arc::new(vec![None; FAN]));
        Arc::make_mut(node).get_mut(page % FAN)
    }

    fn check(&self, offset: u64, len: usize) -> Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(Error::invalid("range outside the image")),
        }
    }

    /// Fills `out` from `offset`.
    ///
    /// # Errors
    /// `Invalid` outside the disk.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check(offset, out.len())?;
        let mut rest = out;
        for (page, from, n) in parts(offset, rest.len()) {
            let (part, tail) = rest.split_at_mut(n);
            match self.page(page) {
                Some(bytes) => part.copy_from_slice(&bytes[from..from + n]),
                None => part.fill(0),
            }
            rest = tail;
        }
        Ok(())
    }

    /// Whether `other` holds the same bytes in a range; `false` outside either.
    pub fn same(&self, other: &Image, offset: u64, len: u64) -> bool {
        let Ok(len) = usize::try_from(len) else { return false };
        let inside = self.check(offset, len).is_ok() && other.check(offset, len).is_ok();
        inside
            && parts(offset, len).all(|(page, from, n)| match (self.page(page), other.page(page)) {
                (None, None) => true,
                (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a[from..from + n] == b[from..from + n],
                (Some(a), None) | (None, Some(a)) => a[from..from + n].iter().all(|&x| x == 0),
            })
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// `Invalid` outside the disk.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.check(offset, data.len())?;
        let mut rest = data;
        for (page, from, n) in parts(offset, rest.len()) {
            let (part, tail) = rest.split_at(n);
            rest = tail;
            let Some(slot) = self.slot(page) else {
                return Err(Error::bug("the range was checked"));
            };
            if slot.is_none() && part.iter().all(|&b| b == 0) {
                continue;
            }
            let bytes = slot.get_or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(bytes)[from..from + n].copy_from_slice(part);
        }
        Ok(())
    }

    /// Zeros `len` bytes at `offset`.
    ///
    /// # Errors
    /// `Invalid` outside the disk.
    pub fn zero(&mut self, offset: u64, len: usize) -> Result<()> {
        self.check(offset, len)?;
        for (page, from, n) in parts(offset, len) {
            if self.page(page).is_none() {
                continue;
            }
            match self.slot(page) {
                Some(slot) if n == PAGE => *slot = None,
                Some(Some(bytes)) => Arc::make_mut(bytes)[from..from + n].fill(0),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the image as a sparse file.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn to_file(&self, path: &Path) -> Result<()> {
        let failed = |e| Error::io("cannot write a disk image", e).on_path(path.to_string_lossy());
        let file = File::create(path).map_err(failed)?;
        file.set_len(self.size).map_err(failed)?;
        let pages = self.size.div_ceil(PAGE as u64) as usize;
        for i in 0..pages {
            if let Some(page) = self.page(i) {
                let at = (i * PAGE) as u64;
                let n = PAGE.min((self.size - at) as usize);
                file.write_all_at(&page[..n], at).map_err(failed)?;
            }
        }
        Ok(())
    }
}
