//! What the allocator keeps of memory that is free. The binary chooses the allocator; with
//! another one than mimalloc this policy has no effect.
//!
//! # Theory
//! What one group's changes took of the heap, the next one's will take again, and a page that
//! went back to the system meanwhile has to be made and cleared anew: in a virtual machine
//! that gives free memory back to its host that costs more than all the rest of making a
//! small file. So a daemon's free pages stay for [`KEPT`], as the arenas of `base::buf` keep
//! theirs, and go at once when the machine lacks memory.

#[cfg(feature = "mimalloc")]
use libmimalloc_sys as ffi;

/// How long a daemon keeps free pages, milliseconds.
#[cfg(feature = "mimalloc")]
const KEPT: core::ffi::c_long = 60_000;
/// The option `purge_delay`, for which the crate has no name, by its neighbour's.
#[cfg(feature = "mimalloc")]
const PURGE_DELAY: ffi::mi_option_t = ffi::mi_option_use_numa_nodes - 1;

/// From now on free pages are kept a while, unless `MIMALLOC_PURGE_DELAY` says how long.
pub(crate) fn keep() {
    #[cfg(feature = "mimalloc")]
    // SAFETY: sets a number that the allocator reads whenever it frees pages.
    unsafe {
        ffi::mi_option_set_default(PURGE_DELAY, KEPT);
    }
}

/// Gives free pages back to the system, `all` or those whose time is over: an idle daemon
/// frees nothing, and the allocator looks for them then alone.
pub(crate) fn give_back(all: bool) {
    #[cfg(feature = "mimalloc")]
    // SAFETY: touches what nobody has allocated, alone.
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

    /// Freed pages go at once when they are wanted, however long they would be kept.
    #[test]
    fn what_is_kept_goes_when_it_is_wanted() {
        // SAFETY: reads a number.
        let delay = || unsafe { ffi::mi_option_get(PURGE_DELAY) };
        // Of this version: it is the option that is meant.
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
