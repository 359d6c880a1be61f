//! Checksums, compressors and RAID-Z parity: bytes in, bytes out.
//!
//! # Theory
//! Everything here is a pure function of bytes (chapter 02 §5, §7, §10.4, §10.5).
//! Hot loops exist several times: a scalar version and SIMD versions by
//! instruction set. [`cpu`] measures those that the processor can run, once, and
//! uses the best from then on; every version stays reachable by name, so that
//! tests compare each with the scalar one and `cenote bench codecs` prints them all.
//!
//! # Invariants
//! * No function reads or writes outside the slices it was given, whatever the
//!   bytes in them, and none allocates in proportion to a length found in them.
//! * All implementations of one operation give equal results for every length
//!   and alignment.
//! * `unsafe` lives in the SIMD kernels (`checksum::fletcher_x86`, `raidz::kernel`,
//!   `raidz::x86`, and the calls into them in `raidz`) and in the three calls of
//!   the C library liblz4 (`compress::lz4`). No locks.

pub mod bench;
pub mod checksum;
pub mod compress;
pub mod cpu;
pub mod raidz;
