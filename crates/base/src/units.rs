//! Units and identifiers as separate types, so that two of them cannot be swapped in a
//! call.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $repr);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
        impl From<$repr> for $name {
            fn from(v: $repr) -> Self {
                $name(v)
            }
        }
    };
}

unit! {
    /// A transaction group number.
    Txg(u64)
}
unit! {
    /// A pool's or vdev's globally unique id; 0 means "none".
    Guid(u64)
}
unit! {
    /// An object id within one object set.
    ObjectId(u64)
}
unit! {
    /// The index of a top-level vdev below the root.
    VdevId(u32)
}
unit! {
    /// Bytes of a block as its reader sees it.
    Lsize(u64)
}
unit! {
    /// Bytes of a block as stored, after compression, before parity.
    Psize(u64)
}
unit! {
    /// Bytes allocated from a top-level vdev, parity and padding included.
    Asize(u64)
}

impl Txg {
    /// "No such txg"; also the birth of a hole that was never written.
    pub const ZERO: Txg = Txg(0);
    /// Larger than every real txg: "no limit".
    pub const MAX: Txg = Txg(u64::MAX);

    /// The next txg.
    pub fn next(self) -> Txg {
        Txg(self.0.saturating_add(1))
    }
}

/// A data virtual address: the location of one copy of a block (chapter 02 §1).
///
/// `offset` and `asize` are bytes within the top-level vdev's allocatable area.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Dva {
    /// Top-level vdev.
    pub vdev: VdevId,
    /// Byte offset in the vdev's allocatable area.
    pub offset: u64,
    /// Allocated bytes; zero means the address is not valid.
    pub asize: Asize,
    /// The address refers to a gang header instead of data.
    pub gang: bool,
}

impl Dva {
    /// Whether this address refers to anything.
    pub fn is_valid(&self) -> bool {
        self.asize.0 != 0
    }
}

impl fmt::Debug for Dva {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Dva {
    /// zdb's form: `<vdev:offset:asize>`, offset and size in hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}:{:x}:{:x}>", self.vdev.0, self.offset, self.asize.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dva_prints_like_zdb() {
        let dva = Dva { vdev: VdevId(6), offset: 0x6bcc00, asize: Asize(0x156400), gang: true };
        assert_eq!(dva.to_string(), "<6:6bcc00:156400>");
    }
}
