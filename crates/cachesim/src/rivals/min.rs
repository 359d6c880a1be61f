//! MIN (Belady, 1966): evicts the block whose next use is the latest. It looks ahead, so no
//! real policy reaches it.

use std::collections::BinaryHeap;

/// Never used again.
const NEVER: u32 = u32::MAX;

pub(crate) struct Min;

impl Min {
    /// Hits over a whole trace.
    pub(crate) fn hits(requests: &[u32], keys: usize, size: usize) -> u64 {
        let mut next = vec![NEVER; requests.len()];
        let mut last = vec![NEVER; keys];
        for (at, &key) in requests.iter().enumerate().rev() {
            next[at] = last[key as usize];
            last[key as usize] = at as u32;
        }
        // The next use of each resident key; the heap's other entries are stale.
        let mut due = vec![0u32; keys];
        let mut held = vec![false; keys];
        let mut heap: BinaryHeap<(u32, u32)> = BinaryHeap::new();
        let (mut used, mut hits) = (0, 0);
        for (at, &key) in requests.iter().enumerate() {
            if held[key as usize] {
                hits += 1;
            } else {
                while used >= size {
                    let Some((when, old)) = heap.pop() else { break };
                    if held[old as usize] && due[old as usize] == when {
                        held[old as usize] = false;
                        used -= 1;
                    }
                }
                held[key as usize] = true;
                used += 1;
            }
            due[key as usize] = next[at];
            heap.push((next[at], key));
        }
        hits
    }
}
