//! Policy for the allocator's free memory. The binary chooses the allocator; the policy has an
//! effect with mimalloc alone.
//!
//! # Theory
//! The heap that one txg's changes used will be used again by the next one's. A page that was
//! returned to the system meanwhile has to be mapped and cleared again. In a virtual machine
//! that returns free memory to its host, that costs more than all other work of making a small
//! file. So a daemon's free pages are kept for [`KEPT`], as the arenas of `base::buf` keep
//! theirs, and are returned at once when the machine lacks memory.

#[cfg(feature = "mimalloc")]
use libmimalloc_sys as ffi;

/// How long a daemon keeps free pages, milliseconds.
#[cfg(feature = "mimalloc")]
const KEPT: core::ffi::c_long = 60_000;
/// The option `purge_delay`. The crate has no name for it, so its number is derived from its
/// neighbour's.
#[cfg(feature = "mimalloc")]
const PURGE_DELAY: ffi::mi_option_t = ffi::mi_option_use_numa_nodes - 1;

/// From now on free pages are kept for a while, unless `MIMALLOC_PURGE_DELAY` sets the time.
pub(crate) fn keep() {
    #[cfg(feature = "mimalloc")]
    // SAFETY: sets a number that the allocator reads whenever it frees pages.
    unsafe {
        ffi::mi_option_set_default(PURGE_DELAY, KEPT);
    }
}

/// Returns free pages to the system: `all`, or those kept long enough. The allocator checks the
/// time only when memory is freed, and an idle daemon frees none.
pub(crate) fn give_back(all: bool) {
    #[cfg(feature = "mimalloc")]
    // SAFETY: touches only memory that is not allocated.
    unsafe {
        ffi::mi_collect(all);
    }
    #[cfg(not(feature = "mimalloc"))]
    let _ = all;
}

#[cfg(test)]
#[cfg(feature = "mimalloc")]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    /// Freed pages are returned at once when memory is needed, however long they would be kept.
    #[test]
    fn kept_pages_are_returned_on_demand() {
        // SAFETY: reads a number.
        let delay = || unsafe { ffi::mi_option_get(PURGE_DELAY) };
        // Checks that the derived number is that option's in this version.
        assert!(delay() == 1000 || std::env::var_os("MIMALLOC_PURGE_DELAY").is_some());
        keep();
        assert!(delay() == KEPT || std::env::var_os("MIMALLOC_PURGE_DELAY").is_some());
        let small: Vec<_> = (0..400_000).map(|n: u32| Box::new([n; 64])).collect();
        let most = resident();
        drop(small);
        give_back(true);
        let left = resident();
        assert!(left + (60 << 20) < most, "{left} of {most} bytes are left");
    }
}
