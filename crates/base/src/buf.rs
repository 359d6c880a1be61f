//! The one buffer type, from device to reply.
//!
//! # Theory
//! A [`BufMut`] is uniquely owned and writable; [`BufMut::freeze`] turns it into
//! a [`Buf`], which is immutable, cheap to clone and to slice. Memory comes from
//! arenas by size class (eight steps a power of two), mapped
//! straight from the operating system, so that it can be given back: [`trim`]
//! drops the pages of free buffers, and RSS falls.
//!
//! A class of which much is used gets huge pages: a device that takes a buffer from memory
//! pins and maps one page instead of 32, and its requests have a few long segments
//! instead of many short ones, which doubles what a virtual disk takes. Until then small
//! pages are better, for a huge one is resident as a whole as soon as one of its places is.
//!
//! Fresh pages come in windows of 64 KiB, made in one call: a fault for each page of many
//! small buffers costs several times as much.
//!
//! # Invariants
//! * Every buffer of 4 KiB or more is 4 KiB-aligned (O_DIRECT); smaller ones are
//!   aligned to 512.
//! * The bytes of a buffer are always initialised: fresh mappings are zero and
//!   recycled ones hold older bytes. Whoever hands bytes to a stranger overwrites
//!   all of them first.
//! * A place in an arena is on exactly one of: the free list, one live `Region`.
//! * Once a place of a huge page is used, the free ones beside it count as resident. Cold
//!   places of a page lie together in the free list, below all warm ones.
//!
//! Lock order: a class's free list is a leaf lock; nothing is called under it
//! but memory mapping.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::limits::BUF_SIZE_MAX;
use crate::rt::plain::Mutex;

const MIN_CLASS_SHIFT: u32 = 9;
/// Classes: 512, 576, 640, ... up to `BUF_SIZE_MAX`, of which those are used that keep
/// their alignment: from 32 KiB on an eighth at most is rounding.
const CLASSES: usize = 8 * (26 - MIN_CLASS_SHIFT as usize) + 1;
/// Small classes are cut from mappings of this size.
const CHUNK: usize = 2 << 20;
/// From this size on each buffer without huge pages is a mapping of its own.
const DIRECT: usize = 256 << 10;
/// A class whose buffers are of this size at least gets huge pages once so much of it was
/// mapped: then the page that is used in part is a small share of them.
const HUGE_MIN: usize = 8 << 10;
const HUGE_FROM: usize = 8 * CHUNK;
const PAGE: usize = 4096;
const SECTOR: usize = 512;
/// The pages of smaller buffers are made together, so many bytes at a time.
const WINDOW: usize = 64 << 10;
/// Larger buffers are often not filled at once, and whole.
const POPULATE_MAX: usize = 1 << 20;

const fn class_size(class: usize) -> usize {
    let power = 1usize << (MIN_CLASS_SHIFT as usize + class / 8);
    power + class % 8 * (power / 8)
}

fn class_of(len: usize) -> usize {
    let mut class = 0;
    if len > 1 << MIN_CLASS_SHIFT {
        let shift = usize::BITS - 1 - (len - 1).leading_zeros();
        class = 8 * (shift - MIN_CLASS_SHIFT) as usize;
        while class_size(class) < len {
            class += 1;
        }
    }
    // Multiples keep the alignment that O_DIRECT needs: of a page, and of a sector below it.
    let granule = if class_size(class) > PAGE { PAGE } else { SECTOR };
    while !class_size(class).is_multiple_of(granule) {
        class += 1;
    }
    class
}

#[derive(Clone, Copy)]
struct Place {
    ptr: NonNull<u8>,
    /// The pages may be resident although nobody uses them.
    warm: bool,
}

// SAFETY: a `Place` is an address in a mapping that is never unmapped; whoever
// holds the value owns the bytes exclusively.
unsafe impl Send for Place {}

struct Class {
    free: Mutex<Free>,
}

struct Free {
    places: Vec<Place>,
    /// Bytes mapped for the class.
    mapped: usize,
    /// Where its huge chunks begin, and whether the page of each is whole: a part given
    /// back splits it.
    huge: BTreeMap<usize, bool>,
}

impl Free {
    const NONE: Free = Free { places: Vec::new(), mapped: 0, huge: BTreeMap::new() };

    /// Notes that a cold place is used from now on. Free ones behind it become resident
    /// with it: of a huge page all, else as many as a window holds. Where they end.
    fn opened(&mut self, at: NonNull<u8>, size: usize) -> usize {
        let (from, chunk) = (at.addr().get(), chunk_of(at));
        let most = if self.huge.get(&chunk) == Some(&true) { chunk + CHUNK } else { from + WINDOW };
        let mut end = from + size;
        for place in self.places.iter_mut().rev() {
            if place.warm || place.ptr.addr().get() != end || end + size > most {
                break;
            }
            place.warm = true;
            FREE_WARM.fetch_add(size, Relaxed);
            end += size;
        }
        end
    }

    /// Gives back the huge pages of which nothing is used, as long as more than `keep`
    /// bytes are warm: each in one call, or the kernel would split it.
    fn trim_huge(&mut self, size: usize, keep: usize) -> usize {
        if self.huge.is_empty() {
            return 0;
        }
        let mut unused = BTreeMap::<usize, (usize, bool)>::new();
        for place in &self.places {
            let (places, warm) = unused.entry(chunk_of(place.ptr)).or_default();
            *places += 1;
            *warm |= place.warm;
        }
        // A page that was split becomes whole again when it is given back as one.
        unused.retain(|chunk, (places, warm)| match self.huge.get(chunk) {
            Some(whole) => *places == CHUNK / size && (*warm || !whole),
            None => false,
        });
        let (mut given, mut dropped) = (0, BTreeMap::new());
        for place in &mut self.places {
            let base = place.ptr.as_ptr().map_addr(|a| a & !(CHUNK - 1));
            if !unused.contains_key(&base.addr()) {
                continue;
            }
            let gone = *dropped.entry(base.addr()).or_insert_with(|| {
                // SAFETY: every place of the chunk is on this free list, so it is ours;
                // dropping its pages makes it read as zero.
                FREE_WARM.load(Relaxed) > keep
                    && unsafe { rustix::mm::madvise(base.cast(), CHUNK, Advice::LinuxDontNeed) }
                        .is_ok()
            });
            if gone && place.warm {
                place.warm = false;
                FREE_WARM.fetch_sub(size, Relaxed);
                given += size;
            }
        }
        for (chunk, _) in dropped.into_iter().filter(|(_, gone)| *gone) {
            self.huge.insert(chunk, true);
        }
        given
    }

    /// Gives back single places until at most `keep` bytes are warm, those of huge pages
    /// only if `split`.
    fn trim_single(&mut self, size: usize, keep: usize, split: bool) -> usize {
        let mut given = 0;
        for place in self.places.iter_mut().filter(|p| p.warm) {
            if FREE_WARM.load(Relaxed) <= keep {
                break;
            }
            let whole = self.huge.get_mut(&chunk_of(place.ptr)).filter(|whole| **whole);
            if whole.is_some() && !split {
                continue;
            }
            // SAFETY: the place is free, page-aligned and ours; dropping its
            // pages makes it read as zero.
            let dropped = unsafe {
                rustix::mm::madvise(place.ptr.as_ptr().cast(), size, Advice::LinuxDontNeed)
            };
            if dropped.is_ok() {
                place.warm = false;
                FREE_WARM.fetch_sub(size, Relaxed);
                given += size;
                whole.into_iter().for_each(|whole| *whole = false);
            }
        }
        given
    }
}

/// Where the chunk begins that would hold a place.
fn chunk_of(ptr: NonNull<u8>) -> usize {
    ptr.addr().get() & !(CHUNK - 1)
}

static ARENA: [Class; CLASSES] = [const { Class { free: Mutex::new(Free::NONE) } }; CLASSES];
static IN_USE: AtomicUsize = AtomicUsize::new(0);
static FREE_WARM: AtomicUsize = AtomicUsize::new(0);

/// What the arenas hold, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemStats {
    /// Owned by live buffers (whole size classes).
    pub in_use: usize,
    /// Free, but still resident until [`trim`].
    pub free_warm: usize,
}

/// The arenas' totals.
pub fn stats() -> MemStats {
    MemStats { in_use: IN_USE.load(Relaxed), free_warm: FREE_WARM.load(Relaxed) }
}

fn map(len: usize) -> NonNull<u8> {
    // SAFETY: a new private anonymous mapping aliases nothing.
    let ptr = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    match ptr.ok().and_then(|p| NonNull::new(p.cast())) {
        Some(p) => p,
        None => std::alloc::handle_alloc_error(
            std::alloc::Layout::from_size_align(len, PAGE)
                .unwrap_or(std::alloc::Layout::new::<u8>()),
        ),
    }
}

fn take(class: usize) -> NonNull<u8> {
    let size = class_size(class);
    IN_USE.fetch_add(size, Relaxed);
    let mut free = ARENA[class].free.lock();
    if let Some(place) = free.places.pop() {
        if place.warm {
            FREE_WARM.fetch_sub(size, Relaxed);
        } else {
            let end = free.opened(place.ptr, size);
            drop(free);
            populate(place.ptr, end);
        }
        return place.ptr;
    }
    let huge = size >= HUGE_MIN && CHUNK % size <= CHUNK / 32 && free.mapped >= HUGE_FROM;
    if size >= DIRECT && !huge {
        free.mapped += size;
        drop(free);
        let ptr = map(size);
        populate(ptr, ptr.addr().get() + size);
        return ptr;
    }
    let base = if huge { map_huge() } else { map(CHUNK) };
    if huge {
        free.huge.insert(base.addr().get(), true);
    }
    free.mapped += CHUNK;
    let count = CHUNK / size;
    free.places.reserve(count);
    for i in (1..count).rev() {
        // SAFETY: i * size < CHUNK, inside the mapping just made.
        let ptr = unsafe { base.add(i * size) };
        free.places.push(Place { ptr, warm: false });
    }
    let end = free.opened(base, size);
    drop(free);
    populate(base, end);
    base
}

/// A chunk that the kernel may back with one huge page.
fn map_huge() -> NonNull<u8> {
    let ptr = map(2 * CHUNK);
    let before = ptr.as_ptr().align_offset(CHUNK);
    // SAFETY: both lie inside the mapping just made, or at its end.
    let (base, end) = unsafe { (ptr.add(before), ptr.add(before + CHUNK)) };
    for (ptr, len) in [(ptr, before), (end, CHUNK - before)] {
        if len > 0 {
            // SAFETY: a part of the mapping just made, which nobody was told of. If it
            // stays, it costs addresses alone.
            let _unmapped = unsafe { rustix::mm::munmap(ptr.as_ptr().cast(), len) };
        }
    }
    // SAFETY: the chunk is ours; its content does not change. A kernel without huge pages
    // uses small ones.
    let _advised =
        unsafe { rustix::mm::madvise(base.as_ptr().cast(), CHUNK, Advice::LinuxHugepage) };
    base
}

/// Has the kernel make the pages from a place to the end of its window, or of itself if it
/// is larger, in one call. A huge page comes with the first touch.
fn populate(ptr: NonNull<u8>, end: usize) {
    let from = ptr.as_ptr().map_addr(|addr| addr & !(PAGE - 1));
    let len = end - from.addr();
    if len <= POPULATE_MAX {
        // SAFETY: the range holds free places and one of ours, mapped for ever; no content
        // changes. A kernel that cannot do it leaves it to the faults.
        let _made = unsafe { rustix::mm::madvise(from.cast(), len, Advice::LinuxPopulateWrite) };
    }
}

fn give(class: usize, ptr: NonNull<u8>) {
    let size = class_size(class);
    IN_USE.fetch_sub(size, Relaxed);
    FREE_WARM.fetch_add(size, Relaxed);
    ARENA[class].free.lock().places.push(Place { ptr, warm: true });
}

/// Gives the pages of free buffers back to the operating system until at most
/// `keep` bytes of them stay resident. Returns the bytes given back.
///
/// Buffers below a page share pages with their neighbours and stay.
pub fn trim(keep: usize) -> usize {
    let mut given = 0;
    for class in (0..CLASSES).rev() {
        let size = class_size(class);
        if size < PAGE || FREE_WARM.load(Relaxed) <= keep {
            continue;
        }
        let mut free = ARENA[class].free.lock();
        given += free.trim_huge(size, keep);
        for split in [false, true] {
            given += free.trim_single(size, keep, split);
        }
        // Cold places go to the bottom, so that warm ones are re-used first.
        free.places.sort_by_key(|p| (p.warm, std::cmp::Reverse(p.ptr)));
    }
    given
}

struct Region {
    ptr: NonNull<u8>,
    class: usize,
}

// SAFETY: a Region owns its bytes; `&Region` gives only shared reads.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        give(self.class, self.ptr);
    }
}

/// A uniquely owned, writable buffer.
pub struct BufMut {
    region: Region,
    len: usize,
}

impl BufMut {
    /// A buffer of `len` bytes with unspecified (but initialised) content.
    ///
    /// # Panics
    /// If `len` exceeds [`BUF_SIZE_MAX`]; sizes from a disk are checked before.
    pub fn alloc(len: usize) -> BufMut {
        assert!(len <= BUF_SIZE_MAX, "buffer of {len} bytes exceeds the limit");
        let class = class_of(len);
        BufMut { region: Region { ptr: take(class), class }, len }
    }

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> BufMut {
        let mut buf = BufMut::alloc(len);
        buf.fill(0);
        buf
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> BufMut {
        let mut buf = BufMut::alloc(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Shortens the buffer; longer lengths are ignored.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Bytes of memory held, the size class's rounding included.
    pub fn footprint(&self) -> usize {
        class_size(self.region.class)
    }

    /// Makes the buffer immutable and shareable.
    pub fn freeze(self) -> Buf {
        let len = self.len;
        Buf { region: Some(Arc::new(self.region)), start: 0, len }
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the region owns at least `len` initialised bytes.
        unsafe { std::slice::from_raw_parts(self.region.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is the only owner.
        unsafe { std::slice::from_raw_parts_mut(self.region.ptr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufMut({} bytes)", self.len)
    }
}

/// A shared, immutable buffer: a slice of a frozen [`BufMut`].
#[derive(Clone, Default)]
pub struct Buf {
    region: Option<Arc<Region>>,
    start: usize,
    len: usize,
}

impl Buf {
    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        BufMut::copy_of(bytes).freeze()
    }

    /// `len` zero bytes; all such buffers share one mapping that costs no memory.
    ///
    /// # Panics
    /// If `len` exceeds [`BUF_SIZE_MAX`].
    pub fn zeros(len: usize) -> Buf {
        static ZEROS: OnceLock<Buf> = OnceLock::new();
        let all = ZEROS.get_or_init(|| {
            BufMut {
                region: Region { ptr: map(BUF_SIZE_MAX), class: CLASSES - 1 },
                len: BUF_SIZE_MAX,
            }
            .freeze()
        });
        assert!(len <= BUF_SIZE_MAX, "buffer of {len} bytes exceeds the limit");
        all.slice(0..len)
    }

    /// A part of this buffer, sharing its memory.
    ///
    /// # Panics
    /// If the range does not lie inside the buffer.
    pub fn slice(&self, range: Range<usize>) -> Buf {
        assert!(range.start <= range.end && range.end <= self.len, "slice outside its buffer");
        Buf {
            region: self.region.clone(),
            start: self.start + range.start,
            len: range.end - range.start,
        }
    }

    /// The writable buffer again, if nobody else holds a part of it and it is whole.
    ///
    /// # Errors
    /// The buffer itself, unchanged, when it is shared.
    pub fn try_unfreeze(mut self) -> Result<BufMut, Buf> {
        let (start, len) = (self.start, self.len);
        match self.region.take() {
            Some(region) if start == 0 => match Arc::try_unwrap(region) {
                Ok(region) => Ok(BufMut { region, len }),
                Err(region) => Err(Buf { region: Some(region), start, len }),
            },
            region => Err(Buf { region, start, len }),
        }
    }

    /// Whether anybody else holds this memory, or a part of it.
    pub fn is_shared(&self) -> bool {
        self.region.as_ref().is_some_and(|r| Arc::strong_count(r) > 1)
    }

    /// Bytes of memory kept alive by this buffer (the whole region's class).
    pub fn footprint(&self) -> usize {
        self.region.as_ref().map_or(0, |r| class_size(r.class))
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.region {
            // SAFETY: start + len lies inside the region (checked by `slice`),
            // whose bytes are initialised and immutable while shared.
            Some(r) => unsafe {
                std::slice::from_raw_parts(r.ptr.as_ptr().add(self.start), self.len)
            },
            None => &[],
        }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

impl PartialEq for Buf {
    fn eq(&self, other: &Buf) -> bool {
        **self == **other
    }
}
impl Eq for Buf {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_fit_and_align() {
        for len in
            [0, 1, 511, 512, 513, 1024, 1025, 2100, 4095, 4096, 4097, 12_288, 131_072, BUF_SIZE_MAX]
        {
            let size = class_size(class_of(len));
            assert!(size >= len, "{len} -> {size}");
            assert!(size < PAGE || size.is_multiple_of(PAGE), "{len} -> {size}");
            assert!(size >= PAGE || size == len.max(1).next_multiple_of(SECTOR), "{len} -> {size}");
            assert!(size <= 512.max(len.next_power_of_two()), "{len} -> {size}");
        }
    }

    #[test]
    fn zeros_are_zero_and_shared() {
        let z = Buf::zeros(1 << 20);
        assert!(z.iter().all(|&b| b == 0));
        assert_eq!(Buf::zeros(7).len(), 7);
    }

    #[test]
    fn unfreeze_needs_the_only_owner() {
        let buf = BufMut::copy_of(b"abc").freeze();
        let other = buf.slice(1..2);
        let buf = buf.try_unfreeze().unwrap_err();
        drop(other);
        assert_eq!(&*buf.try_unfreeze().unwrap(), b"abc");
    }

    proptest! {
        /// Against the naive model: a `Vec<u8>` a buffer.
        #[test]
        fn buffers_never_share_bytes(lens in prop::collection::vec(0usize..300_000, 1..24)) {
            let mut live = Vec::new();
            for (i, len) in lens.into_iter().enumerate() {
                let mut buf = BufMut::alloc(len);
                prop_assert!(len < PAGE || (buf.as_ptr() as usize).is_multiple_of(PAGE));
                buf.fill(i as u8);
                live.push((buf, vec![i as u8; len]));
                if i % 5 == 4 {
                    live.swap_remove(i % live.len());
                    trim(0);
                }
            }
            for (buf, model) in live {
                let frozen = buf.freeze();
                prop_assert_eq!(&*frozen, &model[..]);
                let half = frozen.len() / 2;
                prop_assert_eq!(&*frozen.slice(half..frozen.len()), &model[half..]);
            }
        }
    }

    /// A class of its own, which no other test uses: through its first chunks to huge
    /// pages, all given back, and whole again.
    #[test]
    fn many_buffers_of_a_class() {
        const LEN: usize = 512 << 10;
        let count = HUGE_FROM / LEN + 20;
        for round in 0..2 {
            let mut live: Vec<BufMut> = Vec::new();
            for i in 0..count {
                let mut buf = BufMut::alloc(LEN);
                if round == 1 {
                    assert!(buf.iter().all(|&b| b == 0), "pages were given back");
                }
                buf.fill(i as u8 | 1);
                live.push(buf);
            }
            {
                let free = ARENA[class_of(LEN)].free.lock();
                assert!(!free.huge.is_empty());
                assert!(free.huge.keys().all(|chunk| chunk.is_multiple_of(CHUNK)));
            }
            // A part of each page first.
            let kept: Vec<BufMut> =
                live.into_iter().enumerate().filter(|(i, _)| i % 7 == 0).map(|b| b.1).collect();
            trim(0);
            for (i, buf) in kept.iter().enumerate() {
                assert!(buf.iter().all(|&b| b == (i * 7) as u8 | 1));
            }
            drop(kept);
            trim(0);
            let free = ARENA[class_of(LEN)].free.lock();
            assert!(free.places.iter().all(|p| !p.warm));
        }
    }
}
