//! The blocks of an object that one txg wrote. Most files have one block, for which a tree
//! would take more memory than the rest of the handle.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

/// A map by block id.
///
/// Invariant: `one` is the only entry, or there is none in it.
pub(crate) struct BlkidMap<T> {
    one: Option<(u64, T)>,
    many: BTreeMap<u64, T>,
}

impl<T> Default for BlkidMap<T> {
    fn default() -> BlkidMap<T> {
        BlkidMap { one: None, many: BTreeMap::new() }
    }
}

impl<T> BlkidMap<T> {
    pub(crate) fn get_mut(&mut self, blkid: u64) -> Option<&mut T> {
        match &mut self.one {
            Some((b, content)) => (*b == blkid).then_some(content),
            None => self.many.get_mut(&blkid),
        }
    }

    /// Inserts a block and returns the previous one.
    pub(crate) fn insert(&mut self, blkid: u64, content: T) -> Option<T> {
        match self.one.take() {
            None if self.many.is_empty() => {
                self.one = Some((blkid, content));
                return None;
            }
            Some((b, old)) if b == blkid => {
                self.one = Some((blkid, content));
                return Some(old);
            }
            Some((b, other)) => drop(self.many.insert(b, other)),
            None => {}
        }
        self.many.insert(blkid, content)
    }

    pub(crate) fn remove(&mut self, blkid: u64) -> Option<T> {
        match self.one.take_if(|(b, _)| *b == blkid) {
            Some((_, content)) => Some(content),
            None => self.many.remove(&blkid),
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = BlkidMap::default();
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.one.is_some()) + self.many.len()
    }

    /// The block ids in `range`, ascending.
    pub(crate) fn blkids(&self, range: impl RangeBounds<u64>) -> impl Iterator<Item = u64> {
        let one = self.one.as_ref().map(|(b, _)| *b).filter(|b| range.contains(b));
        one.into_iter().chain(self.many.range(range).map(|(b, _)| *b))
    }

    /// All of them, ascending.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        let one = self.one.as_mut().map(|(b, content)| (*b, content));
        one.into_iter().chain(self.many.iter_mut().map(|(b, content)| (*b, content)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_map(calls in prop::collection::vec((0u8..4, 0u64..5, 0u64..5), 0..40)) {
            let (mut blocks, mut model) = (BlkidMap::default(), BTreeMap::new());
            for (n, (call, a, b)) in calls.into_iter().enumerate() {
                match call {
                    0 | 1 => prop_assert_eq!(blocks.insert(a, n), model.insert(a, n)),
                    2 => prop_assert_eq!(blocks.remove(a), model.remove(&a)),
                    _ if b == 4 => {
                        blocks.clear();
                        model.clear();
                    }
                    _ => prop_assert_eq!(blocks.get_mut(a), model.get_mut(&a)),
                }
                prop_assert_eq!(blocks.len(), model.len());
                let range = a.min(b)..a.max(b);
                let blkids: Vec<u64> = model.range(range.clone()).map(|(b, _)| *b).collect();
                prop_assert_eq!(blocks.blkids(range).collect::<Vec<_>>(), blkids);
                let all: Vec<_> = blocks.iter_mut().map(|(b, n)| (b, *n)).collect();
                prop_assert_eq!(all, model.iter().map(|(b, n)| (*b, *n)).collect::<Vec<_>>());
            }
        }
    }
}
