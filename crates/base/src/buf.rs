//! The buffer type that carries data from the device to the reply.
//!
//! # Theory
//! A [`BufMut`] is uniquely owned and writable. [`BufMut::freeze`] turns it into a
//! [`Buf`], which is immutable and cheap to clone and to slice. Memory comes from
//! arenas by size class (eight classes for each power of two). Arenas are mapped
//! directly from the operating system, so their pages can be returned: [`trim`] drops
//! the pages of free buffers, and the resident set size (RSS) falls.
//!
//! A class with much memory in use gets huge pages. A device that reads or writes such
//! a buffer pins and maps one page instead of 32, and its requests have a few long
//! segments instead of many short ones. This doubles the throughput of a virtual disk.
//! Classes with little memory in use keep small pages, because a huge page becomes
//! resident as a whole as soon as one of its slots is used.
//! Fresh pages are populated in windows of 64 KiB with one system call each. A page
//! fault for every page of many small buffers costs several times as much.
//!
//! # Invariants
//! * Every buffer of 4 KiB or more is 4 KiB-aligned (O_DIRECT); smaller ones are
//!   aligned to 512.
//! * The bytes of a buffer are always initialised: fresh mappings are zero, and
//!   recycled slots hold older bytes. Code that hands bytes to an untrusted reader
//!   overwrites all of them first.
//! * A slot in an arena is on exactly one of: the free list, one live `Region`.
//! * Once a slot of a huge page is used, the free slots of the same page count as
//!   resident. In the free list the cold slots of a page are adjacent, below all warm
//!   ones.
//!
//! Lock order: a class's free list is a leaf lock; only memory mapping is called under
//! it.

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
/// Size classes: 512, 576, 640, ... up to `BUF_SIZE_MAX`. Only classes that keep the
/// required alignment are used. From 32 KiB on, rounding costs at most an eighth.
const CLASSES: usize = 8 * (26 - MIN_CLASS_SHIFT as usize) + 1;
/// Small classes are cut from mappings of this size (bytes).
const CHUNK: usize = 2 << 20;
/// From this size on, each buffer without huge pages has its own mapping.
const DIRECT: usize = 256 << 10;
/// A class whose buffers have at least this size gets huge pages once `HUGE_FROM` bytes
/// of it are mapped. The partly used page is then a small share of the class.
const HUGE_MIN: usize = 8 << 10;
const HUGE_FROM: usize = 8 * CHUNK;
const PAGE: usize = 4096;
const SECTOR: usize = 512;
/// Pages of smaller buffers are populated together, this many bytes at a time.
const WINDOW: usize = 64 << 10;
/// Larger buffers are often not filled completely at once, so they are not populated in
/// advance.
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
    // Multiples of a page (or of a sector, below a page) keep the alignment that
    // O_DIRECT needs.
    let granule = if class_size(class) > PAGE { PAGE } else { SECTOR };
    while !class_size(class).is_multiple_of(granule) {
        class += 1;
    }
    class
}

#[derive(Clone, Copy)]
struct ArenaSlot {
    ptr: NonNull<u8>,
    /// The pages may be resident although the slot is free.
    warm: bool,
}

// SAFETY: a `ArenaSlot` is an address in a mapping that is never unmapped; the holder of
// the value owns the bytes exclusively.
unsafe impl Send for ArenaSlot {}

struct SizeClass {
    free: Mutex<Free>,
}

struct Free {
    slots: Vec<ArenaSlot>,
    /// Bytes mapped for the class.
    mapped: usize,
    /// Start addresses of the huge chunks, and whether the huge page of each is whole:
    /// returning a part of it splits it.
    huge: BTreeMap<usize, bool>,
}

impl Free {
    const NONE: Free = Free { slots: Vec::new(), mapped: 0, huge: BTreeMap::new() };

    /// Records that a cold slot is used from now on. Free slots behind it become
    /// resident with it: all of a huge page, otherwise those in the same window.
    /// Returns the end of that range.
    fn opened(&mut self, at: NonNull<u8>, size: usize) -> usize {
        let (from, chunk) = (at.addr().get(), chunk_of(at));
        let most = if self.huge.get(&chunk) == Some(&true) { chunk + CHUNK } else { from + WINDOW };
        let mut end = from + size;
        for slot in self.slots.iter_mut().rev() {
            if slot.warm || slot.ptr.addr().get() != end || end + size > most {
                break;
            }
            slot.warm = true;
            free_counter(size).fetch_add(size, Relaxed);
            end += size;
        }
        end
    }

    /// Returns huge pages without used slots to the system, as long as more than `keep`
    /// bytes are warm. Each is returned in one call, because otherwise the kernel would
    /// split it.
    fn trim_huge(&mut self, size: usize, keep: usize) -> usize {
        if self.huge.is_empty() {
            return 0;
        }
        let mut unused = BTreeMap::<usize, (usize, bool)>::new();
        for slot in &self.slots {
            let (slots, warm) = unused.entry(chunk_of(slot.ptr)).or_default();
            *slots += 1;
            *warm |= slot.warm;
        }
        // A split page becomes whole again when it is returned as one.
        unused.retain(|chunk, (slots, warm)| match self.huge.get(chunk) {
            Some(whole) => *slots == CHUNK / size && (*warm || !whole),
            None => false,
        });
        let (mut given, mut dropped) = (0, BTreeMap::new());
        for slot in &mut self.slots {
            let base = slot.ptr.as_ptr().map_addr(|a| a & !(CHUNK - 1));
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
            if gone && slot.warm {
                slot.warm = false;
                FREE_WARM.fetch_sub(size, Relaxed);
                given += size;
            }
        }
        for (chunk, _) in dropped.into_iter().filter(|(_, gone)| *gone) {
            self.huge.insert(chunk, true);
        }
        given
    }

    /// Returns single slots to the system until at most `keep` bytes are warm. Slots of
    /// huge pages are returned only if `split`.
    fn trim_single(&mut self, size: usize, keep: usize, split: bool) -> usize {
        let mut given = 0;
        for slot in self.slots.iter_mut().filter(|p| p.warm) {
            if FREE_WARM.load(Relaxed) <= keep {
                break;
            }
            let whole = self.huge.get_mut(&chunk_of(slot.ptr)).filter(|whole| **whole);
            if whole.is_some() && !split {
                continue;
            }
            // SAFETY: the place is free, page-aligned and ours; dropping its
            // pages makes it read as zero.
            let dropped = unsafe {
                rustix::mm::madvise(slot.ptr.as_ptr().cast(), size, Advice::LinuxDontNeed)
            };
            if dropped.is_ok() {
                slot.warm = false;
                FREE_WARM.fetch_sub(size, Relaxed);
                given += size;
                whole.into_iter().for_each(|whole| *whole = false);
            }
        }
        given
    }
}

/// Start of the chunk that contains this slot, if the slot belongs to a huge chunk.
fn chunk_of(ptr: NonNull<u8>) -> usize {
    ptr.addr().get() & !(CHUNK - 1)
}

static ARENA: [SizeClass; CLASSES] =
    [const { SizeClass { free: Mutex::new(Free::NONE) } }; CLASSES];
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// Of slots of a page or more.
static FREE_WARM: AtomicUsize = AtomicUsize::new(0);
/// Of smaller slots, which share pages with their neighbours and stay resident.
static FREE_SMALL: AtomicUsize = AtomicUsize::new(0);

/// The counter of the resident bytes of free slots of this size.
fn free_counter(size: usize) -> &'static AtomicUsize {
    if size < PAGE { &FREE_SMALL } else { &FREE_WARM }
}

/// Memory of the arenas, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemStats {
    /// Owned by live buffers (whole size classes).
    pub in_use: usize,
    /// Free, but still resident until [`trim`].
    pub free_warm: usize,
    /// Free slots smaller than a page, which stay resident.
    pub free_small: usize,
}

/// The arenas' totals.
pub fn stats() -> MemStats {
    MemStats {
        in_use: IN_USE.load(Relaxed),
        free_warm: FREE_WARM.load(Relaxed),
        free_small: FREE_SMALL.load(Relaxed),
    }
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
    if let Some(slot) = free.slots.pop() {
        if slot.warm {
            free_counter(size).fetch_sub(size, Relaxed);
        } else {
            let end = free.opened(slot.ptr, size);
            drop(free);
            populate(slot.ptr, end);
        }
        return slot.ptr;
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
    free.slots.reserve(count);
    for i in (1..count).rev() {
        // SAFETY: i * size < CHUNK, inside the mapping just made.
        let ptr = unsafe { base.add(i * size) };
        free.slots.push(ArenaSlot { ptr, warm: false });
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
    // SAFETY: both addresses lie inside the mapping just made, or at its end.
    let (base, end) = unsafe { (ptr.add(before), ptr.add(before + CHUNK)) };
    for (ptr, len) in [(ptr, before), (end, CHUNK - before)] {
        if len > 0 {
            // SAFETY: this is a part of the mapping just made, and no other code has
            // its address. If unmapping fails, the part costs address space only.
            let _unmapped = unsafe { rustix::mm::munmap(ptr.as_ptr().cast(), len) };
        }
    }
    // SAFETY: the chunk is exclusively owned; the advice does not change its content. A
    // kernel without huge pages uses small ones.
    let _advised =
        unsafe { rustix::mm::madvise(base.as_ptr().cast(), CHUNK, Advice::LinuxHugepage) };
    base
}

/// Lets the kernel populate the pages from a slot to the end of its window (or of the
/// slot, if that is larger) in one call. A huge page is populated at the first touch.
fn populate(ptr: NonNull<u8>, end: usize) {
    let from = ptr.as_ptr().map_addr(|addr| addr & !(PAGE - 1));
    let len = end - from.addr();
    if len <= POPULATE_MAX {
        // SAFETY: the range holds free slots and the caller's own one, in a mapping
        // that is never unmapped; no content changes. If the kernel cannot populate the
        // range, page faults do it later.
        let _made = unsafe { rustix::mm::madvise(from.cast(), len, Advice::LinuxPopulateWrite) };
    }
}

fn give(class: usize, ptr: NonNull<u8>) {
    let size = class_size(class);
    IN_USE.fetch_sub(size, Relaxed);
    free_counter(size).fetch_add(size, Relaxed);
    ARENA[class].free.lock().slots.push(ArenaSlot { ptr, warm: true });
}

/// Returns the pages of free buffers to the operating system until at most `keep` bytes
/// of them stay resident. Returns the number of bytes released.
///
/// Buffers smaller than a page share pages with their neighbours and stay.
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
        // Cold slots move to the bottom, so that warm ones are reused first.
        free.slots.sort_by_key(|p| (p.warm, std::cmp::Reverse(p.ptr)));
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
    /// If `len` exceeds [`BUF_SIZE_MAX`]; callers check sizes that come from a disk
    /// before.
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

    /// A buffer of `len` zero bytes. All such buffers share one mapping that costs no
    /// memory.
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

    /// Turns the buffer back into a writable one, if it is whole and not shared.
    ///
    /// # Errors
    /// Returns the buffer unchanged when it is shared.
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

    /// Whether another `Buf` shares this memory or a part of it.
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

    /// Many small buffers were freed, and each block that came into the cache had all free
    /// buffers examined, in vain: those are not returned.
    #[test]
    fn small_buffers_are_not_counted_as_returnable() {
        const COUNT: usize = 10_000;
        let live: Vec<BufMut> = (0..COUNT).map(|_| BufMut::alloc(PAGE / 2)).collect();
        drop(live);
        trim(0);
        assert!(stats().free_small >= COUNT * PAGE / 2);
        for class in (0..CLASSES).filter(|class| class_size(*class) < PAGE) {
            assert!(std::ptr::eq(free_counter(class_size(class)), &raw const FREE_SMALL));
        }
    }

    proptest! {
        /// Compares with the naive model: one `Vec<u8>` for each buffer.
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

    /// Uses a class that no other test uses: grows it from its first chunks to huge
    /// pages, returns them all, and checks that they become whole again.
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
            // First return a part of each page.
            let kept: Vec<BufMut> =
                live.into_iter().enumerate().filter(|(i, _)| i % 7 == 0).map(|b| b.1).collect();
            trim(0);
            for (i, buf) in kept.iter().enumerate() {
                assert!(buf.iter().all(|&b| b == (i * 7) as u8 | 1));
            }
            drop(kept);
            trim(0);
            let free = ARENA[class_of(LEN)].free.lock();
            assert!(free.slots.iter().all(|p| !p.warm));
        }
    }
}
