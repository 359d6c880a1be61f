//! dRAID: permutations, mapping and distributed spares (chapter 02 §11).
//!
//! # Invariants
//! * A permutation table is used only after its checksum was verified.
//! * Groups are whole rows, so no column crosses the end of a row.
//!
//! Departure: failure domains (§11.5) are refused as unsupported.

use std::sync::Arc;

use base::{Error, Result};

use crate::draid_seeds::SEEDS;
use crate::map::{BlockMap, Col, ParityStripe};
use crate::parity::DATA_COLUMNS_MAX;

/// Bytes of a row on each child.
pub(crate) const ROW: u64 = 16 << 20;
/// Bytes at the end of each child that a dRAID does not use.
pub(crate) const RESERVED: u64 = 32 << 20;

/// A dRAID's stored parameters (§11.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraidParams {
    /// Data columns in a group.
    pub ndata: u32,
    /// Parity columns in a group, 1..=3.
    pub nparity: u32,
    /// Distributed spares.
    pub nspares: u32,
    /// Groups in one permutation slice.
    pub ngroups: u32,
    /// Children in one failure group; 0 or the number of children without
    /// failure domains.
    pub failure_group: u32,
}

impl DraidParams {
    /// Checks the parameters against the number of children.
    pub(crate) fn check(&self, children: usize, ashift: u32) -> Result<()> {
        if self.failure_group != 0 && self.failure_group as usize != children {
            return Err(Error::unsupported("dRAID failure domains cannot be read yet"));
        }
        let width = u64::from(self.ndata) + u64::from(self.nparity);
        let possible = (2..=255).contains(&children)
            && (1..=3).contains(&self.nparity)
            && self.ndata >= 1
            && self.nspares <= 100
            && self.ngroups >= 1
            && width + u64::from(self.nspares) <= children as u64
            && self.ndata as usize <= DATA_COLUMNS_MAX
            && ashift <= 24;
        if !possible {
            return Err(Error::corrupt("impossible dRAID parameters"));
        }
        let ndisks = children as u64 - u64::from(self.nspares);
        if !(width * u64::from(self.ngroups)).is_multiple_of(ndisks) {
            return Err(Error::corrupt("dRAID groups do not fill whole rows"));
        }
        Ok(())
    }
}

/// The base permutations for one number of children (§11.2).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Permutations {
    children: usize,
    table: Vec<u8>,
}

impl Permutations {
    /// Generates and verifies the table.
    pub(crate) fn generate(children: usize) -> Result<Permutations> {
        let Some(&(seed, checksum)) = children.checked_sub(2).and_then(|i| SEEDS.get(i)) else {
            return Err(Error::corrupt("a dRAID has 2 to 255 children"));
        };
        let count = if children <= 31 { 256 } else { 512 };
        let mut state = (0xd_7a1d_5eed_u64, seed);
        let mut row: Vec<u8> = (0..children).map(|i| i as u8).collect();
        let mut table = Vec::with_capacity(count * children);
        for _ in 0..count {
            for j in (1..children).rev() {
                let k = next_random(&mut state) % (j as u64 + 1);
                row.swap(j, k as usize);
            }
            table.extend_from_slice(&row);
        }
        if fletcher4_a(&table) != checksum {
            return Err(base::bug!("a dRAID permutation table came out wrong"));
        }
        Ok(Permutations { children, table })
    }

    /// The child at `position` of permutation `number` (its index in the table).
    fn child(&self, number: u64, position: usize) -> u32 {
        let n = self.children;
        let at = (number % self.table.len() as u64) as usize;
        let (row, shift) = (at / n, at % n);
        ((usize::from(self.table[row * n + position]) + shift) % n) as u32
    }
}

fn next_random(state: &mut (u64, u64)) -> u64 {
    let (s0, s1) = *state;
    let result = s0.wrapping_add(s1).rotate_left(17).wrapping_add(s0);
    let t = s1 ^ s0;
    *state = (s0.rotate_left(49) ^ t ^ (t << 21), t.rotate_left(28));
    result
}

/// Word `a` of fletcher4: the plain sum of the little-endian words.
fn fletcher4_a(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(4);
    words.fold(0u64, |a, w| a.wrapping_add(u64::from(u32::from_le_bytes([w[0], w[1], w[2], w[3]]))))
}

/// Geometry of a dRAID vdev.
#[derive(Clone, Debug)]
pub(crate) struct DraidGeometry {
    ashift: u32,
    data: u64,
    parity: u64,
    groups: u64,
    children: usize,
    perms: Arc<Permutations>,
}

impl DraidGeometry {
    /// The caller has checked `params` against `children` and `ashift`.
    pub(crate) fn new(params: &DraidParams, children: usize, ashift: u32) -> Result<Self> {
        params.check(children, ashift)?;
        Ok(DraidGeometry {
            ashift,
            data: params.ndata.into(),
            parity: params.nparity.into(),
            groups: params.ngroups.into(),
            children: children - params.nspares as usize,
            perms: Arc::new(Permutations::generate(children)?),
        })
    }

    pub(crate) fn nparity(&self) -> usize {
        self.parity as usize
    }

    fn group_width(&self) -> u64 {
        self.data + self.parity
    }

    fn disks(&self) -> u64 {
        self.children as u64
    }

    pub(crate) fn group_size(&self) -> u64 {
        self.group_width() * ROW
    }

    /// Allocated bytes of a block: whole stripes.
    pub(crate) fn asize(&self, psize: u64) -> u64 {
        let stripes = (psize.max(1) - 1) / (self.data << self.ashift) + 1;
        stripes * (self.group_width() << self.ashift)
    }

    /// Largest block that fits the allocation.
    pub(crate) fn psize_of(&self, asize: u64) -> u64 {
        asize / self.group_width() * self.data
    }

    /// Bytes of a dRAID whose smallest child has `child_asize` bytes.
    pub(crate) fn vdev_asize(&self, child_asize: u64) -> u64 {
        let usable = child_asize.saturating_sub(RESERVED) / ROW * ROW;
        let total = usable.saturating_mul(self.disks());
        total - total % self.group_size()
    }

    /// The layout of a block; `psize` in whole sectors (§11.3).
    pub(crate) fn map(&self, offset: u64, psize: u64) -> Result<BlockMap> {
        let out_of_range = || Error::corrupt("the block's address is out of range");
        let stripe = self.group_width() << self.ashift;
        let end = offset.checked_add(self.asize(psize)).ok_or_else(out_of_range)?;
        if end > 1 << 62 || !(offset % self.group_size()).is_multiple_of(stripe) {
            return Err(out_of_range());
        }
        let mut stripes = Vec::new();
        let (mut at, mut done) = (offset, 0);
        // A block has at most 16 MiB and a group at least 32 MiB, so there are at most
        // two rounds.
        while done < psize {
            let left = self.group_size() - at % self.group_size();
            let part = (psize - done).min(self.psize_of(left));
            stripes.push(self.stripe(at, part, done));
            at += left;
            done += part;
        }
        Ok(BlockMap { nparity: self.nparity(), stripes, widths: Vec::new() })
    }

    fn stripe(&self, offset: u64, psize: u64, mut start: u64) -> ParityStripe {
        let (gw, disks, p) = (self.group_width(), self.disks(), self.parity);
        let group = offset / self.group_size();
        let (slice, g) = (group / self.groups, group % self.groups);
        let sectors = ROW >> self.ashift;
        let b = (offset >> self.ashift) % (sectors * gw);
        let first = (g * gw) % disks;
        let row = slice * (gw * self.groups / disks) + (g * gw) / disks;
        let physical = (sectors * row + b / gw) << self.ashift;
        let s = psize >> self.ashift;
        let (q, r) = (s / self.data, s % self.data);
        let big = if r == 0 { 0 } else { r + p };
        let colsize = (q + u64::from(r != 0)) << self.ashift;
        let mut cols = Vec::with_capacity(gw as usize);
        for i in 0..gw {
            let len = if i < p { 0 } else { (q + u64::from(i < big)) << self.ashift };
            let wraps = first + i >= disks;
            cols.push(Col {
                child: Some(self.perms.child(slice, ((first + i) % disks) as usize)),
                offset: physical + if wraps { ROW } else { 0 },
                stored: colsize,
                start,
                len,
                scratch: false,
                sector: 0,
            });
            start += len;
        }
        ParityStripe { colsize, cols }
    }

    /// The range of child `child` that holds the whole stripes between two offsets of one
    /// group; `None` if the child is not in the group, or no stripe is whole.
    pub(crate) fn range_in_group(&self, child: u32, from: u64, to: u64) -> Option<(u64, u64)> {
        let stripe = self.group_width() << self.ashift;
        let start = from - from % self.group_size();
        let first = (from - start).next_multiple_of(stripe);
        let end = (to - start) / stripe * stripe;
        if first >= end {
            return None;
        }
        let psize = self.psize_of(end - first);
        let one = self.stripe(start + first, psize, 0);
        let col = one.cols.into_iter().find(|col| col.child == Some(child))?;
        Some((col.offset, col.stored))
    }

    /// The child that holds distributed spare `spare` at a child offset (§11.4), and
    /// the bytes from there to the end of the slice.
    pub(crate) fn spare_child(&self, spare: u32, offset: u64) -> Option<(u32, u64)> {
        let slice_size = self.group_size() * self.groups / self.disks();
        let position = self.perms.children.checked_sub(1 + spare as usize)?;
        if position < self.children {
            return None;
        }
        let child = self.perms.child(offset / slice_size, position);
        Some((child, slice_size - offset % slice_size))
    }
}

#[cfg(test)]
#[path = "draid_tests.rs"]
mod tests;
