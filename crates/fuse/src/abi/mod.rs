//! The FUSE kernel protocol: fixed structures and constants.
//!
//! # Theory
//! Messages between kernel and file system are C structures in the machine's own
//! byte order, padded by hand so that no compiler adds holes (Linux UAPI header
//! `linux/fuse.h`). Each is described once by [`wire!`], which makes a plain
//! struct with a checked reader and a writer: no pointer casts, no alignment
//! demands, no `unsafe`.
//!
//! # Invariants
//! * `Wire::SIZE` equals the size of the C structure (tested).
//! * Reading never looks outside the slice it was given.
//!
//! Versions 7.31 (Linux 5.4) to 7.45 (Linux 6.18) are spoken; structures have had
//! the same size over that range, except `fuse_setxattr_in`, whose form depends on
//! a flag of the INIT reply.

#![allow(dead_code, reason = "the protocol is stated whole, used or not")]

pub(crate) mod consts;
pub(crate) mod request;
pub(crate) mod structs;

/// Where encoded bytes go.
pub(crate) trait Sink {
    /// Appends `bytes`.
    fn bytes(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A fixed-size value of the protocol.
pub(crate) trait Wire: Sized {
    /// Bytes on the wire.
    const SIZE: usize;
    /// Takes a value off the front of `from`; `None` (and `from` unspecified) if it is too short.
    fn take(from: &mut &[u8]) -> Option<Self>;
    /// Appends the value.
    fn put(&self, to: &mut impl Sink);
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Wire for $t {
            const SIZE: usize = size_of::<$t>();
            fn take(from: &mut &[u8]) -> Option<Self> {
                let (head, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(<$t>::from_ne_bytes(*head))
            }
            fn put(&self, to: &mut impl Sink) {
                to.bytes(&self.to_ne_bytes());
            }
        }
    )*};
}
integers!(u16, u32, u64, i32, i64);

impl<T: Wire + Copy + Default, const N: usize> Wire for [T; N] {
    const SIZE: usize = T::SIZE * N;
    fn take(from: &mut &[u8]) -> Option<Self> {
        let mut out = [T::default(); N];
        for slot in &mut out {
            *slot = T::take(from)?;
        }
        Some(out)
    }
    fn put(&self, to: &mut impl Sink) {
        for item in self {
            item.put(to);
        }
    }
}

/// Declares structures of the protocol.
macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $t:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $name { $(pub(crate) $field: $t),* }
        impl $crate::abi::Wire for $name {
            const SIZE: usize = 0 $(+ <$t as $crate::abi::Wire>::SIZE)*;
            fn take(from: &mut &[u8]) -> Option<Self> {
                Some($name { $($field: <$t as $crate::abi::Wire>::take(from)?),* })
            }
            fn put(&self, to: &mut impl $crate::abi::Sink) {
                $($crate::abi::Wire::put(&self.$field, to);)*
            }
        }
    )*};
}
pub(crate) use wire;
