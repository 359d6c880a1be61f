//! Returning the allocator's free memory to the system. The binary chooses the allocator; this
//! has an effect with mimalloc alone, which keeps free pages for a while
//! (`MIMALLOC_PURGE_DELAY`, milliseconds) and returns them only when memory is freed. An idle
//! daemon frees none.

/// Returns free pages to the system: `all`, or those kept long enough.
pub(crate) fn give_back(all: bool) {
    #[cfg(feature = "mimalloc")]
    // SAFETY: touches only memory that is not allocated.
    unsafe {
        libmimalloc_sys::mi_collect(all);
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

    #[test]
    fn free_pages_are_returned_on_demand() {
        let small: Vec<_> = (0..400_000).map(|n: u32| Box::new([n; 64])).collect();
        let most = resident();
        drop(small);
        give_back(true);
        let left = resident();
        assert!(left + (60 << 20) < most, "{left} of {most} bytes are left");
    }
}
