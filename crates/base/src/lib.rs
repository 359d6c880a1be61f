//! The base of all Cenote crates: units and ids, the error type, buffers, the runtime
//! shim and the limits.
//!
//! **Invariant:** nothing here does device or file I/O, and nothing here depends on the
//! on-disk format. The only system calls are memory mapping (buffers), randomness and
//! the clock (the shim).

pub mod buf;
pub mod bug;
pub mod error;
pub mod ids;
pub mod limits;
pub mod planted;
pub mod range_lock;
pub mod rt;
pub mod units;
pub mod workers;

pub use buf::{Buf, BufMut};
pub use error::{Error, ErrorKind, Result};
pub use units::{Asize, Dva, Guid, Lsize, ObjectId, Psize, Txg, VdevId};
